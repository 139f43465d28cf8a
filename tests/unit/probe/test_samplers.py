"""The guard about a sampler."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

import pytest

from infercanary.contract.report import Family, Metric
from infercanary.probe.histogram import Tally
from infercanary.probe.samplers import Guard, SampleFailed, Unavailable, available

VALUE = Metric("infercanary_value", "gauge", "V.")


class Scripted:
    name = "scripted"

    def __init__(self) -> None:
        self.act: Callable[[], object] = lambda: None
        self.asked = 0

    def sample(self) -> Iterable[Family]:
        self.asked += 1
        self.act()
        yield VALUE.family(self.asked)


def values(families: Iterable[Family]) -> dict[str, float | dict[tuple[str, ...], float]]:
    """Name → value, or label values → value."""
    found: dict[str, float | dict[tuple[str, ...], float]] = {}
    for family in families:
        points = {point.labels: point.value for point in family.points}
        assert all(isinstance(value, float) for value in points.values())
        found[family.name] = points if family.labels else points[()]  # type: ignore[assignment]
    return found


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def told(tally: Tally) -> tuple[float, float]:
    found = values(tally.families())
    success, duration = found["infercanary_sampler_success"], found["infercanary_sampler_duration_seconds"]
    assert isinstance(success, dict) and isinstance(duration, dict)
    return success[("scripted",)], duration[("scripted",)]


@pytest.mark.parametrize(
    ("error", "level", "text"),
    [
        (ValueError("bad\nsecond line"), logging.WARNING, "sampler scripted: ValueError: bad"),
        (SystemExit(1), logging.WARNING, "sampler scripted: SystemExit: 1"),
        (KeyboardInterrupt(), logging.WARNING, "sampler scripted: KeyboardInterrupt"),
        (Unavailable("no such thing here"), logging.INFO, "sampler scripted: no such thing here"),
    ],
)
def test_a_sampler_that_raises_costs_only_its_own_families(
    caplog: pytest.LogCaptureFixture, error: BaseException, level: int, text: str
) -> None:
    caplog.set_level(logging.INFO)
    sampler, tally = Scripted(), Tally()
    guard = Guard(sampler, tally, deadline=30, patience=30)
    guard.sample()
    assert values(guard.families) == {VALUE.name: 1.0}
    assert told(tally)[0] == 1
    sampler.act = raising(error)
    for _ in range(3):
        guard.sample()
    assert guard.families == (), "stale numbers beside green health are worse than none"
    assert told(tally)[0] == 0
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(level, text)], (
        "once, not at each sample"
    )
    sampler.act = lambda: None
    guard.sample()
    assert values(guard.families) == {VALUE.name: 5.0}
    assert told(tally)[0] == 1
    assert caplog.records[-1].getMessage() == "sampler scripted: works again"
    assert guard.close(30)


def test_a_sampler_that_hangs_is_given_up_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    sampler, tally, go_on = Scripted(), Tally(), threading.Event()
    guard = Guard(sampler, tally, deadline=0.1)
    guard.sample()
    sampler.act = lambda: go_on.wait(60)
    guard.sample()
    assert guard.families == ()
    success, seconds = told(tally)
    assert success == 0 and 0.1 <= seconds < 20
    guard.sample()
    assert sampler.asked == 2, "it is not asked again while it hangs"
    assert told(tally) == (0, seconds)
    assert [r.getMessage() for r in caplog.records] == ["sampler scripted: hangs: no answer within 0.1 s"]
    sampler.act = lambda: None
    go_on.set()
    deadline = time.monotonic() + 30
    while not guard.families:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        guard.sample()
    assert told(tally)[0] == 1
    assert guard.close(30)


def test_a_sample_that_is_late_holds_nobody_up_and_is_collected_the_next_time() -> None:
    sampler, tally, go_on = Scripted(), Tally(), threading.Event()
    guard = Guard(sampler, tally, deadline=60, patience=0.05)
    sampler.act = lambda: go_on.wait(60)
    begin = time.perf_counter()
    guard.sample()
    guard.sample()
    assert time.perf_counter() - begin < 5, "it waits once, with patience"
    assert (guard.families, list(tally.families()), sampler.asked) == ((), [], 1), "nothing is known yet"
    go_on.set()
    deadline = time.monotonic() + 30
    while not guard.families:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        guard.sample()
    success, seconds = told(tally)
    assert success == 1 and seconds < 30
    assert guard.close(30)


def test_a_sampler_can_say_in_metrics_why_it_fails_or_hangs() -> None:
    class Telling(Scripted):
        hanging = (VALUE.family(-1),)

    sampler, tally, go_on = Telling(), Tally(), threading.Event()
    guard = Guard(sampler, tally, deadline=0.5, patience=0.5)
    sampler.act = raising(SampleFailed("the cable is out", [VALUE.family(-2)]))
    guard.sample()
    assert (values(guard.families), told(tally)[0]) == ({VALUE.name: -2.0}, 0)
    sampler.act = lambda: go_on.wait(60)
    guard.sample()
    assert (values(guard.families), told(tally)[0]) == ({VALUE.name: -1.0}, 0)
    go_on.set()
    assert guard.close(30)


def test_a_sampler_is_closed_in_its_own_thread() -> None:
    threads = []

    class Closing(Scripted):
        def close(self) -> None:
            threads.append(threading.current_thread().name)

    guard = Guard(Closing(), Tally())
    guard.sample()
    assert guard.close(30)
    assert threads == ["infercanary-scripted"]


def test_a_sampler_that_fails_half_way_shows_nothing() -> None:
    class Half(Scripted):
        def sample(self) -> Iterable[Family]:
            yield VALUE.family(1)
            raise OSError("gone")

    guard = Guard(Half(), Tally(), deadline=30, patience=30)
    guard.sample()
    assert guard.families == ()
    guard.close(30)


def test_built_in_samplers_work_or_say_why_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    names = []
    for sampler in available():
        tally = Tally()
        guard = Guard(sampler, tally, deadline=30, patience=30)
        guard.sample()
        names.append(sampler.name)
        assert bool(guard.families) or any(sampler.name in r.getMessage() for r in caplog.records)
        guard.close(30)
    assert names == ["threads", "cgroup", "garbage", "stalls", "nvml"]
