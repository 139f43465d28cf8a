"""Why a latency changed: the host or the image, which phase, which control, which version. Pure: records in, facts out.

The control of an experiment is what the treatment cannot touch (difference in differences; Angrist and Pischke,
"Mostly Harmless Econometrics", 2009, chapter 5). Here the treatment is the new image, and two things it cannot touch:

- the controls, tiny work that is the same in every image, run in the same container after each canary run;
- sibling containers of the same host whose image did not change.

What they share with the canary is the host's part of a shift; the rest is the image's. A control answers to one
resource alone, and a canary to several: so a control's shift bounds the host's part, it is not multiplied by anything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from infercanary.contract.report import OUTPUT_TOLERANCE, relative_error
from infercanary.contract.vocabulary import (
    CONTROLS,
    DEVICE_COMPONENTS,
    IN_STEP,
    POOL_COMPONENTS,
    PREEMPTED,
    order_of_interest,
)
from infercanary.judge.model import Generation, Sample
from infercanary.judge.statistics import Restarts, Series, Shift, pool

Floats: TypeAlias = NDArray[np.float64]

BASELINE_RUNS = 240  # of a start: the latest
OPENING_RUNS = 48
_MOVED = math.log1p(0.03)
_PHASE_SHARE = 0.25  # of the change, from which on a phase is named
_TAG_SHARE = 0.2  # by which the share of runs with a tag must rise
_LEVEL = 0.95
_SIGMAS = 2.6
# Who waits for a CPU finds cold caches and a busy core afterwards, and computes slower for that. A switch costs from
# microseconds to more than a millisecond (Li, Ding, Shen, "Quantifying the cost of context switch", ExpCS 2007), where
# a turn of the scheduler lasts a few: as much again at most, and that is what is laid to the host, since a false alarm
# costs more than a late one.
_WAITING = 2.0
_MOST = 0.75  # of a shift: who made so much of it made it
_COLD_START = 1.25  # slower by a quarter
_COLD_START_SECONDS = 1.0  # and by so much


@dataclass(frozen=True)
class Start:
    """One start of one container, with the runs of one canary that count: steady ones that ended well, in order."""

    generation: Generation
    samples: Sequence[Sample]
    last_at: float | None = None
    """When its last run began (Unix seconds), whatever came of it; None where only those that count are known."""

    @classmethod
    def of(cls, generation: Generation, samples: Sequence[Sample]) -> Start:
        """From all its runs, in order."""
        last = samples[-1].started_at if samples else None
        return cls(generation, [sample for sample in samples if sample.is_settled], last)

    @cached_property
    def medians(self) -> Series:
        """What is compared, again and again: of each run its point."""
        return Series.of([s.median for s in self.samples if s.median])

    @cached_property
    def times(self) -> Floats:
        """When each run began, in Unix seconds."""
        return np.array([s.started_at for s in self.samples])

    @cached_property
    def logs(self) -> Floats:
        """Of each run's median in seconds."""
        return np.log([s.median or math.nan for s in self.samples])

    @cached_property
    def latest(self) -> Start:
        """With its last runs only: what it is a baseline by."""
        recent = len(self.samples) <= BASELINE_RUNS
        return self if recent else Start(self.generation, self.samples[-BASELINE_RUNS:])

    @cached_property
    def opening(self) -> Start:
        """With its first runs only: how it began."""
        return Start(self.generation, self.samples[:OPENING_RUNS])


class Pair(NamedTuple):
    """The starts of one replica before and after."""

    before: Sequence[Start]
    after: Sequence[Start]


class Part(msgspec.Struct, frozen=True):
    """A share of a shift and its interval, as ratios."""

    shift: float
    low: float
    high: float


class Change(msgspec.Struct, frozen=True):
    """A component of the environment; None where there is none."""

    component: str
    before: str | None
    after: str | None


class Causes(msgspec.Struct, frozen=True):
    """What is known of why a canary's latency moved."""

    host: Part | None = None
    """None where nothing can tell: no control ran and no sibling was there."""
    image: Part | None = None
    cause: str = "unknown"
    """image, host, both or unknown."""
    phases: dict[str, float] = {}
    """Phase → its share of the change; those that made a quarter of it or more, the largest first."""
    controls: dict[str, float] = {}
    """Control → its shift; empty where all were flat, or none ran."""
    has_controls: bool = False
    """Whether some control ran before and after."""
    siblings: Part | None = None
    """How far the containers moved whose image did not change."""
    clock: Part | None = None
    """What the SM clock explains of the shift."""
    changes: tuple[Change, ...] = ()
    tags: dict[str, tuple[float, float]] = {}
    """Tag → the share of runs that had it before and after; those that rose."""
    cold_start: dict[str, tuple[float, float]] = {}
    """Step → seconds before and after; those that became slower."""
    output_error: float | None = None
    """Relative error of the first steady output against the old image's; None where one of them is not known."""
    cpu_fallback: bool = False
    """It ran on a GPU before, and on the CPU now."""

    @property
    def output_changed(self) -> bool:
        """Whether the same input gives another answer now."""
        return (self.output_error or 0.0) > OUTPUT_TOLERANCE


