"""Merging and dropping rows, such that what :mod:`.retention` says is what stays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
from sqlalchemy import Connection

from infercanary.judge.model import Sample, merge
from infercanary.store import queries
from infercanary.store.records import ContainerKey, decode, encode
from infercanary.store.retention import (
    BLOCK,
    BLOCKS,
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


class _Series(msgspec.Struct):
    """A canary of a start, with its number of rows of each tier."""

    start: int
    id: int
    canary: str
    image: str
    through: int
    rows: list[int]
    is_changed: bool = False


def thin(connection: Connection, key: ContainerKey, keep: Retention) -> None:
    """Merge and drop the rows of one container, within a transaction.

    Args:
        connection: Of the store; the container's series are locked until the transaction ends.
        key: The container.
        keep: How much is kept.
    """
    container = dict(zip(("namespace", "service", "container"), key, strict=True))
    starts = connection.execute(queries.STARTS_OF_CONTAINER, container).all()
    images: dict[str, list[int]] = {}
    for start, image in starts:
        images.setdefault(image_of(image), []).append(start)
    newest = keep.starts - keep.first_starts
    surplus = {start for ids in images.values() for start in ids[keep.first_starts : -newest]}
    several = [
        _Series(*row[:5], [*row[5:]])
        for row in connection.execute(queries.SERIES_OF_CONTAINER, container)
        if row.start not in surplus
    ]
    for _, series in groupby(several, attrgetter("canary")):
        _Thinning(connection, keep).thin([*series])
    if changed := [series for series in several if series.is_changed]:
        counts = [
            {"row": series.id, "merged": series.through, **dict(zip(TIERS, series.rows, strict=True))}
            for series in changed
        ]
        connection.execute(queries.SET_COUNTS, counts)
    filled = {series.start for series in several if any(series.rows)}
    # The last start's runs are still to come.
    drop(connection, [start for start, _ in starts[:-1] if start not in filled])


def drop(connection: Connection, starts: Collection[int]) -> None:
    """Forget starts, by their ids, with all of their runs."""
    if starts:
        connection.execute(queries.DROP_STARTS, {"ids": [*starts]})


class _Thinning:
    """Thins the series of one canary of a container."""

    def __init__(self, connection: Connection, keep: Retention) -> None:
        self._connection = connection
        self._keep = keep

    def thin(self, series: Sequence[_Series]) -> None:
        """Merge and drop rows of ``series``, which are sorted, the newest first."""
        keep = self._keep
        for window in _windows(series, keep.images):
            for one in window[keep.opening_starts :]:
                self._end_opening(one)
            self._merge_raw(window)
            # Models whose windows became one have more of them.
            self._drop(window[::-1], FIRST, keep.first // BLOCK)
        for one, count in _surplus(series, BLOCKS, keep.blocks, HOUR):
            self._add(one, [(HOURS, *hour) for hour in _merged(self._take(one, BLOCKS, count), HOUR)])
        self._drop(series, HOURS, keep.hours)
        self._drop(series, FAILED, keep.failed)

    def _end_opening(self, one: _Series) -> None:
        """Make the opening of a start some of its later runs."""
        if one.rows[OPENING]:
            self._connection.execute(queries.MOVE, {"series": one.id, "tier": OPENING, "to": RAW})
            one.rows[RAW] += one.rows[OPENING]
            one.rows[OPENING] = 0
            one.is_changed = True

    def _merge_raw(self, window: Sequence[_Series]) -> None:
        first = sum(one.rows[FIRST] for one in window)
        surplus = [*_surplus(window, RAW, self._keep.raw, self._keep.slack)]
        for one, count in reversed(surplus):  # the oldest first: its runs are the image's first
            blocks = [*_merged(self._take(one, RAW, count), BLOCK)]
            is_first = range(self._keep.first // BLOCK - first)
            self._add(
                one, [(FIRST if place in is_first else BLOCKS, *block) for place, block in enumerate(blocks)]
            )
            first += len(blocks)

    def _drop(self, series: Iterable[_Series], tier: int, window: int) -> None:
        for one, count in _surplus(series, tier, window):
            self._take(one, tier, count)

    def _take(self, one: _Series, tier: int, count: int) -> Sequence[Any]:
        """Remove the oldest rows of a tier, and return their sequences and bodies."""
        given = {"series": one.id, "tier": tier}
        rows = self._connection.execute(queries.OLDEST, {**given, "count": count}).all()
        if rows:
            last = rows[-1].sequence
            self._connection.execute(queries.DROP_OLDEST, {**given, "last": last})
            one.through = max(one.through, last)
            one.rows[tier] -= len(rows)
            one.is_changed = True
        return rows

    def _add(self, one: _Series, merged: Sequence[tuple[int, int, Sample]]) -> None:
        """Add rows, each with its tier and sequence."""
        for tier, _, _ in merged:
            one.rows[tier] += 1
        if merged:
            rows = [
                {"series": one.id, "sequence": sequence, "tier": tier, "body": encode(sample)}
                for tier, sequence, sample in merged
            ]
            self._connection.execute(queries.ADD_SAMPLES, rows)


def _windows(series: Iterable[_Series], models: int) -> Collection[list[_Series]]:
    """Group the series that share the windows of an image.

    Each of an image's newest models has windows of its own, as an image has; those before share one. A start's key has
    the models of all canaries: another canary's new weights must not drop this one's history.
    """
    windows: dict[str, list[_Series]] = {}
    newest: dict[str, set[str]] = {}
    for one in series:
        image = image_of(one.image)
        known = newest.setdefault(image, set())
        if len(known) < models:
            known.add(one.image)
        windows.setdefault(one.image if one.image in known else image, []).append(one)
    return windows.values()


def _surplus(
    series: Iterable[_Series], tier: int, window: int, whole: int = 1
) -> Iterator[tuple[_Series, int]]:
    """Count the rows of a tier beyond the first ``window`` of all, by series: a multiple of ``whole``, or all of one."""
    for one in series:
        there = one.rows[tier]
        count = max(0, there - window)
        window = max(0, window - there)
        if count < there:
            count -= count % whole
        if count:
            yield one, count


def _merged(rows: Sequence[Any], size: int) -> Iterator[tuple[int, Sample]]:
    """Merge ``size`` rows each; the sequence is that of the last one."""
    for begin in range(0, len(rows), size):
        chunk = rows[begin : begin + size]
        if samples := decode(row.body for row in chunk):
            yield chunk[-1].sequence, merge(samples)
