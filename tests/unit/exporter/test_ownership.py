from collections.abc import Callable
from typing import Any, cast

from infercanary.exporter.judging import ownership
from infercanary.exporter.judging.ownership import PRIORS, Ownership
from infercanary.judge.model import ServiceKey
from infercanary.store.base import StoreError
from infercanary.store.fleet import Fleet

A, B = ServiceKey("", "a"), ServiceKey("", "b")


class Leases:
    lease_seconds = 20.0

    def __init__(self):
        self.renewing: Callable[[], object] = lambda: None

    def hold(self, wanted):
        return {*wanted}

    def renew(self, services):
        self.renewing()
        return {*services}

    def give_back(self, services):
        pass


def fail():
    raise StoreError("away")


def test_a_holder_that_cannot_reach_the_store_publishes_for_ten_minutes_and_not_longer(monkeypatch):
    leases, owner = Leases(), Ownership(is_alone=False)
    fleet, now = cast(Fleet, leases), 1000.0
    monkeypatch.setattr(ownership, "_clock", lambda: now)
    assert not owner.publishes(A)
    assert owner.renew(fleet, {A}) == {A, PRIORS}
    assert owner.renew(fleet, {A}) == set()
    assert owner.publishes(A)
    assert not owner.publishes(B)
    now = 1021.0
    assert not owner.publishes(A)
    leases.renewing = fail
    owner.keep(fleet)
    assert owner.publishes(A)
    now = 1621.0
    assert not owner.publishes(A)
    leases.renewing = lambda: None
    owner.keep(fleet)
    assert owner.publishes(A)
    now = 1642.0
    assert not owner.publishes(A)


def test_a_lease_that_is_given_back_while_it_is_renewed_stays_so():
    leases, owner = Leases(), Ownership(is_alone=False)
    fleet: Any = leases
    owner.renew(fleet, {A, B})
    leases.renewing = lambda: owner.renew(fleet, {B})
    owner.keep(fleet)
    assert owner.held == {B, PRIORS}
    assert not owner.publishes(A)
