"""Samples: comparison of two samples, or of two lists of starts, in one look."""

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
    """Compare the latencies before and after an event: is ``candidate`` slower than ``baseline``?

        compare([18.1, 18.3, 18.2, …], [19.4, 19.2, 19.5, …]).verdict  # 'regressed'

    Two samples are one series, split at the event, without restart variance unless ``restart_sd`` is given. Two lists
    of samples are starts, such as those of journals. The restart variance is estimated from these starts and a prior.
    ``infercanary compare`` gives the same verdict for the same files.

    Args:
        baseline: Median latency of each run before the event, above zero, in any unit, in order of time. With fewer
            than 8 runs, the verdict is `inconclusive`. Or a list of such samples, one for each start.
        candidate: Latencies after the event, in the same form.
        restart_sd: Restart SD of logarithms (0.01 is 1 %), if known.

    Returns:
        The verdict, the shift and its confidence interval as ratios.

    Raises:
        ValueError: A latency is not finite or not above zero, only one side is a list of starts, or ``restart_sd`` is
            negative or not finite.
    """
    if not 0 <= (restart_sd or 0.0) < math.inf:
        raise ValueError(f"restart_sd is {restart_sd}: it must be finite and at least 0")
    are_starts, others = (len(side) > 0 and np.ndim(side[0]) > 0 for side in (baseline, candidate))
    if are_starts != others:
        raise ValueError("baseline and candidate: pass two samples or two lists of starts, not one of each")
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
        baseline: Latencies of each start before the event, in order of time. Only the latest ``policy.pool.history``
            starts with enough runs count.
        candidate: Latencies of each start after the event, in the same form.
        restart_sd: Restart SD of logarithms; learned from these starts if missing.
        policy: Thresholds of a change.

    Returns:
        The comparison (ratios), its shift (a logarithm), and its restart variance. If no start of a side counts, the
        comparison is inconclusive. The shift is then NaN, unless each side has exactly one start with any points.
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
