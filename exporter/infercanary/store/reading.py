"""Bounds on what one judgement reads: it must fit into memory, whatever a probe reported."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

FIRST_STARTS, LATEST_STARTS, OWN_STARTS = 8, 56, 8
"""Starts of each image that a judgement reads: the first and the latest ones, as many as are kept of one container;
and the latest ones of each container that runs. So its work grows neither with restarts nor with pods' new names."""
RUNNING_SECONDS = 3_600.0
"""A container runs if its newest start had a run within this time before the canary's last run."""
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


def to_judge(starts: Sequence[StartSummary]) -> list[int]:
    """Choose the starts that a judgement needs: of each image and model the latest ones of each container that runs,
    and of the others the first ones, which say when an upgrade began, and the latest.

    Starts with too few runs have places of their own, wherever they run: they take none of those that count.

    Args:
        starts: Of one service and canary, in order of time.

    Returns:
        Their places, in order.
    """
    running = {start.container: start.runs for start in starts}  # as the newest start says
    recent = [*dict.fromkeys(start.work for start in reversed(starts))][:_IMAGES]
    owned: Counter[tuple[str, str]] = Counter()
    chosen: list[int] = []
    groups: defaultdict[tuple[str, bool], list[int]] = defaultdict(list)
    for place, start in reversed([*enumerate(starts)]):
        own = start.container, start.work
        if running[start.container] and not start.is_short and owned[own] < OWN_STARTS:
            owned[own] += 1
            chosen.append(place)
        else:
            groups[start.work if start.work in recent else "", start.is_short].append(place)
    for places in groups.values():  # the newest first
        chosen += places[:LATEST_STARTS] + places[LATEST_STARTS:][-FIRST_STARTS:]
    return sorted(chosen)


def fair(wanted: Iterable[int], total: int) -> int:
    """Bound each one's size such that all together have no more than ``total`` (max-min fairness).

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
