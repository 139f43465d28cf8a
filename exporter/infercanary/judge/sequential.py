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

from scipy.special import stdtrit

from infercanary.judge.policy import Decide
from infercanary.judge.shift import Comparison, Pooled, Verdict, ratio


class Looks:
    """The looks at one upgrade, and what they call.

    Args:
        decide: The looks, their error, and what counts as a change.
    """

    def __init__(self, decide: Decide) -> None:
        self._decide = decide

    def half_width(self, pooled: Pooled, error: float) -> float:
        """Half the width (a logarithm) of the interval at a look, such that all looks together err in this share of
        cases, of both directions together."""
        of_runs = float(stdtrit(pooled.runs_df, 1 - error / 2 / len(self._decide.looks))) * pooled.runs_se
        of_restarts = float(stdtrit(pooled.restart_df, 1 - error / 2)) * pooled.restart_se
        return min(math.hypot(of_runs, of_restarts), pooled.bound + of_restarts)

    def assess(self, pooled: Pooled) -> Comparison:
        """The verdict of one look of several.

        The interval that is shown has the policy's ``confidence`` over all looks. Where it lies beyond the clear zone,
        it is a change as soon as the interval at ``false_calls`` does too, and the shift is of the smallest effect;
        until then it is `unconfirmed`. It is `equivalent` where the interval lies within the smallest effect.

        Args:
            pooled: The shift.

        Returns:
            The verdict, and the shift with its interval as ratios.
        """
        decide = self._decide
        half = self.half_width(pooled, 1 - decide.confidence)
        low = pooled.log - max(half, pooled.resolution.down)
        high = pooled.log + max(half, pooled.resolution.up)
        verdict: Verdict = "inconclusive"
        if max(-low, high) < decide.log_effect:
            verdict = "equivalent" if pooled.resolution.only is None else "inconclusive"
        elif max(low, -high) > decide.log_clear:
            called = self._is_beyond_doubt(pooled)
            verdict = "unconfirmed" if not called else "regressed" if pooled.log > 0 else "improved"
        return Comparison(verdict, *(ratio(x) for x in (pooled.log, low, high)))

    def confirmed_at(self, pooled: Pooled, runs: int) -> int | None:
        """The look, in runs of a start, at which a shift that stays as it is would be called; None if at none.

        Args:
            pooled: The shift now.
            runs: Runs of a start at this look.
        """
        for later in self._decide.looks:
            fewer = math.sqrt(runs / later)
            then = pooled._replace(runs_se=pooled.runs_se * fewer, runs_df=pooled.runs_df / fewer**2)
            if later > runs and self._is_beyond_doubt(then):
                return later
        return None

    def starts_needed(self, pooled: Pooled, runs: int, old: int, new: int) -> int | None:
        """How many more starts of the new image would call a shift that stays as it is, where more runs alone do not.

        Each adds one degree of freedom to what is known of restarts, and makes their part of the error smaller.

        Args:
            pooled: The shift now.
            runs: Runs of a start at this look.
            old: Starts of the old image that are compared, above 0.
            new: Those of the new one.

        Returns:
            None where more would be needed than anybody waits for.
        """
        for more in range(1, 9):
            smaller = math.sqrt((1 / old + 1 / (new + more)) / (1 / old + 1 / new))
            then = pooled._replace(
                restart_se=pooled.restart_se * smaller, restart_df=pooled.restart_df + more
            )
            if self._is_beyond_doubt(then) or self.confirmed_at(then, runs) is not None:
                return more
        return None

    def _is_beyond_doubt(self, pooled: Pooled) -> bool:
        """Whether the shift is a change, but for ``false_calls`` of restarts."""
        decide = self._decide
        clear = abs(pooled.log) - decide.log_clear
        return abs(pooled.log) >= decide.log_effect and self.half_width(pooled, decide.false_calls) < clear


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
        is_same = verdict == ("regressed" if seen.shift > 0 else "improved")
        if not (seen.verdict == "unconfirmed" and is_same):
            verdict = seen.verdict
    return verdict
