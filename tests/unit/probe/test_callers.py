"""CPU time of the probe's port: a bound for all callers together, and a place for whoever asked before."""

from __future__ import annotations

import pytest

from infercanary.probe.callers import PLACES, SILENT_SECONDS, Callers

EXPORTER = "10.0.0.1"
HOUR = 3600


def attack(callers: Callers, addresses: int, second: int, cost: float) -> float:
    """CPU seconds that were given to many connections within this second."""
    given = 0.0
    for n in range(50):
        now = second + n / 50
        address = f"127.0.{(50 * second + n) % addresses}.1"
        if callers.admits(address, now):
            callers.answered(address, cost, now)
            given += cost
    return given


@pytest.mark.parametrize("addresses", [1, 4, 9, 1_000_000])
def test_all_callers_together_take_a_bounded_share(addresses: int) -> None:
    callers = Callers(0)
    given = sum(attack(callers, addresses, second, cost=0.001) for second in range(HOUR))
    assert given / HOUR < 0.0089  # of 2 %, the rest is for accepting


@pytest.mark.parametrize("addresses", [1, 4, 9, 1_000_000])
def test_who_has_a_place_is_answered_whatever_others_do(addresses: int) -> None:
    callers = Callers(0)
    for second in range(0, HOUR, 5):
        assert callers.admits(EXPORTER, second)
        callers.reported(EXPORTER, second)
        callers.answered(EXPORTER, 0.003, second)
        attack(callers, addresses, second, cost=0.001)


def test_one_address_that_came_first_leaves_the_others_their_turn() -> None:
    callers = Callers(0)
    for second in range(HOUR):
        attack(callers, 1, second, cost=0.001)
    assert callers.admits(EXPORTER, HOUR) or callers.admits(EXPORTER, HOUR + 5)


def test_who_gets_no_report_loses_the_place() -> None:
    callers = Callers(0)
    holders = [f"10.0.1.{n}" for n in range(PLACES)]
    for holder in holders:
        assert callers.admits(holder, 0)
    assert callers.admits(EXPORTER, 1) and not callers.has_place(EXPORTER)
    callers.reported(holders[0], SILENT_SECONDS)
    assert callers.admits(EXPORTER, SILENT_SECONDS + 1)
    assert callers.has_place(EXPORTER) and callers.has_place(holders[0]) and not callers.has_place(holders[1])


def test_accepting_takes_a_bounded_share() -> None:
    callers, now, spent = Callers(0), 0.0, 0.0
    while now < HOUR:
        spent += 0.00004
        now += 0.00004 + callers.accepted(0.00004, now)
    assert spent / HOUR < 0.0117
