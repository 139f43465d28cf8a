"""What a canary's runs cost where they take turns with requests: the server's pool is real, its clock is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from infercanary.probe import HostClock, Phase
from infercanary.probe.canary import Canary
from infercanary.probe.histogram import Tally
from infercanary.probe.pool import Pool
from infercanary.probe.schedule import plan
from infercanary.probe.targets import Target

REPEATS = 4
TAKES = 0.1  # seconds of a repeat, by the clock here


class Clock:
    """Stands still but for what the server says that it did."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Server(ThreadPoolExecutor):
    """One thread; a request of ``request`` seconds is always there before the canary."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(1)
        self.request = 0.0
        self._clock = clock

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        super().submit(self._serve)
        return super().submit(work, *arguments, **more)

    def _serve(self) -> None:
        self._clock.now += self.request


class Repeat(Target):
    """A target that takes its time by the clock here, and fails where the test says so."""

    clock = HostClock()

    def __init__(self, clock: Clock) -> None:
        self.fails = False
        self._clock = clock

    def open(self) -> None:
        pass

    def run(self, phase: Phase) -> None:
        self._clock.now += TAKES
        if self.fails:
            raise ValueError("broken on purpose")

    def values(self, result: None) -> Sequence[float]:
        return [1.0]


class Served(NamedTuple):
    canary: Canary
    server: Server
    target: Repeat


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    clock = Clock()
    monkeypatch.setattr("infercanary.probe.canary.perf_counter", clock)
    monkeypatch.setattr("infercanary.probe.timed_target.perf_counter", clock)
    monkeypatch.setattr("infercanary.probe.measures.perf_counter", clock)
    with Server(clock) as server:
        target = Repeat(clock)
        canary = Canary("a", target, Tally(), 30, 30, Pool(server, None))
        canary.open(30)
        assert canary.is_open
        yield Served(canary, server, target)
        canary.close(30)


@pytest.mark.parametrize(
    ("request_seconds", "times"),
    # A round has a turn for each repeat and one for the output: the second waits for half of its time.
    [(0.0, 1.0), (TAKES * REPEATS / (REPEATS + 1) / 2, 4.5), (TAKES, 8.0), (10 * TAKES, 8.0)],
    ids=["idle", "half", "as long as a repeat", "longer"],
)
def test_a_repeat_that_waited_for_its_turn_costs_up_to_eight_times_its_time(
    served: Served, request_seconds: float, times: float
) -> None:
    """Requests wait for it too; waiting for a turn is not busy. A run that fails costs no less."""
    canary, server, target = served
    server.request = request_seconds
    for _ in range(5):  # the plan rests on so many
        done = canary.round(REPEATS)
        assert done is not None and (done.outcome, len(done.latencies)) == ("ok", REPEATS)
        assert (done.busy, done.cost) == (
            pytest.approx(REPEATS * TAKES),
            pytest.approx(times * REPEATS * TAKES),
        )
    assert (canary.crowding, canary.repeat_cost) == (pytest.approx(times), pytest.approx(times * TAKES))
    intervals = [plan([cost], 1.0, 0.01)[1] for cost in (canary.repeat_cost, TAKES)]
    assert intervals[0] == pytest.approx(times * intervals[1]), "so it comes as much less often"
    target.fails = True
    server.request = min(request_seconds, TAKES)
    failed = canary.round(REPEATS)
    assert failed is not None and (failed.outcome, failed.busy) == ("raised", pytest.approx(TAKES))
    assert failed.cost == pytest.approx(TAKES + 7 * min(request_seconds, TAKES))
