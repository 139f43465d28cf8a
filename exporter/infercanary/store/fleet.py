"""Fleet: leases, which decide which of the exporters that share a database judges a service, and their findings."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any, TypeAlias

from sqlalchemy import Connection, Executable

from infercanary.judge.model import Generation, ServiceKey
from infercanary.store import queries
from infercanary.store.base import GONE_SECONDS, LeaseLost
from infercanary.store.records import decode_starts
from infercanary.store.session import Session

_Services: TypeAlias = Collection[ServiceKey]
_Canary: TypeAlias = tuple[ServiceKey, str]
_Body: TypeAlias = tuple[ServiceKey, str, bytes]


class Fleet:
    """This process among those that share the database. Every method may raise :class:`.StoreError`.

    Not thread-safe, except for :meth:`renew`. A lease has one holder. It ends after ``lease_seconds``, by the
    database's clock, unless it is renewed.

    Args:
        session: The store's connection.
        renewing: Another connection, for renewals alone.
        lease_seconds: Length of a lease without renewal.
    """

    def __init__(self, session: Session, renewing: Session, lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self.holder = uuid.uuid4().hex
        """Name of this process."""
        self.held: dict[ServiceKey, int] = {}
        """Service → fencing number of its lease, as far as this process knows."""
        self._session = session
        self._renewing = renewing
        self._counts: dict[_Canary, Any] = {}
        self._numbers: dict[_Canary, Any] = {}

    def hold(self, wanted: _Services) -> set[ServiceKey]:
        """Renew the leases of these services and take free ones; return those held now."""
        self.held = self._lease(self._session, wanted, self.lease_seconds, takes=True)
        return {*self.held}

    def renew(self, services: _Services) -> set[ServiceKey]:
        """Renew held leases on a separate connection, from another thread than the other methods; return those that
        go on.
        """
        return {*self._lease(self._renewing, services, self.lease_seconds)}

    def give_back(self, services: _Services) -> None:
        """End held leases of these services, so that another process may take them at once."""
        if ended := self.held.keys() & services:
            self.held = {service: fence for service, fence in self.held.items() if service not in ended}
            self._lease(self._session, ended, 0.0)

    def claim(self, connection: Connection, service: ServiceKey) -> None:
        """Lock a service's lease until the transaction ends, before a write about the service.

        Raises:
            LeaseLost: Another process has the lease.
        """
        if connection.execute(queries.CLAIM, self._mine(service)).first() is None:
            raise self._lost(service)

    def refresh(self, services: _Services) -> set[_Canary]:
        """Return the canaries of ``services`` whose starts or runs changed since the last call, and forget all other
        services.
        """
        before, self._counts = self._counts, self._by_canary(queries.COUNTS, services)
        both = self._counts.keys() | before.keys()
        return {key for key in both if key[0] in services and self._counts.get(key) != before.get(key)}

    def put_finding(self, service: ServiceKey, canary: str, at: float, body: bytes, taught: bytes) -> None:
        """Store the finding on a canary of a service whose lease this process has.

        Args:
            at: A Unix time.
            body: The finding.
            taught: Restart variance that it teaches other services; empty for none.

        Raises:
            LeaseLost: Another process has the lease.
        """
        given = self._mine(service, canary=canary, at=at, body=body, taught=taught)
        rows = self._session.keyed(queries.PUT_FINDING, given)
        if not rows:
            raise self._lost(service)
        self._numbers[service, canary] = [*rows[0][1:]]

    def findings(self, services: _Services) -> list[_Body]:
        """Return the findings on ``services`` that changed since the last call, and forget all other services."""
        numbers = self._by_canary(queries.FINDING_NUMBERS, services)
        changed = [key for key in numbers if numbers[key] != self._numbers.get(key)]
        keys = [(*service, canary) for service, canary in changed]
        findings = self._session.keyed(queries.FINDINGS, {"canaries": keys})
        self._numbers = numbers
        return findings

    def running(self, service: ServiceKey) -> list[Generation]:
        """Return the newest start of each running container, ordered by container.

        Empty if nobody has the service's lease, because then no exporter knows what runs.
        """
        rows = self._session.rows(queries.RUNNING, queries.named(service, gone=GONE_SECONDS))
        newest = {start.container: start for start in decode_starts(rows)}
        return [start for _, start in sorted(newest.items()) if not start.ended_at]

    def services(self) -> set[ServiceKey]:
        """Return the services with a lease holder."""
        return {service for (service,) in self._session.keyed(queries.SERVICES)}

    def taught(self) -> list[_Body]:
        """Return the restart variance that each canary of all services teaches, if any."""
        return self._session.keyed(queries.TAUGHT)

    def close(self) -> None:
        """Let go of the connection for renewals. Never raises."""
        self._renewing.close()

    def _mine(self, service: ServiceKey, **more: Any) -> dict[str, Any]:
        return queries.named(service, holder=self.holder, fence=self.held.get(service, 0), **more)

    def _lost(self, service: ServiceKey) -> LeaseLost:
        self.held.pop(service, None)
        return LeaseLost(f"{service}: the lease has ended")

    def _lease(
        self, session: Session, services: _Services, seconds: float, takes: bool = False
    ) -> dict[ServiceKey, int]:
        given = {
            "namespaces": [key.namespace for key in services],
            "services": [key.name for key in services],
            "holder": self.holder,
            "seconds": seconds,
            "takes": takes,
        }
        return dict(session.keyed(queries.LEASE, given))

    def _by_canary(self, statement: Executable, services: _Services) -> dict[_Canary, Any]:
        rows = self._session.keyed(statement, queries.among(services))
        return {(service, canary): numbers for service, canary, *numbers in rows}
