"""The store in PostgreSQL, which exporters of a fleet share: each run once, the judge's findings, and who judges.

docs/adr/0022-a-fleets-store.md has the tables, and why nothing is lost or doubled; all SQL is in :mod:`.sql`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

import msgspec

from infercanary.judge.model import Generation, Sample, ServiceKey
from infercanary.judge.policy import Policy
from infercanary.store import retention, thinning
from infercanary.store.base import HISTORY, Document, LastRun, LeaseLost, StoreError
from infercanary.store.postgres import sql
from infercanary.store.postgres.fleet import PostgresFleet
from infercanary.store.postgres.keys import digest, service_id
from infercanary.store.postgres.location import Location
from infercanary.store.postgres.mirror import Mirror
from infercanary.store.postgres.rows import PostgresRows
from infercanary.store.postgres.session import PostgresSession
from infercanary.store.reading import StartSummary, fair, first_that_fits, to_judge
from infercanary.store.records import (
    MAX_CANARIES,
    ContainerKey,
    began,
    by_canary,
    decode,
    details_of,
    encode,
    encode_environment,
    key_of,
    refuse,
    tier_of,
    with_known,
)
from infercanary.store.retention import Retention, StartRecord

_SWEEP_SECONDS = 3600.0
_SEEN_SECONDS = 3600.0  # `seen` is written so often at most
_DROPPED = 20  # starts in a transaction: each may have thousands of rows, and a statement has seconds
_MOST_READ_BYTES = 64 << 20  # of runs that are held between two judgements


class _Written(msgspec.Struct):
    """A start as this process wrote it last; ``seen_at`` is of the monotonic clock."""

    generation: Generation
    seen_at: float
    canaries: set[str]


class PostgresStore:
    """A database, and this process' part in it: a :class:`~infercanary.store.base.Store`.

    Args:
        location: Where it is.
        keep: How much is kept.
        holder: What tells this process from all others; None for a random name.
    """

    size_bytes = None
    """Databases with PostgreSQL's protocol have no common way to ask."""
    set_aside_at = None
    """A database is never begun anew."""

    def __init__(self, location: Location, keep: Retention | None = None, holder: str | None = None) -> None:
        self.session = PostgresSession(location, self._rolled_back)
        self._keep = keep or Retention()
        self._written: dict[tuple[ServiceKey, UUID], _Written] = {}
        self._touched: set[ContainerKey] = set()
        self._swept_at = -math.inf
        # A database that does not answer is noticed before the lease ends.
        self._renewing = PostgresSession(location, lambda: None, location.lease_seconds / 2)
        self.fleet = PostgresFleet(self.session, self._renewing, location.lease_seconds, holder)

    def transaction(self) -> AbstractContextManager[None]:
        """What is done within it is kept as a whole or, after an exception, not at all."""
        return self.session.transaction()

    def close(self) -> None:
        """Let go of it. Never raises."""
        self.session.close()
        self._renewing.close()

    # Runs --------------------------------------------------------------------------------------------------------

    def take(self, generation: Generation, samples: Iterable[Sample]) -> int:
        """Keep ``samples`` of ``generation``; how many of them are new."""
        several = by_canary(samples)
        digest(generation.image, generation.image_id, generation.image_digest, generation.host, *several)
        service, start = service_id(generation.key), digest(generation.container, generation.boot_id)
        with self.transaction():
            written = self._write_start(service, start, generation)
            for canary in [*several]:
                if canary not in written.canaries and len(written.canaries) >= MAX_CANARIES:
                    refuse(generation, canary)
                    del several[canary]
                    continue
                written.canaries.add(canary)
            new = self._insert(service, start, several) if several else 0
        self._touched.add(key_of(generation))
        return new

    def canaries(self, services: Collection[ServiceKey] | None = None) -> list[tuple[ServiceKey, str]]:
        """Service and canary of each canary that ran."""
        if services is None:
            rows = self.session.rows(sql.CANARIES)
        else:
            rows = self.session.rows(sql.CANARIES_OF_SERVICES, services=[*map(service_id, services)])
        return sorted((ServiceKey(namespace, name), canary) for namespace, name, canary in rows)

    def last_runs(self, host: str) -> list[LastRun]:
        """What ran on a host, in containers that Docker or Kubernetes found."""
        rows = self.session.rows(sql.LAST_RUNS, host=host)
        return [LastRun(ServiceKey(row[0], row[1]), *row[2:]) for row in rows]

    def taken(self, service: ServiceKey, canary: str) -> dict[tuple[str, str], int]:
        """Container and boot id → runs that were taken and had not failed, also those that were merged since."""
        return {
            (start.container, start.boot_id): series.taken
            for start, series in self._mirror(service).of_canary(canary)
        }

    def start_of(self, service: ServiceKey, container: str, boot_id: str) -> Generation | None:
        """What is known of a start; None where it was never seen."""
        mirror = Mirror(service_id(service), container)
        mirror.refresh(self.session)
        seen = mirror.starts.get(digest(container, boot_id))
        return None if seen is None else seen.generation

    def starts(self, service: ServiceKey) -> list[Generation]:
        """Each start of the service's containers, also without runs, in order of time."""
        found = (start.generation for start in self._mirror(service).in_order())
        return [generation for generation in found if generation is not None]

    def generations(
        self,
        service: ServiceKey,
        canary: str,
        *,
        container: str | None = None,
        since: float = -math.inf,
        most_bytes: int | None = None,
    ) -> list[tuple[Generation, list[Sample]]]:
        """Each start in which the canary ran, with its samples."""
        mirror = self._mirror(service, container)
        found = []
        several = [
            (start, series)
            for start, series in mirror.of_canary(canary)
            if container in {None, start.container} and start.began >= since
        ]
        if most_bytes is not None:
            seen = [
                StartSummary.of(start.container, start.work, series.first_at, series.last_at, series.taken)
                for start, series in several
            ]
            now = max((series.last_at for _, series in several), default=0.0)
            several = [several[place] for place in to_judge(seen, now)]
        mirror.read(self.session, [series for _, series in several])
        if most_bytes is not None:
            several = several[first_that_fits([start.size for start, _ in several], most_bytes) :]
        share = None if most_bytes is None else fair((series.read_bytes for _, series in several), most_bytes)
        for start, series in several:
            if start.generation is not None and (samples := decode(series.within(share))):
                found.append((start.generation, samples))
        self.fleet.forget_runs(_MOST_READ_BYTES, service, canary)
        return found

    def keep_for(self, policy: Policy) -> None:
        """Keep, from now on, the runs that this policy looks at."""
        self._keep = self._keep.reaching(policy)

    def thin(self, now: float) -> None:
        """Merge and drop what is no longer to be kept.

        Of the containers whose runs this process took, and of the services that it judges; the time is the database's.
        """
        for key in list(self._touched):
            namespace, name, container = key
            rows = PostgresRows(self.session, service_id(ServiceKey(namespace, name)), container)
            with self.transaction():
                thinning.thin(rows, self._keep)
            self._touched.discard(key)
        if time.monotonic() - self._swept_at >= _SWEEP_SECONDS:
            [(age,)] = self.session.rows(sql.NOW)
            for service in self.fleet.held:
                self._sweep(service_id(service), age)
            self._swept_at = time.monotonic()

    # Documents ---------------------------------------------------------------------------------------------------

    def save(self, service: ServiceKey, canary: str, kind: str, at: float, body: bytes) -> None:
        """Keep a document; of a service, canary and kind the last ``HISTORY`` are kept.

        Raises:
            LeaseLost: This process does not judge the service.
        """
        key = {"service": service_id(service), "kind": kind, "canary": canary}
        with self.transaction():
            numbers = self.session.rows(sql.SAVE, **key, **self.fleet.claim(service), at=at, body=body)
            if not numbers:
                raise LeaseLost(f"{service}: another exporter judges it by now")
            self.session.run(sql.FORGET_DOCUMENTS, **key, number=numbers[0][0] - HISTORY)

    def history(self, service: ServiceKey, canary: str, kind: str) -> list[Document]:
        """What was saved, in the order in which it was."""
        rows = self.session.rows(sql.HISTORY, service=service_id(service), canary=canary, kind=kind)
        return [Document(*row) for row in rows]

    # Inside ------------------------------------------------------------------------------------------------------

    def _mirror(self, service: ServiceKey, container: str | None = None) -> Mirror:
        """What is known of a service: as it was refreshed last or, if this process does not judge it, as it is now."""
        known = self.fleet.mirrors.get(service)
        if known is None:
            known = Mirror(service_id(service), container)
            known.refresh(self.session)
        return known

    def _write_start(self, service: UUID, start: UUID, generation: Generation) -> _Written:
        """Add the start, or bring it up to date."""
        db, now = self.session, time.monotonic()
        key: dict[str, Any] = {"service": service, "start": start}
        written = self._written.get((generation.key, start))
        if written is not None and written.generation == generation:
            if now - written.seen_at >= _SEEN_SECONDS:
                db.run(sql.SEEN, **key)
                written.seen_at = now
            return written
        environment = encode_environment(generation.environment)
        environment_key = hashlib.sha256(environment).digest()
        known = db.rows(sql.START, **key)
        kept = with_known(generation, known[0][-1]) if known else generation
        values = _changeable(kept, environment_key)
        if not known or tuple(known[0]) != tuple(values.values()):
            db.run(sql.ADD_ENVIRONMENT, service=service, digest=environment_key, body=environment)
            if known:
                db.run(sql.CHANGE_START, **key, **values)
            else:
                [(latest,)] = db.rows(sql.LATEST, service=service, container=generation.container)
                db.run(
                    sql.ADD_START,
                    **key, **values,
                    namespace=generation.namespace, name=generation.service, container=generation.container,
                    boot_id=generation.boot_id, started_at=generation.started_at,
                    began=began(generation.started_at, latest),
                )  # fmt: skip
        if known:
            db.run(sql.SEEN, **key)
        canaries = {canary for (canary,) in db.rows(sql.CANARIES_OF_START, **key)}
        self._written[generation.key, start] = _Written(generation, now, canaries)
        return self._written[generation.key, start]

    def _insert(self, service: UUID, start: UUID, several: dict[str, list[Sample]]) -> int:
        """How many of the runs are new."""
        db = self.session
        ids = {digest(start.hex, canary): canary for canary in several}
        locked = db.rows(sql.LOCK_SERIES, service=service, series=[*ids])
        if len(locked) < len(ids):
            for one in ids.keys() - {row[0] for row in locked}:
                first = min(several[ids[one]], key=lambda sample: sample.sequence)
                db.run(
                    sql.ADD_SERIES,
                    service=service, series=one, start=start, canary=ids[one], first_at=first.started_at,
                )  # fmt: skip
            locked = db.rows(sql.LOCK_SERIES, service=service, series=[*ids])
        again = {one for one, _, last, *_ in locked if any(s.sequence <= last for s in several[ids[one]])}
        known: set[tuple[UUID, int]] = set()
        if again:
            numbers = sorted({s.sequence for one in again for s in several[ids[one]]})
            rows = db.rows(sql.KNOWN_SEQUENCES, service=service, series=[*again], sequences=numbers)
            known = {(one, sequence) for one, sequence in rows}
        added: list[tuple[UUID, int, int, bytes]] = []
        counts: list[tuple[UUID, int, int, int, int, float]] = []
        for one, taken, _, merged_through, failed_through in locked:
            tiers = dict.fromkeys((retention.OPENING, retention.RAW, retention.FAILED), 0)
            last_at, last = 0.0, -1
            for sample in sorted(several[ids[one]], key=lambda sample: sample.sequence):
                through = failed_through if sample.failed else merged_through
                if sample.sequence <= through or (one, sample.sequence) in known:
                    continue
                known.add((one, sample.sequence))
                tier = tier_of(sample, taken + tiers[retention.OPENING], self._keep.opening)
                tiers[tier] += 1
                added.append((one, sample.sequence, tier, _encoded(sample)))
                last_at, last = max(last_at, sample.started_at), sample.sequence
            if last >= 0:
                counts.append((one, *tiers.values(), last, last_at))
        if added:
            columns = _columns(("series", "sequences", "tiers", "bodies"), added)
            db.run(sql.ADD_SAMPLES, service=service, **columns)
            columns = _columns(("series", "opening", "raw", "failed", "last", "last_at"), counts)
            db.run(sql.COUNT_SAMPLES, service=service, **columns)
        return len(added)

    def _sweep(self, service: UUID, age: float) -> None:
        """Drop images and containers whose time is over, and what belongs to nothing any more."""
        key = ServiceKey("", "")  # all of one service
        rows = self.session.rows(sql.RECORDS, service=service)
        expired = retention.expired((StartRecord(key, *row) for row in rows), age, self._keep)
        dropped = PostgresRows(self.session, service, "")
        for begin in range(0, len(expired), _DROPPED):
            with self.transaction():
                dropped.drop(expired[begin : begin + _DROPPED])
        with self.transaction():
            self.session.run(sql.DROP_DOCUMENTS, service=service)
            if expired:
                self.session.run(sql.DROP_FINDINGS, service=service)
            self.session.run(sql.DROP_UNUSED_ENVIRONMENTS, service=service)

    def _rolled_back(self) -> None:
        self._written.clear()


def _encoded(sample: Sample) -> bytes:
    try:
        return encode(sample)
    except (OverflowError, UnicodeError) as error:
        raise StoreError(f"a run of {sample.canary!r} cannot be kept: {error}") from None


def _changeable(generation: Generation, environment: bytes) -> dict[str, Any]:
    """The columns that a later report of the same start may change, in the order of ``sql.START``."""
    return {
        "image": generation.image,
        "image_id": generation.image_id,
        "image_digest": generation.image_digest,
        "image_key": generation.work_key,
        "host": generation.host,
        "environment": environment,
        "details": details_of(generation),
    }


def _columns(names: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
