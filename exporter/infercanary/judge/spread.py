"""Run-to-run spread of a canary's latency: an image may be as fast as the one before, and less steady.

The spread of 48 runs is the mean difference of neighbours, as a ratio, without the largest eighth. Slow drift hardly
changes it, nor does a neighbour that comes and goes: each time is one difference of many. The spreads of an image's
earlier starts show what restarts, noise and the host do, and so no model of the noise is needed.

Worse in simulated noise were: differences from a local median or of second order, ranks of single differences, means of
3 to 8 of them, the plain or the winsorized mean (outliers), one value a start, and replicas that count as independent
(a neighbour that comes and goes was then called: of 100 identical restarts 14 to 34).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from infercanary.judge.align import Alignment
from infercanary.judge.model import Pair, Start, Upgrade
from infercanary.judge.policy import Policy
from infercanary.judge.shift import CHANGED, Shift, Verdict
from infercanary.judge.statistics import assess


class Spreads(NamedTuple):
    """Spreads of one replica (logarithms): of each start before and after those of its stretches of 48 runs."""

    old: Sequence[Sequence[float]]
    new: Sequence[Sequence[float]]

    @property
    def levels(self) -> list[float]:
        """Means of the starts before and after."""
        return [fmean(map(fmean, side)) for side in self]

    @property
    def grown(self) -> float:
        before, after = self.levels
        return after - before


def compare_spread(
    upgrade: Upgrade, siblings: Sequence[Start], policy: Policy
) -> tuple[Verdict, float, float, float, float, float] | None:
    """Did the spread of runs change with the upgrade.

    A change is five times as large as one that counts of other measures. The interval that is shown (98 %) calls it,
    unless controls, or siblings and replicas on the old image, spread at least half as much. The first look is at 48
    runs of a new start.

    Args:
        upgrade: The one that is judged.
        siblings: Starts of other services on the host.
        policy: The numbers that decide about latency.

    Returns:
        The verdict of the last look, the shift and its interval, and the spreads before and after as ratios; None where
        there is no look yet.
    """
    decide = policy.decide
    rules = policy.but(
        smallest_effect=max(decide.smallest_effect, 5 * policy.pool.measure_effect),
        looks=tuple(runs for runs in decide.looks if runs >= 48) or decide.looks[-1:],
    )
    alignment = Alignment(rules.pool, rules.decide.looks)
    _, pairs = next(alignment.looks(upgrade), (0, []))
    replicas = _spreads(pairs)
    if not replicas:
        return None
    shift = _shift(replicas, policy.pool.spread_restart_sd)
    seen = assess(shift, max(decide.confidence, 1 - 10 * decide.false_calls), rules.decide)
    if seen.verdict in CHANGED:
        names = {name for pair in pairs for start in pair.after for s in start.samples for name in s.controls}
        until = max(s.started_at for pair in pairs for start in pair.after for s in start.samples)
        beside = alignment.beside(siblings, upgrade, until)
        stayed = [Pair([ran.before], [ran.during]) for pair in pairs for ran in pair.concurrent]
        for others in (
            [each.grown for name in names for each in _spreads(pairs, name)],
            [each.grown for each in _spreads([*beside, *stayed])],
        ):
            if others and median(others) / shift.log >= 0.5:  # the host may have done it
                seen = seen._replace(verdict="inconclusive")
    before, after = np.exp(np.mean([each.levels for each in replicas], axis=0)).tolist()
    return *seen, before, after


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


def _spreads(pairs: Iterable[Pair], control: str = "") -> list[Spreads]:
    """Spreads of the latency or of a control, for each pair with some on either side."""
    both = [
        Spreads(*([x for start in side if (x := _stretches(start, control))] for side in pair[:2]))
        for pair in pairs
    ]
    return [each for each in both if all(each)]


def _stretches(start: Start, control: str) -> list[float]:
    """CPU wait that others caused is subtracted. Samples that the store merged of many runs are left out."""
    values = [
        value
        for s in start.samples
        if s.runs == 1
        and (value := s.controls.get(control, 0.0) if control else (s.median or 0.0) - (s.waited or 0.0)) > 0
    ]
    size = max(min(48, len(values)), 24)
    return [math.log(spread(values[end - size : end])) for end in range(len(values), size - 1, -size)]


def _shift(replicas: Sequence[Spreads], restart_sd: float) -> Shift:
    """By how much the spread grew; its error is infinite while a replica has fewer than three earlier starts.

    Replicas share a host, and what it does from one period to the next: they count as one. The prior counts for four
    degrees of freedom.
    """
    apart = [x - each.levels[0] for each in replicas for start in each.old for x in start]
    squares = math.fsum(x * x for x in apart) / len(replicas)
    starts, df = (sum(map(len, side)) / len(replicas) for side in ([each.old for each in replicas], [apart]))
    variance = (4 * restart_sd**2 + squares) / (3 + df) * (1 + 1 / starts)
    return Shift(
        fmean(each.grown for each in replicas), math.sqrt(variance) if starts >= 3 else math.inf, 3 + df
    )
