"""Advice on how to get a verdict after an inconclusive comparison.

The within-start part of the standard error falls with the square root of the number of runs. Only more starts reduce
the part from restart variance. The advice assumes that the shift stays the same.
"""

from __future__ import annotations

import math

from infercanary.judge.policy import Policy
from infercanary.judge.resolution import FINE
from infercanary.judge.shift import Restarts, Shift
from infercanary.judge.statistics import assess
from infercanary.render.units import count


def settling_actions(
    shift: Shift, restarts: Restarts, runs: int, starts: tuple[int, int], policy: Policy
) -> list[str]:
    """Return one or two actions, the more useful action first. Numbers of runs in an action are estimates.

    Args:
        shift: Shift with the error of the runs alone.
        restarts: Restart variance.
        runs: Number of runs on the side with fewer runs.
        starts: Number of starts of each side.
        policy: Thresholds of the decision.
    """
    if not min(starts):
        return [f"give each side {2 * policy.pool.fewest_runs} runs or more from one start"]

    def settles(factor: float) -> bool:
        """True if a number of runs multiplied by ``factor`` would give a verdict."""
        scattered = shift._replace(se=shift.se / math.sqrt(factor), df=shift.df * factor)
        expected = scattered.widened(restarts.sd**2 * sum(1 / number for number in starts), restarts.df)
        return assess(expected, policy.decide.confidence, policy.decide).verdict != "inconclusive"

    # Try up to 1,000 times as many runs.
    factor = next(filter(settles, (1.25**step for step in range(1, 32))), 0.0)
    if factor:
        number = float(f"{(factor - 1) * runs:.2g}")
        action = f"about {count(max(1.0, number), 'more run')} of each side would give a verdict"
    elif shift.resolution != FINE:
        action = "more runs will not give a verdict, because the values are too coarse: write more digits"
    else:
        action = "give each side more starts: more runs alone would not give a verdict"
    assumed = "restart variance is assumed: give --restart-sd, or several starts of each image"
    return [action, *[assumed] * (restarts.df <= policy.pool.restart_df)]
