"""How long ago the container started, out of files like the kernel's."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from infercanary.probe.start import since_start

HOST, CONTAINER = "pid:[4026531836]", "pid:[4026532001]"


def proc(folder: Path, namespace: str, ages: dict[str, float]) -> Path:
    """A /proc with processes that started so many seconds ago."""
    for name, age in ages.items():
        (folder / name).mkdir()
        ticks = int((time.clock_gettime(time.CLOCK_BOOTTIME) - age) * os.sysconf("SC_CLK_TCK"))
        (folder / name / "stat").write_text(f"7 (a (name)) S {' '.join(['0'] * 18)} {ticks} 0 0\n")
    (folder / "self" / "ns").mkdir()
    (folder / "self" / "ns" / "pid").symlink_to(namespace)
    return folder


@pytest.mark.parametrize(
    ("namespace", "ages", "seconds"),
    [
        pytest.param(CONTAINER, {"1": 90.0, "self": 88.0}, 90.0, id="a container: of its first process"),
        pytest.param(HOST, {"1": 9e5, "self": 88.0}, 88.0, id="no container: of this process"),
        pytest.param(CONTAINER, {"1": 9e5, "self": 5.0}, None, id="started again, days later"),
    ],
)
def test_a_cold_start_is_the_containers(
    tmp_path: Path, namespace: str, ages: dict[str, float], seconds: float | None
) -> None:
    found = since_start(proc(tmp_path, namespace, ages))
    assert found == (None if seconds is None else pytest.approx(seconds, abs=1.0))


def test_without_proc_it_is_since_the_import(tmp_path: Path) -> None:
    assert 0 <= (since_start(tmp_path) or -1) < 3600
