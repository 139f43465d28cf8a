"""Drift without an upgrade: has a container left the level of its image's first day, and since when.

Block medians, not runs, are compared: a block evens out what lasts a minute. The baseline is frozen, because a rolling
one would absorb a slow drift. Starts of the same image are one series; a restart alone can move the level, so a drift
must be larger than restarts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import TypeAlias

import msgspec

from infercanary.judge.causes import explain
from infercanary.judge.changepoints import scan
from infercanary.judge.model import Pair, Sample, Start, merge
from infercanary.judge.operators import Operators, compare_operators
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.pooling import shift_of_starts
from infercanary.judge.profiles import unpacked
from infercanary.judge.result import Change, Part
from infercanary.judge.shift import CHANGED, Restarts
from infercanary.judge.statistics import assess

Block: TypeAlias = Sequence[Sample]
"""Runs beside each other; or one that the store merged of many."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
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
    changes: tuple[Change, ...] = ()
    """Components of the environment that the container had otherwise on the first day: its limits, its variables."""
    operators: Operators | None = None
    """What profiles of the first day and of the time since the onset say; None where one of both has none."""


def blocks(samples: Sequence[Sample], policy: Policy = LIVE) -> list[Block]:
    """Runs in blocks, in order; those that the store already merged stand for themselves.

    A block is of one time: runs that are left before a merged one are in none.

    Args:
        samples: Runs of one start, in order of time.
        policy: How many runs a block has.

    Returns:
        The full blocks: runs at the end that do not fill one are left out.
    """
    found: list[Block] = []
    waiting: list[Sample] = []
    for sample in samples:
        if sample.runs > 1:
            found.append([sample])
            waiting = []
            continue
        waiting.append(sample)
        if len(waiting) == policy.drift.block_runs:
            found.append(waiting)
            waiting = []
    return found


def detect(
    starts: Sequence[Start],
    siblings: Sequence[Start],
    canary: str,
    restarts: Restarts,
    policy: Policy = LIVE,
) -> Drift:
    """Have the last blocks left the first day's level?

    Args:
        starts: Of one container and one image, in order of time.
        siblings: Starts of other services on the host.
        canary: Its name.
        restarts: The restart variance as it was known when the last of ``starts`` began.
        policy: The numbers that decide.

    Returns:
        A shift of None while there are too few blocks, of 0 while no drift is seen; otherwise the shift, its interval
        and its onset.
    """
    series = [block for start in starts for block in blocks(start.samples, policy)]
    if len(series) < policy.drift.baseline_blocks + policy.drift.recent_blocks:
        return Drift(blocks=len(series))
    # The first day is the baseline, once it is over; before that, what there is but for the last blocks. Where runs
    # are rare, or the container was paused, a day has too few: then it is as many as are needed.
    first = max(policy.drift.baseline_blocks, _first_day(series, policy))
    baseline = series[: -policy.drift.recent_blocks][:first]
    recent = series[-policy.drift.recent_blocks :]
    points = [_medians(baseline)], [_medians(recent)]
    shift = shift_of_starts(*points, pool=policy.pool)
    seen = assess(shift, policy.drift.drift_confidence, policy.decide)
    if seen.verdict in CHANGED and len(starts) > 1:
        # A restart is one event, not one each look: what it may do is asked once, at a level of its own.
        apart = assess(
            shift_of_starts(*points, restarts, policy.pool),
            policy.drift.restart_confidence,
            policy.decide,
        )
        seen = seen if apart.verdict == seen.verdict else seen._replace(verdict="inconclusive")
    if seen.verdict not in CHANGED:
        return Drift(shift=0.0, blocks=len(series))
    steps = [point for point in scan(_medians(series), policy) if point.shift * seen.shift > 0]
    onset = (series[steps[-1].index] if steps else recent[0])[0].started_at
    beside = [
        Pair([Start(s.generation, before)], [Start(s.generation, after)])
        for s in siblings
        if (before := [x for x in s.samples if x.started_at < onset])
        and (after := [x for x in s.samples if x.started_at >= recent[0][0].started_at])
    ]
    old, new = (
        Start(start.generation, [_merged(block) for block in side])
        for start, side in ((starts[0], baseline), (starts[-1], recent))
    )
    causes = explain(shift, [Pair([old], [new])], canary, beside=beside, policy=policy)
    return Drift(
        shift=seen.shift,
        low=seen.low,
        high=seen.high,
        onset=onset,
        # One sibling alone may have changed by itself, or lie: the cause is then unknown.
        host=causes.host if causes.cause != "unknown" else None,
        blocks=len(series),
        changes=causes.changes,
        operators=_operators(starts, canary, (baseline, recent), onset, policy),
    )


def _operators(
    starts: Sequence[Start],
    canary: str,
    sides: tuple[Sequence[Block], Sequence[Block]],
    onset: float,
    policy: Policy,
) -> Operators | None:
    """By the times of profiles: the start may be one and the same."""
    baseline, recent = sides
    first_day_ends = min(onset, baseline[-1][-1].started_at)
    profiles = [p for start in starts for p in unpacked(start.generation.profiles.get(canary, ()))]
    before = [p for p in profiles if p.taken_at < first_day_ends]
    after = [p for p in profiles if p.taken_at >= onset]
    return compare_operators(before, after, (median(_medians(baseline)), median(_medians(recent))), policy)


def _first_day(series: Sequence[Block], policy: Policy) -> int:
    """How many blocks began before a day had passed; a clock that was set back adds no time."""
    steps = (max(0.0, after[0].started_at - before[0].started_at) for before, after in pairwise(series))
    return sum(passed < policy.drift.first_seconds for passed in accumulate(steps, initial=0.0))


def _medians(series: Sequence[Block]) -> list[float]:
    return [median(s.median for s in block if s.median) for block in series]


def _merged(block: Block) -> Sample:
    """One sample for the block. It is expensive, and needed only where there is a drift."""
    return merge(block) if len(block) > 1 else block[0]
