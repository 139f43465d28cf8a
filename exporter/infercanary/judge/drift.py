"""Drift without an upgrade: has a container left the level of its image's first day, and since when.

Block medians, not runs, are compared: a block of 12 evens out what lasts a minute. The baseline is frozen, because a
rolling one would absorb what creeps. Starts of the same image are one series; a restart alone can move the level, so
a drift must be larger than restarts are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import TypeAlias

import msgspec

from infercanary.judge import statistics
from infercanary.judge.causes import Pair, Part, Start, find
from infercanary.judge.model import Sample, merge
from infercanary.judge.statistics import CHANGED, Restarts

BLOCK = 12
"""Runs in a block."""

Block: TypeAlias = Sequence[Sample]
"""Runs beside each other; or one that the store merged of many."""

FIRST_SECONDS = 86_400.0
"""How long the baseline lasts from an image's first run; longer where there are too few blocks by then."""

_RECENT = 24  # blocks: four hours and more where a run is due every minute, 48 minutes where every 10 s
_FEWEST = 24  # blocks of a baseline: the store keeps many more of an image's first
_LEVEL = 0.99999  # it is asked again and again, for years
_RESTART_LEVEL = 0.99


class Creep(msgspec.Struct, frozen=True, kw_only=True):
    """How far a container's canary has left its frozen baseline: 0 while it has not, None while nobody can tell.

    Shifts are ratios (0.05 is 5 % slower), ``onset`` is in Unix seconds.
    """

    shift: float | None = None
    low: float | None = None
    high: float | None = None
    onset: float | None = None
    host: Part | None = None
    blocks: int = 0
    """Recorded so far."""


def blocks(samples: Sequence[Sample]) -> list[Block]:
    """12 runs each, in order; those that the store already merged stand for themselves.

    A block is of one time: runs that are left before a merged one are in none.
    """
    found: list[Block] = []
    waiting: list[Sample] = []
    for sample in samples:
        if sample.runs > 1:
            found.append([sample])
            waiting = []
            continue
        waiting.append(sample)
        if len(waiting) == BLOCK:
            found.append(waiting)
            waiting = []
    return found


def look(starts: Sequence[Start], siblings: Sequence[Start], canary: str, restarts: Restarts) -> Creep:
    """Whether the last blocks of ``starts`` (one container, one image, in order) have left the first day's level.

    ``restarts`` are what was known of them when the last of ``starts`` began.
    """
    series = [block for start in starts for block in blocks(start.samples)]
    if len(series) < _FEWEST + _RECENT:
        return Creep(blocks=len(series))
    # The first day is the baseline, once it is over; before that, what there is but for the last blocks. Where runs
    # are rare, or the container was paused, a day has too few: then it is as many as are needed.
    first = max(_FEWEST, _first_day(series))
    baseline, recent = series[:-_RECENT][:first], series[-_RECENT:]
    points = [([_medians(baseline)], [_medians(recent)])]
    shift = statistics.pool(points, Restarts(0.0, math.inf))
    seen = statistics.judge(shift, level=_LEVEL)
    if seen.verdict in CHANGED and len(starts) > 1:
        # A restart is one event, not one each look: what it may do is asked once, at a level of its own.
        apart = statistics.judge(
            statistics.pool(points, restarts), restart_sd=restarts.sd, level=_RESTART_LEVEL
        )
        seen = seen if apart.verdict == seen.verdict else seen._replace(verdict="inconclusive")
    if seen.verdict not in CHANGED:
        return Creep(shift=0.0, blocks=len(series))
    steps = [point for point in statistics.scan(_medians(series)) if point.shift * seen.shift > 0]
    onset = (series[steps[-1].index] if steps else recent[0])[0].started_at
    around = [
        Pair([Start(s.generation, before)], [Start(s.generation, after)])
        for s in siblings
        if (before := [x for x in s.samples if x.started_at < onset])
        and (after := [x for x in s.samples if x.started_at >= recent[0][0].started_at])
    ]
    old, new = (
        Start(start.generation, [_merged(block) for block in side])
        for start, side in ((starts[0], baseline), (starts[-1], recent))
    )
    causes = find(shift, [Pair([old], [new])], around, canary)
    return Creep(
        shift=seen.shift,
        low=seen.low,
        high=seen.high,
        onset=onset,
        host=causes.host,
        blocks=len(series),
    )


def _first_day(series: Sequence[Block]) -> int:
    """How many blocks began before a day had passed; what a clock is set back by is no time."""
    steps = (max(0.0, after[0].started_at - before[0].started_at) for before, after in pairwise(series))
    return sum(passed < FIRST_SECONDS for passed in accumulate(steps, initial=0.0))


def _medians(series: Sequence[Block]) -> list[float]:
    return [median(s.median for s in block if s.median) for block in series]


def _merged(block: Block) -> Sample:
    """All that is known of it, which is much to work out: only where there is a drift is it asked for."""
    return merge(block) if len(block) > 1 else block[0]
