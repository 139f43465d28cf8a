"""What the judge keeps, in one SQLite file: each run once, thinned as :mod:`retention` says, and the judge's documents.

Synchronous, and for one thread at a time: a worker's, never the event loop's. Whoever calls :meth:`Store.take` moves
its cursor on only once the transaction is through; what it then offers again after a :class:`StoreError`, or after a
restart, is not taken twice.

The file is in WAL mode with ``synchronous = NORMAL``: what is committed outlives the process, however that ends. A
loss of power may cost the last seconds, but not the file; these runs are still in the probes' rings.

Its size is bounded, whatever comes and whatever the clocks say. One canary of one container has, of each of 8 images,
at most 288 runs of the opening, 1,080 later ones and 720 block medians of the first day, and of all images 5,040 block
medians, 2,160 hours and 960 failed runs: 25,000 rows, 8 MB, and for 1,000 such containers 8 GB. It takes eight upgrades
to get there: one image has 0.6 MB after a day and 3 MB after three months. Where each image was restarted often, the
openings of its last 8 starts make that 14 MB.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from infercanary.judge.model import Generation, Sample
from infercanary.store import database, retention
from infercanary.store.database import StoreError
from infercanary.store.records import decode, encode, encode_environment
from infercanary.store.retention import Retention, Start

__all__ = ["HISTORY", "IN_MEMORY", "Document", "Generation", "Retention", "Sample", "Store", "StoreError"]

log = structlog.get_logger(__name__)

HISTORY = 100
"""Documents of a kind that are kept for each service and canary."""

IN_MEMORY = Retention(
    opening_starts=2, raw=240, first_most=8_640, blocks=240, hours=240, failed=120, starts=16, images=3
)
"""For a store that is lost at exit anyway: 0.4 MB for a canary of a container after a day."""

_HOUR_SECONDS = 3600.0
_MAX_CANARIES = 32  # of one start: a probe that invents names must not fill the disk

_START = (
    "SELECT g.id, service, container, boot_id, started_at, image, image_id, image_digest, e.body, details "
    "FROM generation g JOIN environment e ON e.id = g.environment "
)

_Details = tuple[dict[str, tuple[float, ...]], dict[str, dict[str, float]]]  # outputs, cold start


class Document(msgspec.Struct, frozen=True):
    """What the judge saved, at the time that it gave."""

    at: float
    body: bytes


class _Series(msgspec.Struct):
    """The runs of one canary of one start: those up to these sequences are merged or dropped."""

    id: int
    merged_through: int = -1
    failed_through: int = -1
    taken: int = 0


class _Known(msgspec.Struct):
    """The start of a container that was taken last, so that the next take need not look it up."""

    id: int
    boot_id: str
    seen: float
    series: dict[str, _Series]
    said: Generation | None = None


class Store:
    """The file and what is in it. Every method but :meth:`close` may raise :class:`StoreError`.

    The attributes may be read from any thread.
    """

    def __init__(self, path: Path | None, keep: Retention) -> None:
        self.errors = 0
        """What could not be done."""
        self.unreadable = 0
        """Rows that could not be read, each time that they were to be."""
        self.refused = 0
        """Runs of more canaries than a start may have."""
        self.set_aside = 0
        """Files that were corrupt and were renamed."""
        self.set_aside_at: float | None = None
        """When the last of those that still lie beside the file was, also by an earlier exporter: a Unix time."""
        self.rows = 0
        """Runs, blocks and hours that are kept."""
        self.bytes = 0
        """Size of the database, without what is not yet moved to it from its log."""
        self._path = path
        self._keep = keep
        self._db: sqlite3.Connection | None = None
        self._closed = False
        self._within = False
        self._known: dict[tuple[str, str], _Known] = {}
        self._touched: set[tuple[str, str]] = set()
        self._now: float | None = None
        self._age = 0.0
        self._swept_at: float | None = None

    @classmethod
    def open(cls, path: Path | None, keep: Retention | None = None) -> Store:
        """The store in the file ``path``, which is made if there is none; without a path, in memory.

        A corrupt file is set aside under another name, with a warning in the log. A file that another exporter
        holds, that a newer version wrote, or that is something else is not touched: :class:`StoreError`.
        """
        store = cls(path, keep or (Retention() if path else IN_MEMORY))
        with store._work():
            return store

    def close(self) -> None:
        """Let go of the file. Never raises."""
        self._closed = True
        self._disconnect()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is done within it is kept as a whole or, after an exception, not at all.

        Within another one, as each :meth:`take` can be, it costs only its own part: the rest may still be kept.
        """
        inner = self._within
        with self._work() as db:
            if inner and not db.in_transaction:
                raise StoreError("not done, since a part before it failed")
            db.execute("SAVEPOINT part" if inner else "BEGIN IMMEDIATE")
        self._within = True
        try:
            yield
            with self._work() as still:
                if still is not db or not db.in_transaction:
                    raise StoreError("not done, since a part of it failed")
                if not inner:
                    self.bytes = database.size(db)
                db.execute("RELEASE part" if inner else "COMMIT")
        except BaseException:
            # SQLite may have rolled all of it back by itself, as it does when the disk is full.
            with suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK TO part" if inner else "ROLLBACK")
                if db.in_transaction:
                    db.execute("RELEASE part")
            self._known.clear()
            with suppress(sqlite3.Error):
                self._count(db)
            raise
        finally:
            self._within = inner

    # Runs --------------------------------------------------------------------------------------------------------

    def take(self, generation: Generation, samples: Iterable[Sample]) -> int:
        """Keep ``samples``, in any order, of ``generation``; how many of them are new.

        Each is taken once, by service, container, boot id and sequence. What ``generation`` says last is what is kept
        of it, but for ``started_at``, which stays. A container's earlier start is to be taken before its later one:
        where the clock was set back between them, that is what tells their order. A run that comes only after later
        ones were merged is left out.
        """
        by_canary: dict[str, list[Sample]] = {}
        for sample in samples:
            by_canary.setdefault(sample.canary, []).append(sample)
        new = 0
        with self.transaction(), self._work() as db:
            known = self._know(db, generation)
            for canary, several in by_canary.items():
                series = known.series.get(canary)
                if series is None:
                    if len(known.series) == _MAX_CANARIES:
                        self.refused += len(several)
                        continue
                    first_at = min(several, key=lambda sample: sample.sequence).started_at
                    added = db.execute(
                        "INSERT INTO series (generation, canary, first_at) VALUES (?, ?, ?)",
                        (known.id, canary, first_at),
                    )
                    series = known.series[canary] = _Series(_row_id(added))
                new += _insert(db, series, several, self._keep.opening)
            self.rows += new
        self._touched.add((generation.service, generation.container))
        return new

    def canaries(self) -> list[tuple[str, str]]:
        """The services and their canaries that ran."""
        with self._work() as db:
            return db.execute(
                "SELECT DISTINCT service, canary FROM series JOIN generation g ON g.id = series.generation "
                "ORDER BY service, canary"
            ).fetchall()

    def liveliest(self, most: int) -> list[tuple[str, str]]:
        """A canary of each service that Docker found, of its start seen last: so many services, the liveliest first."""
        with self._work() as db:
            rows = db.execute(
                # SQLite takes a bare column from the row of the maximum (https://sqlite.org/lang_select.html#bareagg).
                "SELECT service, canary, max(seen) FROM series JOIN generation g ON g.id = series.generation "
                "WHERE image_id != '' GROUP BY service ORDER BY max(seen) DESC, service LIMIT ?",
                (most,),
            ).fetchall()
        return [(service, canary) for service, canary, _ in rows]

    def taken(self, service: str, canary: str) -> dict[tuple[str, str], int]:
        """Container and boot id → runs that were taken and had not failed, also those that were merged since."""
        with self._work() as db:
            rows = db.execute(
                "SELECT container, boot_id, taken FROM generation g JOIN series s ON s.generation = g.id "
                "WHERE service = ? AND canary = ?",
                (service, canary),
            ).fetchall()
        return {(container, boot_id): runs for container, boot_id, runs in rows}

    def start_of(self, service: str, container: str, boot_id: str) -> Generation | None:
        """What is known of a start; None where it was never seen."""
        with self._work() as db:
            row = db.execute(
                f"{_START} WHERE service = ? AND container = ? AND boot_id = ?", (service, container, boot_id)
            ).fetchone()
        return None if row is None else self._generation(row)

    def starts(self, service: str) -> list[Generation]:
        """Each start of the service's containers, also without runs, in time order."""
        with self._work() as db:
            rows = db.execute(f"{_START} WHERE service = ? ORDER BY began, g.id", (service,)).fetchall()
        return [generation for row in rows if (generation := self._generation(row)) is not None]

    def generations(
        self,
        service: str,
        canary: str,
        *,
        images: Collection[str] | None = None,
        newest: int | None = None,
        oldest: int | None = None,
        since: float = -math.inf,
    ) -> list[tuple[Generation, list[Sample]]]:
        """Each start in which the canary ran, with its runs (failed ones too) and the medians of its earlier ones.

        Both are in time order. ``images`` limits it to these image keys, ``since`` to starts of that Unix time and
        later; ``newest`` or ``oldest``, of which only one may be given, to so many samples of each start.
        """
        if newest is not None and oldest is not None:
            raise ValueError("either newest or oldest")
        limit = next((most for most in (newest, oldest) if most is not None), -1)
        backwards = newest is not None
        found = []
        with self._work() as db:
            starts = db.execute(
                f"{_START} JOIN series s ON s.generation = g.id WHERE service = ? AND canary = ? AND began >= ? "
                "ORDER BY began, g.id",
                (service, canary, since),
            ).fetchall()
            for row in starts:
                generation = self._generation(row)
                if generation is None or (images is not None and generation.image_key not in images):
                    continue
                bodies = db.execute(
                    "SELECT body FROM sample WHERE series = "  # noqa: S608
                    "(SELECT id FROM series WHERE generation = ? AND canary = ?) "
                    f"ORDER BY sequence {'DESC' if backwards else 'ASC'} LIMIT ?",
                    (row[0], canary, limit),
                ).fetchall()
                samples = decode(body for (body,) in bodies)
                self.unreadable += len(bodies) - len(samples)
                if samples:
                    found.append((generation, samples[::-1] if backwards else samples))
        return found

    def thin(self, now: float) -> int:
        """Merge and drop what is no longer to be kept; how many rows fewer there are. To be called every few minutes.

        ``now``, a Unix time, tells only how long exporters have watched: a step back, or of more than a day, is
        none that passed here.
        """
        before = self.rows
        step = now - self._now if self._now is not None else 0.0
        if 0 < step <= retention.DAY_SECONDS:
            self._age += step
        self._now = now
        with self.transaction(), self._work() as db:
            db.execute("UPDATE clock SET now = ?, age = ?", (now, self._age))
        for key in list(self._touched):
            with self.transaction(), self._work() as db:
                self._known.pop(key, None)
                retention.thin(db, self._keep, *key)
            self._touched.discard(key)
        if self._swept_at is None or self._age - self._swept_at >= _HOUR_SECONDS:
            with self.transaction(), self._work() as db:
                self._known.clear()
                self._sweep(db)
            self._swept_at = self._age
        with self._work() as db:
            self._count(db)
        return before - self.rows

    # Documents ---------------------------------------------------------------------------------------------------

    def save(self, service: str, canary: str, kind: str, at: float, body: bytes) -> None:
        """Keep a document of the judge's; of a service, canary and kind the last ``HISTORY`` are kept."""
        key = (kind, service, canary)
        with self.transaction(), self._work() as db:
            (last,) = db.execute(
                "SELECT ifnull(max(number), 0) FROM document WHERE kind = ? AND service = ? AND canary = ?",
                key,
            ).fetchone()
            db.execute("INSERT INTO document VALUES (?, ?, ?, ?, ?, ?)", (*key, last + 1, at, body))
            db.execute(
                "DELETE FROM document WHERE kind = ? AND service = ? AND canary = ? AND number <= ?",
                (*key, last + 1 - HISTORY),
            )

    def history(self, service: str, canary: str, kind: str) -> list[Document]:
        """What was saved, in the order in which it was."""
        with self._work() as db:
            rows = db.execute(
                "SELECT at, body FROM document WHERE service = ? AND canary = ? AND kind = ? ORDER BY number",
                (service, canary, kind),
            ).fetchall()
        return [Document(*row) for row in rows]

    # Inside ------------------------------------------------------------------------------------------------------

    def _know(self, db: sqlite3.Connection, generation: Generation) -> _Known:
        """The row of ``generation``, which is added or brought up to date."""
        key = (generation.service, generation.container)
        known = self._known.get(key)
        if known is None or known.boot_id != generation.boot_id:
            known = self._known[key] = self._find(db, generation) or self._add(db, generation)
        if self._age - known.seen >= _HOUR_SECONDS:
            db.execute("UPDATE generation SET seen = ? WHERE id = ?", (self._age, known.id))
            known.seen = self._age
        if known.said != generation:
            (before,) = db.execute("SELECT environment FROM generation WHERE id = ?", (known.id,)).fetchone()
            after = _environment(db, generation)
            db.execute(
                "UPDATE generation SET image = ?, image_id = ?, image_digest = ?, image_key = ?, environment = ?, "
                "details = ? WHERE id = ?",
                (*_said(generation, after), known.id),
            )
            if after != before:
                db.execute(f"{_DELETE_UNUSED} AND id = ?", (before,))
            known.said = generation
        return known

    def _find(self, db: sqlite3.Connection, generation: Generation) -> _Known | None:
        row = db.execute(
            "SELECT id, seen FROM generation WHERE service = ? AND container = ? AND boot_id = ?",
            (generation.service, generation.container, generation.boot_id),
        ).fetchone()
        if row is None:
            return None
        series = db.execute(
            "SELECT canary, id, merged_through, failed_through, taken FROM series WHERE generation = ?",
            row[:1],
        ).fetchall()
        return _Known(
            row[0], generation.boot_id, row[1], {canary: _Series(*rest) for canary, *rest in series}
        )

    def _add(self, db: sqlite3.Connection, generation: Generation) -> _Known:
        key = (generation.service, generation.container)
        (latest,) = db.execute(
            "SELECT max(began) FROM generation WHERE service = ? AND container = ?", key
        ).fetchone()
        # What orders the starts of a service is when they began, but a container's own are in the order seen: a host
        # without a battery boots in 1970.
        began = max(generation.started_at, latest if latest is not None else generation.started_at)
        added = db.execute(
            "INSERT INTO generation (service, container, boot_id, started_at, began, seen, image, image_id, "
            "image_digest, image_key, environment, details) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *key,
                generation.boot_id,
                generation.started_at,
                began,
                self._age,
                *_said(generation, _environment(db, generation)),
            ),
        )
        return _Known(_row_id(added), generation.boot_id, self._age, {}, generation)

    def _generation(self, row: tuple[Any, ...]) -> Generation | None:
        """The start in a row of ``_START``; None if a failing disk made it unreadable."""
        _, service, container, boot_id, started_at, image, image_id, image_digest, environment, details = row
        try:
            outputs, cold_start = msgspec.msgpack.decode(details, type=_Details)
            return Generation(
                service=service,
                container=container,
                boot_id=boot_id,
                started_at=started_at,
                image=image,
                image_id=image_id,
                image_digest=image_digest,
                environment=msgspec.msgpack.decode(environment, type=dict[str, str]),
                outputs=outputs,
                cold_start=cold_start,
            )
        except msgspec.DecodeError:
            self.unreadable += 1
            return None

    def _sweep(self, db: sqlite3.Connection) -> None:
        """Drop images and containers that have had their time, and what nothing belongs to any more."""
        starts = db.execute(
            "SELECT id, service, container, image_key, seen FROM generation ORDER BY began, id"
        ).fetchall()
        if expired := retention.expired(map(Start._make, starts), self._age, self._keep):
            retention.drop(db, expired)
            db.execute("DELETE FROM document WHERE service NOT IN (SELECT service FROM generation)")
        db.execute(_DELETE_UNUSED)

    def _count(self, db: sqlite3.Connection) -> None:
        (rows,) = db.execute(
            "SELECT total(opening + raw + failed + first + blocks + hours) FROM series"
        ).fetchone()
        self.rows = int(rows)

    # The file ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _work(self) -> Iterator[sqlite3.Connection]:
        """The connection; what goes wrong with it is a :class:`StoreError`."""
        try:
            if self._closed:
                raise StoreError(f"{self._path}: closed")
            if self._db is None:
                self._db = self._connect()
            yield self._db
        except (sqlite3.Error, UnicodeError, OverflowError, OSError) as error:
            self.errors += 1
            text = f"{self._path or 'the store in memory'}: {database.explain(error, self._path)}"
            if self._db is not None and database.is_corrupt(error):
                self._disconnect()  # the next work begins anew
                with suppress(OSError):
                    self._set_aside(error)
            raise StoreError(text) from error

    def _connect(self) -> sqlite3.Connection:
        try:
            db = database.connect(self._path)
        except sqlite3.DatabaseError as error:
            if not database.is_corrupt(error):
                raise
            self._set_aside(error)
            db = database.connect(self._path)
        try:
            touched = set(db.execute("SELECT DISTINCT service, container FROM generation"))
            now, age = db.execute("SELECT now, age FROM clock").fetchone()
            self._count(db)
            self.bytes = database.size(db)
        except BaseException:
            db.close()
            raise
        self._known.clear()
        self._touched, self._swept_at, self._now, self._age = touched, None, now, age
        self.set_aside_at = database.set_aside_at(self._path) if self._path else None
        return db

    def _disconnect(self) -> None:
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
        self._db = None

    def _set_aside(self, error: BaseException) -> None:
        assert self._path is not None
        target = database.set_aside(self._path)
        self.set_aside += 1
        log.warning("store was corrupt; set aside, and begun anew", path=str(target), error=str(error))


