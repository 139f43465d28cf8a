"""When to run, with the time and the randomness passed in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.probe import schedule as module
from infercanary.probe.schedule import MAX_REPEATS, MIN_REPEATS, Budget, Schedule, plan


def test_missed_slots_are_counted_and_never_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JITTER", 0.0)
    schedule = Schedule(10.0, 0.0)
    assert schedule.next(0.0) == (10.0, 0)
    assert schedule.next(10.5) == (20.0, 0)
    assert schedule.next(67.0) == (70.0, 4)  # 30, 40, 50 and 60 passed
    assert schedule.next(70.5) == (80.0, 0)


@given(st.lists(st.floats(0, 45), min_size=1, max_size=60), st.integers(0, 2**32))
def test_every_slot_is_either_run_or_missed(durations: list[float], seed: int) -> None:
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


def test_stretch_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JITTER", 0.0)
    schedule = Schedule(10.0, 0.0)
    schedule.next(0.0)
    schedule.stretch(25.0, 17.0)
    assert schedule.interval == 25.0
    assert schedule.next(17.0) == (42.0, 0)
    assert schedule.next(42.1) == (67.0, 0)


@given(
    st.floats(0.001, 1.0),
    st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 5.0)), min_size=1, max_size=60),
)
def test_duty_never_exceeds_the_cap_when_costs_are_as_announced(
    cap: float, runs: list[tuple[float, float]]
) -> None:
    budget = Budget(cap, 50.0)
    now, busy = 50.0, 0.0
    for pause, cost in runs:
        now += pause
        start = budget.ready_at(cost, now)
        assert start >= now
        now = start + cost
        busy += cost
        budget.spend(cost, now)
        assert busy <= cap * (now - 50.0) * (1 + 1e-9) + 1e-9


def test_a_hang_silences_for_five_minutes_and_not_for_an_hour() -> None:
    budget = Budget(0.01, 0.0)
    start = budget.ready_at(0.1, 0.0)
    budget.spend(30.0, start + 30.0)
    pause = budget.ready_at(0.1, start + 30.0) - (start + 30.0)
    assert pause == pytest.approx(300.0 + 0.1 / 0.01)
    budget.spend(30.0, start + 60.0)  # and a second one does not add up
    assert budget.ready_at(0.1, start + 60.0) - (start + 60.0) == pytest.approx(310.0)


@given(
    st.lists(st.floats(0.0, 60.0), min_size=1, max_size=6),
    st.floats(0.1, 3600.0),
    st.floats(0.001, 1.0),
)
def test_a_plan_has_5_to_50_repeats_and_keeps_the_cap(
    costs: list[float], interval: float, cap: float
) -> None:
    repeats, planned = plan(costs, interval, cap)
    assert len(repeats) == len(costs)
    assert all(MIN_REPEATS <= n <= MAX_REPEATS for n in repeats)
    assert planned >= interval
    assert sum(n * cost for n, cost in zip(repeats, costs, strict=True)) <= cap * planned * (1 + 1e-9)


def test_plans() -> None:
    assert plan([], 10.0, 0.01) == ([], 10.0)
    assert plan([0.0], 10.0, 0.01) == ([MAX_REPEATS], 10.0)
    # 80 ms of budget: 8 repeats of 10 ms; two canaries share it.
    assert plan([0.01], 10.0, 0.01) == ([8], 10.0)
    assert plan([0.005, 0.005], 10.0, 0.01) == ([8, 8], 10.0)
    # 5 repeats of 100 ms take 0.5 s: at 1 % that is a run every 50 s and a little.
    repeats, interval = plan([0.1], 10.0, 0.01)
    assert repeats == [5]
    assert interval == pytest.approx(55.0)


def test_slots_are_jittered_on_both_sides() -> None:
    """Else it would lock into step with what is periodic on the host."""
    module._random.seed(1)
    schedule = Schedule(10.0, 0.0)
    offsets = [schedule.next(10.0 * k)[0] - 10.0 * (k + 1) for k in range(300)]
    assert -2.0 <= min(offsets) < -1.5 and 1.5 < max(offsets) <= 2.0


def test_debt_is_paid_back_first_and_an_idle_hour_buys_one_run() -> None:
    budget = Budget(0.01, 0.0)
    start = budget.ready_at(0.1, 0.0)
    assert start == pytest.approx(10.0)
    budget.spend(1.1, start)  # it cost a second more than announced
    assert budget.ready_at(0.1, start) == pytest.approx(start + 100.0 + 10.0)
    assert budget.ready_at(0.1, start + 3600.0) == start + 3600.0
    budget.spend(0.1, start + 3600.0)
    assert budget.ready_at(0.1, start + 3600.0) == pytest.approx(start + 3610.0)
