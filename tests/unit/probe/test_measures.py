"""What is read around a run, of a made folder in place of /proc/self and of scripted targets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from infercanary.contract.measures import DEVICE_MEMORY, HOST_MEMORY, MEASURES, THROUGHPUT
from infercanary.probe.measures import MEMORY, RATE, Taking, shown
from infercanary.probe.timing import Timing

TIMINGS = [Timing(0.1, {}), Timing(0.3, {})]
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "status").write_text(
        "Name:\tpython\nVmPeak:\t  99 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n"
    )
    (tmp_path / "statm").write_text("900 300 200 1 0 500 0\n")
    (tmp_path / "clear_refs").write_text("")
    return tmp_path


class Counting:
    """A target that counts samples and the memory of its engine."""

    def __init__(self, samples: Any = 8, peak: Any = 5000) -> None:
        self.samples = samples
        self.peak = peak
        self.resets = 0

    def reset_peak_memory(self) -> None:
        self.resets += 1

    def peak_memory(self) -> Any:
        if isinstance(self.peak, Exception):
            raise self.peak
        return self.peak


def taken(
    target: Any, proc: Path, *, is_guest: bool = False, calls_a_server: bool = False
) -> dict[str, float]:
    taking = Taking(target, proc)
    taking.is_guest = is_guest
    taking.begin()
    return taking.end(TIMINGS, calls_a_server)


def test_the_peak_is_that_of_the_run(proc: Path) -> None:
    target = Counting()
    assert taken(target, proc) == {THROUGHPUT: 8 / 0.2, HOST_MEMORY: 2048 << 10, DEVICE_MEMORY: 5000}
    assert (proc / "clear_refs").read_text() == "5"
    assert target.resets == 1


def test_a_guest_resets_nothing(proc: Path) -> None:
    target = Counting()
    assert taken(target, proc, is_guest=True) == {THROUGHPUT: 40.0, HOST_MEMORY: 300 * PAGE}
    assert (proc / "clear_refs").read_text() == "" and target.resets == 0


def test_where_the_kernel_resets_no_peak_it_is_not_an_old_one(proc: Path) -> None:
    (proc / "clear_refs").unlink()
    (proc / "clear_refs").mkdir()  # cannot be written
    assert taken(Counting(), proc)[HOST_MEMORY] == 300 * PAGE


def test_the_memory_of_a_server_is_not_that_of_its_client(proc: Path) -> None:
    assert taken(object(), proc, calls_a_server=True) == {THROUGHPUT: 5.0}


@pytest.mark.parametrize("odd", [ValueError("broken"), None, "much", 0, -1, float("inf"), float("nan")])
def test_what_is_not_known_is_missing(proc: Path, odd: Any) -> None:
    (proc / "status").write_text("Name:\tpython\n")
    (proc / "statm").write_text("\n")
    found = taken(Counting(samples=odd, peak=odd), proc)
    assert found == {}


def test_every_measure_that_is_shown_is_one() -> None:
    points = shown(dict.fromkeys(MEASURES, 1.0) | {"throughput@8x1": 2.0, "newer": 3.0})
    assert points == {RATE: {(): 1.0}, MEMORY: {("host",): 1.0, ("device",): 1.0}}
    assert shown({}) == {RATE: {}, MEMORY: {}}, "nothing of the run before stays"
