"""Measures: verdicts on memory, energy, throughput of a load, and spread of runs, in addition to latency.

A measure is judged like latency, with the measure's value in place of the run's median latency. If more of a measure
is better, the value is inverted, so `regressed` always means worse. Spread is judged by
:mod:`~infercanary.judge.spread`. Three rules differ from those for latency:

- **Memory is compared at the same age.** The memory of a process grows for hours, or for ever with a leak. If the
  last runs of an old start were compared with the first runs of a new start, each restart would look like an
  improvement.
- **The host's part is not subtracted.** The host does not affect memory use. If controls or siblings moved as well, a
  change of throughput or energy is `inconclusive`.
- **The prior of the restart variance is assumed.** The prior learned from the latencies of services is not used.
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
    """Verdict on one measure. Shifts are ratios of the measure: -0.2 is 20 % less, even if less is worse."""

    state: State
    """`regressed` means worse: more memory, less throughput, more spread."""
    shift: float | None = None
    """Shift of the measure; None if nothing can be compared yet."""
    low: float | None = None
    """Lower end of the interval of ``shift``."""
    high: float | None = None
    """Upper end of the interval of ``shift``."""
    before: float | None = None
    """Median with the old image, in the measure's unit."""
    after: float | None = None
    """Median with the new image, in the measure's unit."""


class Measures:
    """Judges measures by thresholds that are derived from the policy for latency."""

    def __init__(self, policy: Policy = LIVE) -> None:
        self._policy = policy

    def judge(
        self, starts: Sequence[Start], siblings: Sequence[Start] = (), selection: Selection | None = None
    ) -> dict[str, MeasureVerdict]:
        """Judge whether the last upgrade changed measures of a canary.

        Args:
            starts: Starts of the service's containers with the runs of this canary, in order of time.
            siblings: Starts of other services on the host.
            selection: Result of :func:`select` for ``starts``, if already computed.

        Returns:
            Verdict by name, for spread and for each measure that both images have. Empty if there was no upgrade.
        """
        selection = selection or select(starts)
        upgrade = selection.upgrade
        if upgrade is None:
            return {}
        found, sides = {}, (upgrade.before, upgrade.after)
        has_look = any(len(start.samples) >= self._policy.decide.looks[0] for start in upgrade.after)
        for measure in measured(*sides):
            if not has_look:
                found[measure.name] = MeasureVerdict("settling")
                continue
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
        found[SPREAD.name] = self.spread(upgrade, siblings)
        return found

    def spread(self, upgrade: Upgrade, siblings: Sequence[Start]) -> MeasureVerdict:
        """Judge only whether an upgrade changed the spread of runs. This takes less CPU time than :meth:`judge`."""
        looks = (48, *(runs for runs in self._policy.decide.looks if runs > 48))  # a stretch has 48 runs
        alignment = Alignment(self._policy.pool, looks)
        _, pairs = next(alignment.looks(upgrade), (0, []))
        beside = alignment.beside(siblings, upgrade, pairs)
        spread = compare_spread(pairs, beside, self._policy.decide, self._policy.pool)
        return MeasureVerdict(*spread) if spread else MeasureVerdict("settling")

    def compare(self, before: Sequence[Start], after: Sequence[Start]) -> dict[str, MeasureVerdict]:
        """Compare the measures of two groups of starts, in one look at all runs.

        Args:
            before: Starts of one side, in order of time.
            after: Starts of the other side, in order of time.

        Returns:
            Verdict by name, for each measure that both sides have; `inconclusive` with too few values. The interval
            that calls a change has the error ``false_calls``; the displayed interval has ``confidence``.
        """
        found = {}
        for measure in measured(before, after):
            rules = self._rules(measure)
            old, new = (self._derived(measure, side, (before, after)) for side in (before, after))
            seen, shift, _ = compare_starts([s.series for s in old], [s.series for s in new], policy=rules)
            state: State = seen.verdict
            if state in CHANGED:  # a change needs the smaller error, because several measures are tested
                state = assess(shift, 1 - rules.decide.false_calls, rules.decide).verdict
            found[measure.name] = self._verdict(measure, state, seen, shift, [Pair(old, new)], [])
        return found

    def _rules(self, measure: Measure) -> Policy:
        return self._policy.for_measures(loads=measure.unit != "bytes")

    def _derived(
        self, measure: Measure, starts: Iterable[Start], sides: Iterable[Iterable[Start]]
    ) -> list[Start]:
        """Return the starts with the measure as their value. Memory is compared up to the age that both sides have."""
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
        """Return the verdict in the measure's own unit and direction.

        A change is `inconclusive` if controls and siblings show that the host or other GPU users may be its cause.
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
    """Return the verdict in the measure's own unit and direction.

    Args:
        state: Verdict on the measure.
        seen: Comparison of the values, inverted if more is better.
        medians: Medians of both sides, inverted if more is better.
    """
    before, after = medians
    if not measure.more_is_better:
        return MeasureVerdict(state, *seen[1:], before, after)
    change, high, low = (math.inf if x <= -1 else 1 / (1 + x) - 1 for x in seen[1:])
    return MeasureVerdict(state, change, low, high, 1 / before, 1 / after)


def measured(before: Iterable[Start], after: Iterable[Start]) -> list[Measure]:
    """Return the judged measures that both sides have: memory and energy, then points of load sweeps.

    At most 20 measures are returned, because a probe may report any number of measures.
    """
    old, new = ({n for start in side for s in start.samples for n in s.measures} for side in (before, after))
    known = [m for name in old & new if (m := measure_of(name)) and m.is_judged]
    return sorted(known, key=lambda m: (m.more_is_better, m.unit, len(m.name), m.name))[:20]


def of_measure(start: Start, measure: Measure) -> Start:
    """Return the start with a measure in place of its median latencies, inverted if more is better.

    Runs keep their controls, clock and tags. Runs with a value of zero, or with a value outside 1e-18 to 1e18, are
    left out: a probe may report any number, and extreme numbers overflow when inverted or averaged.
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
