"""Leases and findings: which of the exporters that share a database judges a service, and what it found."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Executable

from infercanary.judge.model import Generation, ServiceKey
from infercanary.store import queries
from infercanary.store.base import LeaseLost, StoredFinding
from infercanary.store.records import start_in
from infercanary.store.session import Session

_GONE_SECONDS = 300.0  # a container without a run for so long, while others of its service have some, is gone
_BODIES = 100  # findings in a statement, each of some kilobytes


class Fleet:
    """This process among those that share the database. Every method may raise :class:`.StoreError`.

    One thread at a time, but for :meth:`renew`. A service's lease has one holder. It ends after ``lease_seconds``, by
    the database's clock, unless it is renewed.

    Args:
        session: The store's.
        renewing: Another connection, for renewals alone.
        lease_seconds: Until a lease ends that is not renewed.
        holder: Identifies this process; None for a random name.
    """

    def __init__(
        self, session: Session, renewing: Session, lease_seconds: float, holder: str | None = None
    ) -> None:
        self.lease_seconds = lease_seconds
        self.holder = holder or uuid.uuid4().hex
        self.held: dict[ServiceKey, int] = {}
        """Service → the fencing number of its lease, as far as this process knows."""
        self._session = session
        self._renewing = renewing
        self._counts: dict[tuple[ServiceKey, str], tuple[Any, ...]] = {}
        self._numbers: dict[tuple[ServiceKey, str], int] = {}

    def hold(self, wanted: Collection[ServiceKey]) -> set[ServiceKey]:
        """Renew the leases of these services, and take those that nobody has; leases of others are left to end.

        Returns:
            The services whose lease this process has now.
        """
        self.held = self._renew(self._session, wanted)
        if missing := sorted({*wanted} - self.held.keys()):
            others = {ServiceKey(*row) for row in self._rows(queries.held(missing))}
            given = {"holder": self.holder, "seconds": self.lease_seconds}
            if free := [{**given, **named(service)} for service in missing if service not in others]:
                rows = self._rows(queries.take_leases(), free)
                self.held |= {ServiceKey(*names): fence for *names, fence in rows}
        return {*self.held}

    def renew(self, services: Collection[ServiceKey]) -> set[ServiceKey]:
        """Renew leases that this process holds; by a connection of its own, from another thread than all other methods.

        Returns:
            The services whose lease goes on.
        """
        return {*self._renew(self._renewing, services)}

    def give_back(self, services: Collection[ServiceKey]) -> None:
        """End those of these leases that this process holds, so that another process may take them at once."""
        ended = self.held.keys() & services
        self.held = {service: fence for service, fence in self.held.items() if service not in ended}
        if ended:
            self._rows(queries.give_back(ended), {"holder": self.holder})

    def claim(self, connection: Connection, service: ServiceKey) -> None:
        """Lock a service's lease until the transaction ends, for a write about the service.

        Raises:
            LeaseLost: Another process has the lease by now.
        """
        if connection.execute(queries.CLAIM, self._mine(service)).first() is None:
            raise self._lost(service)

    def refresh(self, services: Collection[ServiceKey]) -> set[tuple[ServiceKey, str]]:
        """Compare the counts of these services with those of the call before; all other services are forgotten.

        Returns:
            Service and canary of each canary of which a start, or its runs, changed since.
        """
        before, self._counts = self._counts, {}
        if services:
            for namespace, service, canary, *counts in self._rows(queries.counts(services)):
                self._counts[ServiceKey(namespace, service), canary] = tuple(counts)
        both = self._counts.keys() | before.keys()
        return {key for key in both if key[0] in services and self._counts.get(key) != before.get(key)}

    def put_finding(self, service: ServiceKey, canary: str, at: float, body: bytes, taught: bytes) -> None:
        """Keep the finding about a canary.

        Args:
            service: A service whose lease this process has.
            canary: Its name.
            at: A Unix time.
            body: The finding.
            taught: What its restarts teach about other services; empty for nothing.

        Raises:
            LeaseLost: Another process has the lease by now.
        """
        values = {"canary": canary, "at": at, "body": body, "taught": taught}
        rows = self._rows(queries.put_finding(), {**self._mine(service), **values})
        if not rows:
            raise self._lost(service)
        self._numbers[service, canary] = rows[0][0]

    def findings(self, services: Collection[ServiceKey]) -> list[StoredFinding]:
        """Read the findings about these services that changed since the call before; all other services are forgotten."""
        before, self._numbers = self._numbers, {}
        if services:
            for namespace, service, canary, number in self._rows(queries.finding_numbers(services)):
                self._numbers[ServiceKey(namespace, service), canary] = number
        changed = sorted(key for key, number in self._numbers.items() if before.get(key) != number)
        found = []
        for begin in range(0, len(changed), _BODIES):
            found += self._rows(queries.finding_bodies(changed[begin : begin + _BODIES]))
        return [StoredFinding(ServiceKey(*row[:2]), *row[2:]) for row in found]

    def running(self, service: ServiceKey) -> list[Generation]:
        """The newest start of each container that still runs, as far as runs and their ends show.

        Returns:
            Starts, in order of their containers' names; none where nobody has the service's lease, for then no exporter
            sees what runs.
        """
        rows = self._rows(queries.RUNNING, {**named(service), "gone": _GONE_SECONDS})
        starts = [start for row in rows if (start := start_in(row)) is not None]
        newest = {start.container: start for start in starts}
        return [start for _, start in sorted(newest.items()) if not start.ended_at]

    def services(self) -> set[ServiceKey]:
        """All services that are judged: somebody holds their lease."""
        return {ServiceKey(*row) for row in self._rows(queries.SERVICES)}

    def taught(self) -> list[StoredFinding]:
        """The ``taught`` of each canary of all services, where it is not empty."""
        return [StoredFinding(ServiceKey(*row[:2]), *row[2:]) for row in self._rows(queries.TAUGHT)]

    def close(self) -> None:
        """Let go of the connection for renewals. Never raises."""
        self._renewing.close()

    def _mine(self, service: ServiceKey) -> dict[str, Any]:
        return {**named(service), "holder": self.holder, "fence": self.held.get(service, 0)}

    def _lost(self, service: ServiceKey) -> LeaseLost:
        self.held.pop(service, None)
        return LeaseLost(f"{service}: another exporter judges it by now")

    def _renew(self, session: Session, services: Collection[ServiceKey]) -> dict[ServiceKey, int]:
        if not services:
            return {}
        given = {"holder": self.holder, "seconds": self.lease_seconds}
        with session.work() as connection:
            rows = connection.execute(queries.renew(services), given).all()
        return {ServiceKey(*names): fence for *names, fence in rows}

    def _rows(self, statement: Executable, given: Any = None) -> list[Any]:
        with self._session.work() as connection:
            result = connection.execute(statement, given)
            return [*result.all()] if result.returns_rows else []
