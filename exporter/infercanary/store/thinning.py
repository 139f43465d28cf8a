"""Merging and dropping rows of the SQLite file, such that what :mod:`.retention` says is what stays."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from infercanary.judge.model import Sample, merge
from infercanary.store.records import decode, encode
from infercanary.store.retention import (
    BLOCK,
    BLOCKS,
    DAY_SECONDS,
    FAILED,
    FIRST,
    HOUR,
    HOURS,
    OPENING,
    RAW,
    Retention,
    image_of,
)
from infercanary.store.starts import ContainerKey


class _Series(msgspec.Struct):
    """The rows of one canary of one start."""

    id: int
    canary: str
    image: str
    first_at: float
    merged_through: int
    failed_through: int
    opening: int
    raw: int
    failed: int
    first: int
    blocks: int
    hours: int


def thin(db: sqlite3.Connection, keep: Retention, container: ContainerKey) -> None:
    """Merge and drop the rows of one container.

    Args:
        db: A connection within a transaction.
        keep: How much is kept.
        container: Its key.
    """
    starts: dict[str, list[int]] = {}
    for start, key in db.execute(
        "SELECT id, image_key FROM generation WHERE namespace = ? AND service = ? AND container = ? ORDER BY began, id",
        container,
    ):
        starts.setdefault(image_of(key), []).append(start)
    for ids in starts.values():
        drop(db, ids[keep.first_starts : max(keep.first_starts, len(ids) - keep.starts + keep.first_starts)])
    rows = db.execute(
        "SELECT s.id, canary, image_key, first_at, merged_through, failed_through, "
        "opening, raw, failed, first, blocks, hours FROM generation g JOIN series s ON s.generation = g.id "
        "WHERE namespace = ? AND service = ? AND container = ? ORDER BY canary, began DESC, g.id DESC",
        container,
    ).fetchall()
    for _, of_canary in groupby((_Series(*row) for row in rows), lambda one: one.canary):
        series = [*of_canary]
        for of_one in _windows(series, keep.images):
            _drop_first(db, keep, of_one)
            _merge_raw(db, keep, of_one)
        _merge_blocks(db, keep, series)
        _drop_oldest(db, keep, series)
    # A start of which nothing is left goes, unless it is the last: its runs are still to come.
    db.execute(
        "DELETE FROM generation WHERE namespace = ? AND service = ? AND container = ? "
        "AND id <> (SELECT id FROM generation "
        "WHERE namespace = ? AND service = ? AND container = ? ORDER BY began DESC, id DESC LIMIT 1) AND NOT EXISTS "
        "(SELECT 1 FROM series s WHERE s.generation = generation.id "
        "AND opening + raw + failed + first + blocks + hours > 0)",
        container * 2,
    )


def drop(db: sqlite3.Connection, starts: Iterable[int]) -> None:
    """Forget ``starts`` with all of their runs.

    Args:
        db: A connection within a transaction.
        starts: Ids of their rows.
    """
    db.executemany("DELETE FROM generation WHERE id = ?", [(start,) for start in starts])


def _windows(series: Sequence[_Series], works: int) -> list[list[_Series]]:
    """The series that share the windows of an image, newest first.

    Each model of an image has windows of its own, as an image has; those before its last few share one. A key holds the
    models of all canaries: what another canary's new weights would drop is this one's history.
    """
    windows: dict[tuple[str, str], list[_Series]] = {}
    newest: dict[str, dict[str, None]] = {}
    for one in series:
        image = image_of(one.image)
        known = newest.setdefault(image, {})
        if len(known) < works:
            known[one.image] = None
        windows.setdefault((image, one.image if one.image in known else ""), []).append(one)
    return [*windows.values()]


def _drop_first(db: sqlite3.Connection, keep: Retention, series: Sequence[_Series]) -> None:
    """Those of models whose windows became one, beyond what the image's first one left; ``series`` are newest first."""
    oldest = series[::-1]
    for one, count in _beyond(oldest, [one.first for one in oldest], keep.first_most // BLOCK):
        if rows := _oldest(db, one, FIRST, count):
            one.first -= len(rows)
            _replace(db, one, rows, [])


def _merge_raw(db: sqlite3.Connection, keep: Retention, series: Sequence[_Series]) -> None:
    """Into blocks; ``series`` are those of one window, newest first."""
    first_at = series[-1].first_at
    first = BLOCK * sum(one.first for one in series)
    surplus = []
    newer = 0
    for place, (one, count) in enumerate(_beyond(series, [one.raw for one in series], keep.raw)):
        if count < one.raw:  # whole blocks, unless nothing else is left
            count = count // BLOCK * BLOCK if count >= keep.slack else 0
        newer += one.raw
        # The opening of an older start stays as long as it is among the image's newest runs.
        is_kept = place < keep.opening_starts or newer < keep.raw
        newer += one.opening
        rows = [] if is_kept else _oldest(db, one, OPENING, one.opening)
        one.opening -= len(rows)
        later = _oldest(db, one, RAW, count, after=one.merged_through)
        one.raw -= len(later)
        surplus.append((one, sorted(rows + later)))
    for one, rows in reversed(surplus):  # the oldest first: its runs are the image's first
        blocks = []
        for sequence, block in _merged(rows, BLOCK):
            early = block.started_at - first_at < DAY_SECONDS
            is_first = first < keep.first or (early and first < keep.first_most)
            first += BLOCK * is_first
            one.first += is_first
            one.blocks += not is_first
            blocks.append((sequence, FIRST if is_first else BLOCKS, block))
        if rows:
            one.merged_through = max(one.merged_through, rows[-1][0])
            _replace(db, one, rows, blocks)


def _merge_blocks(db: sqlite3.Connection, keep: Retention, series: Sequence[_Series]) -> None:
    """Into hours; ``series`` are those of all images, newest first."""
    for one, count in _beyond(series, [one.blocks for one in series], keep.blocks):
        if count < one.blocks:
            count -= count % HOUR
        if rows := _oldest(db, one, BLOCKS, count):
            hours = [(sequence, HOURS, hour) for sequence, hour in _merged(rows, HOUR)]
            one.blocks -= len(rows)
            one.hours += len(hours)
            _replace(db, one, rows, hours)


def _drop_oldest(db: sqlite3.Connection, keep: Retention, series: Sequence[_Series]) -> None:
    """Hours and failed runs; ``series`` are those of all images, newest first."""
    for one, count in _beyond(series, [one.hours for one in series], keep.hours):
        if rows := _oldest(db, one, HOURS, count):
            one.hours -= len(rows)
            _replace(db, one, rows, [])
    for one, count in _beyond(series, [one.failed for one in series], keep.failed):
        if rows := _oldest(db, one, FAILED, count):
            one.failed -= len(rows)
            one.failed_through = rows[-1][0]
            _replace(db, one, rows, [])


def _beyond(series: Sequence[_Series], counts: Sequence[int], window: int) -> Iterator[tuple[_Series, int]]:
    """How many of each one's rows, newest first, are not among the newest ``window`` of all."""
    for one, count in zip(series, counts, strict=True):
        yield one, max(0, count - window)
        window = max(0, window - count)


def _oldest(
    db: sqlite3.Connection, one: _Series, tier: int, count: int, after: int = -1
) -> list[tuple[int, bytes]]:
    if not count:
        return []
    return db.execute(
        "SELECT sequence, body FROM sample WHERE series = ? AND sequence > ? AND tier = ? "
        "ORDER BY sequence LIMIT ?",
        (one.id, after, tier, count),
    ).fetchall()


def _merged(rows: Sequence[tuple[int, bytes]], size: int) -> Iterator[tuple[int, Sample]]:
    """One sample for ``size`` rows each, with the sequence of the last row."""
    for begin in range(0, len(rows), size):
        chunk = rows[begin : begin + size]
        if samples := decode(body for _, body in chunk):
            yield chunk[-1][0], merge(samples)


def _replace(
    db: sqlite3.Connection,
    one: _Series,
    rows: Sequence[tuple[int, bytes]],
    merged: Sequence[tuple[int, int, Sample]],
) -> None:
    db.executemany(
        "DELETE FROM sample WHERE series = ? AND sequence = ?", [(one.id, sequence) for sequence, _ in rows]
    )
    db.executemany(
        "INSERT INTO sample VALUES (?, ?, ?, ?)",
        [(one.id, sequence, tier, encode(sample)) for sequence, tier, sample in merged],
    )
    db.execute(
        "UPDATE series SET merged_through = ?, failed_through = ?, opening = ?, raw = ?, failed = ?, first = ?, "
        "blocks = ?, hours = ? WHERE id = ?",
        (*msgspec.structs.astuple(one)[4:], one.id),
    )
