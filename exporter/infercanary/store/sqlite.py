"""The store in one SQLite file: each run once, thinned as :mod:`.retention` says, and the judge's documents.

The file is in WAL mode with ``synchronous = NORMAL``: what is committed outlives the process, however that ends. A
loss of power may cost what the kernel had not written yet (half a minute, by Linux's defaults), but not the file, which
then holds all transactions up to one; the rest is still in the rings of probes that went on.

Its size is bounded, whatever comes and whatever the clocks say. One canary of one container has, of each of 8 images,
at most 288 runs of the opening, 1,080 later ones and 720 block medians of the first day, and of all images 5,040 block
medians, 2,160 hours and 960 failed runs: 25,000 rows, 8 MB, and for 1,000 such containers 8 GB. It takes eight upgrades
to get there: one image has 0.6 MB after a day and 3 MB after three months. Where each image was restarted often, the
openings of its last 8 starts make that 14 MB.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from infercanary.judge.model import Generation, Sample, ServiceKey
from infercanary.judge.policy import Policy
from infercanary.store import database, retention, starts, thinning
from infercanary.store.base import HISTORY, Document, LastRun, StoreError
from infercanary.store.kinds import DEFAULT_SCHEME, register
from infercanary.store.reading import (
    StartSize,
    StartSummary,
    ends,
    fair,
    first_that_fits,
    to_judge,
)
from infercanary.store.records import (
    MAX_BYTES,
    MAX_CANARIES,
    ContainerKey,
    by_canary,
    decode,
    encode,
    key_of,
    refuse,
    start_in,
    tier_of,
)
from infercanary.store.retention import IN_MEMORY, Retention, StartRecord
from infercanary.store.session import Session
from infercanary.store.sqlite_rows import SqliteRows, drop
from infercanary.store.starts import SeriesRow, StartRows

_SWEEP_SECONDS = 3600.0


class SqliteStore:
    """The file and what is in it: a :class:`~infercanary.store.base.Store`.

    Args:
        path: The file, or None for memory.
        keep: How much is kept.
    """

    fleet = None
    """The file has one owner."""

    def __init__(self, path: Path | None, keep: Retention) -> None:
        self._keep = keep
        self._starts = StartRows()
        self.session = Session(path, load=self._load, rolled_back=self._starts.forget)
        self._touched: set[ContainerKey] = set()
        self._now: float | None = None
        self._age = 0.0
        self._swept_at: float | None = None

    @classmethod
    def open(cls, path: Path | None, keep: Retention | None = None) -> SqliteStore:
        """The store in the file ``path``, which is made if there is none; without a path, in memory.

        A corrupt file is set aside under another name, with a warning in the log.

        Args:
            path: The file; None for memory.
            keep: How much is kept; None for ``Retention()`` in a file, and ``IN_MEMORY`` without one.

        Returns:
            The store, opened and readable.

        Raises:
            StoreError: Another exporter holds the file, a newer version wrote it, or it is something else. It is not
                touched.
        """
        store = cls(path, keep or (Retention() if path else IN_MEMORY))
        with store.session.work():
            return store

    @property
    def size_bytes(self) -> int:
        """Size of the database, without what is not yet moved to it from its log."""
        return self.session.size_bytes

    @property
    def set_aside_at(self) -> float | None:
        """When the last corrupt file that still lies beside this one was set aside, a Unix time."""
        return self.session.set_aside_at

    def transaction(self) -> AbstractContextManager[None]:
        """What is done within it is kept as a whole or, after an exception, not at all."""
        return self.session.transaction()

    def close(self) -> None:
        """Let go of the file. Never raises."""
        self.session.close()

    # Runs --------------------------------------------------------------------------------------------------------

    def take(self, generation: Generation, samples: Iterable[Sample]) -> int:
        """Keep ``samples`` of ``generation``; how many of them are new."""
        new = 0
        with self.transaction(), self.session.work() as db:
            start = self._starts.update(db, generation, self._age)
            for canary, several in by_canary(samples).items():
                series = start.series.get(canary)
                if series is None:
                    if len(start.series) == MAX_CANARIES:
                        refuse(generation, canary)
                        continue
                    first_at = min(several, key=lambda sample: sample.sequence).started_at
                    series = starts.add_series(db, start, canary, first_at)
                new += _insert(db, series, several, self._keep.opening)
        self._touched.add(key_of(generation))
        return new

    def canaries(self, services: Collection[ServiceKey] | None = None) -> list[tuple[ServiceKey, str]]:
        """Service and canary of each canary that ran."""
        with self.session.work() as db:
            rows = db.execute(
                "SELECT DISTINCT namespace, service, canary FROM series "
                "JOIN generation g ON g.id = series.generation ORDER BY namespace, service, canary"
            ).fetchall()
        found = [(ServiceKey(namespace, service), canary) for namespace, service, canary in rows]
        return [key for key in found if services is None or key[0] in services]

    def last_runs(self, host: str) -> list[LastRun]:
        """What ran on a host, in containers that Docker or Kubernetes found."""
        with self.session.work() as db:
            rows = db.execute(
                "SELECT namespace, service, container, canary, max(last_at) FROM series "
                "JOIN generation g ON g.id = series.generation "
                "WHERE host = ? AND (image_id != '' OR image_digest != '') "
                "GROUP BY namespace, service, container, canary",
                (host,),
            ).fetchall()
        return [LastRun(ServiceKey(namespace, service), *rest) for namespace, service, *rest in rows]

    def taken(self, service: ServiceKey, canary: str) -> dict[tuple[str, str], int]:
        """Container and boot id → runs that were taken and had not failed, also those that were merged since."""
        with self.session.work() as db:
            rows = db.execute(
                "SELECT container, boot_id, taken FROM generation g JOIN series s ON s.generation = g.id "
                "WHERE namespace = ? AND service = ? AND canary = ?",
                (*service, canary),
            ).fetchall()
        return {(container, boot_id): runs for container, boot_id, runs in rows}

    def start_of(self, service: ServiceKey, container: str, boot_id: str) -> Generation | None:
        """What is known of a start; None where it was never seen."""
        with self.session.work() as db:
            row = db.execute(
                f"{starts.COLUMNS} WHERE namespace = ? AND service = ? AND container = ? AND boot_id = ?",
                (*service, container, boot_id),
            ).fetchone()
        return None if row is None else start_in(row)

    def starts(self, service: ServiceKey) -> list[Generation]:
        """Each start of the service's containers, also without runs, in order of time."""
        with self.session.work() as db:
            rows = db.execute(
                f"{starts.COLUMNS} WHERE namespace = ? AND service = ? ORDER BY began, container, g.id",
                service,
            ).fetchall()
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
        """Each start in which the canary ran, with its samples."""
        found = []
        with self.session.work() as db:
            several: Sequence[tuple[Any, ...]] = db.execute(
                "SELECT g.id, s.id, container, image_key, first_at, last_at, taken FROM generation g "
                "JOIN series s ON s.generation = g.id "
                "WHERE namespace = ? AND service = ? AND canary = ? AND began >= ? "
                "AND container = ifnull(?, container) "
                "ORDER BY began, container, g.id",
                (*service, canary, since, container),
            ).fetchall()
            if most_bytes is not None:
                seen = [StartSummary.of(*row[2:]) for row in several]
                chosen = to_judge(seen, max((row[5] for row in several), default=0.0))
                several = _that_fit(db, [several[place] for place in chosen], most_bytes)
            sizes = (
                {} if most_bytes is None else _sizes(db, [series for _, series, *_ in several], most_bytes)
            )
            share = fair((size for _, size in sizes.values()), most_bytes or 0)
            for start, series, *_ in several:
                generation = start_in(db.execute(f"{starts.COLUMNS} WHERE g.id = ?", (start,)).fetchone())
                if generation is None:
                    continue
                samples = decode(
                    _bodies(db, series, ends(*sizes[series], share) if series in sizes else None)
                )
                if samples:
                    found.append((generation, samples))
        return found

    def keep_for(self, policy: Policy) -> None:
        """Keep, from now on, the runs that this policy looks at."""
        self._keep = self._keep.reaching(policy)

    def thin(self, now: float) -> None:
        """Merge and drop what is no longer to be kept."""
        step = now - self._now if self._now is not None else 0.0
        if 0 < step <= retention.DAY_SECONDS:
            self._age += step
        self._now = now
        with self.transaction(), self.session.work() as db:
            db.execute("UPDATE clock SET now = ?, age = ?", (now, self._age))
        for key in list(self._touched):
            with self.transaction(), self.session.work() as db:
                self._starts.forget(key)
                thinning.thin(SqliteRows(db, key), self._keep)
            self._touched.discard(key)
        if self._swept_at is None or self._age - self._swept_at >= _SWEEP_SECONDS:
            with self.transaction(), self.session.work() as db:
                self._starts.forget()
                self._sweep(db)
            self._swept_at = self._age

    # Documents ---------------------------------------------------------------------------------------------------

    def save(self, service: ServiceKey, canary: str, kind: str, at: float, body: bytes) -> None:
        """Keep a document; of a service, canary and kind the last ``HISTORY`` are kept."""
        key = (kind, *service, canary)
        with self.transaction(), self.session.work() as db:
            (last,) = db.execute(
                "SELECT ifnull(max(number), 0) FROM document "
                "WHERE kind = ? AND namespace = ? AND service = ? AND canary = ?",
                key,
            ).fetchone()
            db.execute("INSERT INTO document VALUES (?, ?, ?, ?, ?, ?, ?)", (*key, last + 1, at, body))
            db.execute(
                "DELETE FROM document WHERE kind = ? AND namespace = ? AND service = ? AND canary = ? AND number <= ?",
                (*key, last + 1 - HISTORY),
            )

    def history(self, service: ServiceKey, canary: str, kind: str) -> list[Document]:
        """What was saved, in the order in which it was."""
        with self.session.work() as db:
            rows = db.execute(
                "SELECT at, body FROM document "
                "WHERE namespace = ? AND service = ? AND canary = ? AND kind = ? ORDER BY number",
                (*service, canary, kind),
            ).fetchall()
        return [Document(*row) for row in rows]

    # Inside ------------------------------------------------------------------------------------------------------

    def _sweep(self, db: sqlite3.Connection) -> None:
        """Drop images and containers whose time is over, and what belongs to nothing any more."""
        rows = db.execute(
            "SELECT namespace, service, id, container, image_key, seen FROM generation ORDER BY began, id"
        ).fetchall()
        records = (StartRecord(ServiceKey(namespace, name), *rest) for namespace, name, *rest in rows)
        if expired := retention.expired(records, self._age, self._keep):
            drop(db, expired)
        db.execute(
            "DELETE FROM document WHERE service != '' AND (namespace, service, canary) NOT IN "
            "(SELECT g.namespace, g.service, s.canary FROM series s JOIN generation g ON g.id = s.generation)"
        )
        db.execute(starts.DELETE_UNUSED_ENVIRONMENTS)

    def _load(self, db: sqlite3.Connection) -> None:
        database.retype(db)
        touched = set(db.execute("SELECT DISTINCT namespace, service, container FROM generation"))
        now, age = db.execute("SELECT now, age FROM clock").fetchone() or (None, 0.0)
        self._starts.forget()
        self._touched, self._swept_at = touched, None
        self._now, self._age = None if now is None else starts.number(now), starts.number(age)


