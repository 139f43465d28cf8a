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

from infercanary.judge.causes import Attribution
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


def blocks(samples: Sequence[Sample], runs: int = LIVE.drift.block_runs) -> list[Block]:
    """Runs in blocks, in order; those that the store already merged stand for themselves.

    A block is of one time: runs that are left before a merged one are in none.

    Args:
        samples: Runs of one start, in order of time.
        runs: In a block.

    Returns:
        The full blocks: runs at the end that do not fill one are left out.
    """
    found: list[Block] = []
    waiting: list[Sample] = []
    for sample in samples:
        waiting = [sample] if sample.runs > 1 else [*waiting, sample]
        if sample.runs > 1 or len(waiting) == runs:
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
    rules = policy.drift
    series = [block for start in starts for block in blocks(start.samples, rules.block_runs)]
    if len(series) < rules.baseline_blocks + rules.recent_blocks:
        return Drift(blocks=len(series))
    levels = [median(s.median for s in block if s.median) for block in series]
    # The first day is the baseline, once it is over; before that, what there is but for the last blocks. Where runs
    # are rare, or the container was paused, a day has too few: then it is as many as are needed. A clock that was set
    # back adds no time.
    times = [block[0].started_at for block in series]
    ages = accumulate((max(0.0, after - before) for before, after in pairwise(times)), initial=0.0)
    day = max(rules.baseline_blocks, sum(age < rules.first_seconds for age in ages))
    sides = slice(0, min(day, len(series) - rules.recent_blocks)), slice(-rules.recent_blocks, None)
    points = [levels[sides[0]]], [levels[sides[1]]]
    shift = shift_of_starts(*points, pool=policy.pool)
    seen = assess(shift, rules.drift_confidence, policy.decide)
    verdict = seen.verdict
    if verdict in CHANGED and len(starts) > 1:
        # A restart is one event, not one each look: what it may do is asked once, at a level of its own.
        verdict = assess(shift_of_starts(*points, restarts, policy.pool), 0.99, policy.decide).verdict
    if verdict not in CHANGED:
        return Drift(shift=0.0, blocks=len(series))
    steps = [point.index for point in scan(levels) if point.shift * seen.shift > 0]
    since = times[sides[1]][0]
    onset = times[steps[-1]] if steps else since
    beside = [
        Pair([Start(s.generation, before)], [Start(s.generation, after)])
        for s in siblings
        if (before := [x for x in s.samples if x.started_at < onset])
        and (after := [x for x in s.samples if x.started_at >= since])
    ]
    old, new = (
        [Start(start.generation, [*map(merge, series[side])])]
        for start, side in zip((starts[0], starts[-1]), sides, strict=True)
    )
    causes = Attribution(policy).explain(shift, [Pair(old, new)], canary, beside=beside)
    profiles = [p for start in starts for p in unpacked(start.generation.profiles.get(canary, ()))]
    first_day_ends = min(onset, series[sides[0]][-1][-1].started_at)
    return Drift(
        shift=seen.shift,
        low=seen.low,
        high=seen.high,
        onset=onset,
        # One sibling alone may have changed by itself, or lie: the cause is then unknown.
        host=causes.host if causes.cause != "unknown" else None,
        blocks=len(series),
        changes=causes.changes,
        operators=compare_operators(
            [p for p in profiles if p.taken_at < first_day_ends],
            [p for p in profiles if p.taken_at >= onset],
            (median(levels[sides[0]]), median(levels[sides[1]])),
        ),
    )
