"""Looks at an upgrade, as often as one likes: an interval that holds at all of them together.

The error of a shift has two parts, and they need different care.

- **Runs** come one by one, and each look has more of them. Their part of the interval is a confidence sequence, which
  covers the shift at all looks at once: Robbins' normal mixture ("Statistical Methods Related to the Law of the
  Iterated Logarithm", 1970; as in Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform, nonparametric, nonasymptotic
  confidence sequences", 2021, section 3.2). The noise is itself estimated, so its bound is taken at the same tail of
  Student's t.
- **A restart** is one event, and is in all looks alike: it may be asked about once, and so its part is the plain
  interval of Student's t, on the degrees of freedom that the restart variance is known on.

Both are independent, so the half-widths add as squares do. ``benchmarks/drift.py restarts`` counts what comes of that.
"""

from __future__ import annotations

import math

from scipy.special import ndtr, stdtrit

from infercanary.judge.policy import Policy
from infercanary.judge.shift import Comparison, Pooled, Verdict, ratio


def bound(runs: float, error: float, policy: Policy) -> float:
    """Standard errors that a mean of independent points leaves at no look, but for this share of cases.

    Args:
        runs: Points at this look, above 0.
        error: Share of cases, between 0 and 1, of both directions together.
        policy: Where the bound is narrowest.

    Returns:
        A number of standard errors, the same in both directions.
    """
    mixture = policy.mixture_runs
    return math.sqrt((1 + mixture / runs) * (math.log1p(runs / mixture) - 2 * math.log(error)))


def half_width(between: Pooled, runs: float, error: float, policy: Policy) -> float:
    """Half the width of the interval at this look, such that all looks together err in this share of cases.

    Args:
        between: The shift, with both parts of its error.
        runs: Runs of a start at this look, above 0.
        error: Share of cases, between 0 and 1, of both directions together.
        policy: Where the bound is narrowest.

    Returns:
        A logarithm.
    """
    tail = float(ndtr(-bound(runs, error, policy)))
    of_runs = min(-float(stdtrit(between.runs_df, tail)) * between.runs_se, between.reach)
    of_restart = -float(stdtrit(between.restart_df, error / 2)) * between.restart_se
    return math.hypot(of_runs, of_restart)


def assess_look(between: Pooled, runs: int, policy: Policy) -> Comparison:
    """The verdict of one look of several.

    The interval that is shown has ``policy.confidence`` over all looks. Where it lies beyond the clear zone, it is a
    change as soon as the interval at ``policy.false_calls`` does too, and the shift is of the smallest effect; until
    then it is `confirming`. It is `equivalent` where the interval lies within the smallest effect.

    Args:
        between: The shift.
        runs: Runs of a start at this look.
        policy: What counts as a change.

    Returns:
        The verdict, and the shift with its interval as ratios.
    """
    half = half_width(between, runs, 1 - policy.confidence, policy)
    verdict: Verdict = "inconclusive"
    if abs(between.log) + half < policy.log_effect:
        verdict = "equivalent"
    elif abs(between.log) - half > policy.log_clear:
        called = is_beyond_doubt(between, runs, policy)
        verdict = "confirming" if not called else "regressed" if between.log > 0 else "improved"
    return Comparison(verdict, *(ratio(x) for x in (between.log, between.log - half, between.log + half)))


def is_beyond_doubt(between: Pooled, runs: float, policy: Policy) -> bool:
    """Whether the shift is a change, but for ``policy.false_calls`` of restarts.

    Args:
        between: The shift, with both parts of its error.
        runs: Runs of a start at this look.
        policy: What counts as a change.
    """
    half = half_width(between, runs, policy.false_calls, policy)
    return abs(between.log) >= policy.log_effect and abs(between.log) - half > policy.log_clear


def confirmed_at(between: Pooled, runs: int, policy: Policy) -> int | None:
    """The look at which a shift that stays as it is would be called, in runs of a start; None if at none.

    Args:
        between: The shift now, with both parts of its error.
        runs: Runs of a start at this look.
        policy: The looks, and what counts as a change.
    """
    for later in policy.looks:
        fewer = math.sqrt(runs / later)
        then = between._replace(runs_se=between.runs_se * fewer, runs_df=between.runs_df / fewer**2)
        if later > runs and is_beyond_doubt(then, later, policy):
            return later
    return None
