"""A thread or task of the exporter that ends: it is begun again and counted, and then ends the process."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ports import free_port

from tests.integration.exporter.processes import until
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
def exporter(folder: Path, thread: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """One of one probe, whose clock can be broken for a thread."""
    with served(Probe("c")) as url:
        yield from _exporter(folder, thread, url)


def _exporter(folder: Path, thread: str, url: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port = free_port()
    (folder / "exporter.yaml").write_text(
        f"listen: 127.0.0.1:{port}\npoll_seconds: 0.1\ndiscovery: none\n"
        f"probes: [{{url: '{url}', service: s, container: c}}]\n"
    )
    code = textwrap.dedent(CLOCK).replace("THREAD", repr(thread))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code, folder / "faults", "exporter", "--config", folder / "exporter.yaml"],
            stderr=log,
        )
    try:
        until(lambda: re.search(r"(?m)^infercanary_stored_runs_total [1-9]", metrics(port)))
        yield process, port
    finally:
        process.kill()
        process.wait()


def metrics(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
    except OSError:
        return ""
    return text


def breaks(folder: Path, times: int) -> None:
    (folder / "new").write_text(str(times))
    (folder / "new").replace(folder / "faults")


def test_a_thread_that_ended_once_is_started_again_and_counted(tmp_path: Path) -> None:
    with exporter(tmp_path, "judge") as (process, port):
        breaks(tmp_path, 3)  # its turn, the log of that, and the log of its end
        until(lambda: 'infercanary_worker_failures_total{worker="judge"} 1.0' in metrics(port))
        until(lambda: "infercanary_store_up 1.0" in metrics(port))
        assert process.poll() is None


def test_a_judge_that_fails_at_each_turn_is_shown(tmp_path: Path) -> None:
    with exporter(tmp_path, "judge") as (process, port):
        breaks(tmp_path, 10**6)
        until(lambda: "infercanary_store_up 0.0" in metrics(port))
        (tmp_path / "faults").unlink()
        until(lambda: "infercanary_store_up 1.0" in metrics(port))
        assert process.poll() is None


def test_polls_that_end_again_end_the_process(tmp_path: Path) -> None:
    with exporter(tmp_path, "MainThread") as (process, _):
        breaks(tmp_path, 10**6)  # the log of it fails, too
        assert process.wait(60) == 70, "Docker and Kubernetes start it again"
