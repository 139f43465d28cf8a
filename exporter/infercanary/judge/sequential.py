"""Looks at an upgrade, of which there are several: an interval that holds at all of them together.

The error of a shift has two parts, and they need different care.

- **Runs** come one by one, and each look has more of them. Their part of the interval is that of one look, at an error
  divided by the number of looks (Bonferroni). Robbins' normal mixture was no better (ablations in
  ``benchmarks/results/2026-11-28-verdicts.md``).
- **A restart** is one event, and is in all looks alike: it may be asked about once, and so its part is the plain
  interval of Student's t, on the degrees of freedom that the restart variance is known on.

Both are independent, so the half-widths add as squares do. A bound by single runs of the baseline is no chance, and
adds as it is.
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
    """The test at each look at an upgrade, and what it calls.

    Args:
        decide: The looks, their error, and what counts as a change.
    """

    decide: Decide

    def half_width(self, pooled: Pooled, error: float) -> float:
        """Half the width (a logarithm) of the interval at a look, such that all looks together err in this share of
        cases, of both directions together."""
        of_runs = float(stdtrit(pooled.runs_df, 1 - error / 2 / len(self.decide.looks))) * pooled.runs_se
        of_restarts = float(stdtrit(pooled.restart_df, 1 - error / 2)) * pooled.restart_se
        return min(math.hypot(of_runs, of_restarts), pooled.bound + of_restarts)

    def assess(self, pooled: Pooled) -> Comparison:
        """The verdict of one look of several, by :func:`~infercanary.judge.statistics.decided`.

        The interval that is shown has the policy's ``confidence`` over all looks. A change is called as soon as the
        interval at ``false_calls`` lies beyond the clear zone, too; until then it is `unconfirmed`.

        Args:
            pooled: The shift.

        Returns:
            The verdict, and the shift with its interval as ratios.
        """
        is_called = self._is_beyond_doubt(pooled)
        ends = pooled.resolution.around(pooled.log, self.half_width(pooled, 1 - self.decide.confidence))
        return decided(pooled, ends, self.decide, is_called, "unconfirmed")

    def needs_starts(self, pooled: Pooled) -> bool:
        """Whether no number of runs would call a shift that stays as it is: what restarts do hides it."""
        return not self._is_beyond_doubt(pooled._replace(runs_se=0.0))

    def _is_beyond_doubt(self, pooled: Pooled) -> bool:
        """Whether the shift is a change, but for ``false_calls`` of restarts."""
        half = self.half_width(pooled, self.decide.false_calls)
        return abs(pooled.log) >= max(self.decide.log_effect, self.decide.log_clear + half)


def verdict_after(looks: Iterable[Comparison]) -> Verdict | None:
    """The verdict after ``looks``, in order: the one sequential rule of the live judge and of experiments.

    Each look says what its own interval says. But a change that was called stays for as long as the interval lies
    beyond the clear zone on the same side, where a look alone would be `unconfirmed`: so an alert does not come and go.

    Args:
        looks: Those before the last one that is not `unconfirmed` do not matter.

    Returns:
        None where there was no look.
    """
    verdict: Verdict | None = None
    for seen in looks:
        if seen.verdict != "unconfirmed" or verdict != ("regressed" if seen.shift > 0 else "improved"):
            verdict = seen.verdict
    return verdict
