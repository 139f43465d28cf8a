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
from infercanary.judge.causes import Attribution
from infercanary.judge.finding import Finder
from infercanary.judge.model import Pair, Sample, Start, Upgrade
from infercanary.judge.policy import FILES, LIVE, Policy
from infercanary.judge.result import State
from infercanary.judge.samples import compare_starts
from infercanary.judge.sentence import interval
from infercanary.judge.shift import CHANGED, Comparison, Shift
from infercanary.judge.spread import compare_spread
from infercanary.judge.statistics import assess
from infercanary.judge.upgrade import Selection, select


class MeasureVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one measure. Shifts are ratios of the measure itself: -0.2 is 20 % less, be that good or bad."""

    state: State
    """`regressed` is worse: more memory, less throughput, more spread."""
    upgraded_at: float | None = None
    """Unix seconds; None where two groups of starts were compared."""
    shift: float | None = None
    """None where nothing can be compared yet."""
    low: float | None = None
    high: float | None = None
    before: float | None = None
    """Median of the values before, in the measure's unit."""
    after: float | None = None


def judge_measures(
    starts: Sequence[Start], siblings: Sequence[Start] = (), policy: Policy = LIVE
) -> dict[str, MeasureVerdict]:
    """Did the last upgrade of a service change what a canary is judged by beside its latency.

    Args:
        starts: Of the service's containers, in order of time, with the runs of this canary.
        siblings: Starts of other services on the host: they show what is not the image's.
        policy: The numbers that decide about latency.

    Returns:
        By measure, of those that runs of both images have, and spread; nothing without an upgrade.
    """
    selection = select(starts)
    upgrade = selection.upgrade
    if upgrade is None:
        return {}
    found = {
        name: _Judge(measure, policy).judged(selection.starts, upgrade, siblings)
        for name, measure in measured(upgrade.before, upgrade.after).items()
    }
    found[SPREAD.name] = MeasureVerdict(state="settling")
    if (known := compare_spread(upgrade, siblings, policy)) is not None:
        seen, old, new = known
        found[SPREAD.name] = MeasureVerdict(
            state=seen.verdict, shift=seen.shift, low=seen.low, high=seen.high, before=old, after=new
        )
    return {name: msgspec.structs.replace(verdict, upgraded_at=upgrade.at) for name, verdict in found.items()}


def compare_measures(
    before: Sequence[Start], after: Sequence[Start], policy: Policy = FILES
) -> dict[str, MeasureVerdict]:
    """Do two groups of starts differ in what they are judged by beside their latency: one look, at all of their runs.

    Args:
        before: Of one side, in order of time.
        after: Of the other side.
        policy: The numbers that decide about latency.

    Returns:
        By measure, of those that runs of both sides have; `inconclusive` where a side has too few values. A change is
        called where the interval that errs in ``false_calls`` shows it; what is shown has ``confidence``.
    """
    return {
        name: _Judge(measure, policy).compared(before, after)
        for name, measure in measured(before, after).items()
    }


def measured(before: Iterable[Start], after: Iterable[Start]) -> dict[str, Measure]:
    """The measures of both sides that get a verdict.

    Args:
        before: Starts of one side.
        after: Starts of the other one.

    Returns:
        By name: memory and energy first, then the points of sweeps. At most 20: a probe may report any number.
    """
    old, new = ({n for start in side for s in start.samples for n in s.measures} for side in (before, after))
    known = [m for name in old & new if (m := measure_of(name)) is not None and m.is_judged and m != SPREAD]
    known.sort(key=lambda m: (m.more_is_better, m.unit, len(m.name), m.name))
    return {measure.name: measure for measure in known[:20]}


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
    return Start(start.generation, samples, start.last_at, start.canary_name)