def find(
    shift: Shift, pairs: Sequence[Pair], siblings: Sequence[Pair], canary: str, known: Causes | None = None
) -> Causes:
    """The causes of ``shift`` of ``canary``, which ``pairs`` gave.

    ``siblings`` are canaries of the same host that went on with their image, before and after that time. ``known`` is
    what needs no look, where there are starts beyond ``pairs``: with too few runs yet, or too slow to have more.
    """
    controls = {name: _shift(pairs, _control(name)) for name in _names(pairs, lambda s: s.controls)}
    moved = {name: s for name, s in controls.items() if _has_moved(s)}
    beside = siblings_part(siblings)
    tags = risen_tags(pairs)
    sides = [_in_time(getattr(pair, side) for pair in pairs) for side in ("before", "after")]
    known = known or at_once(sides[0], sides[1], canary)
    # Of several threads the one that runs the canary tells only its own waiting.
    waiting = _waiting(pairs) if all(_threads(side[-1].generation) == "1" for side in sides) else None
    of_host = in_step(known.changes)
    host = host_part(
        shift,
        {n: s for n, s in controls.items() if n in of_host},
        beside,
        waits=PREEMPTED in tags and waiting is None,
    )
    if waiting is not None and _has_moved(waiting) and waiting.log * shift.log > 0:
        whole = _WAITING * abs(waiting.log) >= abs(shift.log)
        felt = shift if whole else Shift(_WAITING * waiting.log, _WAITING * waiting.se, waiting.df)
        host = felt if host is None or abs(felt.log) > abs(host.log) else host
    image = None if host is None else Shift(shift.log - host.log, math.hypot(shift.se, host.se), shift.df)
    return msgspec.structs.replace(
        known,
        host=_part(host),
        image=_part(image),
        cause=_cause(shift, host, image),
        phases=phase_shares(pairs),
        controls={name: math.expm1(s.log) for name, s in moved.items()},
        has_controls=any(math.isfinite(s.se) for s in controls.values()),
        siblings=_part(beside),
        clock=_part(clock_part(pairs)),
        tags=tags,
        cold_start=slower_starts(pairs, canary),
    )


def at_once(before: Sequence[Start], after: Sequence[Start], canary: str) -> Causes:
    """What needs no look: whatever the runs will say, these starts differ already.

    Of each container ``after`` its newest start counts, against its last one ``before`` or, where that had another
    name, the last of all: one replica alone may have come back without its GPU.
    """
    if not before or not after:
        return Causes()
    own = {start.generation.container: start.generation for start in before}
    newest = {start.generation.container: start.generation for start in after}
    pairs = [(own.get(name, before[-1].generation), new) for name, new in newest.items()]
    errors = [error for old, new in pairs if (error := _output_error(old, new, canary)) is not None]
    return Causes(
        changes=changes(before[-1].generation.environment, after[-1].generation.environment),
        output_error=max(errors, default=None),
        cpu_fallback=any(fell_back(old, new) for old, new in pairs),
    )


def host_part(
    shift: Shift, controls: Mapping[str, Shift], siblings: Shift | None, *, waits: bool = False
) -> Shift | None:
    """The part of ``shift`` that what the image cannot touch has moved by too.

    Siblings do such work as the canary, and so what they agree on is taken at its word. Controls that stood still say
    that the host did not change; where one moved the same way as the canary, the host's part is what it moved by, or
    what siblings did, which feel more than one resource: the larger, at most all.

    Where the canary now ``waits`` for CPUs and anything else slowed too, all of it is the host's: how long one waits
    depends on its threads and on how long it runs, and no other's wait measures it.
    """
    known = [s for s in controls.values() if math.isfinite(s.se)]
    others = [] if siblings is None else [siblings]
    moved, beside = ([s for s in each if _has_moved(s) and s.log * shift.log > 0] for each in (known, others))
    if waits and shift.log > 0 and (moved or beside):
        return shift
    if moved:
        most = max((*moved, *beside), key=lambda s: abs(s.log))
        return most if abs(most.log) < abs(shift.log) else Shift(shift.log, most.se, most.df)
    if siblings is not None and _has_moved(siblings):
        return siblings
    flat = [*known, *others]
    return min(flat, key=lambda s: s.se)._replace(log=0.0) if flat else None


def in_step(changes: Iterable[Change]) -> frozenset[str]:
    """The controls whose shift is the host's, between images that differ by ``changes``: not those made of these."""
    changed = {change.component for change in changes}
    return IN_STEP - {control.name for control in CONTROLS.values() if control.made_of in changed}


