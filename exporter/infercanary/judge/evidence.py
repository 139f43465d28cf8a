"""What else moved between the runs that are compared: controls, siblings, waiting, clock, phases and tags."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from infercanary.contract.vocabulary import POOL_COMPONENTS
from infercanary.judge.crowding import Crowding, crowding
from infercanary.judge.model import Generation, Pair, Sample, Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.shift import Restarts, Shift
from infercanary.judge.statistics import Series, pool, pool_parts

NO_RESTART = Restarts(0.0, math.inf)
"""Of what did not start anew between, or is not affected: a sibling, a control."""


class Evidence(NamedTuple):
    """What else moved between the same runs."""

    controls: Mapping[str, Shift]
    siblings: Shift | None
    waiting: Shift | None
    """The part of the shift that is waiting for CPUs that others had, in the container or on the host; None where it is
    not known."""
    whole: Shift | None
    """The shift of the same runs with that waiting in it, without what restarts do."""
    crowding: Crowding | None
    """Who had those CPUs; None where that is not known."""
    felt_by: int
    """How many siblings ``siblings`` is of."""
    clock: Shift | None
    phases: Mapping[str, float]
    """Phase → what it adds to the change, as a share of the whole, in order of appearance."""
    tags: Mapping[str, tuple[float, float]]
    """Tag → the share of runs that had it before and after."""


def evidence(compared: Sequence[Pair], beside: Sequence[Pair] = (), policy: Policy = LIVE) -> Evidence:
    """What moved between the starts of ``compared``.

    Args:
        compared: For each replica its starts before and after.
        beside: The same of siblings, whose image did not change.
        policy: The fewest runs of a start.

    Returns:
        Shifts are logarithms, without what restarts do; that of a control with too few runs has an infinite error.
    """
    both = [_flat(getattr(pair, side) for pair in compared) for side in ("before", "after")]
    names = _names(both, lambda s: s.controls)
    whole, waiting = _waiting(compared, policy)
    felt = [shift for pair in beside if math.isfinite((shift := _shift([pair], _median, policy)).se)]
    received = _shift(compared, lambda sample: sample.received, policy)
    newest = [_last(getattr(pair, side) for pair in compared) for side in ("before", "after")]
    single = all(threads(start.generation) == "1" for start in newest)
    return Evidence(
        controls={name: _shift(compared, _control(name), policy) for name in names},
        siblings=_siblings(felt),
        felt_by=len(felt),
        # Of several threads the one that runs the canary knows only its own waiting.
        waiting=waiting if single else None,
        whole=whole if single else None,
        crowding=crowding(both[0], both[1], _split(compared, policy), received, policy),
        clock=_clock(compared, policy),
        phases=_phases(both),
        tags=_tags(both),
    )


def _siblings(each: Sequence[Shift]) -> Shift | None:
    """How far siblings moved: the one in the middle, as surely as they agree.

    Any of them may have changed by itself at that time. So none is weighted by how quiet it is, and those that do not
    agree tell little: the error is that of a median, by the spread of the siblings (1.4826 median absolute deviations
    are an SD of normal values, and a median's error is sqrt(pi / 2) of a mean's) or by their own, whichever is larger.
    """
    if len(each) < 2:
        return each[0] if each else None
    middle = median(shift.log for shift in each)
    spread = 1.4826 * median(abs(shift.log - middle) for shift in each)
    own = median(shift.se for shift in each)
    error = math.sqrt(math.pi / 2 / len(each)) * max(spread, own)
    return Shift(middle, error, min(shift.df for shift in each))


def _waiting(compared: Sequence[Pair], policy: Policy) -> tuple[Shift, Shift] | tuple[None, None]:
    """A shift, and the part of it that is waiting for CPUs that others had; None where that is not known.

    What is left without the waiting is measured in the same runs. No control tells of it: one is over before the
    scheduler takes its CPU away.
    """
    running = _shift(compared, _running, policy)
    # Of the same runs, and weighted alike: those that a quota held back are in neither.
    whole = _shift(compared, lambda sample: sample.median if _running(sample) is not None else None, policy)
    if not math.isfinite(running.se):
        return None, None
    return whole, Shift(whole.log - running.log, running.se, running.df)


def _split(compared: Sequence[Pair], policy: Policy) -> tuple[float, float]:
    """How much of the shift is waiting for others inside the container, and for others outside (logarithms)."""

    def of(value: Value) -> float:
        known = _shift(
            compared, lambda s: value(s) if s.crowded is not None and _running(s) else None, policy
        )
        return known.log if math.isfinite(known.se) else 0.0

    shared = of(lambda s: (s.median or 0.0) - (s.waited or 0.0))
    return shared - of(_running), of(_median) - shared


def _clock(compared: Sequence[Pair], policy: Policy) -> Shift | None:
    """How much of the shift the SM clock explains: its own shift, times how far latency followed it within starts.

    The slope is least squares' about each start's means, held between 0 (memory-bound) and -1 (compute-bound).
    """
    clock = _shift(compared, lambda sample: sample.sm_clock, policy)
    if not math.isfinite(clock.se):
        return None
    products = squares = 0.0
    for pair in compared:
        for start in (*pair.before, *pair.after):
            points = [
                (math.log(s.sm_clock), math.log(s.median)) for s in start.samples if s.sm_clock and s.median
            ]
            if len(points) < 2:
                continue
            x, y = (math.fsum(values) / len(points) for values in zip(*points, strict=True))
            products += math.fsum((a - x) * (b - y) for a, b in points)
            squares += math.fsum((a - x) ** 2 for a, _ in points)
    # A clock that never moved within a start shows no slope; then it explains as if the canary were compute-bound.
    slope = max(-1.0, min(0.0, products / squares)) if squares > 1e-9 else -1.0
    return Shift(slope * clock.log, abs(slope) * clock.se, clock.df)


def _phases(both: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """What each phase adds to the change, as a share of the whole: levels in seconds, so that shares can be summed."""
    before, after = both
    whole = _level(after, _median) - _level(before, _median)
    if not whole:
        return {}
    names = _names(both, lambda s: s.phases)
    return {name: (_level(after, _phase(name)) - _level(before, _phase(name))) / whole for name in names}


def _tags(both: Sequence[Sequence[Sample]]) -> dict[str, tuple[float, float]]:
    """Of each tag that runs have now, the share of runs that had it before and have it now."""
    before, after = (
        {tag: count / len(runs) for tag, count in Counter(tag for run in runs for tag in run.tags).items()}
        for runs in both
    )
    return {tag: (before.get(tag, 0.0), share) for tag, share in sorted(after.items())}


Value = Callable[[Sample], "float | None"]


def _median(sample: Sample) -> float | None:
    return sample.median


def _running(sample: Sample) -> float | None:
    """What it took without waiting for a CPU."""
    if sample.median is None or sample.waited is None:
        return None
    waited = sample.waited + (sample.crowded or 0.0)
    return sample.median - waited if waited < sample.median else None


def _control(name: str) -> Value:
    return lambda sample: sample.controls.get(name)


def _phase(name: str) -> Value:
    return lambda sample: sample.phases.get(name)


def _shift(compared: Iterable[Pair], value: Value, policy: Policy) -> Shift:
    """Of a value of each run, for what restarts do not affect."""

    def points(starts: Sequence[Start]) -> list[Series]:
        each = ([x for s in start.samples if (x := value(s)) is not None and x > 0] for start in starts)
        return [Series.of(found, policy=policy) for found in each if found]

    both = [(points(pair.before), points(pair.after)) for pair in compared]
    both = [(before, after) for before, after in both if before and after]
    found = pool(both, NO_RESTART, policy)
    if not math.isfinite(found.se) and (few := pool_parts(both, NO_RESTART, policy)) is not None:
        return (
            few.shift
        )  # a change may be called before a start has enough runs to show their noise by themselves
    return found


def _names(both: Sequence[Sequence[Sample]], of: Callable[[Sample], Mapping[str, float]]) -> list[str]:
    """Those on both sides, in order of appearance."""
    before, after = both
    there = {name for sample in after for name in of(sample)}
    return [name for name in dict.fromkeys(n for sample in before for n in of(sample)) if name in there]


def _flat(sides: Iterable[Sequence[Start]]) -> list[Sample]:
    return [sample for starts in sides for start in starts for sample in start.samples]


def _level(samples: Iterable[Sample], value: Value) -> float:
    values = [x for sample in samples if (x := value(sample)) is not None]
    return median(values) if values else 0.0


def _last(sides: Iterable[Sequence[Start]]) -> Start:
    """Which began last."""
    return sorted((start for starts in sides for start in starts), key=lambda s: s.generation.started_at)[-1]


def threads(generation: Generation) -> str:
    """How many threads the engine computes with, as it reports them.

    Args:
        generation: A start.

    Returns:
        A number as text; `1` where no engine reports one.
    """
    names = POOL_COMPONENTS["intra_op"]
    return next((generation.environment[name] for name in names if name in generation.environment), "1")
