"""Verdicts on what a run is judged by beside its latency: memory, energy, the throughput of a load.

The stages are those of latency: a start whose samples have the measure in place of their median is selected, aligned,
estimated and decided as any other. Of a measure of which more is better that is one over it, so that `regressed` is
worse for each of them. Three things differ:

- **Memory is compared at the same age.** A process grows for hours, and a leak goes on for ever: the last runs of a
  week-old start against the first ones of a new one would call each restart an improvement.
- **What the host did is not taken off.** It does not change memory. Of throughput and energy, a change that controls or
  siblings show too is `inconclusive`: no run shows what a load of its own would have felt.
- **A measure is more often constant than a latency**: what restarts may do, as far as it is known, still stands in
  each interval.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from types import MappingProxyType

import msgspec

from infercanary.contract.measures import MEASURES, Measure, measure_of
from infercanary.contract.vocabulary import GPU_BUSY
from infercanary.judge.causes import explain
from infercanary.judge.finding import Finder
from infercanary.judge.model import Pair, Sample, Start, Upgrade
from infercanary.judge.policy import FILES, LIVE, Policy
from infercanary.judge.result import State
from infercanary.judge.samples import compare_starts
from infercanary.judge.sentence import interval
from infercanary.judge.shift import CHANGED, Comparison, Shift
from infercanary.judge.statistics import assess
from infercanary.judge.upgrade import Selection, select

_LEAST, _MOST = 1e-18, 1e18
"""Of any value, in its base unit. A probe may report anything: one over 1e-320 is infinite, as a mean of 1e308 is."""


class MeasureVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one measure. Shifts are ratios of the measure itself: -0.2 is 20 % less, be that good or bad."""

    state: State
    """`regressed` is worse: more memory, less throughput."""
    upgraded_at: float | None = None
    """Unix seconds; None where two groups of starts were compared."""
    shift: float | None = None
    """None where nothing can be compared yet."""
    low: float | None = None
    high: float | None = None
    before: float | None = None
    """Median of the values before, in the measure's unit."""
    after: float | None = None
    values: int = 0
    """Of the start of the new image that has most of them, when it was judged."""
    looks: int = 0
    """That the starts of the new image had reached then, all together."""
    starts: int = 0
    """Of both images, that there were then."""


def judge_measures(
    starts: Sequence[Start],
    siblings: Sequence[Start] = (),
    policy: Policy = LIVE,
    known: Mapping[str, MeasureVerdict] = MappingProxyType({}),
) -> dict[str, MeasureVerdict]:
    """Did the last upgrade of a service change what a canary is judged by beside its latency.

    Args:
        starts: Of the service's containers, in order of time, with the runs of this canary.
        siblings: Starts of other services on the host: they show what is not the image's.
        policy: The numbers that decide about latency.
        known: Earlier verdicts by the same policy: one stands until its measure reached another look.

    Returns:
        By measure, of those that runs of both images have; nothing without an upgrade.
    """
    selection = select(starts, policy)
    upgrade = selection.upgrade
    if upgrade is None:
        return {}
    found = {}
    for name, measure in measured(upgrade.before, upgrade.after, policy).items():
        rules = _rules(measure, policy)
        counts = [len(_places(start, measure)) for start in upgrade.after]
        due = MeasureVerdict(
            state="settling",
            upgraded_at=upgrade.at,
            values=max(counts),
            looks=sum(bisect_right(rules.decide.looks, count) for count in counts),
            starts=len(upgrade.before) + len(upgrade.after),
        )
        last = known.get(name, due)
        is_new = (last.upgraded_at, last.looks, last.starts) != (due.upgraded_at, due.looks, due.starts)
        if is_new or last is due:
            last = _judged(selection, upgrade, siblings, measure, rules, due)
        found[name] = last
    return found


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
    found = {}
    for name, measure in measured(before, after, policy).items():
        rules = _rules(measure, policy)
        age = _common_age(before, after, measure)
        sides = (
            [of_measure(s, measure, _of_age(s, measure, age, rules)) for s in before],
            [of_measure(s, measure, _of_age(s, measure, age, rules)) for s in after],
        )
        old, new = ([start.series for start in side if start.samples] for side in sides)
        seen, shift, _ = compare_starts(old, new, policy=rules)
        state: State = seen.verdict
        if state in CHANGED:  # at the error of live calls: several measures are asked about at once
            state = assess(shift, 1 - rules.decide.false_calls, rules.decide).verdict
        if state in CHANGED and not _is_memory(measure) and _is_hosts(shift, [Pair(*sides)], [], rules):
            state = "inconclusive"
        found[name] = _verdict(state, seen, measure, sides, MeasureVerdict(state=state))
    return found


