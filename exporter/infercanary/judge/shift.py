"""Result types of the statistics: shift, comparison and restart variance."""

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
            Lower and upper end. The interval is at least as wide as the resolution of the values. An infinite standard
            error gives an infinite interval.
        """
        if not math.isfinite(self.se):
            return -math.inf, math.inf
        return self.resolution.around(self.log, float(stdtrit(self.df, (1 + level) / 2)) * self.se)

    def widened(self, variance: float, df: float) -> Shift:
        """Return the shift with an independent variance added to its error (Welch and Satterthwaite).

        Args:
            variance: Variance to add.
            df: Degrees of freedom of ``variance``.
        """
        total = self.se**2 + variance
        if not 0 < total < math.inf:
            return self
        share = variance / total
        freedom = share**2 / df + (1 - share) ** 2 / self.df
        return self._replace(se=math.sqrt(total), df=1 / freedom if freedom else math.inf)


class Pooled(NamedTuple):
    """A shift pooled over replicas (a logarithm), with two separate standard errors.

    The error by runs decreases with each run. The error by restarts decreases only with more starts and replicas.
    """

    log: float
    runs_se: float
    runs_df: float
    restart_se: float
    restart_df: float
    bound: float = math.inf
    """Upper bound of the error by runs (a logarithm). The bound assumes that a new start's level is wrong by at most
    the largest deviation of a baseline run, and the baseline's level by at most three standard errors.
    """
    moved: float | None = None
    """Shift of the concurrent baseline, which was subtracted (a logarithm); None if nothing was subtracted."""
    resolution: Resolution = FINE

    @property
    def shift(self) -> Shift:
        """Shift with both errors combined (Welch and Satterthwaite)."""
        runs = Shift(self.log, self.runs_se, self.runs_df, self.resolution)
        return runs.widened(self.restart_se**2, self.restart_df)


UNKNOWN = Shift(math.nan, math.inf, 0.0)
"""Shift if nothing can be compared."""


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

    The result is -1 for -inf, inf above 700, and NaN for NaN (an unknown shift).
    """
    return math.inf if log > 700 else math.expm1(log)
