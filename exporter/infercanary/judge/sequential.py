"""Looks at an upgrade, as often as one likes: an interval that holds at all of them together.

The error of a shift has two parts, and they need different care.

- **Runs** come one by one, and each look has more of them. Their part of the interval is a confidence sequence, which
  covers the shift at all looks at once: Robbins' normal mixture ("Statistical Methods Related to the Law of the
  Iterated Logarithm", 1970; as in Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform, nonparametric, nonasymptotic
  confidence sequences", 2021, section 3.2). The noise is itself estimated, so its bound is taken at the same tail of
  Student's t.
- **A restart** is one event, and is in all looks alike: it may be asked about once, and so its part is the plain
  interval of Student's t, on the degrees of freedom that the restart variance is known on.

Both are independent, so the half-widths add as squares do. ``benchmarks/verdicts.py`` counts what comes of that.

Noise that lasts has a second bound, which does not grow with how long it seems to last. At worst it keeps a whole start
in one mode: then the start is off by what some run of the baseline, or of the candidate, was off its level, and each of
them is as likely. What restarts do joins by convolution, and the side that says more counts. One start that was
throttled for a while so widens the interval by how far and how often, not by the mode's distance for certain.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from infercanary.judge.policy import Policy
from infercanary.judge.resolution import Floats
from infercanary.judge.shift import Comparison, Pooled, Verdict, ratio

MOST_STARTS = 8  # that anybody would wait for
_MODES = 60  # runs of a side that stand for all of them, as the judging thread can afford


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
    independent, least = _half_widths(between, runs, error, policy)
    sides = _modes(between)
    if not sides or _off(between, sides, independent) >= error:
        return independent
    if _off(between, sides, least) <= error:
        return least
    return _falls_below(error, lambda half: _off(between, sides, half), least, independent)


def is_within(between: Pooled, runs: float, error: float, limit: float, policy: Policy) -> bool:
    """Whether :func:`half_width` is below ``limit``, without finding it.

    Args:
        between: The shift, with both parts of its error.
        runs: Runs of a start at this look, above 0.
        error: Share of cases, between 0 and 1, of both directions together.
        limit: A logarithm.
        policy: Where the bound is narrowest.
    """
    independent, least = _half_widths(between, runs, error, policy)
    if independent < limit or least >= limit:
        return independent < limit
    sides = _modes(between)
    return bool(sides) and _off(between, sides, limit) < error


def _half_widths(between: Pooled, runs: float, error: float, policy: Policy) -> tuple[float, float]:
    """With the runs' part as long as their noise seems to last, and without that part."""
    tail = float(ndtr(-bound(runs, error, policy)))
    of_runs = -float(stdtrit(between.runs_df, tail)) * between.runs_se
    of_restart = -float(stdtrit(between.restart_df, error / 2)) * between.restart_se
    return math.hypot(of_runs, of_restart), of_restart


def _falls_below(level: float, share: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling ``share``, above ``level`` at ``low`` and below it at ``high``, becomes less, to 1e-13.

    scipy.optimize needs fewer steps, but 26 MiB of each exporter. And where restarts hardly differ, ``share`` falls in
    jumps: it may be ``level`` from one to the next, and a root is any of these widths.
    """
    # Numbers that are neighbours have no middle: so a large width ends too.
    while high - low > 1e-13 and low < (middle := (low + high) / 2) < high:
        if share(middle) >= level:
            low = middle
        else:
            high = middle
    return high


def _modes(between: Pooled) -> list[Floats]:
    """Of each side how far its runs are off their level: not more than some, evenly from the least to the most."""
    sides = [_some(np.concatenate(starts), _MODES) for starts in between.lasting]
    if between.beside:  # they may be in a mode meanwhile, too
        others = _some(np.concatenate(between.beside), _MODES)
        sides = [_some(np.subtract.outer(off, others).ravel(), 4 * _MODES) for off in sides]
    return sides


def _some(off: Floats, most: int) -> Floats:
    off = np.sort(off)
    return off if off.size <= most else off[np.linspace(0, off.size - 1, most).round().astype(int)]


def _off(between: Pooled, sides: list[Floats], half: float) -> float:
    """How likely a shift of zero looks larger than this, where one start is in some mode for all of its runs."""
    error, df = max(between.restart_se, 1e-12), min(between.restart_df, 1e9)
    return max(
        float(np.mean(stdtr(df, (off - half) / error) + stdtr(df, (-off - half) / error))) for off in sides
    )


def assess_look(between: Pooled, runs: int, policy: Policy) -> Comparison:
    """The verdict of one look of several.

    The interval that is shown has ``policy.confidence`` over all looks. Where it lies beyond the clear zone, it is a
    change as soon as the interval at ``policy.false_calls`` does too, and the shift is of the smallest effect; until
    then it is `unconfirmed`. It is `equivalent` where the interval lies within the smallest effect.

    Args:
        between: The shift.
        runs: Runs of a start at this look.
        policy: What counts as a change.

    Returns:
        The verdict, and the shift with its interval as ratios.
    """
    half = half_width(between, runs, 1 - policy.confidence, policy)
    low = between.log - max(half, between.resolution.down)
    high = between.log + max(half, between.resolution.up)
    verdict: Verdict = "inconclusive"
    if max(-low, high) < policy.log_effect:
        verdict = "equivalent" if between.resolution.only is None else "inconclusive"
    elif max(low, -high) > policy.log_clear:
        called = is_beyond_doubt(between, runs, policy)
        verdict = "unconfirmed" if not called else "regressed" if between.log > 0 else "improved"
    return Comparison(verdict, *(ratio(x) for x in (between.log, low, high)))


def is_beyond_doubt(between: Pooled, runs: float, policy: Policy) -> bool:
    """Whether the shift is a change, but for ``policy.false_calls`` of restarts.

    Args:
        between: The shift, with both parts of its error.
        runs: Runs of a start at this look.
        policy: What counts as a change.
    """
    size = abs(between.log)
    hidden = between.resolution.down if between.log > 0 else between.resolution.up
    clear = size - policy.log_clear
    return (
        size >= policy.log_effect
        and hidden < clear
        and is_within(between, runs, policy.false_calls, clear, policy)
    )


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


def starts_needed(between: Pooled, runs: int, starts: tuple[int, int], policy: Policy) -> int | None:
    """How many more starts of the new image would call a shift that stays as it is, where more runs alone do not.

    Each adds one degree of freedom to what is known of restarts, and makes their part of the error smaller.

    Args:
        between: The shift now, with both parts of its error.
        runs: Runs of a start at this look.
        starts: That are compared, of the old image and of the new one, above 0.
        policy: The looks, and what counts as a change.

    Returns:
        At most :data:`MOST_STARTS`; None where as many would not do.
    """
    old, new = starts
    for more in range(1, MOST_STARTS + 1):
        smaller = math.sqrt((1 / old + 1 / (new + more)) / (1 / old + 1 / new))
        then = between._replace(restart_se=between.restart_se * smaller, restart_df=between.restart_df + more)
        if is_beyond_doubt(then, runs, policy) or confirmed_at(then, runs, policy) is not None:
            return more
    return None
