"""Next actions for an inconclusive comparison.

More runs reduce the runs' part of the standard error with their square root. Only more starts reduce the part of
restarts. The shift is assumed to stay as it is.
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
    """Return one or two actions, the more useful one first. The number of runs is an estimate.

    Args:
        shift: With the error of the runs alone.
        restarts: Restart variance.
        runs: Number of runs of the side that has fewer.
        starts: Numbers of starts of both sides.
        policy: The numbers that decide.
    """
    if not min(starts):
        return [f"give each side {2 * policy.pool.fewest_runs} runs or more of one start"]

    def settles(factor: float) -> bool:
        """Whether ``factor`` times the runs have a verdict."""
        scattered = shift._replace(se=shift.se / math.sqrt(factor), df=shift.df * factor)
        expected = scattered.widened(restarts.sd**2 * sum(1 / number for number in starts), restarts.df)
        return assess(expected, policy.decide.confidence, policy.decide).verdict != "inconclusive"

    factor = next(filter(settles, (1.25**step for step in range(1, 32))), 0.0)  # up to 1,000 times the runs
    if factor:
        number = float(f"{(factor - 1) * runs:.2g}")
        action = f"about {count(max(1.0, number), 'more run')} a side would settle it"
    elif shift.resolution != FINE:
        action = "more runs will not settle it, the values are too coarse: write them with more digits"
    else:
        action = "give each side more starts: more runs alone would not settle it"
    assumed = "restart variance is assumed: give --restart-sd, or several starts of each image"
    return [action, *[assumed] * (restarts.df <= policy.pool.restart_df)]
