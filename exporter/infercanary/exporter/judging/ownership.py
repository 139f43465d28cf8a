"""Ownership: decides which services of a shared store this exporter judges."""

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
"""Key of a lease that is not for a service: the exporter with this lease learns the priors."""
_SHARE_SECONDS = 5.0  # seconds between renewals of leases, and between reads of other exporters' data
_ASKED_SECONDS = 900.0  # seconds for which a service is followed after a rollout's question
_MOST_ASKED = 200  # largest number of services followed after questions of rollouts
_AWAY_SECONDS = 600.0  # seconds for which an exporter that cannot reach the store still exposes its findings


class Ownership:
    """Holds the leases of this exporter.

    Two threads change the leases: the judge's thread, and the thread that calls :meth:`keep`. Any thread may call
    :meth:`publishes`.

    Args:
        is_alone: True if no other exporter uses the store.
    """

    def __init__(self, is_alone: bool = True) -> None:
        self.is_away = False
        """True if the last call of the store failed."""
        self._is_alone = is_alone
        self._until: dict[ServiceKey, float] = {}  # earliest possible end of each lease, boot-time clock
        self._changing = threading.Lock()
        self._shared_at = -math.inf
        self._names: Collection[ServiceKey] = ()  # all judged services
        self._asked: dict[ServiceKey, float] = {}  # by service: time at which following ends
        # Running starts of the services that a rollout asked about.
        self._running: dict[ServiceKey, list[Generation]] = {}
        self._running_until = 0.0

    @property
    def held(self) -> frozenset[ServiceKey]:
        """Services whose lease this exporter holds by its last information."""
        return frozenset(self._until)

    def publishes(self, service: ServiceKey) -> bool:
        """Return True if this exporter exposes the verdicts on a service, because it has the service's lease.

        An exporter that cannot reach the store exposes its verdicts for a while longer: if the store is down, no other
        exporter can take the lease.
        """
        until = self._until.get(service, -math.inf) + (_AWAY_SECONDS if self.is_away else 0.0)
        return self._is_alone or _clock() < until

    def ask(self, service: ServiceKey) -> None:
        """Follow a service for a while, even if this exporter polls no container of it. Called from the event loop.

        Anyone may ask about any name, so unknown services are not followed.
        """
        if service in self._asked or (service in self._names and len(self._asked) < _MOST_ASKED):
            self._asked[service] = _clock() + _ASKED_SECONDS

    def read_asked(self, fleet: Fleet) -> set[ServiceKey]:
        """Read the running starts of services that rollouts asked about. Return these services."""
        now = _clock()
        self._names = fleet.services()
        self._asked = {service: until for service, until in self._asked.copy().items() if until >= now}
        self._running = {service: fleet.running(service) for service in [*self._asked]}
        self._running_until = now + fleet.lease_seconds
        return {*self._running}

    def running(self, service: ServiceKey) -> Sequence[Generation]:
        """Return the running starts of a service on all hosts, ordered by container.

        The list is empty if no rollout asked about the service, or if the starts were read too long ago.
        """
        return self._running.get(service, ()) if _clock() < self._running_until else ()

    def is_due(self, fleet: Fleet) -> bool:
        """Return True if the leases must be renewed now."""
        return _clock() - self._shared_at >= min(_SHARE_SECONDS, fleet.lease_seconds / 4)

    def renew(self, fleet: Fleet, watched: Collection[ServiceKey]) -> frozenset[ServiceKey]:
        """Renew leases, take free leases, and give back the leases of services without containers.

        Args:
            fleet: Leases in the store.
            watched: Services with containers that this exporter polls.

        Returns:
            Services whose lease was taken now.

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
        """Renew the held leases, between calls of :meth:`renew`. Never raises."""
        before, until = self.held, _clock() + fleet.lease_seconds
        try:
            held = fleet.renew(before) if before else before
        except StoreError:
            self.is_away = True
            return
        self.lose(before - held)
        with self._changing:  # ignore a lease that the other thread gave back meanwhile
            self._until |= dict.fromkeys(self._until.keys() & held, until)
        self.is_away = False

    def lose(self, services: Collection[ServiceKey]) -> None:
        """Record the loss of these services' leases."""
        with self._changing:
            self._until = {service: end for service, end in self._until.items() if service not in services}

    def end(self, fleet: Fleet | None) -> None:
        """Give back all leases. Never raises."""
        held, self._until = self.held, {}
        with suppress(StoreError):  # remaining leases expire
            if fleet is not None:
                fleet.give_back(held)


def _clock() -> float:
    """Return the seconds of a clock that, like the store's clock, also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
