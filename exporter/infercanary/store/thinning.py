"""Thinning: merges and drops rows by the windows of :mod:`.retention`."""

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
"""Number of rows merged into one, and its tier, by tier; rows of other tiers are dropped."""


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
            # The opening of an older start stays while it is among the image's newest runs.
            openings = keep.raw - sum(one.opening + one.raw for one in newest)
            surplus = [
                *_surplus(window, RAW, keep.raw, keep.slack),
                *_surplus(older, OPENING, max(0, openings)),
                *_surplus(window[::-1], FIRST, first),  # joined windows have more rows
            ]
            for one, tier, count in reversed(surplus):  # oldest first: its runs are the image's first
                room -= _replace(connection, one, tier, count, room)
        surplus = [
            *_surplus(series, BLOCKS, keep.blocks, HOUR),
            *_surplus(series, HOURS, keep.hours),
            *_surplus(series, FAILED, keep.failed),
        ]
        for each in surplus:
            _replace(connection, *each)


def _windows(series: Sequence[Any], models: int) -> Collection[list[Any]]:
    """Group the series that share the windows of an image.

    New weights are an upgrade, so the last few models of an image have windows of their own; earlier models share
    one. A start's key has the models of all canaries, but new weights of another canary must not drop this one's
    history.
    """
    own = [*dict.fromkeys(one.image_key for one in series)][:models]
    windows: dict[str, list[Any]] = {}
    for one in series:
        windows.setdefault(one.image_key if one.image_key in own else image_of(one.image_key), []).append(one)
    return windows.values()


def _surplus(series: Iterable[Any], tier: int, window: int, whole: int = 1) -> Iterator[tuple[Any, int, int]]:
    """Yield series with their number of rows beyond the first ``window`` of a tier: a multiple of ``whole``, or all."""
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

    Returns:
        Number of new rows, the first ``room`` of which are of the image's first runs.
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
            merged = {"sequence": chunk[-1].sequence, "body": encode(merge(samples))}
            added.append({"series": one.id, "tier": to, **merged})
    if added:
        connection.execute(queries.ADD_SAMPLES, added)
    connection.execute(queries.COUNT_REPLACED, {**changes, "series": one.id, "last": last})
    return len(added)
