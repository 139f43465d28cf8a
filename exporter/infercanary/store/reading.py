"""How much of what is kept is read at once: a judgement is to fit into memory, whatever a probe reported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from infercanary.judge.policy import LIVE

FIRST_STARTS, LATEST_STARTS = 8, 56
"""Starts of each image in containers that no longer run, that a judgement reads: as many as are kept of one container.
So its work does not grow where containers come and go under new names."""
_IMAGES = 8  # with so many models each have starts of their own; weights may be drawn anew at each start


class StartSummary(NamedTuple):
    """A start, as far as it matters whether a judgement reads it."""

    container: str
    work: str
    """As :attr:`~infercanary.judge.model.Generation.work_key` makes it."""
    is_short: bool
    """Whether it has too few runs to be compared."""
    runs: bool
    """Whether it goes on, if the container had no later start."""

    @classmethod
    def of(cls, series: Any, now: float) -> StartSummary:
        """By the pace of all of its runs, where the judge takes the latest ones to say who is live.

        Args:
            series: A row of :data:`.queries.SERIES_OF_CANARY`.
            now: When the last run of the canary began, a Unix time.
        """
        pace = (series.last_at - series.first_at) / (series.taken - 1) if series.taken > 1 else 0.0
        gone_at = series.last_at + max(LIVE.pool.gone_seconds, LIVE.pool.gone_runs * pace)
        is_short = series.taken < LIVE.pool.fewest_new_runs
        return cls(series.container, series.image_key, is_short, gone_at >= now)


def to_judge(starts: Sequence[StartSummary]) -> list[int]:
    """Choose the starts that a judgement needs: of each image and model those of containers that run, and of the others
    the first ones, which say when an upgrade began, and the latest.

    Starts with too few runs have places of their own, wherever they run: they take none of those that count.

    Args:
        starts: Of one service and canary, in order of time.

    Returns:
        Their places, in order.
    """
    running = {start.container: start.runs for start in starts}  # as the newest start says
    recent = [*dict.fromkeys(start.work for start in reversed(starts))][:_IMAGES]
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, start in enumerate(starts):
        runs = running[start.container] and not start.is_short
        key = (place,) if runs else (start.work if start.work in recent else "", start.is_short)
        groups.setdefault(key, []).append(place)
    chosen = (places[:FIRST_STARTS] + places[FIRST_STARTS:][-LATEST_STARTS:] for places in groups.values())
    return sorted(chain.from_iterable(chosen))


def fair(wanted: Iterable[int], total: int) -> int:
    """The most that each may have, so that all together have no more than ``total`` (max-min fairness).

    Args:
        wanted: What each wants.
        total: What there is.

    Returns:
        A bound: who wants less has what it wants.
    """
    sizes, left = sorted(wanted), total
    for place, size in enumerate(sizes):
        share = left // (len(sizes) - place)
        if size > share:
            return share
        left -= size
    return total
