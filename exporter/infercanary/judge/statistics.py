"""Whether latency changed, and by how much. Pure statistics: numbers in, numbers out.

All is done on logarithms, so that a shift is a ratio and units do not matter; a point is a run's median, in order of
time. What each part rests on:

- A shift is Hodges and Lehmann's ("Estimates of Location Based on Rank Tests", 1963): the median of all differences
  between a candidate's and a baseline's point. A few wild points do not move it.
- Its interval inverts the rank test: it ends at the differences of those ranks. That holds for any shape: two modes
  of a clock are as precise as one, where normal theory makes their interval five times too wide. How far from the
  middle the ranks lie counts how many independent points there are, not how many points: neighbours in time are alike
  (Dehling and Fried, "Asymptotic Distribution of Two-Sample Empirical U-Quantiles with Applications to Robust Tests for
  Shifts", 2012; :mod:`~infercanary.judge.persistence`).
- **A restart is one replicate** (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", 2013): two starts of
  the same image differ, and no number of runs within them shows by how much. :mod:`~infercanary.judge.pooling`
  adds that variance.
- Verdicts are three-way, as in equivalence testing: changed, the same, or not known yet.

Every threshold is a field of :class:`~infercanary.judge.policy.Policy`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
from scipy.special import stdtrit

from infercanary.judge import persistence, ranks
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.resolution import FINE, Floats, Resolution, resolution
from infercanary.judge.shift import UNKNOWN, Comparison, Restarts, Shift, Verdict, ratio

Points: TypeAlias = "Sequence[float] | Floats | Series"

_EQUAL = 1e-9  # two logarithms that differ by less are one

_RANKS = 1.0233  # of normal noise: the standard error of Hodges and Lehmann's estimate over the mean's


class Series:
    """Points of one start in order of time, as logarithms, with their own statistics, each computed once.

    Use it where the same points are compared often: every function here takes it in place of a list.

    Args:
        logs: Logarithms, one-dimensional.
        policy: How scatter and autocorrelation are estimated.
    """

    def __init__(self, logs: Floats, policy: Policy = LIVE) -> None:
        self.logs = logs
        self._policy = policy

    @classmethod
    def of(cls, points: Points, what: str = "points", policy: Policy = LIVE) -> Series:
        """The series of ``points``.

        Args:
            points: Latencies above zero in any unit, in order of time; a series is returned as it is.
            what: Their name in an error.
            policy: How their scatter and autocorrelation are estimated.

        Returns:
            Their logarithms.

        Raises:
            ValueError: A point is not finite or not above zero, or the points are not flat.
        """
        if isinstance(points, Series):
            return points
        values = np.asarray(points, dtype=np.float64)
        if values.ndim != 1:
            raise ValueError(f"{what}: a flat sequence of numbers is needed")
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if bad.size:
            raise ValueError(f"{what}[{bad[0]}] is {values[bad[0]]}: a latency is finite and above zero")
        return cls(np.log(values), policy)

    def __len__(self) -> int:
        return self.logs.size

    @cached_property
    def ordered(self) -> Floats:
        """From the smallest on."""
        return np.sort(self.logs)

    @cached_property
    def level(self) -> float:
        """Hodges and Lehmann's of one sample, the median of all means of two points: as precise as a shift is."""
        return ranks.shift(-self.ordered[::-1], self.ordered) / 2

    @cached_property
    def deviations(self) -> Floats:
        """How far each point lies from the level, from the lowest on."""
        return self.ordered - self.level

    @cached_property
    def scatter(self) -> float:
        """A winsorized SD: a few outliers hardly change it, and neither ties nor a second mode make it zero."""
        n, cut = len(self), self._cut
        inner = self._winsorized(self.ordered)
        inner -= np.add.reduce(inner) / n
        return math.sqrt(float(inner @ inner) / (n - 1)) * (n - 1) / (n - 2 * cut - 1)

    @cached_property
    def likely(self) -> persistence.Likely | None:
        """What its points say of how long their noise lasts; None where all are the same."""
        return persistence.likely(self._winsorized(self.logs), self._policy)

    @cached_property
    def inflation(self) -> float:
        """By how much what lasts widens the variance of its level, as far as it shows alone."""
        return _inflations((self,), self._policy)[0]

    @cached_property
    def spread(self) -> Floats:
        """From the smallest on, and equal ones spread over the tick of their clock, which hides where they lie."""
        steps = np.diff(self.ordered)
        if (steps > _EQUAL).all():
            return self.ordered
        inner = np.diff(self._winsorized(self.ordered))
        if not (inner := inner[inner > _EQUAL]).size:
            return self.ordered
        # Where most are equal, what lies between two of them is no tick but a rare mode.
        tick = min(float(inner.min()), 2 * self.scatter)
        begins = np.flatnonzero(np.concatenate(([True], steps > _EQUAL)))
        counts = np.diff(np.append(begins, len(self)))
        within = np.arange(len(self)) - np.repeat(begins, counts) + 0.5
        spread: Floats = self.ordered + tick * (within / np.repeat(counts, counts) - 0.5)
        return spread

    @property
    def _cut(self) -> int:
        return max(1, len(self) // self._policy.pool.outlier_every)

    def _winsorized(self, values: Floats) -> Floats:
        low, high = self.ordered[self._cut], self.ordered[-1 - self._cut]
        found: Floats = np.minimum(np.maximum(values, low), high)
        return found


def prior(policy: Policy = LIVE) -> Restarts:
    """How much starts are assumed to differ before any restart was seen.

    Args:
        policy: The SD (of logarithms) and its degrees of freedom.

    Returns:
        Both.
    """
    return Restarts(policy.pool.restart_sd, policy.pool.restart_df)


def assess(between: Shift, level: float, *, policy: Policy = LIVE) -> Comparison:
    """The verdict of one look at a shift, be it of one pair or pooled.

    `equivalent` is two one-sided tests (Schuirmann, "A Comparison of the Two One-Sided Tests Procedure and the Power
    Approach for Assessing the Equivalence of Average Bioavailability", 1987): the whole interval lies within the
    smallest effect. A change takes an estimate of the smallest effect, and an interval beyond the clear zone. Assumes
    that the estimate is about normal, or t with the shift's degrees of freedom.

    Args:
        between: The shift.
        level: Confidence of the interval, between 0 and 1.
        policy: What counts as a change.

    Returns:
        Ratios, and the verdict, which is never `unconfirmed`; `inconclusive` where the error is infinite, or all values
        are the same.
    """
    low, high = between.interval(level)
    verdict: Verdict = "inconclusive"
    if abs(between.log) >= policy.decide.log_effect and (
        low > policy.decide.log_clear or high < -policy.decide.log_clear
    ):
        verdict = "regressed" if between.log > 0 else "improved"
    elif (
        low > -policy.decide.log_effect
        and high < policy.decide.log_effect
        and between.resolution.only is None
    ):
        verdict = "equivalent"
    return Comparison(verdict, ratio(between.log), ratio(low), ratio(high))


def shift(baseline: Points, candidate: Points, policy: Policy = LIVE) -> Shift:
    """How much slower ``candidate`` is, as far as its points show: Hodges and Lehmann's estimate on logarithms.

    Its error assumes that both sides have one shape, that their noise lasts as the processes of
    :mod:`~infercanary.judge.persistence` do, and that nothing was restarted: ``pooling`` adds what restarts do. Modes
    that last about as long as a side cannot be known from it: such a side looks like one mode, and a change of mode
    like a change.

    Args:
        baseline: Latencies above zero in order of time.
        candidate: The same, in the same unit.
        policy: The fewest runs of a side.

    Returns:
        The shift; of infinite error where a side has too few points.

    Raises:
        ValueError: A point is no latency.
    """
    sides = Series.of(baseline, "baseline", policy), Series.of(candidate, "candidate", policy)
    return shift_of(*sides, policy)


def learn(images: Iterable[Sequence[Points]], policy: Policy = LIVE) -> Restarts:
    """The restart variance, from the starts of each image; the prior counts as so many restarts seen before.

    The scatter of the levels of k starts has k - 1 degrees of freedom; what the runs' own scatter explains of it is
    taken off, because a shift's standard error already has it: the analysis-of-variance estimate of a variance
    component (Searle, Casella and McCulloch, "Variance Components", 1992, chapter 3), not below zero. A level is as
    precise as what is taken off says: medians are not, least of all of two modes, and left 4 % where there was
    nothing. The prior joins as the conjugate one of a normal variance does (Gelman et al., "Bayesian Data Analysis",
    2013, section 2.6). Assumes that all images of a service have one restart SD.

    Args:
        images: For each image the latencies of each of its starts.
        policy: The prior, and the fewest runs of a start.

    Returns:
        An SD of logarithms; of an image with k starts that count it has k - 1 degrees of freedom beside the prior's.
    """
    squares, df = policy.pool.restart_sd**2 * policy.pool.restart_df, policy.pool.restart_df
    for image in images:
        starts = counting(image, "start", policy)
        if len(starts) > 1:
            noise = math.fsum(variance_of(start, start.inflation) for start in starts) / len(starts)
            spread = float(np.var([start.level for start in starts], ddof=1))
            squares += (len(starts) - 1) * max(spread - noise, 0.0)
            df += len(starts) - 1
    return Restarts(math.sqrt(squares / df), df)


def counting(starts: Iterable[Points], what: str, policy: Policy) -> list[Series]:
    """Leave out the starts that have too few runs to count.

    Args:
        starts: The latencies of each.
        what: Their name in an error.
        policy: The fewest runs of a start.

    Returns:
        The others, in the same order.
    """
    each = (Series.of(start, what, policy) for start in starts)
    return [series for series in each if len(series) >= policy.pool.fewest_runs]


def shift_of(
    a: Series, b: Series, policy: Policy, fewest: int | None = None, alike: Sequence[Series] = ()
) -> Shift:
    """As :func:`shift`, of series that are there.

    Args:
        a: The baseline.
        b: The candidate.
        policy: The fewest runs of a side.
        fewest: In place of the policy's; None for that.
        alike: Others whose noise may show that it lasts longer than these show.

    Returns:
        The shift; of infinite error where a side has too few points.
    """
    if not (len(a) and len(b)):
        return UNKNOWN
    if min(len(a), len(b)) < (fewest or policy.pool.fewest_runs):
        return Shift(ranks.shift(a.ordered, b.ordered), math.inf, 0.0)
    inflations = _inflations((a, b), policy)
    if alike:
        inflations = [
            max(both) for both in zip(inflations, _inflations((a, b, *alike), policy), strict=False)
        ]
    one, other = (x / len(side) for x, side in zip(inflations, (a, b), strict=True))
    # Welch and Satterthwaite's: of two sides of unequal length the shorter one says how they scatter.
    df = (one + other) ** 2 / (one**2 / (len(a) - 1) + other**2 / (len(b) - 1))
    quantile = float(stdtrit(df, (1 + policy.pool.read_confidence) / 2))
    # Of the share of pairs whose difference is below the shift: 1/12 is the variance of a uniform rank.
    off = quantile * math.sqrt((one + other) / 12)
    between, half = ranks.inverted(
        (a.ordered, a.spread), (b.ordered, b.spread), min(off, policy.pool.most_off)
    )
    return Shift(
        between, half * max(off / policy.pool.most_off, 1.0) / quantile, df, resolution_of([a], [b], policy)
    )


def resolution_of(baseline: Sequence[Series], candidate: Sequence[Series], policy: Policy) -> Resolution:
    """Part of a shift that a coarse clock leaves open.

    Args:
        baseline: Its starts, at least one.
        candidate: The same.
        policy: Whether the values are read from a clock.
    """
    if not policy.pool.reads_clock:
        return FINE
    return resolution([start.ordered for start in baseline], [start.ordered for start in candidate])


def variance_of(side: Series, inflation: float) -> float:
    """The variance of a level: half of a shift's.

    Args:
        side: A start.
        inflation: By how much what lasts widens it.
    """
    return (_RANKS * side.scatter) ** 2 * inflation / len(side)


def _inflations(sides: Sequence[Series], policy: Policy) -> list[float]:
    """By how much what lasts widens the variance of each side's level, by all that both leave likely."""
    known = [side.likely for side in sides if side.likely is not None]
    weights = persistence.weights(known, policy)
    return [math.exp(float(weights @ side.likely.inflation)) if side.likely else 1.0 for side in sides]
