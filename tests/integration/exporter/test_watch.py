"""A thread or task of the exporter that ends: it is begun again and counted, and then ends the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.exporter.processes import ExporterProcess, until
from tests.integration.fleet.world import Probe, served

CLOCK = """
import os, sys, threading, time

# A clock past the year 2262, as Python reads one: for a thread, and as often as the file `faults` says.
read, read_ns, faults = time.time, time.time_ns, sys.argv.pop(1)
left = []

def past_2262(real):
    def clock():
        if threading.current_thread().name == THREAD and os.path.exists(faults):
            if not left:
                left.extend(range(int(open(faults).read())))
            left.pop()
            if not left:
                os.remove(faults)
            raise OverflowError("timestamp out of range for platform time_t")
        return real()
    return clock

time.time, time.time_ns = past_2262(read), past_2262(read_ns)
from infercanary.command.cli import main
main()
"""


@contextmanager
def exporter(folder: Path, thread: str) -> Iterator[ExporterProcess]:
    """One of one probe, whose clock can be broken for a thread."""
    with served(Probe("c")) as url:
        running = ExporterProcess(folder, {"c": url})
        running.command = ("-c", CLOCK.replace("THREAD", repr(thread)), "faults")
        running.start()
        try:
            until(running.works)
            yield running
        finally:
            assert running.process is not None
            running.process.kill()
            running.process.wait()


def breaks(folder: Path, times: int) -> None:
    (folder / "new").write_text(str(times))
    (folder / "new").replace(folder / "faults")


def test_a_thread_that_ended_once_is_started_again_and_counted(tmp_path: Path) -> None:
    with exporter(tmp_path, "judge") as running:
        breaks(tmp_path, 3)  # its turn, the log of that, and the log of its end
        until(lambda: running.values("infercanary_worker_failures_total") == {'{worker="judge"}': 1.0})
        until(lambda: running.values("infercanary_store_up") == {"": 1.0})
        assert running.process is not None and running.process.poll() is None


def test_a_judge_that_fails_at_each_turn_is_shown(tmp_path: Path) -> None:
    with exporter(tmp_path, "judge") as running:
        breaks(tmp_path, 10**6)
        until(lambda: running.values("infercanary_store_up") == {"": 0.0})
        (tmp_path / "faults").unlink()
        until(lambda: running.values("infercanary_store_up") == {"": 1.0})
        assert running.process is not None and running.process.poll() is None


def test_polls_that_end_again_end_the_process(tmp_path: Path) -> None:
    with exporter(tmp_path, "MainThread") as running:
        breaks(tmp_path, 10**6)  # the log of it fails, too
        assert running.process is not None
        assert running.process.wait(60) == 70, "Docker and Kubernetes start it again"
