"""Fleet: leases and findings of exporters that share a database. The holder of a service's lease judges the service."""

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
    """Leases and findings of this process in a shared database. Every method except :meth:`close` may raise
    :class:`.StoreError`.

    A lease has one holder, and ends ``lease_seconds`` after its last renewal, by the database's clock. All methods
    except :meth:`renew` must be called from the same thread.

    Args:
        session: The store's connection.
        renewing: A separate connection, only for renewals.
        lease_seconds: Seconds until a lease ends without renewal.
    """

    def __init__(self, session: Session, renewing: Session, lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self.holder = uuid.uuid4().hex
        """Unique name of this process."""
        self.held: dict[ServiceKey, int] = {}
        """Fencing token by service, for leases that this process held at the last check."""
        self._session = session
        self._renewing = renewing
        self._counts: dict[_Canary, Any] = {}
        self._numbers: dict[_Canary, Any] = {}

    def hold(self, wanted: _Services) -> set[ServiceKey]:
        """Renew the leases of these services and take free leases. Return the services whose lease is now held."""
        self.held = self._lease(self._session, wanted, self.lease_seconds, takes=True)
        return {*self.held}

    def renew(self, services: _Services) -> set[ServiceKey]:
        """Renew held leases on a separate connection. Return the services whose lease was renewed.

        This method may be called from a different thread.
        """
        return {*self._lease(self._renewing, services, self.lease_seconds)}

    def give_back(self, services: _Services) -> None:
        """End held leases of these services, for other processes to take at once."""
        if ended := self.held.keys() & services:
            self.held = {service: fence for service, fence in self.held.items() if service not in ended}
            self._lease(self._session, ended, 0.0)

    def claim(self, connection: Connection, service: ServiceKey) -> None:
        """Lock a service's lease until the transaction ends. Meanwhile, no other process writes about the service.

        Raises:
            LeaseLost: Another process has the lease.
        """
        if connection.execute(queries.CLAIM, self._mine(service)).first() is None:
            raise self._lost(service)

    def refresh(self, services: _Services) -> set[_Canary]:
        """Return the canaries of ``services`` whose starts or runs changed since the last call.

        Services that are not in ``services`` are forgotten, so a later call returns all their canaries.
        """
        before, self._counts = self._counts, self._by_canary(queries.COUNTS, services)
        both = self._counts.keys() | before.keys()
        return {key for key in both if key[0] in services and self._counts.get(key) != before.get(key)}

    def put_finding(self, service: ServiceKey, canary: str, at: float, body: bytes, taught: bytes) -> None:
        """Store the finding on a canary, if this process has the service's lease.

        Args:
            service: Service of the canary.
            at: Unix time of the finding.
            taught: Restart variance of the canary, for the prior of all services; empty if unknown.

        Raises:
            LeaseLost: Another process has the lease.
        """
        given = self._mine(service, canary=canary, at=at, body=body, taught=taught)
        rows = self._session.keyed(queries.PUT_FINDING, given)
        if not rows:
            raise self._lost(service)
        self._numbers[service, canary] = [*rows[0][1:]]

    def findings(self, services: _Services) -> list[_Body]:
        """Return the findings on ``services`` that changed since the last call.

        Services that are not in ``services`` are forgotten, so a later call returns all their findings.
        """
        numbers = self._by_canary(queries.FINDING_NUMBERS, services)
        changed = [key for key in numbers if numbers[key] != self._numbers.get(key)]
        keys = [(*service, canary) for service, canary in changed]
        findings = self._session.keyed(queries.FINDINGS, {"canaries": keys})
        self._numbers = numbers
        return findings

    def running(self, service: ServiceKey) -> list[Generation]:
        """Return the newest start of each running container, ordered by container.

        The list is empty if no exporter has the service's lease: nobody then knows which containers run.
        """
        rows = self._session.rows(queries.RUNNING, queries.named(service, gone=GONE_SECONDS))
        newest = {start.container: start for start in decode_starts(rows)}
        return [start for _, start in sorted(newest.items()) if not start.ended_at]

    def services(self) -> set[ServiceKey]:
        """Return the services whose lease any exporter holds."""
        return {service for (service,) in self._session.keyed(queries.SERVICES)}

    def taught(self) -> list[_Body]:
        """Return the known restart variances of all canaries."""
        return self._session.keyed(queries.TAUGHT)

    def close(self) -> None:
        """Close the connection for renewals. Never raises."""
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