def _that_fit(
    db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]], most_bytes: int
) -> Sequence[tuple[Any, ...]]:
    """Without the oldest starts whose own bytes are too many."""
    sizes = {
        start: StartSize(*size)
        for start, *size in db.execute(
            "SELECT g.id, length(details), e.id, length(e.body) FROM generation g "
            "JOIN environment e ON e.id = g.environment WHERE g.id IN (SELECT value FROM json_each(?))",
            (json.dumps([row[0] for row in rows]),),
        )
    }
    rows = [row for row in rows if row[0] in sizes]
    return rows[first_that_fits([sizes[row[0]] for row in rows], most_bytes) :]


def _sizes(db: sqlite3.Connection, several: Sequence[int], most_bytes: int) -> dict[int, tuple[int, int]]:
    """Rows of each series, and their bytes; of none where it is plain that all fit."""
    given = (json.dumps(several),)
    (rows,) = db.execute(
        "SELECT total(opening + raw + failed + first + blocks + hours) FROM series "
        "WHERE id IN (SELECT value FROM json_each(?))",
        given,
    ).fetchone()
    if rows * MAX_BYTES <= most_bytes:
        return {}
    sums = db.execute(
        "SELECT series, count(*), sum(length(body)) FROM sample "
        "WHERE series IN (SELECT value FROM json_each(?)) GROUP BY series",
        given,
    )
    return {series: (count, size) for series, count, size in sums}


