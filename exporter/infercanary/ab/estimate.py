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
"""Three differences are the fewest that show how much they differ."""

_DOUBTLESS_PAIRS = 2  # the assumed restart variance may show by itself that a difference is beyond doubt
_PAIRS_PER_TRIMMED = 8  # for each one that is trimmed at either end


class PairLook(NamedTuple):
    """The estimate at one look. ``level`` is the confidence of its interval."""

    level: float
    shift: Shift
    seen: Comparison


class PairDecision(NamedTuple):
    """The looks so far, the verdict that they confirm, whether the experiment is done, and whether by an answer."""

    verdict: Verdict
    looks: Sequence[PairLook]
    done: bool
    clear: bool


class PairJudge(NamedTuple):
    """Decides after each pair.

    Args:
        most: Pairs that are planned, three or more.
        policy: The numbers that decide.
    """

    most: int
    policy: Policy = EXPERIMENT

    def decide(self, pairs: Sequence[Shift]) -> PairDecision:
        """Return the decision after these pairs.

        Each look is replayed on the pairs that were there then, so that the same pairs give the same verdict. It is
        done when a change is confirmed, when both are equivalent, or when all pairs are there; but a change that the
        last look was the first to show gets one pair more.

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
        """Return the number of pairs that would settle it, if they continue like this.

        Args:
            pairs: Shift of each pair (logarithms).
            most: The largest answer.

        Returns:
            Pairs in all; None if ``most`` would not settle it, and with fewer than three pairs.
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
        pairs: Shift of each pair, B over A (logarithms), at least one.
    """
    n = len(pairs)
    logs = np.sort([pair.log for pair in pairs])
    cut = n // _PAIRS_PER_TRIMMED
    kept = n - 2 * cut
    centre = float(logs[cut : n - cut].mean())
    if n < FEWEST_PAIRS or not all(math.isfinite(pair.se) for pair in pairs):
        return Shift(centre, math.inf, 0.0)
    winsorized = logs.clip(logs[cut], logs[n - 1 - cut])
    # Its own error is SD / ((1 - 2 cut / n) √n).
    return _pooled(pairs, centre, float(winsorized.std(ddof=1)) * math.sqrt(n) / kept, kept - 1.0)


def assumed(pairs: Sequence[Shift], policy: Policy = EXPERIMENT) -> Shift:
    """Return the mean shift of the pairs, with an error in which the assumed restart variance counts beside them.

    Args:
        pairs: Shift of each pair (logarithms), at least one.
        policy: The assumed restart variance.
    """
    pool, n = policy.pool, len(pairs)
    logs = np.array([pair.log for pair in pairs])
    squares = 2 * pool.restart_df * pool.restart_sd**2 + n * float(logs.var())
    df = pool.restart_df + n - 1
    return _pooled(pairs, float(logs.mean()), math.sqrt(squares / df / n), df)


def _pooled(pairs: Sequence[Shift], log: float, between: float, df: float) -> Shift:
    """Return a shift whose error is not below what the runs leave open: three pairs may agree by chance."""
    within = math.hypot(*(pair.se for pair in pairs)) / len(pairs)
    resolutions = sorted((pair.resolution for pair in pairs), key=lambda resolution: resolution.down)
    only = {resolution.only for resolution in resolutions}
    middle = resolutions[len(pairs) // 2]
    return Shift(log, max(between, within), df, middle._replace(only=middle.only if len(only) == 1 else None))


def levels(looks: Sequence[int], error: float) -> Mapping[int, float]:
    """Return the confidence of the interval at each look, such that all of them together err in ``error``.

    The error is spent as Lan and DeMets ("Discrete Sequential Boundaries for Clinical Trials", 1983) do for a
    constant boundary: alpha ln(1 + (e - 1) t) by the share t of the runs. Each look gets what is added there, which
    holds however much the looks depend on each other (Bonferroni); a restart is in all of them, so independent
    increments would not.

    Args:
        looks: Pairs at each look, rising.
        error: Share of cases.
    """
    error = round(error, 12)  # 0.05, not 0.05000000000000004
    spent = [error * math.log1p((math.e - 1) * n / looks[-1]) for n in (0, *looks)]
    return {n: 1 - (now - before) for n, (before, now) in zip(looks, pairwise(spent), strict=True)}


def restart_sd(pairs: Sequence[Shift]) -> float:
    """Return the restart SD (of logarithms): a pair's shift has the variance of two starts.

    Args:
        pairs: Shift of each pair (logarithms), two or more.
    """
    return stdev(pair.log for pair in pairs) / math.sqrt(2)
