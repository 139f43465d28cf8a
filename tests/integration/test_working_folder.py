"""The working folder of an app contains modules with the names of standard modules and of dependencies."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from infercanary.ab.process import Host
from infercanary.ab.reaper import Reaper
from infercanary.ab.sides import Side
from tests.programs import ended
from tests.scenarios import cases

DEPENDENCIES = ("yaml", "msgspec", "click", "psutil", "numpy")
STANDARD = ("types", "queue", "statistics", "typing", "logging", "dataclasses")
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
SETTINGS = {
    "canaries": {"quick": {"target": "quick:Quick"}}, "controls": False, "samplers": {"nvml": False},
}  # fmt: skip


@pytest.fixture
def app(tmp_path):
    folder = tmp_path / "app"
    folder.mkdir()
    for name in (*STANDARD, *DEPENDENCIES):
        (folder / f"{name}.py").write_text("raise ImportError('a module of the app')\n")
    (folder / "quick.py").write_text(TARGET)
    return folder


@pytest.fixture
def command(tmp_path):
    """Return the command as a script, as pip installs it: the search path then lacks the working folder."""
    script = tmp_path / "infercanary"
    script.write_text("from infercanary.command.cli import main\nmain()\n")
    return [sys.executable, str(script)]


@pytest.fixture
def run(app, command):
    return lambda *arguments, **environment: ended(*command, *arguments, code=None, cwd=app, env=environment)


def report(url):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/report", timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            time.sleep(0.1)
    pytest.fail("no probe answers")


@cases(["", ".", os.pathsep])
def test_the_probe_beside_a_server_and_the_doctor_find_the_users_model(path, app, command, run):
    """If the folder in PYTHONPATH shadows a standard module, Python itself fails to start."""
    environment = {}
    if path:
        for name in STANDARD:
            (app / f"{name}.py").unlink()
        environment["PYTHONPATH"] = os.pathsep.join([path, os.environ.get("PYTHONPATH", "")])
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    (app / "probe.yaml").write_text(json.dumps({**SETTINGS, "listen": listen}))
    process = subprocess.Popen(
        [*command, "beside", "--", "sleep", "90"],
        cwd=app, env=os.environ | environment, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert "quick" in report(f"http://{listen}")
    finally:
        process.terminate()
        process.wait(20)
    done = run("doctor", "--only", "host", "--json", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert not [check for check in json.loads(done.stdout)["checks"] if "crashed" in check["why"]]


def test_a_doctor_whose_checks_cannot_be_made_says_so(tmp_path, command):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'infercanary.doctor.answering' in sys.orig_argv:\n"
        "    os.write(2, b'Traceback\\nImportError: no such library\\n')\n"
        "    os._exit(3)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = ended(*command, "doctor", code=1, env={"PYTHONPATH": path})
    assert done.stdout == ""
    *_, reason, last = done.stderr.splitlines()
    assert reason == "ImportError: no such library"
    assert "the checks cannot run: the process of the check ended (exit status 3)" in last


@cases(
    [
        ("quick:Quick", 0, ""),
        (
            "queue:Model",
            2,
            "queue.py) has no `Model`",
        ),  # the path shows that this is not the user's file
    ],
)
def test_check_config_tells_the_users_model_from_a_library(target, code, said, app, run):
    (app / "probe.yaml").write_text(json.dumps({"canaries": {"c": {"target": target}}}))
    done = run("check-config", "--probe", "probe.yaml")
    assert done.returncode == code
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)


def test_an_experiments_processes(app, monkeypatch):
    monkeypatch.chdir(app)
    with Reaper() as reaper:
        host = Host(Side(python=sys.executable, probe=SETTINGS), reaper)
        try:
            assert "quick" in report(host.start()[0])
        finally:
            host.end()
    assert reaper._child.returncode == 0
