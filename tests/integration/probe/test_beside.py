"""The entrypoint in a real process, which becomes a real server with a real probe beside it."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from ports import free_port
from watching import MODULES, until

# Prints the number of each signal, and exits with code 7 at SIGTERM.
SERVER = """
import os, signal, sys, time

def signalled(number, _):
    os.write(1, b"%d\\n" % number)  # print() in a handler that interrupts another one fails
    if number == signal.SIGTERM:
        sys.exit(7)

for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, signalled)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
NOT_CAUGHT = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}


@pytest.fixture
def url(tmp_path):
    listen = f"127.0.0.1:{free_port()}"
    (tmp_path / "probe.yaml").write_text(
        f"listen: {listen}\ncontrols: false\ncanaries: {{quick: {{target: 'scripted:Scripted'}}}}\n"
    )
    return f"http://{listen}/report"


@pytest.fixture
def beside(tmp_path):
    started = []

    def start(*server):
        command = [sys.executable, "-m", "infercanary", "beside", "--", *server]
        process = subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(MODULES)}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        with process:  # close the pipes, which an orphaned server still has open
            pass
    until(lambda: not [child for child in psutil.process_iter(["cwd"]) if child.info["cwd"] == str(tmp_path)])


def line(process):
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 20)[0]
    return process.stdout.readline()


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.read())
    except OSError:
        return False


def probe_of(process):
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "probe" in child.cmdline() and "beside" not in child.cmdline():
                found.append(child)
    return found


def ends(*processes):
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def test_signals_and_the_exit_code_are_the_servers(beside, url):
    process = beside(sys.executable, "-c", SERVER)
    assert line(process) == "ready\n"
    assert psutil.Process(process.pid).cmdline()[:2] == [sys.executable, "-c"], (
        "the server has the entrypoint's process id"
    )
    until(lambda: answers(url))
    [probe] = probe_of(process)
    supervisor = probe.parent()
    assert supervisor is not None
    assert Path(f"/proc/{probe.pid}/oom_score_adj").read_text() == "1000\n"
    assert os.getsid(probe.pid) == supervisor.pid != os.getsid(process.pid), (
        "a terminal's Ctrl-C must reach only the server"
    )
    for number in (*sorted(signal.valid_signals() - NOT_CAUGHT - {signal.SIGTERM}), signal.SIGTERM):
        process.send_signal(number)
        assert line(process) == f"{number:d}\n"
    assert process.wait(20) == 7
    until(lambda: ends(probe, supervisor))


def test_a_probe_that_hangs_is_killed_when_the_server_was(beside, url):
    process = beside(sys.executable, "-c", SERVER)
    until(lambda: answers(url))
    [probe] = probe_of(process)
    supervisor = probe.parent()
    assert supervisor is not None
    probe.suspend()
    process.kill()
    process.wait(20)
    until(lambda: ends(probe, supervisor))


@pytest.mark.parametrize(
    ("server", "sent", "seen"),
    [
        ("echo ready; exit 3", None, 3),
        ("echo ready; exec sleep 60", signal.SIGRTMIN + 3, -(signal.SIGRTMIN + 3)),
        # Python ignores SIGPIPE, and its child processes would inherit this.
        ("echo ready; kill -PIPE $$; sleep 0.2; exit 5", None, -signal.SIGPIPE),
    ],
)
def test_the_exit_code_of_a_server_that_ends(beside, url, server, sent, seen):
    process = beside("sh", "-c", server)
    assert line(process) == "ready\n"
    if sent is not None:
        process.send_signal(sent)
    assert process.wait(20) == seen


def said(process, words):
    assert process.stderr is not None
    text = ""

    def is_there():
        nonlocal text
        if process.stderr is not None and select.select([process.stderr], [], [], 0)[0]:
            text += os.read(process.stderr.fileno(), 65_536).decode()
        return re.search(words, text) is not None

    until(is_there, words)


def test_a_probe_that_ends_comes_back_and_one_that_was_killed_later(beside, url):
    process = beside(sys.executable, "-c", SERVER)
    until(lambda: answers(url))
    [first] = probe_of(process)
    first.terminate()
    said(process, "the probe ended with exit code 0.* started again in 1 s, and the server goes on")
    until(lambda: [new for new in probe_of(process) if new.pid != first.pid] and answers(url))
    [second] = probe_of(process)
    second.kill()
    said(process, "the probe was killed.* started again in 300 s, and the server goes on")
    process.terminate()
    assert process.wait(20) == 7


def test_wrong_settings_leave_the_server_serving(beside, url, tmp_path):
    (tmp_path / "probe.yaml").write_text("canaries: {}\n")
    process = beside(sys.executable, "-c", SERVER)
    said(process, "(?s)infercanary: probe.yaml: canaries.*ended with exit code 2.* started again in 300 s")
    time.sleep(1.5)
    assert process.poll() is None
    assert not probe_of(process)
    process.terminate()
    assert process.wait(20) == 7


def test_no_such_server_is_one_line(beside, url):
    process = beside("no-such-server", "--port", "1")
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "`no-such-server` cannot be run: No such file or directory; give the server's command" in errors
    assert len(errors.splitlines()) == 1
