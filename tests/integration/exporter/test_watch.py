"""The exporter restarts and counts a thread or task that ended; after a second end, the process ends."""

from contextlib import contextmanager

from tests.integration.exporter.processes import ExporterProcess, until
from tests.integration.fleet.world import Probe, served

CLOCK = """
import os, sys, threading, time

# While the file `faults` exists, one thread's clock fails like a clock past the year 2262.
faults = sys.argv.pop(1)

def past_2262(real):
    def clock():
        if threading.current_thread().name == THREAD and os.path.exists(faults):
            raise OverflowError("timestamp out of range for platform time_t")
        return real()
    return clock

time.time, time.time_ns = past_2262(time.time), past_2262(time.time_ns)
from infercanary.command.cli import main
main()
"""


@contextmanager
def exporter(folder, thread):
    probe = Probe("c")
    with served(probe) as url:
        running = ExporterProcess(folder, {"c": url})
        running.command = ("-c", CLOCK.replace("THREAD", repr(thread)), "faults")
        running.start()
        try:
            until(running.works)
            (folder / "faults").touch()
            yield running, probe
        finally:
            running.process.kill()
            running.process.wait()


def test_a_judge_that_fails_at_each_turn_is_shown_and_its_thread_is_started_again(tmp_path):
    """In the judge's first failing turn, the log call fails as well, which ends the thread."""
    with exporter(tmp_path, "judge") as (running, probe):
        probe.upgrade(0.02, "2")  # a turn without judgements does not read the clock
        until(lambda: running.values("infercanary_worker_failures_total") == {'{worker="judge"}': 1.0})
        until(lambda: running.values("infercanary_store_up") == {"": 0.0})
        (tmp_path / "faults").unlink()
        until(lambda: running.values("infercanary_store_up") == {"": 1.0})
        assert running.process.poll() is None


def test_polls_that_end_again_end_the_process(tmp_path):
    with exporter(tmp_path, "MainThread") as (running, _):
        assert running.process.wait(60) == 70  # the process ends, so that Docker or Kubernetes restarts it
