"""The store: each run once, thinned as :mod:`.retention` says, and the judge's documents; in SQLite or PostgreSQL.

Its size is bounded, whatever comes and whatever the clocks say: :class:`.retention.Retention` has the windows.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from sqlalchemy import Connection

from infercanary.judge.model import Generation, Sample, ServiceKey
from infercanary.judge.policy import Policy
from infercanary.store import queries, retention, thinning
from infercanary.store.base import HISTORY, Database, Document, LastRun, StoreError
from infercanary.store.reading import StartSize, StartSummary, ends, fair, first_that_fits, to_judge
from infercanary.store.records import (
    MAX_BYTES,
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
    start_in,
    tier_of,
    with_known,
)
from infercanary.store.retention import Retention, StartRecord
from infercanary.store.schema import document, finding
from infercanary.store.session import Session
from infercanary.store.sqlite import SqliteDatabase

_SWEEP_SECONDS = 3600.0
_SEEN_SECONDS = 3600.0  # `seen` is written so often at most
_READ = 50  # series in a statement: each may have thousands of rows, and a statement has seconds
_DROPPED = 20  # starts in a transaction, for the same reason
_KEY_AND_VALUE = re.compile(
    r"\s*(dbname|host|hostaddr|passfile|password|port|service|user)\s*="
)  # libpq's form
_WITHOUT_SLASHES = re.compile(r"(postgres|postgresql|sqlite|mysql|mariadb):(?!//)", re.IGNORECASE)


class _Written(NamedTuple):
    """The last start of a container, as this process wrote it; ``seen`` is an age of the store."""

    id: int
    generation: Generation
    seen: float


class Store:
    """Keeps each run once, thinner with age. Every method but :meth:`close` may raise :class:`StoreError`.

    Synchronous, and for one thread at a time: a worker's, never the event loop's. The properties may be read from any
    thread. A caller of :meth:`take` moves its cursor only after the transaction; what it then offers again after an
    error, or after a restart, is not taken twice.

    Args:
        database: Where; it is opened at first use.
        keep: How much is kept; None for the database's default.
        holder: Identifies this process among those that share the database; None for a random name.
    """

    def __init__(
        self, database: Database, keep: Retention | None = None, *, holder: str | None = None
    ) -> None:
        self.session = Session(database, opened=self._load, rolled_back=self._rolled_back)
        self.fleet = database.fleet(self.session, holder)
        """Leases and findings of exporters that share the store; None for one that has one owner."""
        self._database = database
        self._keep = keep or database.retention
        self._written: dict[ContainerKey, _Written] = {}
        self._touched: set[ContainerKey] = set()
        self._age = 0.0
        self._swept_at = -math.inf

    @property
    def size_bytes(self) -> int | None:
        """Size of what is kept; None where the store cannot tell."""
        return self.session.size_bytes

    @property
    def set_aside_at(self) -> float | None:
        """When the last corrupt file that still lies beside the store's was set aside, a Unix time; None if none does."""
        return self._database.set_aside_at

    def transaction(self) -> AbstractContextManager[None]:
        """Keep what is done within it as a whole or, after an exception, not at all.

        Within another one, as each :meth:`take` can be, it costs only its own part: the rest may still be kept.

        Raises:
            StoreError: On entry, if the store cannot be opened or written; at the end, if it could not be kept.
        """
        return self.session.transaction()

    def close(self) -> None:
        """Let go of the store. Never raises."""
        self.session.close()
        if self.fleet is not None:
            self.fleet.close()

    # Runs --------------------------------------------------------------------------------------------------------

    def take(self, generation: Generation, samples: Iterable[Sample]) -> int:
        """Keep ``samples``, in any order, of ``generation``, and return how many of them are new.

        Each is taken once, by namespace, service, container, boot id and sequence. The last values of ``generation``
        are kept, but for ``started_at``, which stays. A container's earlier start is to be taken before its later one:
        where the clock was set back between them, only this order shows which came first. A run that comes only after
        later ones were merged is left out.

        Args:
            generation: The start, as it is known by now.
            samples: Its runs, of any canaries.
        """
        several = by_canary(samples)
        with self.transaction(), self.session.work() as connection:
            start = self._write_start(connection, generation)
            new = self._insert(connection, start, generation, several) if several else 0
        self._touched.add(key_of(generation))
        return new

    def canaries(self, services: Collection[ServiceKey] | None = None) -> list[tuple[ServiceKey, str]]:
        """Return service and canary of each canary that ran, sorted.

        Args:
            services: Of these services alone; None for all.
        """
        with self.session.work() as connection:
            rows = connection.execute(queries.canaries(services)).all()
        return sorted((ServiceKey(namespace, service), canary) for namespace, service, canary in rows)

    def last_runs(self, host: str) -> list[LastRun]:
        """Return the last run of each canary in each container on a host that Docker or Kubernetes found."""
        with self.session.work() as connection:
            rows = connection.execute(queries.LAST_RUNS, {"host": host}).all()
        return [LastRun(ServiceKey(namespace, service), *rest) for namespace, service, *rest in rows]

    def taken(self, service: ServiceKey, canary: str) -> dict[tuple[str, str], int]:
        """Return container and boot id → runs that were taken and had not failed, also those merged since."""
        with self.session.work() as connection:
            rows = connection.execute(queries.TAKEN, {**_named(service), "canary": canary}).all()
        return {(container, boot_id): runs for container, boot_id, runs in rows}

    def start_of(self, service: ServiceKey, container: str, boot_id: str) -> Generation | None:
        """Return what is known of a start; None where it was never seen, or its row cannot be read."""
        key = {**_named(service), "container": container, "boot_id": boot_id}
        with self.session.work() as connection:
            row = connection.execute(queries.START, key).first()
        return None if row is None else start_in(row)

    def starts(self, service: ServiceKey) -> list[Generation]:
        """Return each start of the service's containers, also without runs, in order of time."""
        with self.session.work() as connection:
            rows = connection.execute(queries.STARTS, _named(service)).all()
        return [generation for row in rows if (generation := start_in(row)) is not None]

    def generations(
        self,
        service: ServiceKey,
        canary: str,
        *,
        container: str | None = None,
        since: float = -math.inf,
        most_bytes: int | None = None,
    ) -> list[tuple[Generation, list[Sample]]]:
        """Return each start in which the canary ran, with its runs (failed ones too) and the medians of earlier ones.

        Args:
            service: Its key.
            canary: Its name.
            container: Starts of this container alone.
            since: Starts of that Unix time and later.
            most_bytes: For a judgement: the starts that it needs (:func:`.reading.to_judge`), so many bytes of them,
                and of their runs. Beyond it the oldest starts are left out, and of those that have most runs the ones
                between their first and last. None for all.

        Returns:
            Starts, and samples of each, in order of time; of starts that began at the same time, by container.
        """
        given = {**_named(service), "canary": canary, "container": container, "since": since}
        with self.session.work() as connection:
            rows: Sequence[Any] = connection.execute(queries.SERIES_OF_CANARY, given).all()
            if most_bytes is not None:
                seen = [StartSummary.of(*row[2:7]) for row in rows]
                rows = [
                    rows[place] for place in to_judge(seen, max((row.last_at for row in rows), default=0.0))
                ]
                rows = rows[first_that_fits([StartSize(row.bytes, None, 0) for row in rows], most_bytes) :]
            starts = _starts(connection, [row.start for row in rows])
            bodies = _bodies(connection, rows, most_bytes)
        read = ((starts.get(row.start), decode(bodies.get(row.series, ()))) for row in rows)
        return [(generation, samples) for generation, samples in read if generation is not None and samples]

    def keep_for(self, policy: Policy) -> None:
        """Keep, from now on, the runs at the beginning of each start that this policy's last look needs."""
        self._keep = self._keep.reaching(policy)

    def thin(self, now: float) -> None:
        """Merge and drop what is no longer to be kept; to be called every few minutes.

        Of a shared store: the containers whose runs this process took, and the services that it judges.

        Args:
            now: A Unix time, for a store without a clock of its own. Only its steps matter, as the time that exporters
                watched: one back, or of more than a day, does not count.
        """
        with self.transaction(), self.session.work() as connection:
            self._age = self._database.age(connection, now)
        for key in list(self._touched):
            with self.transaction(), self.session.work() as connection:
                self._written.pop(key, None)
                thinning.thin(connection, key, self._keep)
            self._touched.discard(key)
        if self._age - self._swept_at >= _SWEEP_SECONDS:
            for service in [None] if self.fleet is None else [*self.fleet.held]:
                self._sweep(service)
            self._swept_at = self._age

    # Documents ---------------------------------------------------------------------------------------------------

    def save(self, service: ServiceKey, canary: str, kind: str, at: float, body: bytes) -> None:
        """Keep a document; of a service, canary and kind the last ``HISTORY`` are kept.

        Args:
            service: The documents go when the store no longer knows the canary.
            canary: Its name.
            kind: A name that its reader knows.
            at: A Unix time.
            body: Any bytes.

        Raises:
            LeaseLost: The store is shared, and this process does not judge the service.
        """
        key = {**_named(service), "canary": canary, "kind": kind}
        with self.transaction(), self.session.work() as connection:
            if self.fleet is not None:
                self.fleet.claim(connection, service)
            number = (connection.scalar(queries.LAST_DOCUMENT, key) or 0) + 1
            connection.execute(queries.ADD_DOCUMENT, {**key, "number": number, "at": at, "body": body})
            connection.execute(queries.FORGET_DOCUMENTS, {**key, "number": number - HISTORY})

    def history(self, service: ServiceKey, canary: str, kind: str) -> list[Document]:
        """Return what was saved, the oldest first; at most ``HISTORY`` documents."""
        key = {**_named(service), "canary": canary, "kind": kind}
        with self.session.work() as connection:
            return [Document(*row) for row in connection.execute(queries.HISTORY, key)]

    # Inside ------------------------------------------------------------------------------------------------------

    def _write_start(self, connection: Connection, generation: Generation) -> int:
        """Add the start or bring it up to date, and return its id."""
        container = key_of(generation)
        written = self._written.get(container)
        if (
            written is not None
            and written.generation == generation
            and self._age - written.seen < _SEEN_SECONDS
        ):
            return written.id
        key = {**_named(generation.key), "container": generation.container}
        row = connection.execute(queries.START_AS_WRITTEN, {**key, "boot_id": generation.boot_id}).first()
        values = _changeable(generation if row is None else with_known(generation, row.details))
        seen: dict[str, Any] = {"seen": self._age}
        if row is None:
            started_at = generation.started_at
            latest = [at for at in connection.execute(queries.LATEST, key).one() if at is not None]
            begun = began(started_at, max(latest, default=None))
            new = {"boot_id": generation.boot_id, "started_at": started_at, "began": begun}
            start = int(connection.execute(queries.ADD_START, {**key, **new, **values, **seen}).scalar_one())
        else:
            start = row.id
            if tuple(row[2:]) != tuple(values.values()):
                connection.execute(queries.CHANGE_START, {"row": start, **values, **seen})
            elif not 0 <= self._age - row.seen < _SEEN_SECONDS:
                connection.execute(queries.SEEN, {"row": start, **seen})
            else:
                seen = {"seen": row.seen}
        self._written[container] = _Written(start, generation, **seen)
        return start

    def _insert(
        self, connection: Connection, start: int, generation: Generation, several: dict[str, list[Sample]]
    ) -> int:
        """Return how many of the runs were new; the first ones of the start are its opening."""
        known = {row[0]: row for row in connection.execute(queries.LOCK_SERIES, {"start": start})}
        added: list[dict[str, Any]] = []
        counts: list[dict[str, Any]] = []
        for canary, samples in several.items():
            samples.sort(key=lambda sample: sample.sequence)
            if canary not in known:
                if len(known) >= MAX_CANARIES:
                    refuse(generation, canary)
                    continue
                new = {"start": start, "canary": canary, "first_at": samples[0].started_at}
                series = connection.execute(queries.ADD_SERIES, new).scalar_one()
                known[canary] = canary, series, 0, -1, -1, -1
            _, series, taken, last, merged_through, failed_through = known[canary]
            sequences = set()
            if samples[0].sequence <= last:
                between = {"series": series, "first": samples[0].sequence, "last": samples[-1].sequence}
                sequences = {*connection.scalars(queries.KNOWN_SEQUENCES, between)}
            tiers = [0, 0, 0]
            newest_at = 0.0
            for sample in samples:
                through = failed_through if sample.failed else merged_through
                if sample.sequence <= through or sample.sequence in sequences:
                    continue
                sequences.add(sample.sequence)
                tier = tier_of(sample, taken + tiers[retention.OPENING], self._keep.opening)
                tiers[tier] += 1
                newest_at = max(newest_at, sample.started_at)
                body = encode(sample)
                added.append({"series": series, "sequence": sample.sequence, "tier": tier, "body": body})
            if any(tiers):
                count = dict(zip(("begun", "later", "failures"), tiers, strict=True))
                newest = {"newest": added[-1]["sequence"], "newest_at": newest_at}
                counts.append({"row": series, **count, **newest})
        if added:
            connection.execute(queries.ADD_SAMPLES, added)
            connection.execute(queries.COUNT_SAMPLES, counts)
        return len(added)

    def _sweep(self, service: ServiceKey | None) -> None:
        """Drop images and containers whose time is over, and what belongs to nothing any more; of one service or all."""
        with self.session.work() as connection:
            rows = connection.execute(queries.records(service)).all()
        records = [StartRecord(ServiceKey(namespace, name), *rest) for namespace, name, *rest in rows]
        expired = retention.expired(records, self._age, self._keep)
        for begin in range(0, len(expired), _DROPPED):
            with self.transaction(), self.session.work() as connection:
                self._written.clear()
                thinning.drop(connection, expired[begin : begin + _DROPPED])
        with self.transaction(), self.session.work() as connection:
            for table in (document, finding):
                connection.execute(queries.drop_orphans(table, service))

    def _load(self, connection: Connection) -> None:
        self._age = self._database.age(connection, None)
        self._written.clear()
        self._swept_at = -math.inf
        if self.fleet is None:
            self._touched = {(row[0], row[1], row[2]) for row in connection.execute(queries.CONTAINERS)}

    def _rolled_back(self) -> None:
        self._written.clear()


