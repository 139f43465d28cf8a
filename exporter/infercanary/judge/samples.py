"""Two samples, or two lists of starts, compared at one look: the one path of ``judge.compare`` and of files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np

from infercanary.judge.policy import FILES, Policy
from infercanary.judge.pooling import shift_of_starts
from infercanary.judge.shift import Comparison, Restarts, Shift
from infercanary.judge.statistics import Points, Series, assess, counting, learn, shift


def compare(
    baseline: Points | Sequence[Points],
    candidate: Points | Sequence[Points],
    *,
    restart_sd: float | None = None,
    level: float | None = None,
    policy: Policy = FILES,
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
        level: Confidence of the interval, between 0 and 1; the policy's without it.
        policy: What counts as a change.

    Returns:
        The verdict, the shift and its confidence interval as ratios.

    Raises:
        ValueError: A point is no latency, one side alone is a list of starts, or ``restart_sd`` or ``level`` is out of
            range.
    """
    if restart_sd is not None and not 0 <= restart_sd < math.inf:
        raise ValueError(f"restart_sd is {restart_sd}: it is finite and not below zero")
    are_starts = _are_starts(baseline)
    if are_starts != _are_starts(candidate):
        raise ValueError("baseline and candidate: two samples, or two lists of starts; here is one of each")
    if are_starts:
        sides = cast("Sequence[Points]", baseline), cast("Sequence[Points]", candidate)
    else:
        sides = [cast("Points", baseline)], [cast("Points", candidate)]
        restart_sd = restart_sd or 0.0
    return compare_starts(*sides, restart_sd=restart_sd, level=level, policy=policy).seen


class Compared(NamedTuple):
    """What a comparison of starts gives, and the restart variance that it counts on."""

    seen: Comparison
    shift: Shift
    restarts: Restarts


def compare_starts(
    baseline: Sequence[Points],
    candidate: Sequence[Points],
    *,
    restart_sd: float | None = None,
    level: float | None = None,
    policy: Policy = FILES,
) -> Compared:
    """Are the starts of ``candidate`` slower than those of ``baseline``? The one path of ``compare``, here and in
    files.

    Args:
        baseline: For each start its latencies in order of time; those that are too short do not count, nor do more than
            ``policy.pool.history`` of a side: the latest count.
        candidate: The same, after the event.
        restart_sd: SD of logarithms by which two starts of one image differ; learned from these starts without it.
        level: Confidence of the interval, between 0 and 1; the policy's without it.
        policy: What counts as a change.

    Returns:
        The comparison (ratios), its shift (a logarithm), the restart variance. Where a side has no start that counts,
        the comparison is inconclusive, of a shift that is NaN unless each side is one start with points.
    """
    pool = policy.pool
    old = counting(baseline, "baseline", pool.fewest_runs)[-pool.history :]
    new = counting(candidate, "candidate", pool.fewest_runs)[-pool.history :]
    restarts = learn((old, new), pool) if restart_sd is None else Restarts(restart_sd, math.inf)
    between = shift_of_starts(old, new, restarts, pool)
    if not (old and new) and len(baseline) == len(candidate) == 1:
        between = shift(baseline[0], candidate[0], pool)  # of infinite error, but its middle is known
    seen = assess(between, policy.decide.confidence if level is None else level, policy.decide)
    return Compared(seen, between, restarts)


def _are_starts(points: Points | Sequence[Points]) -> bool:
    if isinstance(points, Series) or len(points) == 0:
        return False
    return not isinstance(points[0], (int, float, np.number))
