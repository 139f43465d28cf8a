"""Statistics: level of a start, shift between two levels, restart variance. Pure functions of numbers.

All values are logarithms, so a difference is a ratio and units do not matter. A point is the median latency of a run.
Points are in order of time.

- The level is that of Hodges and Lehmann ("Estimates of Location Based on Rank Tests", 1963): the median of all means
  of two points. A few outliers hardly move this level.
- Neighbouring runs are correlated, so the level is less precise than with independent points. Its variance is that of
  a first-order autoregression, whose coefficient is corrected for the bias of short series (Marriott and Pope, "Bias
  in the Estimation of Autocorrelations", 1954).
- **A restart is one replicate** (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", 2013): two starts of
  one image differ, and no number of runs within a start shows by how much. :mod:`~infercanary.judge.pooling` adds
  this restart variance.
- A verdict has three outcomes, as in equivalence testing: changed, equivalent, or inconclusive.

Fourteen statistics were compared on labelled series (``benchmarks/results/2026-11-28-verdicts.md``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from statistics import median
from typing import NamedTuple, TypeAlias

import numpy as np

from infercanary.judge.policy import LIVE, Decide, Pool
from infercanary.judge.resolution import Floats
from infercanary.judge.shift import Comparison, Pooled, Restarts, Shift, Verdict, ratio

Points: TypeAlias = "Sequence[float] | Floats | Series"


class Level(NamedTuple):
    """Level of a start (a logarithm), the variance of its error, and that variance's degrees of freedom."""

    log: float
    variance: float
    df: float


class Shape(NamedTuple):
    """Level, scatter and autocorrelation of a series of logarithms."""

    level: float
    """Median of the means of all pairs of points, including a point with itself (Hodges and Lehmann)."""
    scatter: float
    """Winsorized SD, hardly changed by outliers. Above zero even if most values are equal."""
    alike: float
    """Autocorrelation of neighbouring points (first order), corrected for bias and between 0 and 0.97."""


class Series:
    """Points of one start in order of time, with statistics that are computed once.

    Args:
        logs: Logarithms, one-dimensional.
    """

    def __init__(self, logs: Floats) -> None:
        self.logs = logs

    @classmethod
    def of(cls, points: Points, what: str = "points") -> Series:
        """Make a series of latencies.

        Args:
            points: Latencies above zero in any unit, in order of time; a series is returned unchanged.
            what: Name of the points in error messages.

        Raises:
            ValueError: A point is not finite or not above zero, or the points are not one-dimensional.
        """
        if isinstance(points, Series):
            return points
        values = np.asarray(points, dtype=np.float64)
        if values.ndim != 1:
            raise ValueError(f"{what}: expected a one-dimensional sequence of numbers")
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if bad.size:
            raise ValueError(f"{what}[{bad[0]}] is {values[bad[0]]}: a latency must be finite and above zero")
        return cls(np.log(values))

    def __len__(self) -> int:
        return self.logs.size

    @cached_property
    def ordered(self) -> Floats:
        """Points in ascending order."""
        return np.sort(self.logs)

    @cached_property
    def shape(self) -> Shape:
        """Level, scatter and autocorrelation."""
        return shapes(self.logs[np.newaxis])[0]

    @property
    def level(self) -> float:
        return self.shape.level

    @property
    def reach(self) -> float:
        """Largest distance of a point from the level."""
        return float(np.abs(self.logs - self.level).max())

    @cached_property
    def known(self) -> Level:
        """Level with an error estimated from the series' own points."""
        return self.level_by(self.shape.scatter**2, self.shape.alike, len(self) - 1.0)

    def level_by(self, square: float, alike: float, df: float) -> Level:
        """Return the level with an error from a given variance of the points.

        Args:
            square: Variance of the points.
            alike: Autocorrelation of neighbouring points.
            df: Degrees of freedom of ``square``.
        """
        n = len(self)
        # Variance of a mean relative to independent points (Anderson, "The Statistical Analysis of Time Series",
        # 1971, section 8.3.1). For normal noise the standard error of this level is 1.0233 times that of the mean.
        # The factor 1.14 is larger, because real runs are correlated over longer times. With 1.14, .1 % of the places
        # without a change in labelled series are called.
        inflation = (1 + alike) / (1 - alike) - 2 * alike * (1 - alike**n) / (n * (1 - alike) ** 2)
        return Level(self.level, 1.14**2 * square * inflation / n, df)


