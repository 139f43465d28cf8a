"""What is known of a shift in latency: the values that the statistics give."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from scipy.special import stdtrit

from infercanary.judge.resolution import FINE, Resolution

Verdict = Literal["regressed", "improved", "unconfirmed", "equivalent", "inconclusive"]
CHANGED = ("regressed", "improved")


class Shift(NamedTuple):
    """How much slower, as a logarithm (0.05 is about 5 %); its standard error, and that one's degrees of freedom."""

    log: float
    se: float
    df: float
    resolution: Resolution = FINE

    def interval(self, level: float) -> tuple[float, float]:
        """Logarithms between which the shift lies.

        Args:
            level: Two-sided confidence, between 0 and 1.

        Returns:
            The lower and the upper one, as far apart as the resolution leaves them at least; -inf and inf where the
            standard error is not finite.
        """
        if not math.isfinite(self.se):
            return -math.inf, math.inf
        return self.resolution.around(self.log, float(stdtrit(self.df, (1 + level) / 2)) * self.se)

    def widened(self, variance: float, df: float) -> Shift:
        """With an independent ``variance`` on ``df`` more (Welch and Satterthwaite)."""
        total = self.se**2 + variance
        if not 0 < total < math.inf:
            return self
        share = variance / total
        freedom = share**2 / df + (1 - share) ** 2 / self.df
        return self._replace(se=math.sqrt(total), df=1 / freedom if freedom else math.inf)


class Pooled(NamedTuple):
    """A shift over replicas (a logarithm), with the two parts of its error apart: they shrink with different things.

    The runs' part shrinks with every run; that of restarts with starts and replicas alone. Each is a standard error on
    its own degrees of freedom.
    """

    log: float
    runs_se: float
    runs_df: float
    restart_se: float
    restart_df: float
    bound: float = math.inf
    """The runs' part of an error is no larger, whatever lasts: new starts are off their level by as much as some run of
    the baseline was, and the baseline by three of its standard errors."""
    moved: float | None = None
    """Shift of replicas on the old image meanwhile (a logarithm), which was taken off; None where nothing was."""
    resolution: Resolution = FINE

    @property
    def shift(self) -> Shift:
        """With both parts as one, on their degrees of freedom together (Welch and Satterthwaite)."""
        runs = Shift(self.log, self.runs_se, self.runs_df, self.resolution)
        return runs.widened(self.restart_se**2, self.restart_df)


UNKNOWN = Shift(math.nan, math.inf, 0.0)
"""Of what cannot be compared."""


class Comparison(NamedTuple):
    """A verdict, the shift and its interval as ratios: 0.05 is 5 % slower."""

    verdict: Verdict
    shift: float
    low: float
    high: float


class Restarts(NamedTuple):
    """How much starts of one image differ: an SD of logarithms (0.01 is 1 %), known on so many degrees of freedom."""

    sd: float
    df: float


def ratio(log: float) -> float:
    """A logarithm as a ratio less one: 0.05 is 5 % slower.

    Args:
        log: May be infinite: -inf gives -1, and what is above 700 gives inf. NaN stays NaN: nothing is known.
    """
    return math.inf if log > 700 else math.expm1(log)
