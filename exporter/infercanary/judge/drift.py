"""Drift without an upgrade: detects that latency left the level of the image's first day, and when.

Medians of blocks are compared, so a disturbance of one minute has no effect. The baseline is frozen, because a rolling
baseline would absorb a slow drift. The starts of one image are one series. Since a restart alone can change the level,
a drift must exceed restart variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import msgspec
import numpy as np

from infercanary.judge.causes import Attribution
from infercanary.judge.changepoints import split
from infercanary.judge.model import Pair, Sample, Start, merge
from infercanary.judge.operators import Operators, compare_operators
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.pooling import shift_of_starts
from infercanary.judge.profiles import unpacked
from infercanary.judge.result import Change, Part
from infercanary.judge.shift import CHANGED, Restarts, ratio
from infercanary.judge.statistics import assess


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Drift of a container's canary from its frozen baseline."""

    shift: float | None = None
    """Shift as a ratio: 0.05 is 5 % slower. 0 without a drift, None with too few runs."""
    onset: float | None = None
    """Unix time at which the drift began; None without a drift."""
    host: Part | None = None
    """Host's part of the shift; None if the cause is unknown."""
    changes: tuple[Change, ...] = ()
    """Components of the environment (limits, variables) that differ from the first day."""
    operators: Operators | None = None
    """Difference between profiles of the first day and profiles since the onset; None if one side has no profile."""


def blocks(samples: Sequence[Sample], runs: int) -> list[Sample]:
    """Merge runs into blocks of a fixed number of runs. A run that the store has already merged is one block.

    Args:
        samples: Runs of one start, in order of time.
        runs: Number of runs in a block.

    Returns:
        Full blocks only, in order of time. Runs before and after a merged run are never in the same block.
    """
    found: list[Sample] = []
    for is_merged, group in groupby(samples, lambda sample: sample.runs > 1):
        each = [*group]
        full = range(runs, len(each) + 1, runs)
        found += each if is_merged else [merge(each[end - runs : end]) for end in full]
    return found


def detect(
    starts: Sequence[Start],
    siblings: Sequence[Start],
    canary: str,
    restarts: Restarts,
    policy: Policy = LIVE,
) -> Drift:
    """Detect whether the latest blocks have left the level of the first day.

    Args:
        starts: Starts of one container and one image, in order of time.
        siblings: Starts of other services on the host.
        restarts: Restart variance, learned without the last start; zero for a single start.
        policy: Thresholds of a drift and of its causes.

    Returns:
        The drift. Its shift is None with too few blocks, and 0 if the level has not changed.
    """
    rules = policy.drift
    # Merging is slow, so first check that there are enough runs for the blocks.
    if (
        sum(len(s.samples) // rules.block_runs + sum(r.runs > 1 for r in s.samples) for s in starts)
        < 2 * rules.blocks
    ):
        return Drift()
    merged = [block for start in starts for block in blocks(start.samples, rules.block_runs)]
    if len(merged) < 2 * rules.blocks:
        return Drift()
    whole = Start(starts[0].generation, merged)
    # The baseline is the first day, but never includes the latest blocks. If the first day has too few blocks (rare
    # runs, a paused container), the baseline is longer. Setting a clock back adds no time.
    ages = np.diff(whole.times, prepend=whole.times[0]).clip(0).cumsum()
    day = max(rules.blocks, (ages < rules.first_seconds).sum())
    before = whole.first(min(day, len(merged) - rules.blocks))
    now = Start(starts[-1].generation, merged[-rules.blocks :])
    sides = [before.series], [now.series]
    shift = shift_of_starts(*sides, pool=policy.pool)
    # Repeated tests share the same restarts. So the test with restart variance needs no higher confidence.
    with_restarts = shift_of_starts(*sides, restarts, policy.pool)
    looks = (shift, rules.drift_confidence), (with_restarts, 0.99)
    if any(assess(each, level, policy.decide).verdict not in CHANGED for each, level in looks):
        return Drift(shift=0.0)
    old, new = before.series.level, now.series.level
    # The onset leaves at least one block on either side.
    onset = float(whole.times[1 + split(whole.series.logs[1:-1], old, new)])
    beside = [
        Pair([s.first(earlier)], [s.latest(later)])
        for s in siblings
        if (earlier := (s.times < onset).sum()) and (later := (s.times >= now.times[0]).sum())
    ]
    causes = Attribution(policy).explain(shift, [Pair([before], [now])], canary, beside=beside)
    profiles = [p for start in starts for p in unpacked(start.generation.profiles.get(canary, ()))]
    return Drift(
        shift=ratio(shift.log),
        onset=onset,
        # The cause is unknown if the only evidence is a single sibling, which may have changed for its own reason.
        host=causes.host if causes.cause != "unknown" else None,
        changes=causes.changes,
        operators=compare_operators(
            [p for p in profiles if p.taken_at < min(onset, before.times[-1])],
            [p for p in profiles if p.taken_at >= onset],
            (math.exp(old), math.exp(new)),
        ),
    )
