"""Next actions for an inconclusive comparison: how many more runs or starts would settle it.

More runs reduce the runs' part of the standard error with their square root. Only more starts reduce the part of
restarts, and each start also adds a degree of freedom to its estimate. The shift is assumed to stay as it is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from infercanary.compare.units import short
from infercanary.judge.policy import FILES, Policy
from infercanary.judge.resolution import FINE
from infercanary.judge.shift import Restarts, Shift
from infercanary.judge.statistics import assess

_MOST_RUNS = 1000.0  # times the runs that are there
_MOST_STARTS = 64


class Observed(NamedTuple):
    """The shift with the error of its runs alone, the restart variance, and the numbers of runs and starts."""

    shift: Shift
    restarts: Restarts
    runs: tuple[int, int]
    starts: tuple[int, int]
    policy: Policy = FILES


def outlook(observed: Observed, *, assumed: bool) -> list[str]:
    """Return next actions, as sentences.

    Args:
        observed: What is known.
        assumed: Whether the restart variance is the prior's, without a restart in the data.

    Returns:
        Sentences without a capital and a full stop, the most useful first; one or more.
    """
    policy = observed.policy
    fewest = policy.pool.fewest_runs
    missing = [
        side for side, starts in zip(("baseline", "candidate"), observed.starts, strict=True) if not starts
    ]
    if missing:
        need = "needs" if len(missing) == 1 else "need"
        return [
            f"the {' and the '.join(missing)} {need} {fewest} runs of one start at least, better {2 * fewest}"
        ]
    exact = observed.shift._replace(se=0.0, df=math.inf)
    if (
        assess(exact, policy.decide.confidence, policy.decide).verdict
        == "inconclusive"
        != assess(exact._replace(resolution=FINE), policy.decide.confidence, policy.decide).verdict
    ):
        return [
            "more of the same will not settle it: the values are too coarse to show a change of "
            f"{short(100 * policy.decide.smallest_effect)} %; write them with more digits, or time several requests"
            " as one"
        ]
    found = []
    effect = policy.decide.smallest_effect
    sd = short(100 * observed.restarts.sd)
    if (runs := more_runs(observed)) is not None:
        found.append(f"about {_round(runs):,} more runs a side would settle it, if the shift stays as it is")
    elif (starts := more_starts(observed)) is not None:
        high = _with(observed, _MOST_RUNS, observed.starts).interval(policy.decide.confidence)[1]
        found.append(
            f"{starts} more start{'s' if starts > 1 else ''} a side would settle it, if the shift stays as it is; more "
            f"runs alone would not, since starts that differ by {sd} % leave "
            f"±{short(100 * math.expm1(high - observed.shift.log))} %"
        )
    elif abs(abs(observed.shift.log) - effect) < policy.decide.clear_zone:
        found.append(
            "more of the same will hardly settle it: the shift is at the edge of what counts as one "
            f"({short(100 * effect)} %)"
        )
    else:
        found.append(
            f"more of the same will hardly settle it: starts of one image differ by {sd} %, and runs scatter; find "
            "out why"
        )
    if assumed:
        found.append(
            "how much starts differ is assumed here: give it with --restart-sd (0 if nothing was restarted), or give "
            "more starts of each image"
        )
    return found


def more_runs(observed: Observed) -> int | None:
    """Return how many more runs a side would settle it; None if no number would.

    Args:
        observed: What is known.

    Returns:
        Runs, besides those that are there; None if no number would.
    """
    if not _settles(observed, _MOST_RUNS, observed.starts):
        return None
    low, high = 1.0, _MOST_RUNS
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _settles(observed, middle, observed.starts) else (middle, high)
    return math.ceil((high - 1) * min(observed.runs))


def more_starts(observed: Observed) -> int | None:
    """Return how many more starts a side would settle it, each with as many runs as now; None if too many.

    Args:
        observed: What is known.

    Returns:
        Starts, besides those that are there; None if too many.
    """
    for more in range(1, _MOST_STARTS):
        before, after = observed.starts
        if _settles(observed, 1 + more / max(before, after), (before + more, after + more)):
            return more
    return None


def _settles(observed: Observed, factor: float, starts: tuple[int, int]) -> bool:
    between = _with(observed, factor, starts)
    policy = observed.policy
    seen = assess(between, policy.decide.confidence, policy.decide)
    return seen.verdict != "inconclusive"


def _with(observed: Observed, factor: float, starts: tuple[int, int]) -> Shift:
    """Return the shift as it would be known from ``factor`` times the runs, over ``starts`` of each side."""
    shift, restarts = observed.shift, observed.restarts
    runs = shift._replace(se=shift.se / math.sqrt(factor), df=shift.df * factor)
    starting = restarts.sd**2 * (1 / starts[0] + 1 / starts[1])
    return runs.widened(starting, restarts.df + sum(starts) - sum(observed.starts))


def _round(number: int) -> int:
    """Round up to two digits: it is an estimate."""
    step: int = 10 ** max(0, len(str(number)) - 2)
    return math.ceil(number / step) * step
