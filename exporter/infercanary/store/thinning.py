"""Thinning: merges and drops old rows by the limits of :mod:`.retention`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection

from infercanary.judge.model import ServiceKey, merge
from infercanary.store import queries
from infercanary.store.records import decode, encode
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

_MERGED = {OPENING: (BLOCK, BLOCKS), RAW: (BLOCK, BLOCKS), BLOCKS: (HOUR, HOURS)}
"""By tier: number of rows that are merged into one row, and the tier of this row. Rows of other tiers are dropped."""


def thin(connection: Connection, service: ServiceKey, container: str, keep: Retention) -> None:
    """Merge and drop the rows of one container, within a transaction that locks its series."""
    key = queries.named(service, container=container)
    several = connection.execute(queries.SERIES_OF_CONTAINER, key).all()
    for _, group in groupby(several, attrgetter("canary")):
        series = [*group]
        for window in _windows(series, keep.images):
            first = keep.first // BLOCK
            room = first - sum(one.first for one in window)
            newest, older = window[: keep.opening_starts], window[keep.opening_starts :]
            # First runs of an older start stay while they are among the image's newest runs.
            openings = keep.raw - sum(one.opening + one.raw for one in newest)
            surplus = [
                *_surplus(window, RAW, keep.raw, keep.slack),
                *_surplus(older, OPENING, max(0, openings)),
                # Models that begin to share one limit have too many rows.
                *_surplus(window[::-1], FIRST, first),
            ]
            # Oldest runs first: these belong in the tier FIRST.
            for one, tier, count in reversed(surplus):
                room -= _replace(connection, one, tier, count, room)
        surplus = [
            *_surplus(series, BLOCKS, keep.blocks, HOUR),
            *_surplus(series, HOURS, keep.hours),
            *_surplus(series, FAILED, keep.failed),
        ]
        for each in surplus:
            _replace(connection, *each)


def _windows(series: Sequence[Any], models: int) -> Collection[list[Any]]:
    """Group the series that share the row limits of an image.

    New weights are an upgrade, so each of the last ``models`` models of an image has its own limits. Earlier models
    of an image share limits. Rows of earlier models are not dropped: new weights of one canary make the model new for
    all canaries of the service.
    """
    own = [*dict.fromkeys(one.image_key for one in series)][:models]
    windows: dict[str, list[Any]] = {}
    for one in series:
        windows.setdefault(one.image_key if one.image_key in own else image_of(one.image_key), []).append(one)
    return windows.values()


def _surplus(series: Iterable[Any], tier: int, window: int, whole: int = 1) -> Iterator[tuple[Any, int, int]]:
    """Yield the rows to merge or drop, as series, tier and number of rows.

    Args:
        series: Series in the order of importance: rows of the first series stay longest.
        tier: Tier of the rows.
        window: Number of rows that stay, over all series.
        whole: If only some rows of a series are surplus, their number is rounded down to a multiple of ``whole``.
    """
    for one in series:
        there = getattr(one, TIERS[tier])
        count = max(0, there - window)
        window = max(0, window - there)
        if count < there:
            count -= count % whole
        if count:
            yield one, tier, count


def _replace(connection: Connection, one: Any, tier: int, count: int, room: int = 0) -> int:
    """Merge the oldest rows of a tier, or drop them.

    Args:
        connection: Connection within a transaction.
        one: Series of the rows.
        tier: Tier of the rows.
        count: Number of rows.
        room: Largest number of merged rows that go to the tier FIRST.

    Returns:
        Number of new rows.
    """
    given = {"series": one.id, "tier": tier}
    rows = connection.execute(queries.OLDEST, {**given, "count": count}).all()
    if not rows:
        return 0
    last = rows[-1].sequence
    connection.execute(queries.DROP_OLDEST, {**given, "last": last})
    changes = dict.fromkeys(TIERS, 0)
    changes[TIERS[tier]] = -len(rows)
    added: list[dict[str, Any]] = []
    size, into = _MERGED.get(tier, (0, tier))
    for begin in range(0, len(rows), size) if size else ():
        chunk = rows[begin : begin + size]
        if samples := decode(row.body for row in chunk):
            to = FIRST if len(added) < room else into
            changes[TIERS[to]] += 1
            body = encode(merge(samples))
            added.append({"series": one.id, "tier": to, "sequence": chunk[-1].sequence, "body": body})
    if added:
        connection.execute(queries.ADD_SAMPLES, added)
    connection.execute(queries.COUNT_REPLACED, {**changes, "series": one.id, "last": last})
    return len(added)
