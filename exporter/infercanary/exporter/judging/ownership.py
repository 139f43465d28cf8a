"""Ownership: which services this exporter judges, if several exporters share a store."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from infercanary.judge.model import Generation, ServiceKey
from infercanary.store.base import StoreError

if TYPE_CHECKING:
    from infercanary.store.fleet import Fleet

log = structlog.get_logger(__name__)

PRIORS = ServiceKey("", "")
"""Key without a service: the exporter with this lease learns the priors."""
_SHARE_SECONDS = 5.0  # seconds between renewals of a lease, and between reads of other exporters' writes
_ASKED_SECONDS = 900.0  # seconds for which a service is followed after somebody asked about it
_MOST_ASKED = 200  # services that somebody asked about; a rollout asks about one
_AWAY_SECONDS = 600.0  # seconds for which a holder that cannot reach the store still shows its findings


class Ownership:
    """Leases of this exporter.

    Written by the judge's thread and by the thread that calls :meth:`keep`; :meth:`publishes` may be called from any
    thread.

    Args:
        is_alone: True if the store has one owner.
    """

    def __init__(self, is_alone: bool = True) -> None:
        self.is_away = False
        """True if the store could not be reached last time."""
        self._is_alone = is_alone
        self._until: dict[ServiceKey, float] = {}  # end of each lease, measured from before the call
        self._changing = threading.Lock()
        self._shared_at = -math.inf
        self._names: Collection[ServiceKey] = ()  # all judged services
        self._asked: dict[ServiceKey, float] = {}  # end of following, by service
        self._running: dict[
            ServiceKey, list[Generation]
        ] = {}  # running starts of services that somebody asked about
        self._running_until = 0.0

    @property
    def held(self) -> frozenset[ServiceKey]:
        """Services whose lease this exporter has, as far as it knows."""
        return frozenset(self._until)

    def publishes(self, service: ServiceKey) -> bool:
        """Return True if this exporter shows the verdicts on a service: it judges it, and its lease has not ended.

        An exporter that cannot reach the store goes on for a while, because no other exporter may know that it should
        take over.
        """
        until = self._until.get(service, -math.inf) + (_AWAY_SECONDS if self.is_away else 0.0)
        return self._is_alone or _clock() < until

    def ask(self, service: ServiceKey) -> None:
        """Follow a service for a while that may have no container here; called from the event loop.

        Anybody may ask about any name: an unknown service is not followed.
        """
        if service in self._asked or (service in self._names and len(self._asked) < _MOST_ASKED):
            self._asked[service] = _clock() + _ASKED_SECONDS

    def read_asked(self, fleet: Fleet) -> set[ServiceKey]:
        """Read the running starts of services that somebody asked about, and return these services."""
        now = _clock()
        self._names = fleet.services()
        self._asked = {service: until for service, until in self._asked.copy().items() if until >= now}
        self._running = {service: fleet.running(service) for service in [*self._asked]}
        self._running_until = now + fleet.lease_seconds
        return {*self._running}

    def running(self, service: ServiceKey) -> Sequence[Generation]:
        """Return the running starts of a service on any host, ordered by container.

        None if they were read longer ago than a lease lasts, or if nobody asked about the service before.
        """
        return self._running.get(service, ()) if _clock() < self._running_until else ()

    def is_due(self, fleet: Fleet) -> bool:
        """Return True if the leases must be renewed now."""
        return _clock() - self._shared_at >= min(_SHARE_SECONDS, fleet.lease_seconds / 4)

    def renew(self, fleet: Fleet, watched: Collection[ServiceKey]) -> frozenset[ServiceKey]:
        """Renew the leases, take free ones, and give back those of services that have left.

        Args:
            watched: Services with containers here.

        Returns:
            Newly held services.

        Raises:
            StoreError: The store cannot be reached.
        """
        now, before = _clock(), self.held
        wanted = {*watched, PRIORS}
        self.lose(before - wanted)
        fleet.give_back(before - wanted)
        held = fleet.hold(wanted)
        with self._changing:
            self._until = dict.fromkeys(held, now + fleet.lease_seconds)
        self.is_away, self._shared_at = False, now
        if new := frozenset(held - before):
            log.info("took the lease on services", services=sorted(map(str, new)))
        return new

    def keep(self, fleet: Fleet) -> None:
        """Only renew leases, because a turn of judging may take long. Never raises."""
        before, until = self.held, _clock() + fleet.lease_seconds
        try:
            held = fleet.renew(before) if before else before
        except StoreError:
            self.is_away = True
            return
        self.lose(before - held)
        with self._changing:  # keeps a lease ended that the other thread gave back meanwhile
            self._until |= dict.fromkeys(self._until.keys() & held, until)
        self.is_away = False

    def lose(self, services: Collection[ServiceKey]) -> None:
        """Note that this exporter no longer judges these services."""
        with self._changing:
            self._until = {service: end for service, end in self._until.items() if service not in services}

    def end(self, fleet: Fleet | None) -> None:
        """Give all leases back. Never raises."""
        held, self._until = self.held, {}
        with suppress(StoreError):  # they end by themselves
            if fleet is not None:
                fleet.give_back(held)


def _clock() -> float:
    """Return seconds of a clock that goes on while the machine sleeps, as the store's clock does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
