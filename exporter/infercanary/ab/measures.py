"""Verdicts on memory, energy and the throughput of a load, from pairs of starts. Pure.

They are made as that on latency is (:mod:`~infercanary.ab.estimate`): a start is one replicate, neighbours in time are
compared, and how much starts differ is measured. A start's value is its median, and how its runs scatter is left out:
memory creeps up from run to run. So a sweep's point counts with one value a start, and memory that is the same to the
byte in each start of an image differs from another's after few starts.
"""

from __future__ import annotations

import math
from itertools import chain
from statistics import median
from typing import NamedTuple

from infercanary.ab.estimate import PairJudge
from infercanary.ab.neighbours import StartPairs
from infercanary.contract.measures import Measure
from infercanary.judge.measures import MeasureVerdict, measure_verdict, measured, of_measure
from infercanary.judge.model import Start
from infercanary.judge.shift import Shift


class MeasureDecision(NamedTuple):
    """The verdict on one measure."""

    measure: Measure
    verdict: MeasureVerdict
    is_open: bool
    """Whether it looks worse, and more pairs may show whether it is."""


def decide(pairs: StartPairs, judge: PairJudge) -> list[MeasureDecision]:
    """Return the decision on each measure that runs of both sides have.

    Args:
        pairs: With the runs that count.
        judge: Decides about latency.
    """
    judge = judge._replace(policy=judge.policy.for_measures())
    decisions = []
    for measure in measured([a for a, _ in pairs], [b for _, b in pairs]):
        both = [(_values(a, measure), _values(b, measure)) for a, b in pairs]
        both = [(old, new) for old, new in both if old and new]
        decision = judge.decide(
            [Shift(math.log(median(new) / median(old)), 0.0, math.inf) for old, new in both]
        )
        verdict, is_open = MeasureVerdict(decision.verdict), False
        if decision.looks:
            look = decision.looks[-1]
            old, new = (median(chain.from_iterable(side)) for side in zip(*both, strict=True))
            verdict = measure_verdict(measure, decision.verdict, look.seen, (old, new))
            is_open = not decision.done and look.shift.log >= judge.policy.decide.log_effect
        decisions.append(MeasureDecision(measure, verdict, is_open))
    return decisions


def _values(start: Start, measure: Measure) -> list[float]:
    """Return the measure of each run that has it, worse if larger."""
    return [sample.median for sample in of_measure(start, measure).samples if sample.median]