def check(location: str | os.PathLike[str] | None) -> Database:
    """Return the database at ``location``, which is not opened.

    Args:
        location: ``postgresql://ROLE@HOST/DATABASE``, a file's path, also after ``sqlite://``, or None for memory.

    Raises:
        StoreError: There is no such kind, or the location cannot be right.
    """
    if location is None:
        return SqliteDatabase(None)
    text = str(location)
    scheme, separator, rest = text.partition("://")
    if not separator and _KEY_AND_VALUE.match(text):
        raise StoreError(f"{location}: not a file; name a database by postgresql://ROLE@HOST/DATABASE")
    if not separator and (without_slashes := _WITHOUT_SLASHES.match(text)):
        raise StoreError(f"{without_slashes[1]}:…: not a file; a URL begins with postgresql:// or sqlite://")
    if separator and scheme == "postgresql":
        from infercanary.store.postgres import PostgresDatabase

        return PostgresDatabase.at(text)
    if separator and scheme != "sqlite":
        raise StoreError(f"{location}: no store for {scheme}://; those that there are: postgresql, sqlite")
    return SqliteDatabase.at(rest if separator else text, text)


def open_store(
    location: str | os.PathLike[str] | None, keep: Retention | None = None, *, holder: str | None = None
) -> Store:
    """Return the store at ``location``, which the caller closes; a file is open and readable.

    Args:
        location: As for :func:`check`.
        keep: How much is kept; None for the default of that kind.
        holder: Identifies this process among those that share the database; None for a random name.

    Raises:
        StoreError: There is no such kind, or the file cannot be opened: another exporter holds it, a newer version
            wrote it, or it is something else. It is not touched then.
    """
    store = Store(check(location), keep, holder=holder)
    if store.fleet is None:
        with store.session.work():
            pass
    return store


