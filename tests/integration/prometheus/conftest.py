"""Prometheus' own programs check the shipped configuration. Without the programs, pytest skips these tests."""

import os
import shutil
from pathlib import Path

import pytest

from tests.programs import ended

PROGRAMS = ("promtool", "amtool", "alertmanager")


@pytest.fixture(scope="session")
def tool():
    """Return a function that runs one of the programs, which must succeed.

    With rare garbage collections, promtool needs a quarter less CPU time, and at most 300 MB.
    """
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        # In CI, missing programs fail the tests, because skipped tests would pass.
        why = f"not on PATH: {', '.join(missing)}, which come with Prometheus and Alertmanager"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)

    def run(name, *arguments):
        done = ended(name, *arguments, seconds=300, env={"GOGC": "1000"})
        return done.stdout + done.stderr

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        # pytest's summary has a line for each file with skipped tests: print one line for the folder.
        report.longrepr = (str(Path(__file__).parent), None, report.longrepr[2])
    return report
