"""The entrypoint, as a real process with a real server and a real probe as its children."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shlex
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
# Prints the number of each signal that it gets, and ends with 7 by the second SIGTERM, or the first where it is hasty.
SERVER = """
import os, signal, sys, time

terms = 2 if "patient" in sys.argv else 1

def signalled(number, _):
    global terms
    os.write(1, b"%d\\n" % number)  # print() in a handler that interrupts another one fails
    terms -= number == signal.SIGTERM
    if not terms:
        sys.exit(7)

for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, signalled)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
NOT_PASSED_ON = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}

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
        with process:  # closes its pipes: a server that was orphaned still holds the other ends
            pass


def line(process: subprocess.Popen[str]) -> str:
    """The server's next line; a server that prints none fails the test, and does not hang it."""
    assert process.stdout is not None and select.select([process.stdout], [], [], 20)[0]
    return process.stdout.readline()


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
    assert line(process) == "ready\n"
    eventually(lambda: answers(url))
    [probe] = probe_of(process)
    assert Path(f"/proc/{probe.pid}/oom_score_adj").read_text() == "1000\n"
    # SIGINT and SIGTERM tell the probe too, and so come last.
    others = sorted(signal.valid_signals() - NOT_PASSED_ON - {signal.SIGINT, signal.SIGTERM})
    for number in (*others, signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
        assert line(process) == f"{number:d}\n"
    assert process.wait(20) == 7
    assert not probe.is_running(), "the probe ends with the server"


def test_a_probe_ends_while_the_server_still_stops_and_is_not_started_again(beside: Beside, url: str) -> None:
    process = beside(sys.executable, "-c", SERVER, "patient")
    assert line(process) == "ready\n"
    eventually(lambda: answers(url))
    process.send_signal(signal.SIGTERM)
    assert line(process) == f"{signal.SIGTERM:d}\n"
    eventually(lambda: not probe_of(process))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 7
    assert "started again" not in errors


def test_a_probe_that_hangs_is_killed_when_the_server_has_ended(beside: Beside, url: str) -> None:
    process = beside(sys.executable, "-c", SERVER)
    eventually(lambda: answers(url))
    [probe] = probe_of(process)
    probe.suspend()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 7
    assert not probe.is_running()


@pytest.mark.parametrize(
    ("server", "sent", "seen"),
    [
        ("echo ready; exit 3", None, 3),
        ("echo ready; kill -KILL $$", None, 137),
        ("echo ready; exit 0", None, 0),
        ("trap 'exit 9' QUIT; echo ready; while :; do sleep 0.1; done", signal.SIGQUIT, 9),
        ("echo ready; exec sleep 60", signal.SIGRTMIN + 3, 128 + signal.SIGRTMIN + 3),
        ("echo ready; exec sleep 60", signal.SIGALRM, 128 + signal.SIGALRM),
    ],
)
def test_the_exit_code_of_a_server_that_ends(
    beside: Beside, url: str, server: str, sent: int | None, seen: int
) -> None:
    process = beside("sh", "-c", server)
    assert line(process) == "ready\n"
    if sent is not None:
        process.send_signal(sent)
    assert process.wait(20) == seen


def test_a_terminal_stops_and_continues_both_and_its_ctrl_c_comes_once(url: str, tmp_path: Path) -> None:
    """A shell in a terminal of its own, with job control: Ctrl-Z, then `fg`, then Ctrl-C."""
    (tmp_path / "server.py").write_text(SERVER)
    python = shlex.quote(sys.executable)
    beside = f"{python} -m infercanary beside -- {python} server.py 2>errors"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execvp("bash", ["bash", "-c", f"set -m; {beside}; echo stopped $?; fg >/dev/null; echo ended $?"])
    output = os.fdopen(terminal, "rb+", buffering=0)

    def read_until(*words: bytes) -> bytes:
        text = b""
        while not all(word in text for word in words):
            assert select.select([output], [], [], 30)[0], text
            text += output.read(1)
        return text

    try:
        read_until(b"ready\r\n")
        eventually(lambda: answers(url))
        output.write(b"\x1a")
        # In either order. That the server itself saw the stop is not sure: a SIGCONT discards one that is pending.
        lines = f"stopped {128 + signal.SIGTSTP:d}", f"{signal.SIGCONT:d}"
        read_until(*(f"{line}\r\n".encode() for line in lines))
        output.write(b"\x03")
        read_until(f"{signal.SIGINT:d}\r\n".encode())
        [process] = psutil.Process(pid).children()
        eventually(lambda: len(process.children()) == 1)  # the probe has ended, the server has not
        process.terminate()
        text = read_until(b"ended 7\r\n")
        assert f"{signal.SIGINT:d}\r\n".encode() not in text
    finally:
        for child in psutil.Process(pid).children(recursive=True):
            child.kill()
        output.close()
        os.waitpid(pid, 0)


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
    assert (
        "the probe ended with exit code 137 (killed, by the kernel where memory was used up); it is started again"
        in errors
    )


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
        assert line(process) == "0 zombies\n"
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
