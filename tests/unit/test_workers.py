"""The run of the tests itself: a process that is killed fails it soon, and no other one is waited for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KILLED = """
import os, pathlib, time

def test_good():
    pass

def test_that_takes_too_much():
    while not pathlib.Path("started").exists():
        time.sleep(0.05)
    os.kill(os.getpid(), 9)

def test_after_it():
    pass
"""
LONG = """
import pathlib, time
import pytest

@pytest.fixture
def resource():
    pathlib.Path("started").touch()
    yield
    pathlib.Path("torn_down").touch()

def test_long(resource):
    time.sleep(300)
"""


@pytest.mark.takes(8)
def test_a_killed_worker_fails_the_run_within_a_minute(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    quiet\n    takes\n")
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tests)
    (tests / "test_killed.py").write_text(KILLED)
    (tests / "test_long.py").write_text(LONG)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-n", "2", "tests"], cwd=tmp_path, timeout=60,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "FAILED tests/test_killed.py::test_that_takes_too_much - worker" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert (tmp_path / "torn_down").exists()