def joined(starts: Iterable[Start]) -> list[Start]:
    """The starts of one container (in order of time), of each image as one: as siblings they tell of the host."""
    images: dict[str, list[Start]] = {}
    for start in starts:
        images.setdefault(start.generation.image_key, []).append(start)
    return [Start(group[-1].generation, _flat([group])) for group in images.values()]


def siblings_part(siblings: Sequence[Pair]) -> Shift | None:
    """How far siblings moved: the one in the middle, as surely as they agree.

    Any of them may have changed by itself at that time. So none is weighted by how quiet it is, and those that do not
    agree tell little: the error is that of a median, by the spread of the siblings (1.4826 median absolute deviations
    are an SD of normal values, and a median's error is sqrt(pi / 2) of a mean's) or by their own, whichever is larger.
    """
    each = [shift for pair in siblings if math.isfinite((shift := _shift([pair], _median)).se)]
    if len(each) < 2:
        return each[0] if each else None
    middle = median(shift.log for shift in each)
    spread = 1.4826 * median(abs(shift.log - middle) for shift in each)
    own = median(shift.se for shift in each)
    error = math.sqrt(math.pi / 2 / len(each)) * max(spread, own)
    return Shift(middle, error, min(shift.df for shift in each))


def phase_shares(pairs: Sequence[Pair]) -> dict[str, float]:
    """What each phase adds to the change, as a share of the whole: levels in seconds, so that shares can be summed."""
    before, after = (_flat(getattr(pair, side) for pair in pairs) for side in ("before", "after"))
    whole = _level(after, _median) - _level(before, _median)
    if not whole:
        return {}
    names = _names(pairs, lambda s: s.phases)
    shares = {name: (_level(after, _phase(name)) - _level(before, _phase(name))) / whole for name in names}
    named = {name: share for name, share in shares.items() if share >= _PHASE_SHARE}
    return dict(sorted(named.items(), key=lambda item: -item[1]))


def clock_part(pairs: Sequence[Pair]) -> Shift | None:
    """How much of the shift the SM clock explains: its own shift, times how far latency followed it within starts.

    The slope is least squares' about each start's means, held between 0 (memory-bound) and -1 (compute-bound).
    """
    clock = _shift(pairs, lambda sample: sample.sm_clock)
    if not math.isfinite(clock.se):
        return None
    products = squares = 0.0
    for pair in pairs:
        for start in (*pair.before, *pair.after):
            points = [
                (math.log(s.sm_clock), math.log(s.median)) for s in start.samples if s.sm_clock and s.median
            ]
            if len(points) < 2:
                continue
            x, y = (math.fsum(values) / len(points) for values in zip(*points, strict=True))
            products += math.fsum((a - x) * (b - y) for a, b in points)
            squares += math.fsum((a - x) ** 2 for a, _ in points)
    # A clock that never moved within a start tells no slope; then it explains as if the canary were compute-bound.
    slope = max(-1.0, min(0.0, products / squares)) if squares > 1e-9 else -1.0
    return Shift(slope * clock.log, abs(slope) * clock.se, clock.df)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    """The components that differ, those first that people ask for first."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    names.sort(key=order_of_interest)
    return tuple(Change(name, before.get(name), after.get(name)) for name in names)


def risen_tags(pairs: Sequence[Pair]) -> dict[str, tuple[float, float]]:
    """Tags that more runs have now, by a fifth of all runs or more."""
    shares = []
    for side in ("before", "after"):
        runs = _flat(getattr(pair, side) for pair in pairs)
        counted = Counter(tag for sample in runs for tag in sample.tags)
        shares.append({tag: count / len(runs) for tag, count in counted.items()})
    before, after = shares
    risen = {tag: (before.get(tag, 0.0), share) for tag, share in after.items()}
    return {tag: both for tag, both in sorted(risen.items()) if both[1] - both[0] >= _TAG_SHARE}


def slower_starts(pairs: Sequence[Pair], canary: str) -> dict[str, tuple[float, float]]:
    """Steps of the cold start that took a quarter and a second more than ever before."""
    found = {}
    sides = [[start.generation.cold_start.get(canary, {}) for pair in pairs for start in getattr(pair, side)]
             for side in ("before", "after")]  # fmt: skip
    for step in sorted({step for side in sides for start in side for step in start}):
        before, after = ([start[step] for start in side if step in start] for side in sides)
        if before and after:
            most, least = max(before), min(after)
            if least > _COLD_START * most and least - most > _COLD_START_SECONDS:
                found[step] = (median(before), median(after))
    return found


def _waiting(pairs: Sequence[Pair]) -> Shift | None:
    """The part of the shift that is waiting for CPUs that other processes had; None where it is not known.

    What is left without the waiting is measured in the same runs. No control tells of it: one is over before the
    scheduler takes its CPU away.
    """
    running = _shift(pairs, _running)
    # Of the same runs, and weighted alike: those that a quota held back are in neither.
    whole = _shift(pairs, lambda sample: sample.median if _running(sample) is not None else None)
    return Shift(whole.log - running.log, running.se, running.df) if math.isfinite(running.se) else None


def _cause(shift: Shift, host: Shift | None, image: Shift | None) -> str:
    """Who made the most of it; unknown where what should be flat was too restless to tell.

    Beside the host an image is blamed only where its part is clear of zero: that alarm is the dear one.
    """
    if host is None or image is None or not shift.log or host.se > abs(shift.log) / 2:
        return "unknown"
    whom = whose(host.log / shift.log)
    if whom == "both" and not _is_clear(image):
        return "host" if _is_clear(host) else "unknown"
    return whom


def _is_clear(part: Shift) -> bool:
    low, high = part.interval(_LEVEL)
    return low > 0 or high < 0


def whose(share: float) -> str:
    """Who made a shift of which this share is the host's: host, image or both."""
    return "host" if share >= _MOST else "image" if share <= 1 - _MOST else "both"


