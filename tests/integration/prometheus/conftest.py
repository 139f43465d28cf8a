"""Prometheus' own programs check the shipped configuration. Tests are skipped if the programs are missing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAMS = ("promtool", "amtool", "alertmanager")

ENVIRONMENT = {**os.environ, "GOGC": "1000"}
"""promtool's garbage is collected seldom, which takes a quarter less CPU time and 300 MB at most."""


@pytest.fixture(scope="session")
def tool():
    """Runs one of the programs, which must succeed."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        # In CI it would be green without them.
        why = f"not on PATH: {', '.join(missing)}, which come with Prometheus and Alertmanager"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)

    def run(name, *arguments):
        done = subprocess.run(
            [name, *arguments], capture_output=True, text=True, timeout=300, env=ENVIRONMENT
        )
        assert done.returncode == 0, f"{name} {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        # pytest's summary has a line for each place that skips: let this folder be one.
        report.longrepr = (str(Path(__file__).parent), None, report.longrepr[2])
    return report
