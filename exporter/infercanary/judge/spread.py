"""Spread of a canary's runs: detects a new image that is as fast as the old image, but less steady.

The spread of 48 runs is the mean difference between neighbouring runs, as a ratio, without the largest eighth of the
differences. Differences between neighbours are used because slow drift hardly changes them. No noise model is needed:
the spreads of earlier starts show the effect of restarts, noise and the host. If a neighbour on the host is active
only at times, a doubled spread is seldom called.

Other statistics were worse in simulated noise (``benchmarks/results/2026-11-28-spread.md``): differences from a local
median, second-order differences, ranks of single differences, means of 3 to 8 differences, the plain or winsorized mean
(sensitive to outliers), and one value for each start. Replicas treated as independent were worse as well: with a
neighbour that is active only at times, 14 to 34 of 100 identical restarts were called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from infercanary.contract.vocabulary import CONTROLS
from infercanary.judge.model import Pair, Start, have_alike_controls
from infercanary.judge.policy import Decide, Pool
from infercanary.judge.resolution import Floats
from infercanary.judge.shift import CHANGED, Shift, Verdict
from infercanary.judge.statistics import assess


class Spreads(NamedTuple):
    """Spread of one replica's runs before and after the upgrade, as logarithms."""

    old: float
    """Mean over the starts before the upgrade."""
    grown: float
    """Mean over the starts after the upgrade, minus ``old``."""
    apart: Sequence[float]
    """For each stretch of 48 runs before the upgrade: deviation of its spread from ``old``."""
    starts: int
    """Number of starts before the upgrade."""


def compare_spread(
    pairs: Sequence[Pair], beside: Sequence[Pair], decide: Decide, pool: Pool
) -> tuple[Verdict, float, float, float, float, float] | None:
    """Judge whether the spread of runs changed with the upgrade.

    The smallest effect is five times that of other measures, and a change needs three earlier starts. The displayed
    interval (98 % or more) calls a change. But the verdict is `inconclusive` if the spread of controls, siblings or
    replicas on the old image changed at least half as much in the same direction.

    Args:
        pairs: Starts of each replica, before and after.
        beside: Starts of each sibling, before and after.
        decide: Dead band and confidence.
        pool: Smallest effect of a measure, and the prior of the restart variance.

    Returns:
        Verdict, shift, its interval, and the spreads before and after as ratios; None if no replica has both spreads.
    """
    replicas = _spreads(pairs)
    if not replicas:
        return None
    # Replicas on one host are not independent, so they count as one. The prior of the restart variance has four
    # degrees of freedom.
    squares = fmean(math.fsum(x * x for x in each.apart) for each in replicas)
    starts, df = fmean(each.starts for each in replicas), 3 + fmean(len(each.apart) for each in replicas)
    variance = (4 * pool.spread_restart_sd**2 + squares) / df * (1 + 1 / starts) if starts >= 3 else math.inf
    shift = Shift(fmean(each.grown for each in replicas), math.sqrt(variance), df)
    rules = replace(decide, smallest_effect=5 * pool.measure_effect)
    seen = assess(shift, max(decide.confidence, 1 - 10 * decide.false_calls), rules)
    stayed = [Pair([ran.before], [ran.during]) for pair in pairs for ran in pair.concurrent]
    if seen.verdict in CHANGED:
        controls = [each for name in CONTROLS for each in _spreads(pairs, name)]
        for others in (controls, _spreads([*beside, *stayed])):
            if others and median(each.grown for each in others) / shift.log >= 0.5:
                seen = seen._replace(verdict="inconclusive")  # the host may be the cause
    before = math.exp(fmean(each.old for each in replicas))
    return *seen, before, before * math.exp(shift.log)


def spread(values: Sequence[float] | Floats) -> float:
    """Return the mean difference between neighbouring values as a ratio, without the largest eighth; at least .1 %.

    Args:
        values: At least two values above zero, in order of time.
    """
    steps = np.sort(np.abs(np.diff(np.log(values))))
    # Two values that a coarse clock shows as equal differ on average by a third of the clock's tick.
    steps = np.maximum(steps, min(steps[steps > 1e-9], default=0.0) / 3)
    return math.hypot(float(steps[: steps.size - steps.size // 8].mean()), 1e-3)


def _spreads(pairs: Iterable[Pair], control: str = "") -> list[Spreads]:
    """Return the spreads of the latency or of a control, for each pair with enough runs before and after."""
    found = []
    for pair in pairs:
        old, new = ([x for start in side if (x := _stretches(start, control))] for side in pair[:2])
        if old and new and (not control or have_alike_controls((*pair.before, *pair.after))):
            level = fmean(map(fmean, old))
            apart = [x - level for start in old for x in start]
            found.append(Spreads(level, fmean(map(fmean, new)) - level, apart, len(old)))
    return found


def _stretches(start: Start, control: str) -> list[float]:
    """Return the logarithm of the spread of each stretch of 48 runs, without merged samples.

    CPU wait caused by other processes on the host is subtracted from latencies.
    """
    values = [
        value
        for s in start.samples
        if s.runs == 1
        and (value := s.controls.get(control, 0.0) if control else (s.median or 0.0) - (s.waited or 0.0)) > 0
    ]
    return [math.log(spread(values[end - 48 : end])) for end in range(len(values), 47, -48)]
