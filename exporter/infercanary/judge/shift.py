"""Shift of a latency: the values that the statistics return."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from scipy.special import stdtrit

from infercanary.judge.resolution import FINE, Resolution

Verdict = Literal["regressed", "improved", "unconfirmed", "equivalent", "inconclusive"]
CHANGED = ("regressed", "improved")


class Shift(NamedTuple):
    """A shift as a logarithm (0.05 is about 5 %), its standard error, and the error's degrees of freedom."""

    log: float
    se: float
    df: float
    resolution: Resolution = FINE

    def interval(self, level: float) -> tuple[float, float]:
        """Return the confidence interval as logarithms.

        Args:
            level: Two-sided confidence, between 0 and 1.

        Returns:
            Lower and upper end, at least as far apart as the resolution; infinite if the standard error is.
        """
        if not math.isfinite(self.se):
            return -math.inf, math.inf
        return self.resolution.around(self.log, float(stdtrit(self.df, (1 + level) / 2)) * self.se)

    def widened(self, variance: float, df: float) -> Shift:
        """Add an independent ``variance`` with ``df`` degrees of freedom (Welch and Satterthwaite)."""
        total = self.se**2 + variance
        if not 0 < total < math.inf:
            return self
        share = variance / total
        freedom = share**2 / df + (1 - share) ** 2 / self.df
        return self._replace(se=math.sqrt(total), df=1 / freedom if freedom else math.inf)


class Pooled(NamedTuple):
    """A shift over replicas (a logarithm), with two separate standard errors.

    The error of the runs shrinks with every run, the error of restarts only with starts and replicas.
    """

    log: float
    runs_se: float
    runs_df: float
    restart_se: float
    restart_df: float
    bound: float = math.inf
    """Upper bound of the runs' error, whatever its cause: new starts are off their level by at most as much as some
    baseline run was, and the baseline by three of its standard errors.
    """
    moved: float | None = None
    """Subtracted shift of replicas on the old image over the same period (a logarithm); None if nothing was
    subtracted.
    """
    resolution: Resolution = FINE

    @property
    def shift(self) -> Shift:
        """Shift with both errors combined (Welch and Satterthwaite)."""
        runs = Shift(self.log, self.runs_se, self.runs_df, self.resolution)
        return runs.widened(self.restart_se**2, self.restart_df)


UNKNOWN = Shift(math.nan, math.inf, 0.0)
"""Nothing can be compared."""


class Comparison(NamedTuple):
    """A verdict, and the shift with its interval as ratios: 0.05 is 5 % slower."""

    verdict: Verdict
    shift: float
    low: float
    high: float


class Restarts(NamedTuple):
    """Restart SD of logarithms (0.01 is 1 %), and its degrees of freedom."""

    sd: float
    df: float


def ratio(log: float) -> float:
    """Convert a logarithm to a ratio minus one: 0.05 is 5 % slower.

    -inf gives -1, more than 700 gives inf, and NaN (unknown) stays NaN.
    """
    return math.inf if log > 700 else math.expm1(log)
