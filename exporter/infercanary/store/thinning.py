"""Merging and dropping rows of a store, such that what :mod:`.retention` says is what stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Protocol

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
    TIERS,
    Retention,
    image_of,
)


class SeriesCounts(msgspec.Struct):
    """The rows of one canary of one start, counted by tier."""

    id: Any
    """As the store names it."""
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


class Rows(Protocol):
    """The rows of one container, within a transaction of a store."""

    def starts(self) -> Sequence[tuple[Any, str]]:
        """Its starts, the oldest first.

        Returns:
            Of each its id and its image key.
        """

    def series(self) -> Iterable[SeriesCounts]:
        """Its series.

        Returns:
            By canary, and of each canary the newest first.
        """

    def oldest(self, one: SeriesCounts, tier: int, count: int, after: int) -> list[tuple[int, bytes]]:
        """The oldest rows of a tier.

        Args:
            one: Their series.
            tier: One of :mod:`.retention`'s.
            count: So many at most.
            after: Of higher sequences than this.

        Returns:
            Sequences and bodies, in order.
        """

    def replace(
        self, one: SeriesCounts, sequences: Sequence[int], merged: Sequence[tuple[int, int, bytes]]
    ) -> None:
        """Remove rows, add what they were merged into, and keep the counts of ``one``.

        Args:
            one: Their series, with the counts after that.
            sequences: Of the rows to remove.
            merged: Sequence, tier and body of each row to add.
        """

    def drop(self, starts: Iterable[Any]) -> None:
        """Forget starts with all of their runs.

        Args:
            starts: Their ids.
        """

    def drop_empty(self) -> None:
        """Forget the starts of which nothing is left, but for the last one: its runs are still to come."""


def thin(db: Rows, keep: Retention) -> None:
    """Merge and drop the rows of one container.

    Args:
        db: Its rows.
        keep: How much is kept.
    """
    starts: dict[str, list[Any]] = {}
    for start, key in db.starts():
        starts.setdefault(image_of(key), []).append(start)
    for ids in starts.values():
        surplus = ids[keep.first_starts : max(keep.first_starts, len(ids) - keep.starts + keep.first_starts)]
        if surplus:
            db.drop(surplus)
    for _, of_canary in groupby(db.series(), lambda one: one.canary):
        series = [*of_canary]
        for of_one in _windows(series, keep.images):
            _drop_first(db, keep, of_one)
            _merge_raw(db, keep, of_one)
        _merge_blocks(db, keep, series)
        _drop_oldest(db, keep, series)
    db.drop_empty()


def _windows(series: Sequence[SeriesCounts], works: int) -> list[list[SeriesCounts]]:
    """The series that share the windows of an image, newest first.

    Each model of an image has windows of its own, as an image has; those before its last few share one. A key holds the
    models of all canaries: what another canary's new weights would drop is this one's history.
    """
    windows: dict[tuple[str, str], list[SeriesCounts]] = {}
    newest: dict[str, dict[str, None]] = {}
    for one in series:
        image = image_of(one.image)
        known = newest.setdefault(image, {})
        if len(known) < works:
            known[one.image] = None
        windows.setdefault((image, one.image if one.image in known else ""), []).append(one)
    return [*windows.values()]


def _drop_first(db: Rows, keep: Retention, series: Sequence[SeriesCounts]) -> None:
    """Those of models whose windows became one, beyond what the image's first one left; ``series`` are newest first."""
    for one, rows in _surplus(db, series[::-1], FIRST, keep.first_most // BLOCK):
        _replace(db, one, rows, [])


def _merge_raw(db: Rows, keep: Retention, series: Sequence[SeriesCounts]) -> None:
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


def _merge_blocks(db: Rows, keep: Retention, series: Sequence[SeriesCounts]) -> None:
    """Into hours; ``series`` are those of all images, newest first."""
    for one, rows in _surplus(db, series, BLOCKS, keep.blocks, HOUR):
        hours = [(sequence, HOURS, hour) for sequence, hour in _merged(rows, HOUR)]
        one.hours += len(hours)
        _replace(db, one, rows, hours)


def _drop_oldest(db: Rows, keep: Retention, series: Sequence[SeriesCounts]) -> None:
    """Hours and failed runs; ``series`` are those of all images, newest first."""
    for one, rows in _surplus(db, series, HOURS, keep.hours):
        _replace(db, one, rows, [])
    for one, rows in _surplus(db, series, FAILED, keep.failed):
        one.failed_through = rows[-1][0]
        _replace(db, one, rows, [])


def _surplus(
    db: Rows, series: Sequence[SeriesCounts], tier: int, window: int, whole: int = 1
) -> Iterator[tuple[SeriesCounts, list[tuple[int, bytes]]]]:
    """The oldest rows of a tier beyond a window, ``whole`` at a time unless none would be left; no longer counted."""
    name = TIERS[tier]
    for one, count in _beyond(series, [getattr(one, name) for one in series], window):
        there = getattr(one, name)
        if count < there:
            count -= count % whole
        if rows := _oldest(db, one, tier, count):
            setattr(one, name, there - len(rows))
            yield one, rows


def _beyond(
    series: Sequence[SeriesCounts], counts: Sequence[int], window: int
) -> Iterator[tuple[SeriesCounts, int]]:
    """How many of each one's rows, newest first, are not among the newest ``window`` of all."""
    for one, count in zip(series, counts, strict=True):
        yield one, max(0, count - window)
        window = max(0, window - count)


def _oldest(db: Rows, one: SeriesCounts, tier: int, count: int, after: int = -1) -> list[tuple[int, bytes]]:
    return db.oldest(one, tier, count, after) if count else []


def _merged(rows: Sequence[tuple[int, bytes]], size: int) -> Iterator[tuple[int, Sample]]:
    """One sample for ``size`` rows each, with the sequence of the last row."""
    for begin in range(0, len(rows), size):
        chunk = rows[begin : begin + size]
        if samples := decode(body for _, body in chunk):
            yield chunk[-1][0], merge(samples)


def _replace(
    db: Rows,
    one: SeriesCounts,
    rows: Sequence[tuple[int, bytes]],
    merged: Sequence[tuple[int, int, Sample]],
) -> None:
    encoded = [(sequence, tier, encode(sample)) for sequence, tier, sample in merged]
    db.replace(one, [sequence for sequence, _ in rows], encoded)
