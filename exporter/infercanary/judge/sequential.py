"""Sequential test: several looks at an upgrade, with an interval that holds for all looks together.

The error of a shift has two parts:

- **Runs** accumulate from look to look. For this part the error probability is divided by the number of looks
  (Bonferroni). Robbins' normal mixture was no better (ablations in ``benchmarks/results/2026-11-28-verdicts.md``).
- **A restart** is one event that all looks share. So this part is the interval of Student's t for a single look, with
  the degrees of freedom of the restart variance.

Both parts are independent, so the squares of their half-widths are added. Single runs of the baseline may also give an
upper bound of the error by runs. This bound is not random, so the restart part is added to it directly. The smaller of
the two half-widths is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from scipy.special import stdtrit

from infercanary.judge.policy import Decide
from infercanary.judge.shift import Comparison, Pooled, Verdict
from infercanary.judge.statistics import decided


class SequentialTest(NamedTuple):
    """Tests an upgrade at each look.

    Args:
        decide: The looks, their error probability, smallest effect and dead band.
    """

    decide: Decide

    def half_width(self, pooled: Pooled, error: float) -> float:
        """Return the half-width, on the log scale, of the two-sided interval at one look.

        Args:
            pooled: Shift with its errors.
            error: Probability, over all looks together, that at least one interval misses the true shift.
        """
        of_runs = float(stdtrit(pooled.runs_df, 1 - error / 2 / len(self.decide.looks))) * pooled.runs_se
        of_restarts = float(stdtrit(pooled.restart_df, 1 - error / 2)) * pooled.restart_se
        return min(math.hypot(of_runs, of_restarts), pooled.bound + of_restarts)

    def assess(self, pooled: Pooled) -> Comparison:
        """Return the verdict of one of several looks, by the rule of :func:`~infercanary.judge.statistics.decided`.

        The displayed interval has the policy's ``confidence`` over all looks. A change is called if the interval with
        the error ``false_calls`` is outside the dead band as well. Until both intervals agree, the change is
        `unconfirmed`.
        """
        is_called = self._is_beyond_doubt(pooled)
        ends = pooled.resolution.around(pooled.log, self.half_width(pooled, 1 - self.decide.confidence))
        return decided(pooled, ends, self.decide, is_called, "unconfirmed")

    def needs_starts(self, pooled: Pooled) -> bool:
        """Return True if more runs alone would never call this shift, because restart variance is too large."""
        return not self._is_beyond_doubt(pooled._replace(runs_se=0.0))

    def _is_beyond_doubt(self, pooled: Pooled) -> bool:
        half = self.half_width(pooled, self.decide.false_calls)
        return abs(pooled.log) >= max(self.decide.log_effect, self.decide.log_clear + half)


def verdict_after(looks: Iterable[Comparison]) -> Verdict | None:
    """Return the verdict after several looks; None without a look. The live judge and experiments share this rule.

    A called change stays called while later looks are `unconfirmed` in the same direction, so an alert does not
    flap.

    Args:
        looks: Looks in order of time. Only the last look that is not `unconfirmed`, and later looks, have an effect.
    """
    verdict: Verdict | None = None
    for seen in looks:
        if seen.verdict != "unconfirmed" or verdict != ("regressed" if seen.shift > 0 else "improved"):
            verdict = seen.verdict
    return verdict
