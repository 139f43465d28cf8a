"""Samples: compares two samples, or two lists of starts, at one look. ``judge.compare`` and files share this path."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from infercanary.judge.policy import FILES, Policy
from infercanary.judge.pooling import shift_of_starts
from infercanary.judge.resolution import Floats
from infercanary.judge.shift import Comparison, Restarts, Shift
from infercanary.judge.statistics import Points, Series, assess, learn

Latencies: TypeAlias = "Sequence[float] | Floats"


def compare(
    baseline: Latencies | Sequence[Latencies],
    candidate: Latencies | Sequence[Latencies],
    *,
    restart_sd: float | None = None,
) -> Comparison:
    """Is ``candidate`` slower than ``baseline``? Use it on the medians of runs before and after an event.

        compare([18.1, 18.3, 18.2, …], [19.4, 19.2, 19.5, …]).verdict  # 'regressed'

    Two samples are one series before and after, without a restart unless ``restart_sd`` says so. Two lists
    of samples are starts, as journals hold them: how much starts differ is learned from them and from what is
    assumed. ``infercanary compare`` answers the same on the same files.

    Args:
        baseline: Latencies above zero in order of time, in any unit; at least 8, or the answer is inconclusive.
            Or a list of such samples, one for each start.
        candidate: The same, after the event.
        restart_sd: SD of logarithms by which two starts of one image differ (0.01 is 1 %), where it is known.

    Returns:
        The verdict, the shift and its confidence interval as ratios.

    Raises:
        ValueError: A point is no latency, one side alone is a list of starts, or ``restart_sd`` is out of range.
    """
    if not 0 <= (restart_sd or 0.0) < math.inf:
        raise ValueError(f"restart_sd is {restart_sd}: it is finite and not below zero")
    are_starts, others = (len(side) > 0 and np.ndim(side[0]) > 0 for side in (baseline, candidate))
    if are_starts != others:
        raise ValueError("baseline and candidate: two samples, or two lists of starts; here is one of each")
    sides: Any = baseline, candidate
    if not are_starts:
        sides, restart_sd = ([baseline], [candidate]), restart_sd or 0.0
    return compare_starts(*sides, restart_sd=restart_sd)[0]


def compare_starts(
    baseline: Sequence[Points],
    candidate: Sequence[Points],
    *,
    restart_sd: float | None = None,
    policy: Policy = FILES,
) -> tuple[Comparison, Shift, Restarts]:
    """Compare the starts of two sides.

    Args:
        baseline: Latencies of each start in order of time. Short starts do not count, and only the latest
            ``policy.pool.history`` of a side.
        candidate: The same, after the event.
        restart_sd: Restart SD of logarithms; learned from these starts if missing.
        policy: Size of a change.

    Returns:
        The comparison (ratios), its shift (a logarithm), and its restart variance. If a side has no start that
        counts, the comparison is inconclusive, and the shift is NaN unless each side is one start with points.
    """
    pool = policy.pool
    sides = [
        [Series.of(points, name) for points in side]
        for name, side in (("baseline", baseline), ("candidate", candidate))
    ]
    old, new = ([s for s in side if len(s) >= pool.fewest_runs][-pool.history :] for side in sides)
    restarts = learn((old, new), pool) if restart_sd is None else Restarts(restart_sd, math.inf)
    found = shift_of_starts(old, new, restarts, pool)
    if not (old and new) and all(len(side) == 1 and len(side[0]) for side in sides):
        # The standard error is infinite; only the point estimate is usable.
        found = found._replace(log=sides[1][0].level - sides[0][0].level)
    return assess(found, policy.decide.confidence, policy.decide), found, restarts