def measure_words(name: str, verdict: MeasureVerdict) -> str:
    """Such as ``host memory regressed +31.0 % [+28.0, +34.0]`` or ``run-to-run spread regressed ×2.1 [1.7, 2.6]``.

    Args:
        name: The measure's.
        verdict: The one on it.

    Returns:
        One line without a full stop.
    """
    measure = measure_of(name)
    start = f"{measure.words if measure is not None else name} {verdict.state}"
    shift, low, high = verdict.shift, verdict.low, verdict.high
    if shift is None or low is None or high is None:
        return start
    if not (low > -1 and high < math.inf):  # the noise of few values may have no bound
        return start
    if measure == SPREAD:
        return f"{start} ×{1 + shift:.2g} [{1 + low:.2g}, {1 + high:.2g}]"
    return f"{start} {interval(shift, low, high)}"


class _Judge:
    """Judges one measure, by the policy that decides about latency."""

    def __init__(self, measure: Measure, policy: Policy) -> None:
        self._measure = measure
        self._is_memory = measure.unit == "bytes"
        self._rules = policy.for_measures(loads=not self._is_memory)

    def judged(self, starts: Sequence[Start], upgrade: Upgrade, siblings: Sequence[Start]) -> MeasureVerdict:
        rules = self._rules
        every = self._derived(starts, upgrade.before, upgrade.after)
        of = {start.boot: start for start in every}
        before, after = ([of[start.boot] for start in side] for side in (upgrade.before, upgrade.after))
        selection = Selection(every, Upgrade(upgrade.at, before, after, []), [])
        finder = Finder(rules)
        finding = finder.find(selection)
        look = finding.unwaited or finding.look
        if look is None:
            return MeasureVerdict(state=finding.state)
        state, pairs = finding.state, look.pairs
        if state in CHANGED and self._is_hosts(look.shift, pairs, finder.beside(finding, siblings)):
            state = "inconclusive"
        sides = [s for pair in pairs for s in pair.old], [s for pair in pairs for s in pair.after]
        return self._verdict(state, look.seen, sides)

    def compared(self, before: Sequence[Start], after: Sequence[Start]) -> MeasureVerdict:
        rules = self._rules
        sides = self._derived(before, before, after), self._derived(after, before, after)
        old, new = ([start.series for start in side if start.samples] for side in sides)
        seen, shift, _ = compare_starts(old, new, policy=rules)
        state: State = seen.verdict
        if state in CHANGED:  # at the error of live calls: several measures are asked about at once
            state = assess(shift, 1 - rules.decide.false_calls, rules.decide).verdict
        if state in CHANGED and self._is_hosts(shift, [Pair(*sides)], []):
            state = "inconclusive"
        return self._verdict(state, seen, sides)

    def _derived(
        self, starts: Iterable[Start], before: Iterable[Start], after: Iterable[Start]
    ) -> list[Start]:
        """Starts with the measure; memory up to the age that some start of either side has reached, and at least as
        many runs as count."""
        age = math.inf
        if self._is_memory:
            ages = ([float(np.ptp(s.times)) for s in side if s.samples] for side in (before, after))
            age = min(max(side, default=0.0) for side in ages)
        return [
            of_measure(start.first(max(runs, self._rules.pool.fewest_runs)), self._measure)
            for start in starts
            for runs in [int(np.searchsorted(start.times - start.times[:1].sum(), age, "right"))]
        ]

    def _is_hosts(self, shift: Shift, compared: Sequence[Pair], beside: Sequence[Pair]) -> bool:
        """Whether the host may have made a change, as far as controls and siblings show, or others on the GPU."""
        if self._is_memory:
            return False
        causes = Attribution(self._rules).explain(shift, compared, "", beside=beside)
        return (causes.host is not None or GPU_BUSY in causes.tags) and causes.cause != "image"

    def _verdict(
        self, state: State, seen: Comparison, sides: tuple[Sequence[Start], Sequence[Start]]
    ) -> MeasureVerdict:
        """Of a comparison of what is worse if larger, in the measure's own unit and direction."""
        if not math.isfinite(seen.shift):
            return MeasureVerdict(state=state)
        before, after = (
            median(s.median for start in side for s in start.samples if s.median) for side in sides
        )
        shift, low, high = seen[1:]
        if self._measure.more_is_better:
            before, after = 1 / before, 1 / after
            shift, high, low = (math.inf if x <= -1 else 1 / (1 + x) - 1 for x in (shift, low, high))
        return MeasureVerdict(state=state, shift=shift, low=low, high=high, before=before, after=after)