def _bodies(db: sqlite3.Connection, series: int, of_ends: tuple[int, int] | None) -> list[bytes]:
    """The rows of a series in order: all, or so many of the first and of the last."""
    rows = "SELECT sequence, body FROM sample WHERE series = ? ORDER BY sequence"
    if of_ends is None:
        return [body for _, body in db.execute(rows, (series,))]
    first, last = (
        db.execute(f"{rows}{order} LIMIT ?", (series, count)).fetchall()
        for order, count in zip(("", " DESC"), of_ends, strict=True)
    )
    return [body for _, body in first + last[::-1]]


def _insert(db: sqlite3.Connection, series: SeriesRow, samples: Iterable[Sample], opening: int) -> int:
    """How many were new; the first ``opening`` ones of the start are its opening."""
    added = dict.fromkeys((retention.OPENING, retention.RAW, retention.FAILED), 0)
    last_at = 0.0
    for sample in sorted(samples, key=lambda sample: sample.sequence):
        if sample.sequence <= (series.failed_through if sample.failed else series.merged_through):
            continue
        tier = tier_of(sample, series.taken + added[retention.OPENING], opening)
        added[tier] += db.execute(
            "INSERT OR IGNORE INTO sample VALUES (?, ?, ?, ?)",
            (series.id, sample.sequence, tier, encode(sample)),
        ).rowcount
        last_at = max(last_at, sample.started_at)
    begun, later, failures = added.values()
    if begun or later or failures:
        db.execute(
            "UPDATE series SET opening = opening + ?, raw = raw + ?, failed = failed + ?, taken = taken + ?, "
            "last_at = max(last_at, ?) WHERE id = ?",
            (begun, later, failures, begun + later, last_at, series.id),
        )
        series.taken += begun + later
    return begun + later + failures


def _path(location: str) -> str:
    return location.removeprefix(f"{DEFAULT_SCHEME}://")


def _open(location: str | None) -> SqliteStore:
    return SqliteStore.open(None if location is None else Path(_path(location)))


def _check(location: str) -> None:
    path = _path(location)
    if not path or "\0" in path:
        raise StoreError(f"{location!r} is no name of a file")
    if os.path.isdir(path):
        raise StoreError(f"{location}: is a folder; name a file in it")
    if os.path.exists(path) and not os.path.isfile(path):
        raise StoreError(f"{location}: is no regular file; name a file")


register(DEFAULT_SCHEME, _open, _check)