def _insert(db: sqlite3.Connection, series: _Series, samples: Iterable[Sample], opening: int) -> int:
    """How many were new; the first ``opening`` ones of the start are its opening."""
    added = dict.fromkeys((retention.OPENING, retention.RAW, retention.FAILED), 0)
    for sample in sorted(samples, key=lambda sample: sample.sequence):
        failed = sample.failed
        if sample.sequence <= (series.failed_through if failed else series.merged_through):
            continue
        begins = series.taken + added[retention.OPENING] < opening
        tier = retention.FAILED if failed else retention.OPENING if begins else retention.RAW
        added[tier] += db.execute(
            "INSERT OR IGNORE INTO sample VALUES (?, ?, ?, ?)",
            (series.id, sample.sequence, tier, encode(sample)),
        ).rowcount
    begun, later, failures = added.values()
    if begun or later or failures:
        db.execute(
            "UPDATE series SET opening = opening + ?, raw = raw + ?, failed = failed + ?, taken = taken + ? "
            "WHERE id = ?",
            (begun, later, failures, begun + later, series.id),
        )
        series.taken += begun + later
    return begun + later + failures


def _said(generation: Generation, environment: int) -> tuple[object, ...]:
    details = msgspec.msgpack.encode((generation.outputs, generation.cold_start))
    image = (generation.image, generation.image_id, generation.image_digest, generation.image_key)
    return (*image, environment, details)


_DELETE_UNUSED = (
    "DELETE FROM environment WHERE NOT EXISTS "
    "(SELECT 1 FROM generation g WHERE g.environment = environment.id)"
)


def _environment(db: sqlite3.Connection, generation: Generation) -> int:
    """The id of its environment, which many starts share."""
    body = encode_environment(generation.environment)
    digest = hashlib.sha256(body).digest()
    row = db.execute("SELECT id FROM environment WHERE digest = ?", (digest,)).fetchone()
    if row is not None:
        return int(row[0])
    return _row_id(db.execute("INSERT INTO environment (digest, body) VALUES (?, ?)", (digest, body)))


def _row_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid
