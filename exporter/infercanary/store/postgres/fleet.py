"""Who judges which service, and what was found: leases and findings in PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Any
from uuid import UUID

from infercanary.judge.model import Generation, ServiceKey
from infercanary.store.base import LeaseLost, StoredFinding
from infercanary.store.postgres import sql
from infercanary.store.postgres.keys import service_id
from infercanary.store.postgres.mirror import Mirror
from infercanary.store.postgres.session import PostgresSession

_GONE_SECONDS = 300.0  # a container without a run for so long, while others of its service have some, is gone


class PostgresFleet:
    """One process among those that share the database: a :class:`~infercanary.store.base.Fleet`.

    Args:
        db: The database.
        renewing: Another connection, for renewals alone.
        lease_seconds: Until a lease ends that is not renewed.
        holder: What tells this process from all others; None for a random name.
    """

    def __init__(
        self,
        db: PostgresSession,
        renewing: PostgresSession,
        lease_seconds: float,
        holder: str | None = None,
    ) -> None:
        self.lease_seconds = lease_seconds
        self.holder = holder or uuid.uuid4().hex
        self.held: dict[ServiceKey, int] = {}
        """Service → the fencing number of its lease, as far as this process knows."""
        self.mirrors: dict[ServiceKey, Mirror] = {}
        """What was read of the services of the last :meth:`refresh`."""
        self._db = db
        self._renewing = renewing
        self._numbers: dict[tuple[UUID, str], int] = {}

    def hold(self, wanted: Collection[ServiceKey]) -> set[ServiceKey]:
        """Renew the leases of these services, and take those that nobody has."""
        ids = {service_id(service): service for service in sorted(wanted)}
        given: dict[str, Any] = {"holder": self.holder, "seconds": self.lease_seconds}
        renewed = self._db.rows(sql.RENEW, services=[*ids], **given) if ids else []
        held = {ids[service]: fence for service, fence in renewed}
        if left := [one for one, service in ids.items() if service not in held]:
            others = {one for (one,) in self._db.rows(sql.HELD, services=left)}
            for one in (one for one in left if one not in others):
                namespace, name = ids[one]
                taken = self._db.rows(sql.TAKE, service=one, namespace=namespace, name=name, **given)
                if taken:
                    held[ids[one]] = taken[0][0]
        self.held = held
        return {*held}

    def renew(self, services: Collection[ServiceKey]) -> set[ServiceKey]:
        """Renew leases, and take none; by a connection of its own, from another thread than all other methods."""
        ids = {service_id(service): service for service in services}
        given = {"services": [*ids], "holder": self.holder, "seconds": self.lease_seconds}
        return {ids[service] for service, _ in self._renewing.rows(sql.RENEW, **given)}

    def give_back(self, services: Collection[ServiceKey]) -> None:
        """End the leases of these services, so that another process may take them at once."""
        ids = [service_id(service) for service in services if service in self.held]
        self.held = {service: fence for service, fence in self.held.items() if service not in services}
        if ids:
            self._db.run(sql.GIVE_BACK, services=ids, holder=self.holder)

    def claim(self, service: ServiceKey) -> dict[str, Any]:
        """What a write about a service carries: who writes, and by which lease.

        Args:
            service: Its key.

        Returns:
            Parameters of a statement; those of no lease where this process has none.
        """
        return {"holder": self.holder, "fence": self.held.get(service, 0)}

    def refresh(self, services: Collection[ServiceKey]) -> set[tuple[ServiceKey, str]]:
        """Read again what the store has of these services: canaries of which something changed."""
        self.mirrors = {service: known for service, known in self.mirrors.items() if service in services}
        changed = set()
        for service in services:
            mirror = self.mirrors.get(service) or Mirror(service_id(service))
            changed |= {(service, canary) for canary in mirror.refresh(self._db)}
            self.mirrors[service] = mirror
        return changed

    def forget_runs(self, most_bytes: int, service: ServiceKey, canary: str) -> None:
        """Hold the runs of this canary alone, if all that are held are more than so many bytes.

        Args:
            most_bytes: So many may stay.
            service: The one that is judged.
            canary: Its name.
        """
        if sum(mirror.read_bytes for mirror in self.mirrors.values()) > most_bytes:
            for key, mirror in self.mirrors.items():
                mirror.forget_runs({canary} if key == service else ())

    def put_finding(self, service: ServiceKey, canary: str, at: float, body: bytes, taught: bytes) -> None:
        """Keep what is known of a canary now.

        Raises:
            LeaseLost: The lease is another process's by now.
        """
        one = service_id(service)
        numbers = self._db.rows(
            sql.PUT_FINDING,
            service=one, canary=canary, at=at, body=body, taught=taught, **self.claim(service),
        )  # fmt: skip
        if not numbers:
            self.held.pop(service, None)
            raise LeaseLost(f"{service}: another exporter judges it by now")
        self._numbers[one, canary] = numbers[0][0]

    def findings(self, services: Collection[ServiceKey]) -> list[StoredFinding]:
        """What is known of these services, as far as it changed since the call before."""
        ids = {service_id(service): service for service in services}
        self._numbers = {key: number for key, number in self._numbers.items() if key[0] in ids}
        found = []
        for one, canary, number in self._db.rows(sql.FINDING_NUMBERS, services=[*ids]) if ids else ():
            if self._numbers.get((one, canary)) != number:
                for (body,) in self._db.rows(sql.FINDING, service=one, canary=canary):
                    found.append(StoredFinding(ids[one], canary, body))
                self._numbers[one, canary] = number
        return found

    def running(self, service: ServiceKey) -> list[Generation]:
        """The newest start of each container that still runs, as far as runs and their ends show."""
        one = service_id(service)
        if not self._db.rows(sql.HELD, services=[one]):
            return []
        last: dict[UUID, float] = dict(self._db.rows(sql.LAST_RUNS_OF_STARTS, service=one))
        since = max(last.values(), default=0.0) - _GONE_SECONDS
        mirror = Mirror(one)
        mirror.read_starts(self._db, [start for start, at in last.items() if at >= since])
        newest = {start.container: start.generation for start in mirror.in_order()}
        return [g for _, g in sorted(newest.items()) if g is not None and not g.ended_at]

    def services(self) -> set[ServiceKey]:
        """All services that are judged."""
        return {ServiceKey(*row) for row in self._db.rows(sql.SERVICES)}

    def taught(self) -> list[StoredFinding]:
        """What each canary of all services teaches."""
        return [StoredFinding(ServiceKey(*row[:2]), *row[2:]) for row in self._db.rows(sql.TAUGHT)]
