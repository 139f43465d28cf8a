"""Verdicts on memory, energy and the throughput of a load, from pairs of starts. Pure functions.

The method is the same as for latency (:mod:`~infercanary.ab.estimate`): a start is one replicate, neighbours in time
are compared, and the restart variance is measured. The value of a start is the median of its runs. The scatter of
runs within a start is ignored, because memory grows slowly from run to run. So a point of a sweep with a single value
in each start can also be judged. If memory is the same to the byte in all starts of one image, a few starts are enough
to show a difference from another image.
"""

from __future__ import annotations

import math
from itertools import chain
from statistics import median

from infercanary.ab.estimate import PairJudge
from infercanary.ab.neighbours import StartPairs
from infercanary.contract.measures import Measure
from infercanary.judge.measures import MeasureVerdict, measure_verdict, measured, of_measure
from infercanary.judge.model import Start
from infercanary.judge.shift import Shift


def decide(pairs: StartPairs, judge: PairJudge) -> tuple[dict[str, MeasureVerdict], bool]:
    """Return the verdict by measure (for measures of both sides), and True if at least one measure is open.

    A measure is open if it looks worse and more pairs may confirm the regression.

    Args:
        pairs: Pairs with the counted runs.
        judge: The judge for latency, used here with the policy for measures.
    """
    judge = judge._replace(policy=judge.policy.for_measures())
    verdicts, is_open = {}, False
    for measure in measured([a for a, _ in pairs], [b for _, b in pairs]):
        both = [(_values(a, measure), _values(b, measure)) for a, b in pairs]
        both = [(old, new) for old, new in both if old and new]
        decision = judge.decide(
            [Shift(math.log(median(new) / median(old)), 0.0, math.inf) for old, new in both]
        )
        verdicts[measure.name] = MeasureVerdict(decision.verdict)
        if decision.looks:
            look = decision.looks[-1]
            old, new = (median(chain.from_iterable(side)) for side in zip(*both, strict=True))
            verdicts[measure.name] = measure_verdict(measure, decision.verdict, look.seen, (old, new))
            is_open |= not decision.done and look.shift.log >= judge.policy.decide.log_effect
    return verdicts, is_open


def _values(start: Start, measure: Measure) -> list[float]:
    """Return the value of the measure in each run that has the measure; a larger value is worse."""
    return [sample.median for sample in of_measure(start, measure).samples if sample.median]
