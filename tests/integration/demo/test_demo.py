"""The demo as a newcomer runs it: a real server, exporter and, where installed, Prometheus."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.takes(100)


@contextmanager
def demo(temporary: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`infercanary demo`, its output line by line; killed with all its children if a test fails."""
    child = subprocess.Popen(
        [sys.executable, "-m", "infercanary", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "TMPDIR": str(temporary),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "120",  # numbers of a busy machine are wide, and names would be cut
            **environment,
        },
    )
    family = psutil.Process(child.pid)
    try:
        yield child
    finally:
        if child.poll() is None:
            for process in [*family.children(recursive=True), family]:
                process.kill()
        assert child.stdout is not None
        child.stdout.close()
        child.wait(10)


def read_until(child: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """The first line that matches; fails where the output ends before."""
    assert child.stdout is not None
    seen = []
    for line in child.stdout:
        seen.append(line)
        if match := re.search(pattern, line):
            return match
    pytest.fail(f"no line matches {pattern!r} in:\n{''.join(seen)}")


def buckets_with(url: str, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """The latency's buckets (upper bound → runs) from the first scrape of which ``holds`` is true."""
    deadline = time.monotonic() + 120
    while True:
        with urllib.request.urlopen(url, timeout=10) as response:
            found = re.findall(
                r'^infercanary_latency_seconds_bucket\{.*le="([^"]+)".*\} (\S+)',
                response.read().decode(),
                re.M,
            )
        if holds(counts := {bound: float(count) for bound, count in found}):
            return counts
        assert time.monotonic() < deadline, counts
        time.sleep(0.5)


SMALL = {"IMAGE_SIZE": "128", "INFERCANARY_INTERVAL_SECONDS": "0.3", "INFERCANARY_DUTY_CAP": "0.9"}
"""A model of a few milliseconds that runs several times a second."""


@pytest.mark.quiet
@pytest.mark.parametrize(
    ("environment", "seconds"),
    [pytest.param(SMALL, 300, id="small"), pytest.param({}, 240, id="as it is", marks=pytest.mark.campaign)],
)
def test_it_ends_in_a_verdict(tmp_path: Path, environment: dict[str, str], seconds: float) -> None:
    """As it is, within the four minutes that the README promises."""
    begin = time.monotonic()
    with demo(tmp_path, **environment) as child:
        output, _ = child.communicate(timeout=600)
    assert child.returncode == 0, output
    assert re.search(r"demo +resnet18 +(steady|warming) +\d+\.\d\d ms +\d+\.\d\d ms", output), output
    assert re.search(r"of the time \(duty\)", output), output
    words = " ".join(output.split())
    assert re.search(r"3\. The verdict: regressed \S+.*torch_cpu_capability \w+ → DEFAULT", words), output
    assert "nothing is left running" in output
    assert time.monotonic() - begin < seconds
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.campaign)])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    # A run every few seconds also where a busy machine makes the model slow.
    with demo(tmp_path, "--steady", INFERCANARY_DUTY_CAP="0.5") as child:
        url = read_until(child, r"metrics +(http://\S+/metrics)")[1]
        read_until(child, r"A canary run every")
        # Debian's Prometheus would keep its data in the system's folder, beside that of one which runs there.
        assert shutil.which("prometheus") is None or list(tmp_path.glob("*/data/lock"))
        children = psutil.Process(child.pid).children(recursive=True)
        assert len(children) >= 2
        first = buckets_with(url, lambda counts: bool(counts))
        later = buckets_with(url, lambda counts: counts["+Inf"] > first["+Inf"])
        assert later.keys() == first.keys()
        assert all(later[bound] >= count for bound, count in first.items()), "a bucket went back"
        child.send_signal(number)
        assert child.wait(30) == 0
    assert not psutil.wait_procs(children, timeout=5)[1]
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_cannot_start_is_named_in_one_line(tmp_path: Path) -> None:
    """Python finds no torch for the server: the demo says which part failed and why, and ends."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch for this test')\n")
    done = subprocess.run(
        [sys.executable, "-m", "infercanary", "demo"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("infercanary: the server ended with code 1: ImportError: no torch for this test")


def test_children_of_its_children_end_too(tmp_path: Path) -> None:
    """Also those that ignore SIGTERM."""
    script = (
        "import sys, time\n"
        "from infercanary.demo.processes import Processes\n"
        "with Processes() as processes:\n"
        "    processes.start('parent', ['sh', '-c', \"trap '' TERM; sleep 600 & echo $! > new; mv new pid; wait\"])\n"
        "    while not (processes.folder / 'pid').exists(): time.sleep(0.05)\n"
        "    print((processes.folder / 'pid').read_text())\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 0 and done.stderr == ""
    assert not psutil.pid_exists(int(done.stdout))
    assert list(tmp_path.iterdir()) == []
