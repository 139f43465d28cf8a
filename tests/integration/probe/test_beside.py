"""The entrypoint, as a real process with a real server and a real probe as its children."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import yaml

TARGET = """
from infercanary.probe.timing import HostClock


class Quick:
    clock = HostClock()

    def open(self): pass
    def run(self, phase): return 1.0
    def values(self, result): return [result]
    def environment(self): return {}
    def close(self): pass
"""
# Prints what it is sent, and ends by SIGTERM with 7.
SERVER = """
import signal, sys, time

def signalled(number, _):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(7)

for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, signalled)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""

Beside = Callable[..., "subprocess.Popen[str]"]


def eventually(check: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Of the probe's report, by the settings in the folder."""
    (tmp_path / "quick.py").write_text(TARGET)
    listen = f"127.0.0.1:{port()}"
    settings = {"canaries": {"quick": {"target": "quick:Quick"}}, "listen": listen, "controls": False}
    (tmp_path / "probe.yaml").write_text(yaml.safe_dump(settings))
    return f"http://{listen}/report"


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    """Starts the entrypoint with a server's command; nothing of it is left afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(*server: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "infercanary", "beside", "--", *server],
            cwd=tmp_path, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        process.communicate()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.read())
    except OSError:
        return False


def probe_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "probe" in child.cmdline():
                found.append(child)
    return found


def test_signals_and_the_exit_code_are_the_servers(beside: Beside, url: str) -> None:
    process = beside(sys.executable, "-c", SERVER)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    eventually(lambda: answers(url))
    [probe] = probe_of(process)
    assert Path(f"/proc/{probe.pid}/oom_score_adj").read_text() == "1000\n"
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM):
        process.send_signal(number)
        assert process.stdout.readline() == f"{number.name}\n"
    assert process.wait(20) == 7
    assert not probe.is_running(), "the probe ends with the server"


@pytest.mark.parametrize(("code", "seen"), [("exit 3", 3), ("kill -KILL $$", 137), ("exit 0", 0)])
def test_the_exit_code_of_a_server_that_ends(beside: Beside, url: str, code: str, seen: int) -> None:
    process = beside("sh", "-c", f"sleep 0.3; {code}")
    assert process.wait(20) == seen


def test_a_server_dies_of_a_broken_pipe_as_in_a_shell(beside: Beside, url: str) -> None:
    """Python ignores SIGPIPE, which children inherit: `yes` would then print an error and end with 1."""
    process = beside("sh", "-c", "kill -PIPE $$; sleep 0.2; exit 5")
    assert process.wait(20) == 128 + signal.SIGPIPE


def test_a_probe_that_is_killed_comes_back(beside: Beside, url: str) -> None:
    process = beside(sys.executable, "-c", SERVER)
    eventually(lambda: answers(url))
    [first] = probe_of(process)
    first.kill()
    eventually(lambda: not first.is_running() or first.status() == psutil.STATUS_ZOMBIE)
    eventually(lambda: [new for new in probe_of(process) if new.pid != first.pid])
    eventually(lambda: answers(url))
    [second] = probe_of(process)
    assert second.pid != first.pid
    process.terminate()
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 7
    assert "the probe ended with exit code 137; it is started again in 1 s, and the server goes on" in errors


def test_wrong_settings_leave_the_server_serving(beside: Beside, url: str, tmp_path: Path) -> None:
    (tmp_path / "probe.yaml").write_text("canaries: {}\n")
    process = beside(sys.executable, "-c", SERVER)
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(2)]
    assert lines[0].startswith("infercanary: probe.yaml: canaries")
    assert (
        "the probe ended with exit code 2; it is started again in 300 s, and the server goes on" in lines[1]
    )
    time.sleep(1.5)
    assert process.poll() is None and not probe_of(process)
    process.terminate()
    assert process.wait(20) == 7


def test_no_such_server_is_one_line(beside: Beside, url: str) -> None:
    process = beside("no-such-server", "--port", "1")
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert errors == (
        "infercanary: `no-such-server` cannot be run: No such file or directory; give the server's command after `--`\n"
    )


@pytest.mark.root
def test_orphans_are_reaped_where_it_is_process_1(beside: Beside, url: str) -> None:
    """A process namespace, as a container has: what the server orphans becomes its child."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for a process namespace")
    process = beside_in_a_namespace(url)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "0 zombies\n"
    finally:
        process.kill()
        process.communicate()


def beside_in_a_namespace(url: str) -> subprocess.Popen[str]:
    server = (
        "for i in 1 2 3; do (sleep 0.1 &) ; done; sleep 1; "
        "echo $(grep -sl '^State:.Z' /proc/[0-9]*/status | wc -l) zombies; sleep 30"
    )
    return subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
         sys.executable, "-m", "infercanary", "beside", "--", "sh", "-c", server],
        text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
