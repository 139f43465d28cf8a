"""Next actions for an inconclusive comparison: the numbers of runs or starts that would settle it.

More runs reduce the runs' part of the standard error with their square root. Only more starts reduce the part of
restarts, and each start also adds a degree of freedom to its estimate. The shift is assumed to stay as it is.
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
    """Return one or two actions, the more useful one first.

    Args:
        shift: With the error of the runs alone.
        restarts: Restart variance.
        runs: Number of runs of the side that has fewer.
        starts: Numbers of starts of both sides.
        policy: The numbers that decide.
    """
    if not min(starts):
        return [f"give each side {2 * policy.pool.fewest_runs} runs or more of one start"]

    def settles(factor: float, more: int = 0) -> bool:
        """Whether ``factor`` times the runs, over ``more`` starts of each side, have a verdict."""
        scattered = shift._replace(se=shift.se / math.sqrt(factor), df=shift.df * factor)
        variance = restarts.sd**2 * sum(1 / (number + more) for number in starts)
        expected = scattered.widened(variance, restarts.df + 2 * more)
        return assess(expected, policy.decide.confidence, policy.decide).verdict != "inconclusive"

    if factor := next(
        filter(settles, (1.25**step for step in range(1, 32))), 0.0
    ):  # up to 1,000 times the runs
        number = float(f"{(factor - 1) * runs:.2g}")  # it is an estimate
        action = f"about {count(max(1.0, number), 'more run')} a side would settle it"
    elif more := next((n for n in range(1, 64) if settles(1 + n / max(starts), n)), 0):
        action = f"{count(more, 'more start')} a side would settle it; more runs alone would not"
    elif shift.resolution != FINE:
        action = "more runs will not settle it, the values are too coarse: write them with more digits"
    else:
        action = (
            "more runs or starts will hardly settle it: the shift is at the edge, or starts differ too much"
        )
    assumed = "restart variance is assumed: give --restart-sd, or several starts of each image"
    return [action, *[assumed] * (restarts.df <= policy.pool.restart_df)]
