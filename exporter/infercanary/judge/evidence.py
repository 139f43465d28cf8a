"""What else moved between the runs that are compared: controls, siblings, waiting, clock, phases and tags."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from infercanary.contract.bottleneck import Limit
from infercanary.contract.vocabulary import BY_ITSELF, COMPUTE_THREADS, CONTROLS, GPU_BUSY, IN_STEP
from infercanary.judge.bottleneck import bottlenecks
from infercanary.judge.crowding import Crowding, crowding, level
from infercanary.judge.model import Generation, Pair, Sample, Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.pooling import NO_RESTART, Pooling, Replica, middle_of
from infercanary.judge.shift import Shift
from infercanary.judge.statistics import Series


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
    gpu_users: float
    """Growth of the share of runs contended on the GPU, beyond replicas on the old image; below 0
    where it fell."""
    bottlenecks: Mapping[Limit, float]
    """Resource → what it adds to the change, as a share of the whole."""


def evidence(compared: Sequence[Pair], beside: Sequence[Pair] = (), policy: Policy = LIVE) -> Evidence:
    """What moved between the starts of ``compared``.

    Args:
        compared: For each replica its starts before and after.
        beside: The same of siblings, whose image did not change.
        policy: The fewest runs of a start.

    Returns:
        Shifts are logarithms, without what restarts do; that of a control with too few runs has an infinite error.
    """
    both = _runs(compared)
    controls = {name: _shift(compared, _control(name), policy) for name in _names(both, lambda s: s.controls)}
    whole, waiting = _waiting(compared, policy)
    felt = [
        (pair.before[0].generation.host, shift)
        for pair in beside
        if not _disturbed_itself(pair, policy)
        and math.isfinite((shift := _shift([pair], _median, policy)).se)
    ]
    received = _shift(
        compared,
        lambda s: None if s.received is None else s.received + policy.attribute.idle_segments,
        policy,
    )
    single = all(threads(in_time(compared, side)[-1].generation) == "1" for side in ("old", "after"))
    siblings, clock = _beyond_concurrent(felt, compared, policy), _clock(compared, policy)
    return Evidence(
        controls=controls,
        siblings=siblings,
        felt_by=len(felt),
        # Of several threads the one that runs the canary knows only its own waiting.
        waiting=waiting if single else None,
        whole=whole if single else None,
        crowding=crowding(both[0], both[1], _split(compared, policy), received, policy),
        clock=clock,
        phases=_phases(both),
        tags=_tags(both),
        gpu_users=_gpu_users(both, compared),
        bottlenecks=bottlenecks(both[0], both[1], controls, (clock, siblings), policy),
    )


def resources(compared: Sequence[Pair], moved_with: Evidence, policy: Policy) -> dict[Limit, float]:
    """What each resource adds to a change of other runs than the evidence is of: of those without their waiting.

    Args:
        compared: For each replica its starts before and after.
        moved_with: The evidence, for controls, siblings and the clock.
        policy: From when on a control moved.

    Returns:
        Resource → its share, the largest first.
    """
    before, after = _runs(compared)
    beside = (moved_with.clock, moved_with.siblings)
    return bottlenecks(before, after, moved_with.controls, beside, policy)


def _disturbed_itself(sibling: Pair, policy: Policy) -> bool:
    """Whether more of its runs than before were held back by its own container, such as by a lower quota."""
    before, after = (
        [not BY_ITSELF.isdisjoint(sample.tags) for sample in side] for side in _runs([sibling], "before")
    )
    return bool(before and after) and fmean(after) - fmean(before) >= policy.attribute.tag_share


def _waiting(compared: Sequence[Pair], policy: Policy) -> tuple[Shift, Shift] | tuple[None, None]:
    """A shift, and the part of it that is waiting for CPUs that others had; None where that is not known.

    What is left without the waiting is measured in the same runs. No control tells of it: one is over before the
    scheduler takes its CPU away.
    """
    running = _shift(compared, _running, policy)
    # Of the same runs, and weighted alike: those whose waiting a quota may have made are in neither.
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
    whole = level(after, _median) - level(before, _median)
    if not whole:
        return {}
    names = _names(both, lambda s: s.phases)
    return {name: (level(after, _phase(name)) - level(before, _phase(name))) / whole for name in names}


def _tags(both: Sequence[Sequence[Sample]]) -> dict[str, tuple[float, float]]:
    """Of each tag, the share of runs that had it before and have it now."""
    before, after = (
        {tag: count / len(runs) for tag, count in counts.items()}
        for runs in both
        for counts in [Counter(tag for run in runs for tag in run.labelled_tags)]
    )
    return {tag: (before.get(tag, 0.0), after.get(tag, 0.0)) for tag in sorted({*before, *after})}


def _gpu_users(both: Sequence[Sequence[Sample]], compared: Iterable[Pair]) -> float:
    """By how much the share of runs with that tag grew, beyond replicas on the old image."""

    def grown(sides: Sequence[Sequence[Sample]]) -> float:
        before, after = _tags(sides).get(GPU_BUSY, (0.0, 0.0))
        return after - before

    taken_off = [pair for pair in compared if not pair.stayed]
    stayed = [grown((a.samples, b.samples)) for pair in taken_off for a, b in pair.concurrent]
    return grown(both) - (median(stayed) if stayed else 0.0)


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

    def points(start: Start) -> Series:
        return Series.of([x for s in start.samples if (x := value(s)) is not None and x > 0])

    replicas = []
    enough = policy.pool.concurrent_runs
    for pair in compared:
        beside = [(points(one.before), points(one.during)) for one in pair.concurrent]
        replicas.append(
            Replica(
                [points(s) for s in pair.before],
                [points(s) for s in pair.after],
                [
                    (old, now)
                    for old, now in beside
                    if len(old) >= policy.pool.fewest_runs and len(now) >= enough
                ],
                {place: now for place, start in pair.stayed.items() if len(now := points(start)) >= enough},
            )
        )
    return Pooling(policy.pool).shift(replicas, NO_RESTART)


def _concurrent_shift(compared: Iterable[Pair], policy: Policy) -> Shift | None:
    """What replicas moved by that stayed on the old image while the new one's starts ran; None without any."""
    pooling = Pooling(policy.pool)
    each = [pooling.beside([(a.series, b.series) for a, b in pair.concurrent]) for pair in compared]
    moved = [one.whole for one in each if one is not None]
    return middle_of(moved) if moved else None


