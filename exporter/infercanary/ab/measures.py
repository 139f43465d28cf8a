"""Verdicts on memory, energy and the throughput of a load, from pairs of starts. Pure.

They are made as that on latency is (:mod:`~infercanary.ab.estimate`): a start is one replicate, neighbours in time are
compared, and how much starts differ is measured. A start's value is its median, and how its runs scatter is left out:
memory creeps up from run to run. So a sweep's point counts with one value a start, and memory that is the same to the
byte in each start of an image differs from another's after few starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from infercanary.ab import estimate
from infercanary.ab.estimate import PairDecision
from infercanary.contract.measures import Measure
from infercanary.judge.measures import MeasureVerdict, measured, of_measure
from infercanary.judge.model import Start
from infercanary.judge.policy import Policy
from infercanary.judge.shift import Shift, ratio


class MeasureDecision(NamedTuple):
    """The decision on one measure, of which a positive shift is worse, and the pairs that it rests on."""

    measure: Measure
    pairs: Sequence[tuple[Start, Start]]
    decision: PairDecision
    is_open: bool
    """Whether it looks worse, and more pairs may show whether it is."""


def decide(pairs: Sequence[tuple[Start, Start]], most: int, policy: Policy) -> list[MeasureDecision]:
    """Return the decision on each measure after these pairs.

    Args:
        pairs: (A's start, B's start) with the runs that count, in order of time.
        most: Pairs that are planned.
        policy: The numbers that decide about latency.

    Returns:
        Of those that runs of both sides have.
    """
    rules = policy.for_measures()
    found = []
    for measure in measured([a for a, _ in pairs], [b for _, b in pairs]):
        both = [(of_measure(a, measure), of_measure(b, measure)) for a, b in pairs]
        both = [(a, b) for a, b in both if a.samples and b.samples]
        shifts = [_shift(a, b) for a, b in both]
        decision = estimate.decide(shifts, most, rules)
        looks_worse = bool(decision.looks) and decision.looks[-1].shift.log >= rules.decide.log_effect
        found.append(MeasureDecision(measure, both, decision, looks_worse and not decision.done))
    return found


def verdict(of: MeasureDecision) -> MeasureVerdict:
    """Return the verdict of a decision, in the measure's own direction.

    Args:
        of: The decision.

    Returns:
        Without a shift where there are fewer than two pairs.
    """
    state, looks = of.decision.verdict, of.decision.looks
    if not looks:
        return MeasureVerdict(state)
    sign = -1.0 if of.measure.more_is_better else 1.0
    look = looks[-1]
    low, high = sorted(ratio(sign * end) for end in look.shift.interval(look.level))
    sides = [[s.median for pair in of.pairs for s in pair[i].samples if s.median] for i in (0, 1)]
    before, after = (median(values) ** sign for values in sides)
    return MeasureVerdict(
        state=state, shift=ratio(sign * look.shift.log), low=low, high=high, before=before, after=after
    )


def _shift(a: Start, b: Start) -> Shift:
    """B over A, by the medians of both: memory creeps up from run to run, and a sweep has one value a start."""
    return Shift(math.log(_median(b) / _median(a)), 0.0, math.inf)


def _median(start: Start) -> float:
    return median(s.median for s in start.samples if s.median)