def measured(before: Iterable[Start], after: Iterable[Start], policy: Policy = LIVE) -> dict[str, Measure]:
    """The measures that get a verdict.

    Args:
        before: Starts of one side.
        after: Starts of the other one.
        policy: How many there may be.

    Returns:
        By name, of those that runs of both sides have: memory and energy first, then the points of sweeps.
    """
    old = [start.samples for start in before]
    both = [name for name in _names(after) if any(name in s.measures for samples in old for s in samples)]
    known = [m for name in both if (m := measure_of(name)) is not None and m.is_judged]
    order = [*MEASURES]
    known.sort(key=lambda m: (order.index(m.name) if m.name in MEASURES else len(order), len(m.name), m.name))
    return {measure.name: measure for measure in known[: policy.pool.most_measures]}


def of_measure(start: Start, measure: Measure, places: Iterable[int] | None = None) -> Start:
    """``start`` as the stages take it: with the measure in place of its runs' medians, worse if larger.

    Args:
        start: With the runs that count.
        measure: Of which a value of zero does not count.
        places: Of the runs that are taken, each of which has the measure; all that have it without them.

    Returns:
        A start of these runs. They keep their controls, their clock and their tags.
    """
    samples = []
    for place in _places(start, measure) if places is None else places:
        sample = start.samples[place]
        value = sample.measures[measure.name]
        samples.append(
            Sample(
                sample.sequence, sample.canary, sample.started_at, sample.outcome,
                1 / value if measure.more_is_better else value,
                controls=sample.controls, sm_clock=sample.sm_clock, tags=sample.tags, runs=sample.runs,
            )
        )  # fmt: skip
    return Start(start.generation, samples, start.last_at, start.canary_name)


def measure_words(name: str, verdict: MeasureVerdict) -> str:
    """Such as ``host memory regressed +31.0 % [+28.0, +34.0]``.

    Args:
        name: The measure's.
        verdict: The one on it.

    Returns:
        One line without a full stop.
    """
    measure = measure_of(name)
    start = f"{measure.words if measure is not None else name} {verdict.state}"
    if verdict.shift is None or verdict.low is None or verdict.high is None:
        return start
    if not (verdict.low > -1 and verdict.high < math.inf):  # the noise of few values may have no bound
        return start
    return f"{start} {interval(verdict.shift, verdict.low, verdict.high)}"


def _judged(
    selection: Selection,
    upgrade: Upgrade,
    siblings: Sequence[Start],
    measure: Measure,
    rules: Policy,
    due: MeasureVerdict,
) -> MeasureVerdict:
    age = _common_age(upgrade.before, upgrade.after, measure)
    new = {start.boot for start in upgrade.after}
    derived = {}
    for start in selection.starts:
        places = _of_age(start, measure, age, rules)
        if not _is_memory(measure) and start.boot not in new:  # what was long before would only cost time
            since = sum(start.samples[place].started_at >= upgrade.at for place in places)
            places = places[max(0, len(places) - since - rules.pool.baseline_runs) :]
        derived[start.boot] = of_measure(start, measure, places)
    before, after = ([derived[s.boot] for s in side] for side in (upgrade.before, upgrade.after))
    starts, live = ([derived[s.boot] for s in several] for several in (selection.starts, selection.live))
    theirs = Selection(starts, Upgrade(upgrade.at, before, after, []), live)
    finder = Finder(rules)
    finding = finder.find(theirs)
    state, look = finding.state, finding.unwaited or finding.look
    found = msgspec.structs.replace(due, state=state)
    if look is not None:
        pairs = look.pairs
        if state in CHANGED and not _is_memory(measure):
            beside = finder.beside(finding, siblings)
            state = "inconclusive" if _is_hosts(look.shift, pairs, beside, rules) else state
        sides = [s for pair in pairs for s in pair.old], [s for pair in pairs for s in pair.after]
        found = _verdict(state, look.seen, measure, sides, due)
    return found


