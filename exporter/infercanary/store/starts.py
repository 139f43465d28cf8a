"""The rows of starts of containers: added, brought up to date, read again."""

from __future__ import annotations

import hashlib
import sqlite3

import msgspec

from infercanary.judge.model import Generation
from infercanary.store.records import (
    ContainerKey,
    began,
    details_of,
    encode_environment,
    key_of,
    with_known,
)

COLUMNS = (
    "SELECT namespace, service, container, boot_id, started_at, image, image_id, image_digest, e.body, details "
    "FROM generation g JOIN environment e ON e.id = g.environment "
)
"""A row for :func:`~infercanary.store.records.start_in`."""

DELETE_UNUSED_ENVIRONMENTS = (
    "DELETE FROM environment WHERE NOT EXISTS "
    "(SELECT 1 FROM generation g WHERE g.environment = environment.id)"
)

_MOST = 1e15
_SEEN_SECONDS = 3600.0  # `seen` is written so often at most


class SeriesRow(msgspec.Struct):
    """The runs of one canary of one start: those up to these sequences are merged or dropped."""

    id: int
    merged_through: int = -1
    failed_through: int = -1
    taken: int = 0


class StartRow(msgspec.Struct):
    """A start as it stands in the file, with its series by canary; ``seen`` is an age of the store."""

    id: int
    boot_id: str
    seen: float
    series: dict[str, SeriesRow]
    written: Generation | None = None
    """What is in the row, as far as that is known."""


class StartRows:
    """Finds the row of a start; it remembers the last one of each container, so that most are not looked up."""

    def __init__(self) -> None:
        self._latest: dict[ContainerKey, StartRow] = {}

    def forget(self, container: ContainerKey | None = None) -> None:
        """The file may say something else now: of this container, or of all.

        Args:
            container: Its key; None for all.
        """
        if container is None:
            self._latest.clear()
        else:
            self._latest.pop(container, None)

    def update(self, db: sqlite3.Connection, generation: Generation, age: float) -> StartRow:
        """The row of ``generation``, which is added or brought up to date; seen at this age of the store.

        Args:
            db: A connection within a transaction.
            generation: What is known of the start now.
            age: Seconds that exporters watched this store.

        Returns:
            The row, with its series; callers count in it what they insert.
        """
        key = key_of(generation)
        row = self._latest.get(key)
        if row is None or row.boot_id != generation.boot_id:
            row = self._latest[key] = _find(db, generation) or _add(db, generation, age)
        if age - row.seen >= _SEEN_SECONDS:
            db.execute("UPDATE generation SET seen = ? WHERE id = ?", (age, row.id))
            row.seen = age
        if row.written != generation:
            before, details = db.execute(
                "SELECT environment, details FROM generation WHERE id = ?", (row.id,)
            ).fetchone()
            after = _environment(db, generation)
            kept = with_known(generation, details)
            db.execute(
                "UPDATE generation SET image = ?, image_id = ?, image_digest = ?, image_key = ?, environment = ?, "
                "details = ?, host = ? WHERE id = ?",
                (*_changeable(kept, after), row.id),
            )
            if after != before:
                db.execute(f"{DELETE_UNUSED_ENVIRONMENTS} AND id = ?", (before,))
            row.written = generation
        return row


def add_series(db: sqlite3.Connection, start: StartRow, canary: str, first_at: float) -> SeriesRow:
    """A series of a canary that had none in this start; its first run began at this Unix time.

    Args:
        db: A connection within a transaction.
        start: Its row, which gets the series.
        canary: The name.
        first_at: A Unix time, by the probe's clock.

    Returns:
        The new row, without runs.
    """
    added = db.execute(
        "INSERT INTO series (generation, canary, first_at) VALUES (?, ?, ?)", (start.id, canary, first_at)
    )
    series = start.series[canary] = SeriesRow(_row_id(added))
    return series


def number(value: object) -> float:
    """What a column of numbers has; 0 where a failing disk made something else of it.

    Args:
        value: As SQLite gives it: of any type.
    """
    return float(value) if isinstance(value, (int, float)) and abs(value) < _MOST else 0.0


def _find(db: sqlite3.Connection, generation: Generation) -> StartRow | None:
    row = db.execute(
        "SELECT id, seen FROM generation WHERE namespace = ? AND service = ? AND container = ? AND boot_id = ?",
        (*key_of(generation), generation.boot_id),
    ).fetchone()
    if row is None:
        return None
    series = db.execute(
        "SELECT canary, id, merged_through, failed_through, taken FROM series WHERE generation = ?", row[:1]
    ).fetchall()
    return StartRow(
        row[0], generation.boot_id, number(row[1]), {canary: SeriesRow(*rest) for canary, *rest in series}
    )


def _add(db: sqlite3.Connection, generation: Generation, age: float) -> StartRow:
    key = key_of(generation)
    (latest,) = db.execute(
        "SELECT max(max(began, ifnull(last_at, 0))) FROM generation g LEFT JOIN series s ON s.generation = g.id "
        "WHERE namespace = ? AND service = ? AND container = ?",
        key,
    ).fetchone()
    added = db.execute(
        "INSERT INTO generation (namespace, service, container, boot_id, started_at, began, seen, image, image_id, "
        "image_digest, image_key, environment, details, host) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *key,
            generation.boot_id,
            generation.started_at,
            began(generation.started_at, latest),
            age,
            *_changeable(generation, _environment(db, generation)),
        ),
    )
    return StartRow(_row_id(added), generation.boot_id, age, {}, generation)


def _changeable(generation: Generation, environment: int) -> tuple[object, ...]:
    """The columns that a later report of the same start may change."""
    image = (generation.image, generation.image_id, generation.image_digest, generation.work_key)
    return (*image, environment, details_of(generation), generation.host)


def _environment(db: sqlite3.Connection, generation: Generation) -> int:
    """The id of its environment, which many starts share."""
    body = encode_environment(generation.environment)
    digest = hashlib.sha256(body).digest()
    row = db.execute("SELECT id, body FROM environment WHERE digest = ?", (digest,)).fetchone()
    if row is not None:
        if row[1] != body:  # a failing disk: many starts share it
            db.execute("UPDATE environment SET body = ? WHERE id = ?", (body, row[0]))
        return int(row[0])
    return _row_id(db.execute("INSERT INTO environment (digest, body) VALUES (?, ?)", (digest, body)))


def _row_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None
    return cursor.lastrowid
