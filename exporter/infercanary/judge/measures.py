"""Verdicts on what a run is judged by beside its latency: memory, energy, throughput of a load, run-to-run spread.

The stages are those of latency: a start whose samples have the measure in place of their median is selected and
aligned, and its shift is found, as any other. A measure of which more is better is inverted, so that `regressed` is
worse for each of them. Spread is judged by :mod:`~infercanary.judge.spread`. Three things differ:

- **Memory is compared at the same age.** A process grows for hours, and a leak goes on for ever: the last runs of a
  week-old start against the first ones of a new one would call each restart an improvement.
- **What the host did is not subtracted.** It does not change memory. Of throughput and energy, a change that controls
  or siblings show too is `inconclusive`: no run shows what a load of its own would have felt.
- **A measure is more often constant than a latency**: the prior of the restart variance stays in each interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
import numpy as np

from infercanary.contract.measures import SPREAD, Measure, measure_of
from infercanary.contract.vocabulary import GPU_BUSY
from infercanary.judge.align import Alignment
from infercanary.judge.causes import Attribution
from infercanary.judge.finding import Finder
from infercanary.judge.model import Pair, Sample, Start, Upgrade
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.result import State
from infercanary.judge.samples import compare_starts
from infercanary.judge.shift import CHANGED, Comparison, Shift
from infercanary.judge.spread import compare_spread
from infercanary.judge.statistics import assess
from infercanary.judge.upgrade import Selection, select


class MeasureVerdict(msgspec.Struct, frozen=True):
    """The verdict on one measure. Shifts are ratios of the measure itself: -0.2 is 20 % less, be that good or bad."""

    state: State
    """`regressed` is worse: more memory, less throughput, more spread."""
    shift: float | None = None
    """None where nothing can be compared yet."""
    low: float | None = None
    high: float | None = None
    before: float | None = None
    """Median of the values before, in the measure's unit."""
    after: float | None = None


class Measures:
    """Judges measures by the policy that decides about latency."""

    def __init__(self, policy: Policy = LIVE) -> None:
        self._policy = policy

    def judge(self, starts: Sequence[Start], siblings: Sequence[Start] = ()) -> dict[str, MeasureVerdict]:
        """Did the last upgrade of a service change what a canary is judged by beside its latency.

        Args:
            starts: Of the service's containers, in order of time, with the runs of this canary.
            siblings: Starts of other services on the host: they show what is not the image's.

        Returns:
            By measure, of those that runs of both images have, and spread; nothing without an upgrade.
        """
        selection = select(starts)
        upgrade = selection.upgrade
        if upgrade is None:
            return {}
        found, sides = {}, (upgrade.before, upgrade.after)
        for measure in measured(*sides):
            every = self._derived(measure, selection.starts, sides)
            of = {start.boot: start for start in every}
            before, after = ([of[start.boot] for start in side] for side in sides)
            finder = Finder(self._rules(measure))
            finding = finder.find(Selection(every, Upgrade(upgrade.at, before, after, []), []))
            found[measure.name] = MeasureVerdict(finding.state)
            if look := finding.look:
                found[measure.name] = self._verdict(
                    measure,
                    finding.state,
                    look.seen,
                    look.shift,
                    look.pairs,
                    finder.beside(finding, siblings),
                )
        alignment = Alignment(self._policy.pool, sorted({*self._policy.decide.looks, 48}))
        _, pairs = next(alignment.looks(upgrade), (0, []))
        beside = alignment.beside(siblings, upgrade, pairs)
        spread = compare_spread(pairs, beside, self._policy.decide, self._policy.pool)
        found[SPREAD.name] = MeasureVerdict(*spread) if spread else MeasureVerdict("settling")
        return found

    def compare(self, before: Sequence[Start], after: Sequence[Start]) -> dict[str, MeasureVerdict]:
        """Do two groups of starts differ in what they are judged by beside latency: one look, at all of their runs.

        Args:
            before: Of one side, in order of time.
            after: Of the other side.

        Returns:
            By measure, of those that runs of both sides have; `inconclusive` where a side has too few values. A change
            is called where the interval that errs in ``false_calls`` shows it; what is shown has ``confidence``.
        """
        found = {}
        for measure in measured(before, after):
            rules = self._rules(measure)
            old, new = (self._derived(measure, side, (before, after)) for side in (before, after))
            seen, shift, _ = compare_starts([s.series for s in old], [s.series for s in new], policy=rules)
            state: State = seen.verdict
            if state in CHANGED:  # at the error of live calls: several measures are asked about at once
                state = assess(shift, 1 - rules.decide.false_calls, rules.decide).verdict
            found[measure.name] = self._verdict(measure, state, seen, shift, [Pair(old, new)], [])
        return found

    def _rules(self, measure: Measure) -> Policy:
        return self._policy.for_measures(loads=measure.unit != "bytes")

    def _derived(
        self, measure: Measure, starts: Iterable[Start], sides: Iterable[Iterable[Start]]
    ) -> list[Start]:
        """Starts with the measure; memory up to the age that some start of either side has reached, and at least as
        many runs as count."""
        age = math.inf
        if measure.unit == "bytes":
            age = min(max((np.ptp(s.times) for s in side if s.samples), default=0.0) for side in sides)
        fewest = self._policy.pool.fewest_runs
        return [
            of_measure(start.first(max(fewest, (start.times - start.times[:1] <= age).sum())), measure)
            for start in starts
        ]

    def _verdict(
        self,
        measure: Measure,
        state: State,
        seen: Comparison,
        shift: Shift,
        pairs: Sequence[Pair],
        beside: Sequence[Pair],
    ) -> MeasureVerdict:
        """Of a comparison of what is worse if larger, in the measure's own unit and direction.

        A change that the host or others on the GPU may have made, as far as controls and siblings show, is
        `inconclusive`.
        """
        if not math.isfinite(seen.shift):
            return MeasureVerdict(state)
        if state in CHANGED and measure.unit != "bytes":
            causes = Attribution(self._rules(measure)).explain(shift, pairs, "", beside=beside)
            if causes.cause != "image" and (causes.host or GPU_BUSY in causes.tags):
                state = "inconclusive"
        before, after = (
            median(s.median for pair in pairs for start in getattr(pair, side) for s in start.samples)
            for side in ("before", "after")
        )
        return measure_verdict(measure, state, seen, (before, after))


