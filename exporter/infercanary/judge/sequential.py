"""Sequential test: several looks at an upgrade, with an interval that holds at all of them together.

The error of a shift has two parts:

- **Runs** accumulate from look to look. Their part is the interval of one look at an error divided by the number of
  looks (Bonferroni). Robbins' normal mixture was no better (ablations in
  ``benchmarks/results/2026-11-28-verdicts.md``).
- **A restart** is one event that all looks share, so its part is the plain interval of Student's t, with the degrees
  of freedom of the restart variance.

They are independent, so the half-widths add as squares do. A bound by single runs of the baseline is not random, and
is added as it is.
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
    """Test at each look at an upgrade.

    Args:
        decide: The looks, their error, and the size of a change.
    """

    decide: Decide

    def half_width(self, pooled: Pooled, error: float) -> float:
        """Return the half-width of the interval (a logarithm) with which all looks together err in this share of
        cases, both directions counted.
        """
        of_runs = float(stdtrit(pooled.runs_df, 1 - error / 2 / len(self.decide.looks))) * pooled.runs_se
        of_restarts = float(stdtrit(pooled.restart_df, 1 - error / 2)) * pooled.restart_se
        return min(math.hypot(of_runs, of_restarts), pooled.bound + of_restarts)

    def assess(self, pooled: Pooled) -> Comparison:
        """Return the verdict of one of several looks, by :func:`~infercanary.judge.statistics.decided`.

        The interval that is shown has the policy's ``confidence`` over all looks. A change is called when the
        interval at ``false_calls`` is outside the dead band, too; until then it is `unconfirmed`.
        """
        is_called = self._is_beyond_doubt(pooled)
        ends = pooled.resolution.around(pooled.log, self.half_width(pooled, 1 - self.decide.confidence))
        return decided(pooled, ends, self.decide, is_called, "unconfirmed")

    def needs_starts(self, pooled: Pooled) -> bool:
        """Return True if more runs alone would never call this shift, because restart variance hides it."""
        return not self._is_beyond_doubt(pooled._replace(runs_se=0.0))

    def _is_beyond_doubt(self, pooled: Pooled) -> bool:
        half = self.half_width(pooled, self.decide.false_calls)
        return abs(pooled.log) >= max(self.decide.log_effect, self.decide.log_clear + half)


def verdict_after(looks: Iterable[Comparison]) -> Verdict | None:
    """Return the verdict after several looks, in order; None without a look. The live judge and experiments share
    this rule.

    A called change stays while the interval is outside the dead band on the same side, even if a later look alone
    would be `unconfirmed`: so an alert does not come and go.

    Args:
        looks: Looks before the last one that is not `unconfirmed` may be missing.
    """
    verdict: Verdict | None = None
    for seen in looks:
        if seen.verdict != "unconfirmed" or verdict != ("regressed" if seen.shift > 0 else "improved"):
            verdict = seen.verdict
    return verdict