def is_shared(location: str | None) -> bool:
    """Return whether the store is one that several exporters can share."""
    return (location or "").startswith("postgresql://")


def _named(service: ServiceKey) -> dict[str, Any]:
    return {"namespace": service.namespace, "service": service.name}


def _changeable(generation: Generation) -> dict[str, Any]:
    """Return the values of the columns ``queries.CHANGEABLE``, in their order."""
    values: dict[str, Any] = {name: getattr(generation, name) for name in queries.CHANGEABLE[:3]}
    return values | {
        "image_key": generation.work_key,
        "host": generation.host,
        "environment": encode_environment(generation.environment),
        "details": details_of(generation),
    }


def _starts(connection: Connection, ids: Sequence[int]) -> dict[int, Generation | None]:
    """Return the starts by id; None for one that cannot be read."""
    return {row.id: start_in(row[:-1]) for row in connection.execute(queries.STARTS_BY_ID, {"ids": ids})}


def _bodies(connection: Connection, rows: Sequence[Any], most_bytes: int | None) -> dict[int, list[bytes]]:
    """Return the runs of each series as they are kept, in order: all or, where they are too many, its first and last."""
    bodies: dict[int, list[bytes]] = {}
    if most_bytes is None or sum(row.rows for row in rows) * MAX_BYTES <= most_bytes:
        sizes, share = {}, 0
    else:
        given = {"series": [row.series for row in rows]}
        sizes = {series: (count, size) for series, count, size in connection.execute(queries.SIZES, given)}
        share = fair((size for _, size in sizes.values()), most_bytes)
    cut = {series for series, (_, size) in sizes.items() if size > share}
    whole = [row.series for row in rows if row.series not in cut]
    for begin in range(0, len(whole), _READ):
        for series, body in connection.execute(queries.BODIES, {"series": whole[begin : begin + _READ]}):
            bodies.setdefault(series, []).append(body)
    for series in cut:
        first, last = ends(*sizes[series], share)
        given = {"series": series, "count": first}
        bodies[series] = [*connection.scalars(queries.FIRST_BODIES, given)]
        bodies[series] += [*connection.scalars(queries.LAST_BODIES, {"series": series, "count": last})][::-1]
    return bodies
