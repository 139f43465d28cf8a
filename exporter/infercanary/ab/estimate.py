"""Estimates from pairs of starts: the shift, its interval, and when enough is known. Pure: numbers in, numbers out.

- **A start is one replicate** (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", 2013): the unit is a
  start's level, and how much starts differ is measured here, by the experiment itself. Nothing is assumed about it.
- **Neighbours in time are one block** (Fisher, "The Design of Experiments", 1935, §§26-34): each start of A is
  compared with the start of B next to it. What both had in common, heat or a neighbour that stayed, cancels in their
  difference; and as A B is followed by B A, a trend cancels in two differences.
- The shift is the trimmed mean of the pairs' differences, and its error that of their winsorized deviation, on as many
  degrees of freedom as pairs count less one (Tukey and McLaughlin, "Less Vulnerable Confidence and Significance
  Procedures for Location Based on a Single Sample", 1963): one unlucky start neither makes nor hides a change. From
  8 pairs on one at either end is trimmed, from 16 on two; before that it is Student's t.
- **Looking early costs**: the error is spent over the looks (:func:`levels`), and a change counts when two
  looks in a row show it; after the first of them it is `unconfirmed`.
- **What is beyond doubt does not wait**: from two pairs on, a change also counts where an interval shows it that errs
  in ``false_calls`` of experiments, over all looks. Two pairs hardly show how much pairs differ, and so what is
  assumed of restarts (``Policy.pool.restart_sd``) counts beside them, as the conjugate prior of a normal variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from infercanary.judge.policy import EXPERIMENT, Policy
from infercanary.judge.sequential import verdict_after
from infercanary.judge.shift import CHANGED, Comparison, Shift, Verdict
from infercanary.judge.statistics import assess

FEWEST_PAIRS = 3
"""Without three differences nothing shows how much they differ."""

DOUBTLESS_PAIRS = 2
"""Pairs from which on the assumed restart variance may show by itself that a difference is beyond doubt."""

CONFIRMATIONS = 2
"""Looks in a row that must show a change before it is called."""

PAIRS_PER_TRIMMED = 8
"""Pairs for each one that is trimmed at either end."""


class PairLook(NamedTuple):
    """The estimate after so many pairs. ``level`` is the confidence of its interval."""

    pairs: int
    level: float
    shift: Shift
    seen: Comparison


class PairDecision(NamedTuple):
    """The looks so far, the verdict that they confirm, whether the experiment is done, and whether by an answer."""

    verdict: Verdict
    looks: Sequence[PairLook]
    done: bool
    clear: bool


def estimate(pairs: Sequence[Shift], policy: Policy = EXPERIMENT) -> Shift:
    """Return the shift that the pairs have in common; its error is infinite with fewer than three pairs.

    The error is not taken below what the runs within the starts leave: three pairs may agree by chance.

    Args:
        pairs: Shift of each pair, B over A (logarithms).
        policy: How many of the outer pairs are trimmed.

    Returns:
        The trimmed mean, its standard error and degrees of freedom; NaN, infinite and 0 without pairs.
    """
    n = len(pairs)
    if not n:
        return Shift(math.nan, math.inf, 0.0)
    logs = np.sort([pair.log for pair in pairs])
    cut = n // PAIRS_PER_TRIMMED
    centre = float(logs[cut : n - cut].mean())
    if n < FEWEST_PAIRS or not all(math.isfinite(pair.se) for pair in pairs):
        return Shift(centre, math.inf, 0.0)
    winsorized = logs.clip(logs[cut], logs[n - 1 - cut])
    kept = n - 2 * cut
    # Its own error is SD / ((1 - 2 cut / n) √n).
    between = float(winsorized.std(ddof=1)) * math.sqrt(n) / kept
    return _shift(pairs, centre, between, kept - 1.0)


def assumed(pairs: Sequence[Shift], policy: Policy = EXPERIMENT) -> Shift:
    """Return the mean shift of the pairs, with an error in which what is assumed of restarts counts beside them.

    Args:
        pairs: The shift of each pair, at least one.
        policy: What is assumed of restarts.

    Returns:
        The shift, on the degrees of freedom of both.
    """
    n = len(pairs)
    logs = np.array([pair.log for pair in pairs])
    squares = 2 * policy.pool.restart_df * policy.pool.restart_sd**2 + float(
        ((logs - logs.mean()) ** 2).sum()
    )
    df = policy.pool.restart_df + n - 1
    return _shift(pairs, float(logs.mean()), math.sqrt(squares / df / n), df)


def _shift(pairs: Sequence[Shift], log: float, between: float, df: float) -> Shift:
    """Return a shift whose error is not below what the runs within the starts leave."""
    within = math.hypot(*(pair.se for pair in pairs)) / len(pairs)
    middle = sorted(pairs, key=lambda pair: pair.resolution.down)[len(pairs) // 2]
    only = middle.resolution.only if len({pair.resolution.only for pair in pairs}) == 1 else None
    return Shift(log, max(between, within), df, middle.resolution._replace(only=only))


def decide(pairs: Sequence[Shift], most: int, policy: Policy = EXPERIMENT) -> PairDecision:
    """Return the decision after these pairs, of an experiment that has ``most`` of them planned.

    Each look is replayed on the pairs that were there then, so that the same pairs give the same verdict. It is done
    when a change is confirmed, when both are equivalent, or when all pairs are there; but a change that the last look
    was the first to show gets one pair more.

    Args:
        pairs: Shift of each pair, B over A (logarithms), in order of time.
        most: Pairs; fewer than three count as three.
        policy: The numbers that decide.

    Returns:
        The verdict, and each look from the third pair on.
    """
    planned = range(FEWEST_PAIRS, max(most, FEWEST_PAIRS) + 1)
    early = range(DOUBTLESS_PAIRS, planned[-1] + 1)
    confidences = dict(zip(planned, levels(planned, 1 - policy.decide.confidence), strict=True))
    doubtless = dict(zip(early, levels(early, policy.decide.false_calls), strict=True))
    looks: list[PairLook] = []
    last: list[Verdict] = []  # what the looks show, called or not
    for n in range(DOUBTLESS_PAIRS, len(pairs) + 1):
        at = min(n, planned[-1])
        look = _look(n, doubtless[at], assumed(pairs[:n], policy), policy)
        if n >= FEWEST_PAIRS and look.seen.verdict not in CHANGED:
            look = _look(n, confidences[at], estimate(pairs[:n], policy), policy)
            last = [*last, look.seen.verdict][-CONFIRMATIONS:]
            is_confirmed = len(last) == CONFIRMATIONS and len(set(last)) == 1
            if look.seen.verdict in CHANGED and not is_confirmed:
                look = look._replace(seen=look.seen._replace(verdict="unconfirmed"))
        looks.append(look)
    verdict = verdict_after(look.seen for look in looks) or "inconclusive"
    fresh = verdict == "unconfirmed" and len(pairs) == planned[-1]
    is_open = verdict in ("inconclusive", "unconfirmed")
    done = not is_open or (len(pairs) >= planned[-1] and not fresh)
    return PairDecision(verdict, looks, done, not is_open)


def levels(looks: Sequence[int], error: float) -> tuple[float, ...]:
    """The confidence of the interval at each look, such that all of them together err in ``error``.

    The error is spent as Lan and DeMets ("Discrete Sequential Boundaries for Clinical Trials", 1983) do for a
    constant boundary: alpha ln(1 + (e - 1) t) by the share t of the runs. Each look gets what is added there, which
    holds however much the looks depend on each other (Bonferroni); a restart is in all of them, so independent
    increments would not.

    Args:
        looks: Pairs at each look, rising.
        error: Share of cases.

    Returns:
        One confidence (between 0 and 1) a look.
    """
    error = round(error, 12)  # 0.05, not 0.05000000000000004
    spent = [error * math.log1p((math.e - 1) * n / looks[-1]) for n in (0, *looks)]
    return tuple(1 - (now - before) for before, now in pairwise(spent))


def _look(pairs: int, level: float, shift: Shift, policy: Policy) -> PairLook:
    return PairLook(pairs, level, shift, assess(shift, level, policy.decide))


def restart_sd(pairs: Sequence[Shift]) -> float:
    """Return how much two starts of one image differ (SD of logarithms): a pair's shift has the variance of two.

    Args:
        pairs: Shift of each pair (logarithms); NaN is returned for fewer than two.
    """
    logs = [pair.log for pair in pairs]
    return float(np.std(logs, ddof=1)) / math.sqrt(2) if len(logs) > 1 else math.nan


def pairs_needed(pairs: Sequence[Shift], most: int = 99, policy: Policy = EXPERIMENT) -> int | None:
    """Return how many pairs would settle it, if they continue like this; None if ``most`` would not.

    Args:
        pairs: Shift of each pair (logarithms).
        most: The largest answer.
        policy: The numbers that decide.

    Returns:
        Pairs in all, those that are there included; None also with fewer than three.
    """
    now = estimate(pairs, policy)
    if not math.isfinite(now.se):
        return None
    for n in range(len(pairs) + 1, most + 1):
        cut = n // PAIRS_PER_TRIMMED
        level = levels(range(FEWEST_PAIRS, n + 1), 1 - policy.decide.confidence)[-1]
        then = now._replace(se=now.se * math.sqrt(len(pairs) / n), df=n - 2 * cut - 1.0)
        if assess(then, level, policy.decide).verdict != "inconclusive":
            return n
    return None


def swing(seconds: Sequence[float]) -> float | None:
    """Return half of the range over the median: 0.15 is ± 15 %. None for fewer than two.

    Args:
        seconds: One time for each start; the unit cancels out.

    Returns:
        A ratio; None also where the median is 0.
    """
    if len(seconds) < 2 or not median(seconds):
        return None
    return (max(seconds) - min(seconds)) / 2 / median(seconds)
