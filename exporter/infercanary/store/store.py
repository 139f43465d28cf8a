"""Store: keeps each run once, and the documents of the judge, in SQLite or PostgreSQL.

Old runs are merged and dropped by the limits of :class:`.retention.Retention`. So even faulty probes and clocks cannot
make the store grow without limit.
"""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Connection, Executable

from infercanary.judge.model import Generation, Sample, ServiceKey
from infercanary.store import queries, retention, thinning
from infercanary.store.base import HISTORY, Database, Document, LastRun, StoreError
from infercanary.store.queries import named
from infercanary.store.reading import to_judge
from infercanary.store.records import (
    MAX_BYTES,
    MAX_CANARIES,
    decode,
    decode_start,
    decode_starts,
    encode,
    encode_start,
    with_known,
)
from infercanary.store.retention import FAILED, OPENING, RAW, TIERS, Retention
from infercanary.store.session import Session
from infercanary.store.sqlite import SqliteDatabase

log = structlog.get_logger(__name__)

_AFTER_SECONDS = 1e-3
_OF_START = "namespace", "service", "container", "boot_id", "host", "image_id", "image_digest"
_DROPPED = 20  # starts dropped in one transaction: a start may have thousands of rows
_FILE = re.compile(r"(?!\s*\w+\s*[=:])[^\0]+")  # excludes libpq's form `host=…` and a URL without slashes


