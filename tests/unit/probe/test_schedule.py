"""The schedule of runs, with time as an argument and seeded random numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.probe import schedule as module
from infercanary.probe.schedule import MAX_REPEATS, MIN_REPEATS, Budget, Schedule, plan
from tests.scenarios import typed


def test_missed_slots_are_counted_and_never_made_up_and_a_stretch_starts_anew(monkeypatch):
    monkeypatch.setattr(module, "JITTER", 0.0)
    schedule = Schedule(10.0, 0.0)
    found = [schedule.next(now) for now in (0.0, 10.5, 67.0, 70.5)]
    assert found == [(10.0, 0), (20.0, 0), (70.0, 4), (80.0, 0)], "the slots at 30, 40, 50 and 60 passed"
    schedule.stretch(25.0, 87.0)
    assert schedule.interval == 25.0
    assert [schedule.next(now) for now in (87.0, 112.1)] == [(112.0, 0), (137.0, 0)]


@given(st.lists(st.floats(0, 45), min_size=1, max_size=60), st.integers(0, 2**32))
def test_every_slot_is_either_run_or_missed(durations, seed):
    module._random.seed(seed)
    schedule = Schedule(10.0, 0.0)
    now, runs, missed = 0.0, 0, 0
    for duration in durations:
        slot, skipped = schedule.next(now)
        runs, missed = runs + 1, missed + skipped
        assert now <= slot
        assert abs(slot - 10.0 * (runs + missed)) <= 2.0 or slot == now
        now = slot + duration
    assert runs + missed <= now / 10.0 + 1.2 + 1


@given(
    st.floats(0.001, 1.0),
    st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 5.0)), min_size=1, max_size=60),
)
def test_duty_never_exceeds_the_cap_when_costs_are_as_announced(cap, runs):
    budget = Budget(cap, 50.0)
    now, busy = 50.0, 0.0
    for pause, cost in runs:
        now += pause
        start = budget.ready_at(cost, cap, now)
        assert start >= now
        now = start + cost
        busy += cost
        budget.spend(cost, now)
        assert busy <= cap * (now - 50.0) * (1 + 1e-9) + 1e-9


@given(
    st.lists(st.floats(0.0, 60.0), min_size=1, max_size=6),
    st.floats(0.1, 3600.0),
    st.floats(0.001, 1.0),
)
def test_a_plan_has_5_to_50_repeats_and_keeps_the_cap(costs, interval, cap):
    repeats, planned = plan(costs, interval, cap)
    assert len(repeats) == len(costs)
    assert all(MIN_REPEATS <= n <= MAX_REPEATS for n in repeats)
    assert planned >= interval
    assert sum(n * cost for n, cost in zip(repeats, costs, strict=True)) <= cap * planned * (1 + 1e-9)


# With 10 s and 1 %, a budget of 80 ms is 8 repeats of 10 ms, and two canaries share it. 5 repeats of 100 ms
# take 0.5 s.
PLANS = """
[]             | []     | 10.0
[0.0]          | [50]   | 10.0
[0.01]         | [8]    | 10.0
[0.005, 0.005] | [8, 8] | 10.0
[0.1]          | [5]    | 55.0
"""


@pytest.mark.parametrize(("costs", "repeats", "interval"), typed(PLANS))
def test_plans(costs, repeats, interval):
    assert plan(costs, 10.0, 0.01) == (repeats, pytest.approx(interval))


def test_slots_are_jittered_on_both_sides():
    """Without jitter, runs could coincide with periodic work on the host."""
    module._random.seed(1)
    schedule = Schedule(10.0, 0.0)
    offsets = [schedule.next(10.0 * k)[0] - 10.0 * (k + 1) for k in range(300)]
    assert -2.0 <= min(offsets) < -1.5
    assert 1.5 < max(offsets) <= 2.0


@pytest.mark.parametrize("cost", [1.1, 30.0, 60.0])
def test_debt_is_paid_back_first_within_five_minutes_and_an_idle_hour_buys_one_run(cost):
    budget = Budget(0.01, 0.0)
    at = budget.ready_at(0.1, 0.01, 0.0)
    assert at == pytest.approx(10.0)
    budget.spend(cost, at)
    assert budget.ready_at(0.1, 0.01, at) - at == pytest.approx(110.0 if cost == 1.1 else 310.0)
    assert budget.ready_at(0.1, 0.01, at + 3600.0) == at + 3600.0
    budget.spend(0.1, at + 3600.0)
    assert budget.ready_at(0.1, 0.01, at + 3600.0) == pytest.approx(at + 3610.0)
