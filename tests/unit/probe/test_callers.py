"""CPU time of the probe's port: a limit for all callers together, and a lower limit for each address."""

import pytest

from infercanary.probe.callers import ADDRESS_SECONDS, SHARE, WINDOW_SECONDS, Callers

EXPORTER = "10.0.0.1"
HOUR = 3600


def attack(callers, addresses, second, cost):
    given = 0.0
    for n in range(50):
        now = second + n / 50
        address = f"127.0.{(50 * second + n) % addresses}.1"
        if callers.may_go_on(address, 0.0, now):
            callers.may_go_on(address, cost, now)
            given += cost
    return given


@pytest.mark.parametrize("cost", [0.00002, 0.001, 0.01])
def test_the_port_as_a_whole_takes_a_bounded_share(cost):
    """For any cost of a turn and any callers, the limit is a tenth of a CPU in the first burst."""
    callers, now, spent = Callers(0), 0.0, 0.0
    while now < HOUR:
        spent += cost
        now += cost + callers.rest(cost, now)
        assert spent < 0.11 * now
    assert spent / HOUR < SHARE + 0.0005
    assert SHARE <= 0.02


@pytest.mark.parametrize("addresses", [1, 2, 1_000_000])
def test_an_exporter_is_answered_whatever_others_do(addresses):
    callers = Callers(0)
    for second in range(0, HOUR, 5):
        for part in range(5):
            attack(callers, addresses, second + part, cost=0.001)
        assert callers.may_go_on(EXPORTER, 0.003, second + 5)
    assert len(callers._spent) < 100


def test_an_address_has_its_share_and_its_burst_again():
    callers = Callers(0)
    given = sum(attack(callers, 1, second, cost=0.001) for second in range(HOUR))
    assert 0.9 < given / HOUR / (ADDRESS_SECONDS / WINDOW_SECONDS) < 1.1
    assert callers.may_go_on("127.0.0.1", 0.0, 2 * HOUR)
