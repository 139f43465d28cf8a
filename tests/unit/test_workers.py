"""The test run soon fails if a test process is killed, or if a test takes too much memory."""

import functools
import os
import signal
import subprocess
import sys

import pytest

from tests.programs import ROOT

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

GREEDY = """
import subprocess, sys

CODE = "bytes(b'x' * (200 << 20))"

def test_frugal():
    bytes(b"x" * (10 << 20))

def test_greedy():
    exec(CODE)

def test_greedy_child():
    subprocess.run([sys.executable, "-c", CODE], check=True)

def test_frugal_after_it():
    subprocess.run([sys.executable, "-c", ""], check=True)
"""
CONFTEST = (ROOT / "tests/conftest.py").read_text()


def run(folder, *options, settings="", paths=("tests",)):
    (folder / "pytest.ini").write_text(f"[pytest]\n{settings}markers =\n    quiet\n    takes\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:asyncio", *options, *paths], cwd=folder, timeout=60,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True, text=True, check=False,
        # A shell's background command ignores SIGINT, but SIGINT must end a worker.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def suite(folder, conftest=CONFTEST, **files):
    (folder / "tests").mkdir()
    for name, text in {"conftest": conftest, **files}.items():
        (folder / f"tests/{name}.py").write_text(text)


def test_a_file_that_cannot_be_imported_fails(tmp_path):
    """Regression: pytest used the half-imported module, and its tests after the error were missing without a
    message.
    """
    good = "def test_good():\n    pass\n"
    suite(tmp_path, test_half=f"{good}\nraise ValueError('half')\n", test_whole=good)
    settings = "testpaths = tests\naddopts = --import-mode=importlib\n"
    done = run(tmp_path, "--numprocesses=2", settings=settings, paths=())
    assert done.returncode != 0 and "ValueError: half" in done.stdout, done.stdout


def test_a_test_that_takes_too_much_memory_fails(tmp_path):
    assert CONFTEST.count("MOST_MEMORY = 1 << 30\n") == 1
    suite(
        tmp_path, CONFTEST.replace("MOST_MEMORY = 1 << 30\n", "MOST_MEMORY = 100 << 20\n"), test_memory=GREEDY
    )
    done = run(tmp_path)
    assert "2 failed, 2 passed" in done.stdout
    for name in ("test_greedy", "test_greedy_child"):
        assert f"FAILED tests/test_memory.py::{name} - AssertionError: took 2" in done.stdout


@pytest.mark.takes(8)
def test_a_killed_worker_fails_the_run_within_a_minute(tmp_path):
    suite(tmp_path, test_killed=KILLED, test_long=LONG)
    done = run(tmp_path, "-n", "2")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "FAILED tests/test_killed.py::test_that_takes_too_much - worker" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert (tmp_path / "torn_down").exists()