def _verdict(
    state: State,
    seen: Comparison,
    measure: Measure,
    sides: tuple[Sequence[Start], Sequence[Start]],
    due: MeasureVerdict,
) -> MeasureVerdict:
    """Of a comparison of what is worse if larger, in the measure's own unit and direction."""
    if not math.isfinite(seen.shift):
        return msgspec.structs.replace(due, state=state)
    if _is_memory(measure) and state in ("improved", "equivalent") and not _is_of_one_age(*sides):
        state = "inconclusive"
    shift, low, high = seen.shift, seen.low, seen.high
    before, after = (median(s.median for start in side for s in start.samples if s.median) for side in sides)
    if measure.more_is_better:
        shift, low, high = _inverse(shift), _inverse(high), _inverse(low)
        before, after = 1 / before, 1 / after
    return msgspec.structs.replace(
        due, state=state, shift=shift, low=low, high=high, before=before, after=after
    )


def _inverse(ratio: float) -> float:
    return -ratio / (1 + ratio) if -1 < ratio < math.inf else math.inf if ratio <= -1 else -1.0


def _is_hosts(shift: Shift, compared: Sequence[Pair], beside: Sequence[Pair], rules: Policy) -> bool:
    """Whether the host may have made a change, as far as controls and siblings show, or others on the GPU."""
    causes = explain(shift, compared, "", beside=beside, policy=rules)
    return (causes.host is not None or GPU_BUSY in causes.tags) and causes.cause != "image"


def _rules(measure: Measure, policy: Policy) -> Policy:
    return policy.for_measures() if _is_memory(measure) else policy.for_loads()


def _is_memory(measure: Measure) -> bool:
    return measure.unit == "bytes"


def _common_age(before: Iterable[Start], after: Iterable[Start], measure: Measure) -> float:
    """Seconds after its first value that some start of either side has reached; infinite for what does not age."""
    if not _is_memory(measure):
        return math.inf

    def age(start: Start) -> float:
        places = _places(start, measure)
        return start.samples[places[-1]].started_at - start.samples[places[0]].started_at if places else 0.0

    return min(max(map(age, side), default=0.0) for side in (before, after))


def _of_age(start: Start, measure: Measure, age: float, rules: Policy) -> list[int]:
    """Where its values up to that age are, and at least as many as a start takes to count."""
    places = _places(start, measure)
    if not places or age == math.inf:
        return places
    until = start.samples[places[0]].started_at + age
    reached = bisect_right(places, until, key=lambda place: start.samples[place].started_at)
    return places[: max(reached, rules.pool.fewest_runs)]


def _places(start: Start, measure: Measure) -> list[int]:
    """Which of its runs have the measure, with a value that may be meant so."""
    name = measure.name
    return [i for i, s in enumerate(start.samples) if _LEAST < s.measures.get(name, 0.0) < _MOST]


def _is_of_one_age(before: Iterable[Start], after: Sequence[Start]) -> bool:
    """Whether the old image's starts are known from as early on as the new one's last value.

    One that was seen only later had grown by then: that a new one has less is no sign of anything.
    """
    oldest = max(start.times[-1] - start.generation.started_at for start in after)
    return all(start.times[0] - start.generation.started_at <= oldest for start in before)


def _names(starts: Iterable[Start]) -> set[str]:
    return set[str]().union(*(sample.measures for start in starts for sample in start.samples))
