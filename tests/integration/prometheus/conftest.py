"""Prometheus' own programs judge the shipped configuration; skipped, in one line, where they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

import pytest

Run = Callable[..., str]
"""From a program and its arguments to what it printed; a failure shows that."""


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """The path of a program that comes with Prometheus or Alertmanager."""

    def find(name: str) -> str:
        if (path := shutil.which(name)) is not None:
            return path
        missing = f"{name} is not on PATH: it comes with Prometheus or Alertmanager"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)

    return find


@pytest.fixture(scope="session")
def tool(program: Callable[[str], str]) -> Run:
    """Runs a program, which must succeed."""

    def run(name: str, *arguments: str) -> str:
        done = subprocess.run([program(name), *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{name} {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run
