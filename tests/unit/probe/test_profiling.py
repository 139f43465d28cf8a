"""When a canary is profiled, what that may cost, and when not: real canaries whose engine is scripted."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from infercanary.contract.profile import Profile
from infercanary.probe import HostClock, Phase, Probe
from infercanary.probe.canary import Canary
from infercanary.probe.histogram import Tally
from infercanary.probe.pool import Pool
from infercanary.probe.profiling import (
    AGAIN_SECONDS,
    EVERY_SECONDS,
    PROFILER_BYTES,
    SHARE,
    Profiling,
)
from infercanary.probe.targets import Target, Unprofiled
from infercanary.probe.targets.engines.profiled import OperatorTimes
from infercanary.probe.watcher import Memory

NOW = 1_000.0


class Scripted(Target):
    """A target whose profiles are scripted."""

    clock = HostClock()
    profiler: Any = "same_model"

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.asked: list[int] = []
        self.threads: list[str] = []
        self.ran = 0
        self.is_waited_for = False
        self.hang: threading.Event | None = None

    def open(self) -> None:
        pass

    def run(self, phase: Phase) -> None:
        self.ran += 1
        with phase("compute"):
            pass

    def values(self, result: Any) -> Sequence[float]:
        return [1.0]

    def environment(self) -> Mapping[str, str]:
        return {}

    def close(self) -> None:
        pass

    def is_busy(self) -> bool:
        return self.is_waited_for

    def profile(self, repeats: int, trace: Path | None = None) -> Profile:
        self.asked.append(repeats)
        self.threads.append(threading.current_thread().name)
        if self.hang is not None:
            self.hang.wait(30)
        if self.error is not None:
            raise self.error
        return OperatorTimes(repeats).profile([0.001] * repeats, "torch", 1.0)


class Bench:
    """One canary that is steady, with its profiles."""

    def __init__(
        self, target: Scripted, pool: Pool | None = None, timeout: float = 5.0, share: float = 0.05
    ) -> None:
        self.canary = Canary("one", target, Tally(), timeout, 5.0, pool)
        self.canary.state = "steady"
        self.profiling = Profiling(self.canary, share)


def test_it_comes_once_steady_then_after_ten_minutes_then_hourly() -> None:
    bench = Bench(Scripted())
    times: list[float] = []
    now = NOW
    while len(times) < 4:
        if bench.profiling.step(now):
            times.append(now)
        now += 10.0
    apart = [b - a for a, b in itertools.pairwise(times)]
    assert times[0] == NOW
    assert AGAIN_SECONDS <= apart[0] <= 1.2 * AGAIN_SECONDS + 10
    assert all(EVERY_SECONDS <= each <= 1.2 * EVERY_SECONDS + 10 for each in apart[1:])


@pytest.mark.parametrize("state", ["opening", "warming", "failing", "out_of_memory", "busy"])
def test_it_waits_until_the_canary_is_steady(state: Any) -> None:
    target = Scripted()
    bench = Bench(target)
    bench.canary.state = state
    assert bench.profiling.step(NOW) == 0.0 and not target.asked


@pytest.mark.parametrize("who", ["device", "container", "pool"])
def test_it_gives_way_to_the_hosts_own_work(who: str) -> None:
    target = Scripted()
    bench = Bench(target)
    if who == "device":
        target.is_waited_for = True
    elif who == "container":
        bench.canary.last_tags = ("cpu_wait_inside",)
    else:
        bench.canary.pool = Pool(ThreadPoolExecutor(1), None)
        bench.canary.crowding = 4.0
    assert bench.profiling.step(NOW) == 0.0 and not target.asked
    assert bench.profiling.step(NOW + 30) == 0.0, "it is not asked again and again"
    target.is_waited_for = False
    bench.canary.last_tags, bench.canary.crowding = (), 1.0
    assert bench.profiling.step(NOW + 61) > 0 and target.asked == [3 if who == "pool" else 5]


def test_it_waits_for_the_profilers_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target, memory, lack = Scripted(), Memory({}), "runs are put off"
    monkeypatch.setattr(memory, "lack_for_round", lambda extra: lack if extra == PROFILER_BYTES else "")
    bench = Bench(target)
    bench.profiling._memory = memory
    for now in (NOW, NOW + 30, NOW + 61):
        assert bench.profiling.step(now) == 0.0 and not target.asked
    assert caplog.text.count(lack) == 1
    lack = ""
    assert bench.profiling.step(NOW + 122) > 0 and target.asked == [5]


def test_a_costly_canary_comes_more_rarely() -> None:
    slow = Bench(Scripted(), share=1e-9)  # what it took is far above its share of an hour
    slow.profiling.step(NOW)
    assert slow.profiling.next_at > NOW + 0.9 * 86_400


def test_what_it_found_is_given_once_and_what_failed_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Scripted())
    bench.profiling.step(NOW)
    assert bench.profiling.take_profile() is not None and bench.profiling.take_profile() is None
    target = Scripted(ValueError("no such event"))
    bench = Bench(target)
    assert bench.profiling.step(NOW) > 0 and bench.profiling.take_profile() is None
    assert "no such event" in caplog.text
    assert bench.profiling.step(NOW + 1000) > 0, "it may go well next time"
    assert caplog.text.count("no such event") == 1


def test_the_first_repeat_after_a_profile_is_not_a_timed_one() -> None:
    """What the profiler took is given back to the kernel, and with it what a repeat needs."""
    target = Scripted()
    bench = Bench(target)
    assert bench.profiling.step(NOW) > 0 and target.ran == 1
    of_server = Scripted()
    guest = Bench(of_server)
    guest.profiling.is_guest = True
    assert guest.profiling.step(NOW) > 0 and of_server.ran == 0, "nothing is given back there"


def test_an_engine_without_a_profiler_is_asked_once() -> None:
    target = Scripted(Unprofiled("not here"))
    bench = Bench(target)
    bench.profiling.step(NOW)
    assert bench.profiling.step(NOW + 10_000) == 0.0
    assert len(target.asked) == 1


def test_one_that_hangs_is_given_up_and_runs_meanwhile_are_beside_it() -> None:
    target = Scripted()
    target.hang = threading.Event()
    bench = Bench(target, timeout=0.05)
    assert bench.profiling.step(NOW) > 0
    assert bench.profiling.is_running
    target.hang.set()
    assert bench.profiling.close(5.0)
    assert bench.profiling.step(NOW + 100_000) == 0.0, "what hung once is not tried again"


def test_in_a_servers_pool_it_takes_one_turn_with_the_fewest_repeats() -> None:
    target = Scripted()
    with ThreadPoolExecutor(1, "server") as executor:
        bench = Bench(target, Pool(executor, None))
        assert bench.profiling.step(NOW) > 0
        found = bench.profiling.take_profile()
        loads = Scripted()
        loads.profiler = "second_model"
        other = Bench(loads, Pool(executor, None))
        other.profiling.step(NOW)
    assert target.asked == [3] and all(name.startswith("server") for name in target.threads)
    assert found is not None and found.repeats == 3
    assert not loads.asked and other.profiling.step(NOW + 10_000) == 0.0


@pytest.mark.parametrize("hangs", [False, True])
def test_a_turn_that_is_late_is_withdrawn_and_one_that_hangs_is_reported(hangs: bool) -> None:
    target, goes_on, lost = Scripted(), threading.Event(), list[str]()
    with ThreadPoolExecutor(1, "server") as executor:
        bench = Bench(target, Pool(executor, lambda: lost.append("a thread")), timeout=0.2)
        if hangs:
            target.hang = goes_on
        else:
            executor.submit(goes_on.wait, 30)
        assert bench.profiling.step(NOW) > 0
        goes_on.set()
    assert (target.asked, lost) == (([3], ["a thread"]) if hangs else ([], []))
    assert bench.profiling.close(5.0)


def test_the_cap_is_shared_with_them_only_where_they_are_on() -> None:
    off, on = Probe({"one": Scripted()}), Probe({"one": Scripted()}, profile=True)
    assert off._runs_cap == 0.01 and not off._between
    assert on._runs_cap == pytest.approx((1 - SHARE) * 0.01) and len(on._between) == 1