class Store:
    """Keeps each run once. Every method except :meth:`close` may raise :class:`StoreError`.

    The store is synchronous and single-threaded: use it in a worker thread, never in the event loop. Properties may
    be read from any thread.

    Args:
        database: Database, which is opened at first use.
        keep: Limits of the rows that are kept; None for the database's default.
    """

    def __init__(self, database: Database, keep: Retention | None = None) -> None:
        # Last start and its id, for each container with new runs since the last thinning.
        self._written: dict[tuple[ServiceKey, str], tuple[Generation, int]] = {}
        self.session = Session(database, self._written.clear)
        self.fleet = database.fleet(self.session)
        """Leases and findings of exporters that share the store; None if no other exporter uses it."""
        self.database = database
        self._keep = keep or database.retention

    def close(self) -> None:
        """Close the store. Never raises."""
        self.session.close()
        if self.fleet is not None:
            self.fleet.close()

    def take(self, generation: Generation, samples: Iterable[Sample]) -> int:
        """Store samples of a start, in any order.

        Samples that are already stored are ignored, so the same call may be repeated after an error. Samples older than
        a merged sample are also ignored. Pass the starts of a container in order of time: if a clock was set back, only
        the order of the calls shows which start is earlier.

        Args:
            generation: The start. Its fields replace the stored fields, except ``started_at``.
            samples: Samples, identified within the start by their sequence numbers.

        Returns:
            Number of new samples.
        """
        several: dict[str, list[Sample]] = {}
        for sample in sorted(samples, key=attrgetter("sequence")):
            several.setdefault(sample.canary, []).append(sample)
        with self.session.transaction() as connection:
            start = self._write_start(connection, generation)
            return self._insert(start, generation, several)

    def canaries(self, services: Collection[ServiceKey] | None = None) -> list[tuple[ServiceKey, str]]:
        """Return service and name of each canary with stored runs, sorted; None means all services."""
        return sorted(self.session.keyed(queries.CANARIES, queries.among(services)))

    def last_runs(self, host: str) -> list[LastRun]:
        """Return the last run of each canary in each container on a host.

        Containers that Docker or Kubernetes did not find are left out.
        """
        return [LastRun(*row) for row in self.session.keyed(queries.LAST_RUNS, {"host": host})]

    def taken(self, service: ServiceKey, canary: str) -> dict[tuple[str, str], int]:
        """Return the number of successful runs, including merged runs, by container and boot id."""
        # Each canary that may be due calls this, so use fast().
        rows = self.session.fast(queries.TAKEN, named(service, canary=canary))
        return {(container, boot_id): runs for container, boot_id, runs in rows}

    def start_of(self, service: ServiceKey, container: str, boot_id: str) -> Generation | None:
        """Return a start; None if the start is unknown or unreadable."""
        rows = self.session.rows(queries.START, named(service, container=container, boot_id=boot_id))
        return next(decode_starts(rows), None)

    def newest_starts(self, service: ServiceKey) -> dict[str, Generation]:
        """Return the newest start by container, for all containers of the service."""
        rows = self.session.rows(queries.NEWEST_STARTS, named(service))
        return {start.container: start for start in decode_starts(rows)}

    def generations(
        self,
        service: ServiceKey,
        canary: str,
        *,
        container: str | None = None,
        since: float = -math.inf,
        most_bytes: int | None = None,
    ) -> list[tuple[Generation, list[Sample]]]:
        """Return each start in which the canary ran, with its stored runs (including failed and merged runs).

        Args:
            service: Service of the starts.
            container: Only starts of this container; None for all containers.
            since: Only starts from this Unix time on.
            most_bytes: Limit for one judgement, for starts and runs separately. Only the starts that a judgement needs
                are read (:func:`.reading.to_judge`). Beyond the limit, the oldest starts and the middle runs of long
                starts are left out. None for all starts and runs.

        Returns:
            Starts with their samples, both in order of time. Starts at the same time are ordered by container.
        """
        key = named(service, canary=canary, container=container, since=since)
        rows = self.session.rows(queries.SERIES_OF_CANARY, key)
        if most_bytes is not None:
            rows = to_judge(rows)
            fitting = bisect_right([*accumulate(row.bytes for row in reversed(rows))], most_bytes)
            rows = rows[-max(1, fitting) :]
        starts = self.session.rows(queries.STARTS_BY_ID, {"ids": [row.start for row in rows]})
        start_by_id = {start: decode_start(body) for start, body in starts}
        bodies = self._bodies(rows, most_bytes)
        read = ((start_by_id.get(row.start), decode(bodies[row.id])) for row in rows)
        return [(start, samples) for start, samples in read if start and samples]

    def thin(self, now: float) -> None:
        """Merge and drop old rows. Call this method every few minutes.

        In a shared store, this process merges only rows of containers whose runs it stored, and drops only rows of
        services that it judges.

        Args:
            now: Unix time, which advances the age of a store without a clock. A step back, or a step of more than a
                day, does not count.
        """
        with self.session.transaction() as connection:
            age = self.database.age(connection, now)
        for service, container in [*self._written]:
            with self.session.transaction() as connection:
                self._written.pop((service, container), None)
                thinning.thin(connection, service, container, self._keep)
        self._sweep(age)

    def save(self, service: ServiceKey, canary: str, kind: str, at: float, body: bytes) -> None:
        """Store a document. The last ``HISTORY`` documents of a service, canary and kind are kept.

        Documents of a canary are dropped with the canary's last start.

        Args:
            service: Service of the canary.
            kind: Kind of the document.
            at: Unix time of the document.

        Raises:
            LeaseLost: The store is shared, and another process judges the service.
        """
        key = named(service, canary=canary, kind=kind)
        with self.session.transaction() as connection:
            number = connection.execute(queries.ADD_DOCUMENT, {**key, "at": at, "body": body}).scalar_one()
            connection.execute(queries.FORGET_DOCUMENTS, {**key, "number": number - HISTORY})
            if self.fleet is not None:  # the lease cannot be renewed while locked, so lock it last
                self.fleet.claim(connection, service)

    def history(self, service: ServiceKey, canary: str, kind: str) -> list[Document]:
        """Return the documents of a kind, oldest first, at most ``HISTORY``."""
        rows = self.session.rows(queries.HISTORY, named(service, canary=canary, kind=kind))
        return [Document(*row) for row in rows]

    def _write_start(self, connection: Connection, generation: Generation) -> int:
        """Add or update the start, and return its id."""
        container = generation.key, generation.container
        known, start = self._written.get(container, (None, 0))
        if known == generation:
            return start
        values: dict[str, Any] = {name: getattr(generation, name) for name in _OF_START}
        latest, body = connection.execute(queries.KNOWN, values).one()
        kept = generation if body is None else with_known(generation, body)
        # A start is later than the container's previous start and runs, even if the clock was set back.
        began = max(kept.started_at, latest + _AFTER_SECONDS)
        seen = self.database.age(connection)
        values |= {"began": began, "seen": seen, "image_key": kept.work_key, "body": encode_start(kept)}
        start = int(connection.execute(queries.PUT_START, values).scalar_one())
        self._written[container] = generation, start
        return start

    def _insert(self, start: int, generation: Generation, several: Mapping[str, Sequence[Sample]]) -> int:
        """Insert runs in order of their sequence numbers, and return the number of new runs."""
        run = self.session.fast
        known = {canary: counted for canary, *counted in run(queries.LOCK_SERIES, {"start": start})}
        added, counts, refused = [], [], []
        for canary, samples in sorted(several.items()):
            first, newest = samples[0], samples[-1]
            if canary not in known:
                if len(known) == MAX_CANARIES:
                    refused.append(canary)
                    continue
                [(series,)] = run(queries.ADD_SERIES, {"start": start, "canary": canary})
                known[canary] = [series, 0, -1, -1]
            series, taken, last, through = known[canary]
            stored: list[Any] = []
            if first.sequence <= last:
                between = {"series": series, "first": first.sequence, "last": newest.sequence}
                stored = run(queries.KNOWN_SEQUENCES, between)
            new = {sample.sequence: sample for sample in samples if sample.sequence > through}
            for (sequence,) in stored:
                new.pop(sequence, None)
            rows = dict.fromkeys((OPENING, RAW, FAILED), 0)
            for sequence, sample in new.items():
                good = RAW if taken + rows[OPENING] >= self._keep.opening else OPENING
                tier = FAILED if sample.failed else good
                rows[tier] += 1
                added.append({"series": series, "sequence": sequence, "tier": tier, "body": encode(sample)})
            if new:
                last_at = max(sample.started_at for sample in samples)
                newest_run = {"last": newest.sequence, "last_at": last_at, "row": series}
                counts.append({TIERS[tier]: count for tier, count in rows.items()} | newest_run)
        if refused:
            log.warning("runs not stored: the container has too many canaries", most=MAX_CANARIES, refused=len(refused),
                        service=str(generation.key), container=generation.container)  # fmt: skip
        if added:
            run(queries.ADD_SAMPLES, *added)
            run(queries.COUNT_SAMPLES, *counts)
        return len(added)

    def _sweep(self, age: float) -> None:
        """Drop starts of expired images and containers, and documents and findings of canaries without a start."""
        services = queries.among(None if self.fleet is None else self.fleet.held)
        records = self.session.rows(queries.RECORDS, services)
        expired = retention.expired(records, age, self._keep)
        for begin in range(0, len(expired), _DROPPED):
            with self.session.transaction() as connection:
                connection.execute(queries.DROP_STARTS, {"ids": expired[begin : begin + _DROPPED]})
        with self.session.transaction() as connection:
            for statement in queries.DROP_ORPHANS:
                connection.execute(statement, services)

    def _bodies(self, rows: Sequence[Any], most_bytes: int | None) -> Mapping[int, list[bytes]]:
        """Return the stored runs by series. Beyond ``most_bytes``, only the first and last runs of each series are
        returned.
        """
        statement: Executable = queries.BODIES
        given: dict[str, Any] = {"ids": [row.id for row in rows]}
        if most_bytes is not None and sum(row.rows for row in rows) * MAX_BYTES > most_bytes:
            [(size,)] = self.session.rows(queries.SIZE, given)
            if size > most_bytes:
                statement, given["half"] = queries.ENDS, most_bytes / len(rows) / 2
        bodies: defaultdict[int, list[bytes]] = defaultdict(list)
        for series, body in self.session.rows(statement, given):
            bodies[series].append(body)
        return bodies


def check(location: str | os.PathLike[str] | None) -> Database:
    """Return the database at ``location`` without opening it.

    Args:
        location: ``postgresql://ROLE@HOST/DATABASE``, the path of a file, or None for memory.

    Raises:
        StoreError: The location is invalid.
    """
    if location is None:
        return SqliteDatabase(None)
    text = str(location)
    if is_shared(text):
        from infercanary.store.postgres import PostgresDatabase

        return PostgresDatabase(text)
    if "://" in text or not _FILE.fullmatch(text):
        # The location may contain a password, so the message leaves it out.
        raise StoreError("the location is neither a file's path nor a URL that begins with postgresql://")
    return SqliteDatabase(Path(text))


def open_store(location: str | os.PathLike[str] | None, keep: Retention | None = None) -> Store:
    """Return the store at ``location``. A file is opened at once, a shared database at first use.

    The caller closes the store.

    Raises:
        StoreError: The location is invalid, or the file cannot be used: another exporter has the file open, or a newer
            version or another program wrote it. The file is not changed.
    """
    store = Store(check(location), keep)
    if store.fleet is None:
        with store.session.work():
            pass
    return store


def is_shared(location: str) -> bool:
    """Return True if several exporters can share the store at this location."""
    return location.startswith("postgresql://")