def moved_with_controls(log: float, compared: Sequence[Pair], policy: Policy = LIVE) -> bool:
    """Whether a control that no image touches moved at least half as far, in the same direction.

    Args:
        log: How far others moved (a logarithm).
        compared: For each replica its starts before and after.
        policy: When a control has moved.
    """
    both = _runs(compared, "before")
    for name in _names(both, lambda sample: sample.controls):
        if name in IN_STEP and CONTROLS[name].made_of is None:
            moved = _shift(compared, _control(name), policy)
            if moved.has_moved(policy) and moved.log / log >= policy.attribute.restless_share:
                return True
    return False


def _beyond_concurrent(
    felt: Sequence[tuple[str, Shift]], compared: Sequence[Pair], policy: Policy
) -> Shift | None:
    """What siblings moved by beyond what replicas on the old image did: the shift is beyond that, too.

    Where both images are compared in the same minutes, siblings on a host of the old one moved neither. Of those on
    another host what they moved by counts, but if the old one's replicas moved, too, nobody knows whether they were
    unusual before or are now: that is an error of theirs.

    Args:
        felt: Host and shift of each sibling.
        compared: For each replica its starts before and after.
        policy: The fewest runs of a start, and when a replica has moved.

    Returns:
        That of the one in the middle; None without siblings.
    """
    moved = _concurrent_shift(compared, policy)
    if compared and all(pair.stayed for pair in compared):
        there = {start.generation.host for pair in compared for start in pair.old}
        has_moved = moved is not None and abs(moved.log) > policy.attribute.moved_sigmas * moved.se
        error = moved.log if moved is not None and has_moved else 0.0
        return middle_or_none(
            [
                shift._replace(log=0.0) if host in there else shift._replace(se=math.hypot(shift.se, error))
                for host, shift in felt
            ]
        )
    siblings = middle_or_none([shift for _, shift in felt])
    if siblings is None or moved is None:
        return siblings
    return Shift(siblings.log - moved.log, math.hypot(siblings.se, moved.se), min(siblings.df, moved.df))


def middle_or_none(shifts: Sequence[Shift]) -> Shift | None:
    return middle_of(shifts) if shifts else None


def _names(both: Sequence[Sequence[Sample]], of: Callable[[Sample], Mapping[str, float]]) -> list[str]:
    """Those on both sides, in order of appearance."""
    before, after = both
    there = {name for sample in after for name in of(sample)}
    return [name for name in dict.fromkeys(n for sample in before for n in of(sample)) if name in there]


def _runs(compared: Sequence[Pair], before: str = "old") -> list[list[Sample]]:
    """The runs of both sides."""
    return [
        [sample for pair in compared for start in getattr(pair, side) for sample in start.samples]
        for side in (before, "after")
    ]


def in_time(compared: Iterable[Pair], side: str) -> list[Start]:
    """The starts of one side in the order in which they began.

    Args:
        compared: For each replica its starts before and after.
        side: The attribute of a pair.
    """
    starts = [start for pair in compared for start in getattr(pair, side)]
    return sorted(starts, key=lambda start: start.generation.started_at)


def threads(generation: Generation) -> str:
    """How many threads the engine computes with, as it reports them.

    Args:
        generation: A start.

    Returns:
        A number as text; `1` where no engine reports one.
    """
    names = COMPUTE_THREADS
    return next((generation.environment[name] for name in names if name in generation.environment), "1")
