"""Which services this exporter judges, where several share a store."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from infercanary.judge.model import Generation, ServiceKey
from infercanary.store.base import StoreError

if TYPE_CHECKING:
    from infercanary.store.fleet import Fleet

log = structlog.get_logger(__name__)

PRIORS = ServiceKey("", "")
"""No service has this name: who has its lease learns the priors."""
_SHARE_SECONDS = 5.0  # a lease is renewed, and what others wrote is read, so often
_ASKED_SECONDS = 900.0  # so long a service is followed after somebody asked about it
_MOST_ASKED = 200  # services; a rollout asks about one
_NAMES_SECONDS = 60.0  # so often at most it is read which services there are
_AWAY_SECONDS = 600.0  # so long a holder that cannot reach the store shows what it found


class Ownership:
    """The leases of this exporter.

    Written by the judge's thread, and by the one that calls :meth:`keep`; :meth:`publishes` may be asked from any.
    """

    def __init__(self) -> None:
        self._until: Mapping[ServiceKey, float] = {}  # of the leases that it has; replaced as a whole
        self._changing = threading.Lock()
        self.is_alone = True
        """Whether the store has one owner, as far as is known."""
        self._running: dict[ServiceKey, list[Generation]] = {}  # of services that somebody asked about
        self._asked: dict[ServiceKey, float] = {}  # until when it is followed
        self._names: frozenset[ServiceKey] = frozenset()  # of all services, as they were read last
        self._named_at = -math.inf
        self._unknown: set[ServiceKey] = set()  # somebody asked about them since
        self._shared_at: float | None = None
        self._running_until = 0.0
        self._is_away = False

    @property
    def held(self) -> frozenset[ServiceKey]:
        """The services whose lease this exporter has, as far as it knows."""
        return frozenset(self._until)

    def publishes(self, service: ServiceKey) -> bool:
        """Whether this exporter shows the verdicts on a service: it judges it, and its lease has not ended.

        One that cannot reach the store goes on for a while, since nobody else may know that it is to.

        Args:
            service: Its key.
        """
        until = self._until.get(service, -math.inf) + (_AWAY_SECONDS if self._is_away else 0.0)
        return self.is_alone or _clock() < until

    @property
    def asked(self) -> frozenset[ServiceKey]:
        """The services that somebody asked about, a while ago at most."""
        return frozenset(self._asked)

    def ask(self, service: ServiceKey) -> None:
        """Follow a service for a while that may have no container here; from the event loop.

        Anybody may ask about any name. One that no service has is not followed, nor keeps another one from it.

        Args:
            service: Its key.
        """
        if service in self._asked or (service in self._names and len(self._asked) < _MOST_ASKED):
            self._asked[service] = _clock() + _ASKED_SECONDS
        elif len(self._unknown) < _MOST_ASKED:
            self._unknown.add(service)

    def read_asked(self, fleet: Fleet) -> set[ServiceKey]:
        """Read which starts run of the services that somebody asked about.

        Args:
            fleet: Where they are.

        Returns:
            Those services.
        """
        now = _clock()
        unknown, self._unknown = self._unknown, set()
        if unknown and now - self._named_at >= _NAMES_SECONDS:
            self._names, self._named_at = frozenset(fleet.services()), now
        for service in unknown & self._names:
            self.ask(service)
        for service, until in self._asked.copy().items():
            if until < now:
                del self._asked[service]
        self._running = {service: fleet.running(service) for service in [*self._asked]}
        self._running_until = now + fleet.lease_seconds
        return {*self._running}

    def running(self, service: ServiceKey) -> Sequence[Generation]:
        """The starts of a service that run, on any host; none where that was read longer ago than a lease lasts.

        Args:
            service: One that was asked about for some seconds.

        Returns:
            Starts, in order of their containers' names.
        """
        return self._running.get(service, ()) if _clock() < self._running_until else ()

    def is_due(self, fleet: Fleet) -> bool:
        """Whether the leases are to be renewed now.

        Args:
            fleet: What shares the store.
        """
        self.is_alone = False
        return self._shared_at is None or _clock() - self._shared_at >= min(
            _SHARE_SECONDS, fleet.lease_seconds / 4
        )

    def renew(self, fleet: Fleet, watched: Collection[ServiceKey]) -> frozenset[ServiceKey]:
        """Renew the leases, take those that are free, and give back those of services that are not here any more.

        Args:
            fleet: What shares the store.
            watched: Services that this exporter has containers of.

        Returns:
            Services that it holds since now.

        Raises:
            StoreError: The store cannot be reached.
        """
        now, before = _clock(), self.held
        wanted = {*watched, PRIORS}
        try:
            if gone := before - wanted:
                self._change(dict.fromkeys(gone))
                fleet.give_back(gone)
            held = frozenset(fleet.hold(wanted))
        except StoreError:
            self.away()
            raise
        new = held - before
        self._renewed(before - gone, held, now + fleet.lease_seconds, new)
        if new:
            log.info("judges these from now on", services=sorted(map(str, new - {PRIORS})))
        self._shared_at = now
        return new

    def keep(self, fleet: Fleet) -> None:
        """Renew the leases of this exporter alone: a turn of judging may take longer than a lease lasts.

        Args:
            fleet: What shares the store.

        Raises:
            StoreError: The store cannot be reached.
        """
        if before := self.held:
            now = _clock()
            try:
                held = fleet.renew(before)
            except StoreError:
                self.away()
                raise
            self._renewed(before, held, now + fleet.lease_seconds)

    def _renewed(
        self,
        before: Collection[ServiceKey],
        held: Collection[ServiceKey],
        until: float,
        new: Collection[ServiceKey] = (),
    ) -> None:
        """Note which of the leases go on, and how long."""
        lost = ({*before} - {*held}) & self.held
        self._change(dict.fromkeys(lost) | dict.fromkeys(held, until), new)
        self._is_away = False
        if lost:
            log.warning("another exporter judges these now", services=sorted(map(str, lost)))

    def _change(self, untils: Mapping[ServiceKey, float | None], new: Collection[ServiceKey] = ()) -> None:
        """Set until when leases last, unless a later renewal was faster; None for those that are lost.

        Of the others only ``new`` ones are taken: one that the other thread gave back or lost meanwhile stays so.
        """
        with self._changing:
            changed = dict(self._until)
            for service, until in untils.items():
                if until is None:
                    changed.pop(service, None)
                elif service in changed or service in new:
                    changed[service] = max(until, changed.get(service, until))
            self._until = changed

    def away(self) -> None:
        """Note that the store could not be reached."""
        self._is_away = True

    def lose(self, service: ServiceKey) -> None:
        """Note that somebody else judges a service.

        Args:
            service: Its key.
        """
        self._change({service: None})

    def end(self, fleet: Fleet | None) -> None:
        """Give all leases back. Never raises.

        Args:
            fleet: What shares the store; None where nobody does.
        """
        held, self._until = self.held, {}
        try:
            if fleet is not None:
                fleet.give_back(held)
        except StoreError as error:
            log.info("leases are left to end by themselves", error=str(error))


def _clock() -> float:
    """Seconds that go on while the machine sleeps, as the store's clock does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
