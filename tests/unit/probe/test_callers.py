"""CPU time of the probe's port: a bound for all callers together, and one for each address below it."""

from __future__ import annotations

import pytest

from infercanary.probe.callers import ACCEPT_SHARE, ADDRESS_SHARE, ALL_SHARE, Callers

EXPORTER = "10.0.0.1"
HOUR = 3600


def attack(callers: Callers, addresses: int, second: int, cost: float) -> float:
    """CPU seconds that were given to many connections within this second."""
    given = 0.0
    for n in range(50):
        now = second + n / 50
        address = f"127.0.{(50 * second + n) % addresses}.1"
        if callers.may_spend(address, now):
            callers.spend(address, cost, now)
            given += cost
    return given


@pytest.mark.parametrize("addresses", [1, 4, 9, 1_000_000])
def test_all_callers_together_take_a_bounded_share(addresses: int) -> None:
    callers = Callers(0)
    given = sum(attack(callers, addresses, second, cost=0.001) for second in range(HOUR))
    assert given / HOUR < ALL_SHARE + 0.0005
    assert ACCEPT_SHARE + ALL_SHARE <= 0.02
    assert len(callers._addresses) < 2000


@pytest.mark.parametrize("addresses", [1, 2])
def test_an_exporter_is_answered_whatever_others_do(addresses: int) -> None:
    callers = Callers(0)
    for second in range(0, HOUR, 5):
        for part in range(5):
            attack(callers, addresses, second + part, cost=0.001)
        assert callers.may_spend(EXPORTER, second + 5)
        callers.spend(EXPORTER, 0.003, second + 5)


def test_an_address_has_its_share_and_its_burst_again() -> None:
    callers = Callers(0)
    given = sum(attack(callers, 1, second, cost=0.001) for second in range(HOUR))
    assert ADDRESS_SHARE < given / HOUR < ADDRESS_SHARE + 0.0005
    assert callers.may_spend("127.0.0.1", 2 * HOUR)


def test_accepting_takes_a_bounded_share() -> None:
    callers, now, spent = Callers(0), 0.0, 0.0
    while now < HOUR:
        spent += 0.0004
        now += 0.0004 + callers.accepted(0.0004, now)
    assert spent / HOUR < ACCEPT_SHARE + 0.0005
