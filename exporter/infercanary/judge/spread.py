"""Run-to-run spread of a canary's latency: an image may be as fast as the one before, and less steady.

The spread of a start is the mean difference of neighbouring runs, without the largest eighth. Slow drift hardly changes
it, nor does a neighbour that comes and goes: each time is one difference of many. A start is one replicate, with one
value; the values of an image's earlier starts show what restarts and noise do, and so no model of the noise is needed.

Worse in simulated noise were: differences from a local median or of second order, ranks of single differences, means of
3 to 8 of them, the plain or the winsorized mean (outliers), and several values a start (nested analysis of variance).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median, variance
from typing import NamedTuple

import numpy as np

from infercanary.judge.align import align
from infercanary.judge.model import Pair, Start
from infercanary.judge.policy import Policy
from infercanary.judge.shift import CHANGED, Comparison, Shift
from infercanary.judge.statistics import assess
from infercanary.judge.upgrade import Selection


class Spreads(NamedTuple):
    """Spreads of the starts of one replica, before and after (logarithms)."""

    old: Sequence[float]
    new: Sequence[float]

    @property
    def log(self) -> float:
        """By how much it grew."""
        return fmean(self.new) - fmean(self.old)


def compare_spread(
    selection: Selection, siblings: Sequence[Start], policy: Policy
) -> tuple[Comparison, list[float]] | None:
    """Did the spread of runs change with the upgrade.

    A change is five times as large as one that counts of other measures. There are few looks, of which the first is at
    48 runs of a new start, and each errs in five times as many cases as all looks at the latency. In simulated noise
    less than 1 % of identical restarts were called while the spread of restarts had an SD of up to 10 %.

    Args:
        selection: With an upgrade.
        siblings: Starts of other services on the host.
        policy: The numbers that decide about latency.

    Returns:
        The verdict of the last look, and the spreads before and after as ratios; None where there is no look yet.
    """
    decide, effect = policy.decide, policy.pool.measure_effect
    rules = policy.but(
        smallest_effect=max(decide.smallest_effect, 5 * effect),
        clear_zone=effect,
        looks=tuple(runs for runs in decide.looks if runs >= 48) or decide.looks[-1:],
    )
    runs = align(selection, siblings, rules)
    pairs = runs.looks[-1] if runs.looks else ()
    replicas = _spreads(pairs, "")
    if not replicas:
        return None
    shift, looks = _shift(replicas, policy.pool.spread_restart_sd), len(rules.decide.looks)
    seen = assess(shift, 1 - (1 - decide.confidence) / looks, policy=rules)
    if seen.verdict in CHANGED:
        called = assess(shift, 1 - 5 * decide.false_calls, policy=rules).verdict
        is_open = called not in CHANGED or _is_shared(shift.log, pairs, runs.beside)
        seen = seen._replace(verdict="inconclusive" if is_open else called)
    return seen, [math.exp(fmean(map(fmean, side))) for side in zip(*replicas, strict=True)]


def spread(values: Iterable[float]) -> float:
    """Mean difference of neighbours, as a ratio, without the largest eighth.

    Args:
        values: At least two, above zero, in order of time.

    Returns:
        At least .1 %: nobody cares how much steadier a latency is.
    """
    steps = np.sort(np.abs(np.diff(np.log([*values]))))
    ticks = steps[steps > 1e-9]
    if ticks.size:  # two values that a coarse clock shows as one are a third of its tick apart, on average
        steps = np.maximum(steps, ticks[0] / 3)
    return math.hypot(float(steps[: steps.size - steps.size // 8].mean()), 1e-3)


def _spreads(pairs: Iterable[Pair], control: str) -> list[Spreads]:
    """Of the latency or of a control, of each pair that has some on either side.

    CPU wait that others on the host caused is subtracted. Samples that the store merged of many runs have no spread.
    """

    def of(starts: Sequence[Start], runs: int) -> list[float]:
        each = [
            [
                value
                for s in start.samples[-runs:]
                if s.runs == 1
                and s.median
                and (value := s.controls.get(control, 0.0) if control else s.median - (s.waited or 0.0)) > 0
            ]
            for start in starts
        ]
        return [math.log(spread(values)) for values in each if len(values) >= 24]

    found = []
    for pair in pairs:
        runs = max(len(start.samples) for start in pair.after)
        found.append(Spreads(of(pair.before, max(runs, 24)), of(pair.after, runs)))
    return [each for each in found if each.old and each.new]


def _shift(replicas: Sequence[Spreads], restart_sd: float) -> Shift:
    """Of an infinite error while fewer than three restarts of the old image are known; the prior counts for eight."""
    restarts = sum(len(each.old) - 1 for each in replicas)
    squares = math.fsum(variance(each.old) * (len(each.old) - 1) for each in replicas if len(each.old) > 1)
    error = (8 * restart_sd**2 + squares) / (8 + restarts) if restarts > 2 else math.inf
    parts = math.fsum(1 / len(each.old) + 1 / len(each.new) for each in replicas)
    return Shift(
        fmean(each.log for each in replicas), math.sqrt(error * parts) / len(replicas), 8.0 + restarts
    )


def _is_shared(log: float, pairs: Sequence[Pair], beside: Sequence[Pair]) -> bool:
    """Whether controls, or siblings and replicas on the old image, spread at least half as much."""
    stayed = [Pair([a], [b]) for pair in pairs for a, b in pair.concurrent]
    names = {name for pair in pairs for start in pair.after for s in start.samples for name in s.controls}
    return any(
        moved and median(moved) / log >= 0.5
        for moved in (
            [each.log for name in names for each in _spreads(pairs, name)],
            [each.log for each in _spreads([*beside, *stayed], "")],
        )
    )