def shapes(rows: Floats) -> list[Shape]:
    """Return the shape of each row of logarithms. Twenty rows take little longer than one row.

    Args:
        rows: Points of series of equal length, one series in each row.
    """
    n = rows.shape[1]
    ordered = np.sort(rows)
    step = 1 + 2 * (n // 1024)  # limits the memory for all pairs, which grows with n²
    kept = ordered[:, step // 2 :: step]
    sums = (kept[:, :, np.newaxis] + kept[:, np.newaxis]).reshape(len(rows), -1)
    low, high = (sums.shape[1] - 1) // 2, sums.shape[1] // 2
    sums.partition((low, high))  # four times as fast as numpy's median for few points
    levels = (sums[:, low] + sums[:, high]) / 4
    cut = min(max(1, n // 15), (n - 1) // 2)
    winsorized = rows.clip(ordered[:, cut, np.newaxis], ordered[:, -1 - cut, np.newaxis])
    rest = winsorized - winsorized.mean(axis=1, keepdims=True)
    scatters = np.sqrt((rest * rest).sum(axis=1) * (n - 1)) / max(n - 2 * cut - 1, 1)
    raw = [autocorrelation(row) for row in rest]
    # The term with n corrects the bias. Above .97, a level could not be estimated from any number of runs.
    alike = [min(max(value + (1 + 3 * max(value, 0.0)) / n, 0.0), 0.97) for value in raw]
    return [*map(Shape, levels.tolist(), scatters.tolist(), alike)]


def compute_shapes(several: Iterable[Series]) -> None:
    """Compute the missing shapes of several series, together for series of equal length."""
    missing = sorted((series for series in several if "shape" not in vars(series)), key=len)
    for _, equal in groupby(missing, key=len):
        group = [*equal]
        for series, shape in zip(group, shapes(np.array([series.logs for series in group])), strict=True):
            series.shape = shape


def autocorrelation(rest: Floats) -> float:
    """Return the first-order autocorrelation of a series whose mean is zero; 0 if all values are zero."""
    return float(rest[1:] @ rest[:-1] / (rest @ rest + 1e-24))


def mean_of(levels: Sequence[Level]) -> Level:
    """Return the mean level of independent starts.

    A temporarily throttled start has a large variance, so the error's variance is based on the median variance.
    """
    return Level(
        sum(level.log for level in levels) / len(levels),
        median(level.variance for level in levels) / len(levels),
        sum(level.df for level in levels),
    )


def between(old: Level, new: Level) -> Shift:
    """Return the shift from one level to another, without restart variance.

    If the runs of a side are all in one of two modes, a change of mode cannot be distinguished from a change of level.
    """
    return Shift(new.log - old.log, math.sqrt(old.variance), old.df).widened(new.variance, new.df)


def assess(of: Shift, level: float, decide: Decide = LIVE.decide) -> Comparison:
    """Return the verdict of a single look, at which the displayed interval also calls a change.

    Args:
        of: Shift with a t-distributed error.
        level: Confidence of the interval, between 0 and 1.
        decide: Smallest effect and dead band.

    Returns:
        The shift and its interval as ratios, with a verdict that is never `unconfirmed`.
    """
    return decided(of, of.interval(level), decide, abs(of.log) >= decide.log_effect)


def decided(
    of: Shift | Pooled,
    ends: tuple[float, float],
    decide: Decide,
    is_called: bool,
    otherwise: Verdict = "inconclusive",
) -> Comparison:
    """Return the verdict for a shift and its interval. All verdicts use this rule.

    The verdict is `equivalent` if the whole interval lies within the smallest effect and the values are not all the
    same. These are two one-sided tests (Schuirmann, "A Comparison of the Two One-Sided Tests Procedure and the Power
    Approach for Assessing the Equivalence of Average Bioavailability", 1987). A shift is a change only if the interval
    lies outside the dead band.

    Args:
        ends: The displayed interval (logarithms).
        decide: Smallest effect and dead band.
        is_called: True if an interval outside the dead band means a change.
        otherwise: Verdict if the interval is outside the dead band, but ``is_called`` is false.
    """
    low, high = ends
    verdict: Verdict = "inconclusive"
    if max(-low, high) < decide.log_effect:
        verdict = "equivalent" if of.resolution.only is None else "inconclusive"
    elif max(low, -high) > decide.log_clear:
        verdict = otherwise if not is_called else "regressed" if of.log > 0 else "improved"
    return Comparison(verdict, *map(ratio, (of.log, low, high)))


def learn(images: Iterable[Sequence[Points]], pool: Pool = LIVE.pool) -> Restarts:
    """Estimate the restart variance from a prior and from starts of the same image.

    The variance of the levels of k starts has k - 1 degrees of freedom. The variance that scatter within starts
    explains is subtracted, because a shift's standard error already includes it. This is the analysis-of-variance
    estimate of a variance component, but not below zero (Searle, Casella and McCulloch, "Variance Components", 1992,
    chapter 3). The median variance within starts is used, because a contended start has a large variance. The prior is
    the conjugate prior of a normal variance (Gelman et al., "Bayesian Data Analysis", 2013, section 2.6). All images of
    a service are assumed to have the same restart SD.

    Args:
        images: Latencies of each start of each image.
        pool: Prior, and the smallest number of runs of a start.

    Returns:
        SD of logarithms. An image with k counted starts adds k - 1 degrees of freedom to the prior's.
    """
    df = pool.restart_df
    squares = pool.restart_sd**2 * df
    counted = [[s for points in image if len(s := Series.of(points)) >= pool.fewest_runs] for image in images]
    compute_shapes(series for image in counted for series in image)
    for image in counted:
        if len(image) > 1:
            levels = [series.known for series in image]
            variance = np.var([level.log for level in levels], ddof=1)
            inside = median(level.variance for level in levels)
            squares += (len(image) - 1) * max(float(variance) - inside, 0.0)
            df += len(image) - 1
    return Restarts(math.sqrt(squares / df), df)