def _has_moved(shift: Shift) -> bool:
    """By 3 % or more, and beyond its own noise; one in a hundred that stood still passes (normal noise)."""
    return abs(shift.log) >= max(_MOVED, _SIGMAS * shift.se)


def _part(shift: Shift | None) -> Part | None:
    if shift is None:
        return None
    low, high = shift.interval(_LEVEL)
    return Part(*(math.expm1(min(x, 700.0)) for x in (shift.log, low, high)))


Value = Callable[[Sample], "float | None"]


def _median(sample: Sample) -> float | None:
    return sample.median


def _running(sample: Sample) -> float | None:
    """What it took without waiting for a CPU."""
    if sample.median is None or sample.waited is None or sample.waited >= sample.median:
        return None
    return sample.median - sample.waited


def _control(name: str) -> Value:
    return lambda sample: sample.controls.get(name)


def _phase(name: str) -> Value:
    return lambda sample: sample.phases.get(name)


def _values(pairs: Iterable[Pair], value: Value) -> list[tuple[list[list[float]], list[list[float]]]]:
    """What ``pool`` takes: for each replica the points of each start, before and after."""

    def points(starts: Sequence[Start]) -> list[list[float]]:
        each = [[x for s in start.samples if (x := value(s)) is not None and x > 0] for start in starts]
        return [found for found in each if found]

    both = ((points(pair.before), points(pair.after)) for pair in pairs)
    return [(before, after) for before, after in both if before and after]


def _shift(pairs: Sequence[Pair], value: Value) -> Shift:
    """Of what did not start anew between, or does not care: a sibling, a control."""
    return pool(_values(pairs, value), Restarts(0.0, math.inf))


def _names(pairs: Sequence[Pair], of: Callable[[Sample], Mapping[str, float]]) -> list[str]:
    """Those on both sides, in order of appearance."""
    before, after = (_flat(getattr(pair, side) for pair in pairs) for side in ("before", "after"))
    there = {name for sample in after for name in of(sample)}
    return [name for name in dict.fromkeys(n for sample in before for n in of(sample)) if name in there]


def _flat(sides: Iterable[Sequence[Start]]) -> list[Sample]:
    return [sample for starts in sides for start in starts for sample in start.samples]


def _level(samples: Iterable[Sample], value: Value) -> float:
    values = [x for sample in samples if (x := value(sample)) is not None]
    return median(values) if values else 0.0


def _in_time(sides: Iterable[Sequence[Start]]) -> list[Start]:
    return sorted((start for starts in sides for start in starts), key=lambda s: s.generation.started_at)


def _output_error(before: Generation, after: Generation, canary: str) -> float | None:
    old, new = before.outputs.get(canary), after.outputs.get(canary)
    return relative_error(new, old) if old and new else None


def _threads(generation: Generation) -> str:
    """How many the engine computes with; one where no engine tells."""
    names = POOL_COMPONENTS["intra_op"]
    return next((generation.environment[name] for name in names if name in generation.environment), "1")


def fell_back(before: Generation, after: Generation) -> bool:
    """Whether something ran on a GPU before, and all runs on the CPU now."""
    old, new = _devices(before), _devices(after)
    return "cuda" in old and new == {"cpu"}


def _devices(generation: Generation) -> set[str]:
    """The kinds of device that its canaries ran on; several are told as `cpu, cuda:0`."""
    told = ",".join(generation.environment.get(component, "") for component in DEVICE_COMPONENTS).split(",")
    return {kind for device in told if (kind := device.strip().partition(":")[0])}
