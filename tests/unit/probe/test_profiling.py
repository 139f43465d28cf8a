"""Time and cost of a canary's profiles: real canaries with a scripted engine."""

import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from infercanary.contract.vocabulary import CANARY_STATES
from infercanary.probe import Probe
from infercanary.probe.canary import Canary
from infercanary.probe.histogram import Tally
from infercanary.probe.pool import Pool
from infercanary.probe.profiling import (
    AGAIN_SECONDS,
    BYTES,
    EVERY_SECONDS,
    FLOPS,
    PROFILER_BYTES,
    SHARE,
    Profiling,
)
from infercanary.probe.targets import Unprofiled
from infercanary.probe.targets.engines.profiled import Operator, OperatorTimes
from infercanary.probe.watcher import Memory
from tests.targets import Scripted

NOW = 1_000.0


class Profiled(Scripted):
    profiler: Any = "same_model"
    is_waited_for = False
    error: BaseException | None = None
    blocks = "profile"

    def __init__(self, **attributes):
        super().__init__(**attributes)
        self.asked: list[int] = []
        self.operators: dict[str, tuple[float, float, float]] = {}
        self.threads: list[str] = []
        self.goes_on.set()

    def is_busy(self):
        return self.is_waited_for

    def profile(self, repeats, trace=None):
        self.asked.append(repeats)
        self.threads.append(threading.current_thread().name)
        self._wait("profile")
        if self.error is not None:
            raise self.error
        times = OperatorTimes(repeats)
        for name, (seconds, flops, size) in self.operators.items():
            for repeat in range(repeats):
                times.add(repeat, operator := Operator(name, "cpu"), name, seconds)
                times.add_work(operator, flops, size, 1.0)
        return times.profile([0.001] * repeats, "torch", 1.0)


class Bench:
    def __init__(self, target, pool=None, timeout=5.0, share=0.05):
        self.tally = Tally()
        self.canary = Canary("one", target, self.tally, timeout, 5.0, pool)
        self.canary.state = "steady"
        self.profiling = Profiling(self.canary, share, self.tally, Memory({}))


def test_it_comes_once_steady_then_after_ten_minutes_then_hourly():
    profiling, times, now = Bench(Profiled()).profiling, list[float](), NOW
    while len(times) < 4:
        if profiling.step(now):
            times.append(now)
        now += 10.0
    assert times[0] == NOW
    for (before, after), pause in zip(
        itertools.pairwise(times), (AGAIN_SECONDS, EVERY_SECONDS, EVERY_SECONDS), strict=True
    ):
        assert pause <= after - before <= 1.2 * pause + 10
    slow = Bench(Profiled(), share=1e-9).profiling
    slow.step(NOW)
    assert slow.next_at > NOW + 0.9 * 86_400


@pytest.mark.parametrize("why", [*CANARY_STATES, "device", "container", "pool", "memory"])
def test_it_waits_until_the_canary_is_steady_and_nobody_waits(why, monkeypatch, caplog):
    target, memory, lack = Profiled(), Memory({}), "runs are postponed" if why == "memory" else ""
    monkeypatch.setattr(memory, "lack_for_round", lambda extra: lack if extra == PROFILER_BYTES else "")
    bench = Bench(target)
    canary = bench.canary
    bench.profiling._memory = memory
    canary.state = why if why in CANARY_STATES else "steady"
    canary.last_tags = ("cpu_wait_inside",) if why == "container" else ()
    canary.crowding = 4.0
    canary.pool = Pool(ThreadPoolExecutor(1), None) if why == "pool" else None
    target.is_waited_for = why == "device"
    ran = [bench.profiling.step(NOW + after) > 0 for after in (0, 30, 61)]
    assert ran == [why == "steady", False, False]
    assert len(target.asked) == sum(ran)
    assert caplog.text.count("runs are postponed") == (why == "memory")
    canary.state, canary.last_tags, canary.crowding, target.is_waited_for, lack = "steady", (), 1.0, False, ""
    assert bench.profiling.step(NOW + 122) > 0 or why == "steady"
    assert target.asked == [3 if why == "pool" else 5]


@pytest.mark.parametrize(
    ("error", "again"), [(None, True), (ValueError("no"), True), (Unprofiled("no"), False)]
)
def test_a_failure_is_logged_once(error, again, caplog):
    """After a profile, one repeat is not timed: the profiler's end also frees memory that a repeat needs."""
    caplog.set_level("INFO")
    for is_guest in (False, True):
        target = Profiled(error=error)
        profiling = Bench(target).profiling
        profiling.is_guest = is_guest
        assert profiling.step(NOW) > 0
        assert target.repeats == (error is None and not is_guest)
        assert (profiling.profile is None) == (error is not None)
        assert (profiling.step(NOW + 1000) > 0) == again == (len(target.asked) == 2)
    assert caplog.text.count("no profile") == (0 if error is None else 2)


@pytest.mark.parametrize(
    ("unknown_seconds", "shown"), [(0.0, [300.0, 50.0]), (0.0002, [300.0, 50.0]), (0.0003, []), (None, [])]
)
def test_the_work_of_an_inference_is_shown_where_most_of_the_time_has_known_work(unknown_seconds, shown):
    target = Profiled()
    if unknown_seconds is not None:
        target.operators = {
            "mm": (0.0006, 300.0, 40.0),
            "add": (0.0003, 0.0, 10.0),
            "sort": (unknown_seconds, math.nan, math.nan),
        }
    bench = Bench(target)
    bench.profiling.step(NOW)
    found = {family.name: [point.value for point in family.points] for family in bench.tally.families()}
    assert [value for metric in (FLOPS, BYTES) for value in found.get(metric.name, [])] == shown


@pytest.mark.parametrize("late", ["hangs", "hangs in the pool", "waits in the pool"])
def test_one_that_is_late_is_given_up_and_one_that_hangs_is_reported(late):
    target, lost = Profiled(), list[str]()
    with ThreadPoolExecutor(1, "server") as executor:
        pool = Pool(executor, lambda: lost.append("a thread")) if "pool" in late else None
        bench = Bench(target, pool, timeout=0.2)
        target.goes_on.clear()
        if "waits" in late:
            executor.submit(target.goes_on.wait, 30)
        assert bench.profiling.step(NOW) > 0
        assert bench.profiling.is_running == ("hangs" in late)
        target.goes_on.set()
    assert lost == (["a thread"] if late == "hangs in the pool" else [])
    assert target.asked == ([] if "waits" in late else [3 if pool else 5])
    assert all(name.startswith("server") == ("pool" in late) for name in target.threads)
    assert bench.profiling.close(5.0)
    assert bench.profiling.step(NOW + 100_000) == 0.0, "a profiler that hung is not tried again"


def test_in_a_servers_pool_a_second_model_would_hold_a_thread():
    target = Profiled(profiler="second_model")
    with ThreadPoolExecutor(1) as executor:
        profiling = Bench(target, Pool(executor, None)).profiling
        profiling.step(NOW)
        assert target.asked == []
        assert profiling.step(NOW + 10_000) == 0.0


def test_the_cap_is_shared_with_them_only_where_they_are_on():
    off, on = Probe({"one": Profiled()}), Probe({"one": Profiled()}, profile=True)
    assert off._runs_cap == 0.01
    assert not off._between
    assert on._runs_cap == pytest.approx((1 - SHARE) * 0.01)
    assert len(on._between) == 1
