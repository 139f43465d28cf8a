"""An app's modules in the working folder are named like those of the standard library and of dependencies."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from infercanary.ab.process import Host
from infercanary.ab.reaper import Reaper
from infercanary.ab.sides import Side

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
CANARIES = {"quick": {"target": "quick:Quick"}}


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A folder with such modules, and a model of the user's."""
    folder = tmp_path / "app"
    folder.mkdir()
    for name in (*STANDARD, *DEPENDENCIES):
        (folder / f"{name}.py").write_text("raise ImportError('a module of the app')\n")
    (folder / "quick.py").write_text(TARGET)
    return folder


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """The command as pip installs it: a script, in whose search path the working folder is not."""
    script = tmp_path / "infercanary"
    script.write_text("from infercanary.command.cli import main\nmain()\n")
    return [sys.executable, str(script)]


def environment(app: Path, path: str) -> dict[str, str]:
    """With the working folder in PYTHONPATH, where no Python starts if a standard module is shadowed."""
    if path:
        for name in STANDARD:
            (app / f"{name}.py").unlink()
        path = os.pathsep.join([path, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, **({"PYTHONPATH": path} if path else {})}


def report(url: str) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/report", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            time.sleep(0.1)
    pytest.fail("no probe answers")


PATHS = pytest.mark.parametrize("path", ["", ".", os.pathsep, "ABSOLUTE"])


@PATHS
def test_the_probe_beside_a_server_runs_the_users_model(app: Path, command: list[str], path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {"canaries": CANARIES, "listen": listen, "controls": False, "samplers": {"nvml": False}}
    (app / "probe.yaml").write_text(yaml.safe_dump(settings))
    process = subprocess.Popen(
        [*command, "beside", "--", "sleep", "60"],
        cwd=app, env=environment(app, path.replace("ABSOLUTE", str(app))), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert "quick" in json.dumps(report(f"http://{listen}"))
    finally:
        process.terminate()
        process.wait(20)


@PATHS
def test_the_doctors_checks_are_made(app: Path, command: list[str], path: str) -> None:
    done = subprocess.run(
        [*command, "doctor", "--only", "host", "--json"],
        cwd=app, env=environment(app, path.replace("ABSOLUTE", str(app))), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert not [check for check in json.loads(done.stdout)["checks"] if "crashed" in check["why"]]


@pytest.mark.parametrize("format_", [(), ("--json",)])
def test_a_doctor_whose_checks_cannot_be_made_says_so(
    tmp_path: Path, command: list[str], format_: tuple[str, ...]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'infercanary.doctor.answering' in sys.orig_argv:\n"
        "    os.write(2, b'Traceback\\nImportError: no such library\\n')\n"
        "    os._exit(3)\n"
    )
    done = subprocess.run(
        [*command, "doctor", *format_],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    *_, reason, last = done.stderr.splitlines()
    assert reason == "ImportError: no such library"
    assert (
        last
        == "infercanary: doctor: the checks cannot be made: its process ended (exit status 3): a library crashed"
    )


def test_check_config_finds_the_users_model(app: Path, command: list[str]) -> None:
    (app / "probe.yaml").write_text(yaml.safe_dump({"canaries": CANARIES}))
    done = subprocess.run(
        [*command, "check-config", "--probe", "probe.yaml"],
        cwd=app,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_model_that_is_named_like_a_library_is_told_apart(app: Path, command: list[str]) -> None:
    (app / "probe.yaml").write_text(yaml.safe_dump({"canaries": {"c": {"target": "queue:Model"}}}))
    done = subprocess.run(
        [*command, "check-config", "--probe", "probe.yaml"],
        cwd=app,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "queue.py) has no `Model`" in done.stderr  # the path shows that it is another file than the user's


def test_an_experiments_processes(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe under an interpreter, and the reaper."""
    monkeypatch.chdir(app)
    settings = {"canaries": CANARIES, "controls": False, "samplers": {"nvml": False}}
    with Reaper() as reaper:
        host = Host(Side(python=sys.executable, probe=settings), reaper)
        try:
            assert "quick" in json.dumps(report(host.start()[0]))
        finally:
            host.end()
    assert reaper._child.returncode == 0
