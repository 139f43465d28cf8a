"""The burst of runs after a start: interval, cost, and repayment. The time is an argument."""

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.probe import schedule as module
from infercanary.probe.duty import LEAST_INTERVAL, PAID_WITHIN, RATE, SECONDS, Burst
from infercanary.probe.schedule import Budget, Schedule, spaced

HOUR = 3600.0


class Ran(NamedTuple):
    """A run: time of its start, current interval, cost and remaining debt, all in seconds."""

    at: float
    interval: float
    cost: float
    debt: float
    in_burst: bool


def runs(cost, *, interval=10.0, cap=0.01, is_on=True, until=2 * HOUR, hangs_at=float("inf")):
    """Simulate the loop of a probe whose runs cost ``cost(now)``, except one run that hangs for 30 s."""
    module._random.seed(1)
    schedule, budget = Schedule(interval, 0.0), Budget(cap, 0.0)
    burst = Burst(cap, 0.0, is_on)
    now = 0.0
    while now < until:
        costs = cost(now)
        steady = max(interval, spaced(costs, cap))
        pace, share = burst.plan(costs, steady, now)
        if abs(pace / schedule.interval - 1) > 0.1:
            schedule.stretch(pace, now)
        slot, _ = schedule.next(now)
        at = max(slot, budget.ready_at(costs, share, now))
        if now < hangs_at <= at:
            costs = 30.0
        now = at + costs
        budget.spend(costs, now)
        burst.spend(costs, now)
        yield Ran(at, pace, costs, burst.debt, burst.is_on)


def paces(made):
    return {round(run.interval, 6) for run in made}


def test_a_hang_ends_the_burst_and_is_forgotten_within_the_hour():
    made = list(runs(lambda _: 0.08, hangs_at=60.0))
    [hung, after, *_] = [run for run in made if run.at >= 60.0]
    assert (hung.cost, hung.in_burst, after.in_burst) == (30.0, True, False)
    # The pause after any hang: five minutes, and the time for one run.
    assert after.at - hung.at - 30 <= Budget.MAX_PAUSE + 0.08 / 0.005 * 1.2
    assert all(run.debt == 0 for run in made if run.at > PAID_WITHIN)
    assert made[-1].interval == 10.0


costs = st.floats(0.0005, 3.0)


@given(costs, costs, st.floats(2.5, 120.0), st.floats(0.002, 0.2), st.floats(10.0, 3000.0))
def test_the_first_hour_keeps_the_cap_and_a_burst_four_times_the_cap(before, after, interval, cap, change):
    made = list(runs(lambda now: before if now < change else after, interval=interval, cap=cap))
    one = max(before, after)
    busy = 0.0
    for run in made:
        busy += run.cost
        ends = run.at + run.cost
        assert busy <= RATE * cap * ends + one + 1e-6
        if ends >= HOUR:
            assert busy <= cap * ends + one + 1e-6
        steady = max(interval, spaced(run.cost, cap))
        if run.in_burst:
            assert run.at < SECONDS + (1 + module.JITTER) * steady
            assert LEAST_INTERVAL <= run.interval <= steady
        else:
            # Runs are at least half as frequent as the cap allows.
            assert steady - 1e-9 <= run.interval <= max(interval, spaced(run.cost, cap / 2)) + 1e-9
    # The jitter limits the distance between two runs of a burst.
    assert all(
        b.at - a.at >= 0.6 * LEAST_INTERVAL - 1e-6 for a, b in pairwise(made) if a.in_burst and b.in_burst
    )
    # The debt from the burst is repaid by this time.
    assert all(run.debt == 0 for run in made if run.at > PAID_WITHIN)


# Seconds of a run before and from a time on; end of the burst; intervals in the burst, after it, and later
PACES = [
    # A canary that uses its whole duty (8 repeats of 10 ms in 10 s) has five times the runs for 8 minutes.
    (0.08, 0.08, 0.0, 570, {2.2}, {17.6}),
    (0.015, 0.015, 0.0, SECONDS, {LEAST_INTERVAL}, {10.0}),
    (0.0, 0.02, 120.0, SECONDS, {LEAST_INTERVAL}, {10.0}),
]


@pytest.mark.parametrize(("before", "cost", "change", "ends", "fast", "later"), PACES)
def test_runs_come_often_and_then_rarely_until_that_is_paid_back(before, cost, change, ends, fast, later):
    made = list(runs(lambda now: before if now < change else cost))
    burst = [run for run in made if run.in_burst]
    assert burst[-1].at == pytest.approx(ends, abs=20)
    assert paces(burst) == fast
    assert not change or paces(run for run in made if run.at < change) == {10.0}
    assert paces(run for run in made if ends + 30 < run.at < 0.9 * HOUR) == later
    assert paces(run for run in made if run.at > HOUR + 20) == {10.0}
    assert sum(run.cost for run in made if run.at < HOUR) <= 0.01 * HOUR * 1.1


def test_it_pauses_while_requests_wait_and_can_be_switched_off():
    burst = Burst(0.01, 0.0)
    found = [(*burst.plan(0.02, 10.0, now, now == 20.0), burst.is_on) for now in (10.0, 20.0, 80.0)]
    assert found == [(2.0, 0.04, True), (10.0, 0.01, False), (2.0, 0.04, True)]
    made = list(runs(lambda _: 0.08, is_on=False))
    assert paces(made) == {10.0}
    assert not any(run.debt for run in made)
