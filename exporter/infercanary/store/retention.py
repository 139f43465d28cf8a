"""Which rows of the store are kept: at first every run, later block medians, then hours.

The judge looks at the first runs of a start, at the last ones, and, where a latency creeps, at the first day of an
image: these stay.

Counts decide and not ages, since a clock that jumps must not cost a baseline. The few things that do need an age have
that of the store: how long exporters have watched, whatever the clock said.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from infercanary.judge.model import Sample, merge
from infercanary.store.records import decode, encode

BLOCK = 12
"""Runs in a block median."""

HOUR = 30
"""Block medians in an hour's: at a run in 10 s it is one."""

DAY_SECONDS = 86_400.0

# What a row is: a run of the first or of the later ones of its start, a failed one, or a median of an image's first
# runs, of a block or of an hour.
OPENING, RAW, FAILED, FIRST, BLOCKS, HOURS = range(6)

_SEEN_SECONDS = 7_200.0  # `seen` is written each hour only: what differs by less was seen at the same time
_RUNS_SECONDS = 2 * DAY_SECONDS  # since it was seen; the store's age may grow by one in a step


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How much is kept: windows of one canary of one container, in rows. Times in brackets hold at a run in 10 s."""

    opening: int = 288
    """The first runs of each of an image's last ``opening_starts`` starts, as they were: at 192 is the last look."""
    opening_starts: int = 8
    raw: int = 960
    """Of each image: the newest runs besides, as they were."""
    slack: int = 120
    """So many more before they are merged: a few large writes cost less than many small ones."""
    first: int = 8_640
    """Of each image: the first runs (a day), of which block medians stay as long as the image does."""
    first_most: int = 86_400
    """So many instead, if that many started within the first 24 hours."""
    blocks: int = 5_040
    """Of all images: block medians that are not among the first (a week)."""
    hours: int = 2_160
    """Of all images: the medians of hours before (90 days)."""
    failed: int = 960
    """Of all images: failed runs."""
    starts: int = 64
    """Of each image: the first ``first_starts`` starts, and the newest."""
    first_starts: int = 8
    images: int = 8
    """Of each service. More only where they run at the same time."""
    image_seconds: float = 90 * DAY_SECONDS
    """Since it was seen; an image goes then, unless it is one of the newest two."""
    containers: int = 4_000
    """In all: those seen last, and those that run."""


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


class Start(NamedTuple):
    """One start of a container, as far as it matters for how long it is kept. ``seen`` is an age of the store."""

    id: int
    service: str
    container: str
    image: str
    seen: float


def thin(db: sqlite3.Connection, keep: Retention, service: str, container: str) -> None:
    """Merge and drop the rows of one container."""
    starts = db.execute(
        "SELECT id, image_key FROM generation WHERE service = ? AND container = ? "
        "ORDER BY image_key, began, id",
        (service, container),
    ).fetchall()
    for _, of_image in groupby(starts, lambda start: start[1]):
        ids = [start for start, _ in of_image]
        drop(db, ids[keep.first_starts : max(keep.first_starts, len(ids) - keep.starts + keep.first_starts)])
    rows = db.execute(
        "SELECT s.id, canary, image_key, first_at, merged_through, failed_through, "
        "opening, raw, failed, first, blocks, hours FROM generation g JOIN series s ON s.generation = g.id "
        "WHERE service = ? AND container = ? ORDER BY canary, began DESC, g.id DESC",
        (service, container),
    ).fetchall()
    for _, of_canary in groupby((_Series(*row) for row in rows), lambda one: one.canary):
        series = [*of_canary]
        images: dict[str, list[_Series]] = {}
        for one in series:
            images.setdefault(one.image, []).append(one)
        for of_one in images.values():
            _merge_raw(db, keep, of_one)
        _merge_blocks(db, keep, series)
        _drop_oldest(db, keep, series)
    # A start of which nothing is left goes, unless it is the last: its runs are still to come.
    db.execute(
        "DELETE FROM generation WHERE service = ? AND container = ? AND id <> (SELECT id FROM generation "
        "WHERE service = ? AND container = ? ORDER BY began DESC, id DESC LIMIT 1) AND NOT EXISTS "
        "(SELECT 1 FROM series s WHERE s.generation = generation.id "
        "AND opening + raw + failed + first + blocks + hours > 0)",
        (service, container) * 2,
    )


def expired(starts: Iterable[Start], age: float, keep: Retention) -> list[int]:
    """Which of ``starts`` (all there are, oldest first) have had their time at the store's ``age``."""
    starts = [*starts]
    # When each container, and each image of each service, was seen, and the place of its last start.
    latest: dict[tuple[str, str], tuple[float, int]] = {}
    images: dict[str, dict[str, tuple[float, int]]] = {}
    for place, start in enumerate(starts):
        seen = min(start.seen, age - _SEEN_SECONDS)
        latest[start.service, start.container] = (seen, place)
        of_service = images.setdefault(start.service, {})
        of_service[start.image] = max((seen, place), of_service.get(start.image, (seen, place)))
    running = {
        (starts[place].service, starts[place].image)
        for seen, place in latest.values()
        if age - seen < _RUNS_SECONDS
    }
    gone: set[tuple[str, str]] = set()
    for service, of_service in images.items():
        for rank, image in enumerate(sorted(of_service, key=lambda name: of_service[name], reverse=True)):
            old = age - of_service[image][0] > keep.image_seconds
            if rank >= 2 and (rank >= keep.images or old) and (service, image) not in running:
                gone.add((service, image))
    forgotten = {
        container
        for container in sorted(latest, key=lambda name: latest[name], reverse=True)[keep.containers :]
        if age - latest[container][0] >= _RUNS_SECONDS
    }
    return [
        start.id
        for start in starts
        if (start.service, start.image) in gone or (start.service, start.container) in forgotten
    ]


def drop(db: sqlite3.Connection, starts: Iterable[int]) -> None:
    """Forget ``starts`` with all of their runs."""
    db.executemany("DELETE FROM generation WHERE id = ?", [(start,) for start in starts])


def _merge_raw(db: sqlite3.Connection, keep: Retention, series: Sequence[_Series]) -> None:
    """Into blocks; ``series`` are those of one image, newest first."""
    first_at = series[-1].first_at
    first = BLOCK * sum(one.first for one in series)
    surplus = []
    for place, (one, count) in enumerate(_beyond(series, [one.raw for one in series], keep.raw)):
        if count < one.raw:  # whole blocks, unless nothing else is left
            count = count // BLOCK * BLOCK if count >= keep.slack else 0
        rows = _oldest(db, one, OPENING, one.opening) if place >= keep.opening_starts else []
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