def measure_verdict(
    measure: Measure, state: State, seen: Comparison, medians: tuple[float, float]
) -> MeasureVerdict:
    """Return the verdict of a comparison of what is worse if larger, in the measure's own unit and direction.

    Args:
        measure: Of which more may be better.
        state: The verdict.
        seen: The comparison.
        medians: Of both sides, as they were compared.
    """
    before, after = medians
    if not measure.more_is_better:
        return MeasureVerdict(state, *seen[1:], before, after)
    change, high, low = (math.inf if x <= -1 else 1 / (1 + x) - 1 for x in seen[1:])
    return MeasureVerdict(state, change, low, high, 1 / before, 1 / after)


def measured(before: Iterable[Start], after: Iterable[Start]) -> list[Measure]:
    """The measures of both sides that get a verdict.

    Args:
        before: Starts of one side.
        after: Starts of the other one.

    Returns:
        Memory and energy first, then the points of sweeps. At most 20: a probe may report any number.
    """
    old, new = ({n for start in side for s in start.samples for n in s.measures} for side in (before, after))
    known = [m for name in old & new if (m := measure_of(name)) and m.is_judged]
    return sorted(known, key=lambda m: (m.more_is_better, m.unit, len(m.name), m.name))[:20]


def of_measure(start: Start, measure: Measure) -> Start:
    """``start`` as the stages take it: with the measure in place of its runs' medians, worse if larger.

    Args:
        start: With the runs that count.
        measure: A probe may report any number, and the inverse of 1e-320, as the mean of several of 1e308, is infinite:
            values that nothing can have do not count, nor does zero.

    Returns:
        A start of the runs that have it. They keep their controls, their clock and their tags.
    """
    samples = [
        Sample(
            s.sequence, s.canary, s.started_at, s.outcome, 1 / value if measure.more_is_better else value,
            controls=s.controls, sm_clock=s.sm_clock, tags=s.tags, runs=s.runs,
        )
        for s in start.samples
        if 1e-18 < (value := s.measures.get(measure.name, 0.0)) < 1e18
    ]  # fmt: skip
    return Start(start.generation, samples)
