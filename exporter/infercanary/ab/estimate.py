"""Estimates from pairs of starts: the shift, its interval, and the time to stop. Pure functions.

- **A start is one replicate** (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", 2013). The unit of the
  statistics is the level of a start. The experiment itself measures the restart variance, without a prior.
- **Neighbours in time are one block** (Fisher, "The Design of Experiments", 1935, §§26-34). Each start of A is
  compared with the start of B next to it. Common effects, such as heat or a neighbour that stays busy, cancel in the
  difference. A B is followed by B A, so a trend cancels over two differences.
- The shift is the **trimmed mean** of the pairs' differences. Its standard error is based on the winsorized deviation
  of these differences. Its degrees of freedom are the number of untrimmed pairs minus 1 (Tukey and McLaughlin, "Less
  Vulnerable Confidence and Significance Procedures for Location Based on a Single Sample", 1963). So one unlucky start
  neither creates nor hides a change. From 8 pairs on, one pair is trimmed at each end; from 16 pairs on, two pairs.
  With fewer pairs, this is Student's t.
- **Each look costs a part of the error rate** (:func:`levels`). A change counts if two consecutive looks show it; after
  the first of these looks, the change is `unconfirmed`.
- **A large change is confirmed at once**: from two pairs on, a change also counts if a wider interval shows it. The
  error rate of this interval over all looks is ``false_calls``. Two pairs are too few to estimate the variance between
  pairs. So the assumed restart variance (``Policy.pool.restart_sd``) is included as the conjugate prior of a normal
  variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import stdev
from typing import NamedTuple

import numpy as np

from infercanary.judge.policy import EXPERIMENT, Policy
from infercanary.judge.sequential import verdict_after
from infercanary.judge.shift import CHANGED, Comparison, Shift, Verdict
from infercanary.judge.statistics import assess

FEWEST_PAIRS = 3
"""Fewest pairs for an estimate of the variance between pairs."""

_DOUBTLESS_PAIRS = 2  # fewest pairs for calling a change that is too large for the assumed restart variance
_PAIRS_PER_TRIMMED = 8  # one pair is trimmed at each end for every 8 pairs


class PairLook(NamedTuple):
    """Estimate at one look. ``level`` is the confidence of the interval."""

    level: float
    shift: Shift
    seen: Comparison


class PairDecision(NamedTuple):
    """Decision after some pairs: the looks so far, and the verdict that the looks confirm.

    ``done``: True if the experiment ends. ``clear``: True if it ends with an answer.
    """

    verdict: Verdict
    looks: Sequence[PairLook]
    done: bool
    clear: bool


class PairJudge(NamedTuple):
    """Decides after each pair.

    Args:
        most: Number of planned pairs, three or more.
        policy: Thresholds of the decision.
    """

    most: int
    policy: Policy = EXPERIMENT

    def decide(self, pairs: Sequence[Shift]) -> PairDecision:
        """Return the decision after these pairs.

        The same pairs always give the same verdict, because each look is repeated with the pairs that existed at its
        time. The experiment is done if a change is confirmed, if both sides are equivalent, or after all pairs. If only
        the last look shows a change, one more pair is added.

        Args:
            pairs: Shift of each pair, B over A (logarithms), in order of time.
        """
        rules, most = self.policy.decide, self.most
        doubtless = levels(range(_DOUBTLESS_PAIRS, most + 1), rules.false_calls)
        confidences = levels(range(FEWEST_PAIRS, most + 1), 1 - rules.confidence)
        looks: list[PairLook] = []
        previous = ""
        for n in range(_DOUBTLESS_PAIRS, len(pairs) + 1):
            look = self._look(assumed(pairs[:n], self.policy), doubtless[min(n, most)])
            if n >= FEWEST_PAIRS and look.seen.verdict not in CHANGED:
                look = self._look(estimate(pairs[:n]), confidences[min(n, most)])
                verdict = look.seen.verdict
                if verdict in CHANGED and verdict != previous:
                    look = look._replace(seen=look.seen._replace(verdict="unconfirmed"))
                previous = verdict
            looks.append(look)
        verdict = verdict_after(look.seen for look in looks) or "inconclusive"
        is_clear = verdict not in ("inconclusive", "unconfirmed")
        is_last = len(pairs) >= most and not (verdict == "unconfirmed" and len(pairs) == most)
        return PairDecision(verdict, looks, is_clear or is_last, is_clear)

    def pairs_needed(self, pairs: Sequence[Shift], most: int = 99) -> int | None:
        """Return the number of pairs that would give a verdict if later pairs scatter like ``pairs``.

        Args:
            pairs: Shift of each pair (logarithms).
            most: Largest possible result.

        Returns:
            Total number of pairs; None if ``most`` pairs would not give a verdict, or for fewer than three pairs.
        """
        now, rules = estimate(pairs), self.policy.decide
        if not math.isfinite(now.se):
            return None
        for n in range(len(pairs) + 1, most + 1):
            level = levels(range(FEWEST_PAIRS, n + 1), 1 - rules.confidence)[n]
            df = n - 2 * (n // _PAIRS_PER_TRIMMED) - 1.0
            then = now._replace(se=now.se * math.sqrt(len(pairs) / n), df=df)
            if assess(then, level, rules).verdict != "inconclusive":
                return n
        return None

    def _look(self, shift: Shift, level: float) -> PairLook:
        return PairLook(level, shift, assess(shift, level, self.policy.decide))


def estimate(pairs: Sequence[Shift]) -> Shift:
    """Return the trimmed mean of the pairs' shifts; its error is infinite with fewer than three pairs.

    Args:
        pairs: Shift of each of one or more pairs, B over A (logarithms).
    """
    n = len(pairs)
    logs = np.sort([pair.log for pair in pairs])
    cut = n // _PAIRS_PER_TRIMMED
    kept = n - 2 * cut
    centre = float(logs[cut : n - cut].mean())
    if n < FEWEST_PAIRS or not all(math.isfinite(pair.se) for pair in pairs):
        return Shift(centre, math.inf, 0.0)
    winsorized = logs.clip(logs[cut], logs[n - 1 - cut])
    # The standard error of the trimmed mean is SD / ((1 - 2 cut / n) √n).
    return _pooled(pairs, centre, float(winsorized.std(ddof=1)) * math.sqrt(n) / kept, kept - 1.0)


def assumed(pairs: Sequence[Shift], policy: Policy = EXPERIMENT) -> Shift:
    """Return the mean shift of the pairs.

    The standard error combines the scatter of the pairs and the assumed restart variance.

    Args:
        pairs: Shift of each of one or more pairs (logarithms).
        policy: Policy with the assumed restart variance.
    """
    pool, n = policy.pool, len(pairs)
    logs = np.array([pair.log for pair in pairs])
    squares = 2 * pool.restart_df * pool.restart_sd**2 + n * float(logs.var())
    df = pool.restart_df + n - 1
    return _pooled(pairs, float(logs.mean()), math.sqrt(squares / df / n), df)


def _pooled(pairs: Sequence[Shift], log: float, between: float, df: float) -> Shift:
    """Return a shift. Few pairs may agree by chance, so the standard error is at least the error within starts."""
    within = math.hypot(*(pair.se for pair in pairs)) / len(pairs)
    resolutions = sorted((pair.resolution for pair in pairs), key=lambda resolution: resolution.down)
    only = {resolution.only for resolution in resolutions}
    middle = resolutions[len(pairs) // 2]
    return Shift(log, max(between, within), df, middle._replace(only=middle.only if len(only) == 1 else None))


def levels(looks: Sequence[int], error: float) -> Mapping[int, float]:
    """Return the confidence of the interval at each look. The error over all looks together is ``error``.

    The error is spent by Lan and DeMets' function for a constant boundary ("Discrete Sequential Boundaries for
    Clinical Trials", 1983): alpha ln(1 + (e - 1) t), where t is the share of the pairs. Each look spends the increase
    since the previous look. Each restart affects all later looks, so looks depend on each other. The total error holds
    for any such dependence (Bonferroni).

    Args:
        looks: Number of pairs at each look, in ascending order.
        error: Accepted share of experiments with a wrong verdict.
    """
    error = round(error, 12)  # rounding turns 0.05000000000000004 into 0.05
    spent = [error * math.log1p((math.e - 1) * n / looks[-1]) for n in (0, *looks)]
    return {n: 1 - (now - before) for n, (before, now) in zip(looks, pairwise(spent), strict=True)}


def restart_sd(pairs: Sequence[Shift]) -> float:
    """Return the restart SD (of logarithms). The shift of a pair has twice the variance of one start.

    Args:
        pairs: Shift of each of two or more pairs (logarithms).
    """
    return stdev(pair.log for pair in pairs) / math.sqrt(2)
