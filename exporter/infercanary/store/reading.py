"""How much of what is kept is read at once: a judgement is to fit into memory, whatever a probe reported."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

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
    runs_until: float
    """When it is late with its next run, a Unix time; when it ended, where that is known."""

    @classmethod
    def of(cls, container: str, work: str, first_at: float, last_at: float, taken: int) -> StartSummary:
        """By the pace of all of its runs, where the judge takes the latest ones to say who is live.

        Args:
            container: The stable name.
            work: As the field.
            first_at: When its first run began, a Unix time.
            last_at: When its last run began.
            taken: How many runs there were.
        """
        pace = (last_at - first_at) / (taken - 1) if taken > 1 else 0.0
        until = last_at + max(LIVE.pool.gone_seconds, LIVE.pool.gone_runs * pace)
        return cls(container, work, taken < LIVE.pool.fewest_new_runs, until)


def to_judge(starts: Sequence[StartSummary], now: float) -> list[int]:
    """Choose the starts that a judgement needs: of each image and model those of containers that run, and of the others
    the first ones, which say when an upgrade began, and the latest.

    Starts with too few runs have places of their own, wherever they run: they take none of those that count.

    Args:
        starts: Of one service and canary, in order of time.
        now: A Unix time: when the last run began.

    Returns:
        Their places, in order.
    """
    newest = {start.container: start for start in starts}
    recent = [*dict.fromkeys(start.work for start in reversed(starts))][:_IMAGES]
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, start in enumerate(starts):
        runs = not start.is_short and newest[start.container].runs_until >= now
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
    sizes = [*wanted]
    if sum(sizes) <= total:
        return total
    sizes.sort()
    left = total
    for place, size in enumerate(sizes):
        share = left // (len(sizes) - place)
        if size > share:
            return share
        left -= size
    return total


def newest_that_fit(sizes: Sequence[int], total: int) -> int:
    """Return the number of the last starts that fit, at least 1: a probe may report as much of a start as fits into an
    answer.

    Args:
        sizes: Bytes of each start, in order of time.
        total: Bytes.
    """
    return max(1, bisect_right([*accumulate(reversed(sizes))], total))


def ends(count: int, size: int, share: int) -> tuple[int, int]:
    """How many of the first and of the last runs of a start fit into a share: what it began with and what it came to.

    Args:
        count: Of its runs.
        size: Bytes of all.
        share: Bytes that it may have.

    Returns:
        Two numbers of runs, which make all where those fit.
    """
    fitting = count if size <= share else count * share // size
    return fitting // 2, fitting - fitting // 2
