"""The verdict on one canary of one service: since which upgrade, on which runs, after how many looks.

Pure, and without memory: the same records give the same verdict, so that nothing of it can be lost. The looks are
replayed each time, with all that is known by now: a start that came later adds its first runs to each of them, and what
restarts have taught since counts. So evidence that comes late may take back a call that was made early.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import mean, median
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from infercanary.judge import statistics
from infercanary.judge.causes import (
    BASELINE_RUNS,
    Causes,
    Pair,
    Part,
    Start,
    at_once,
    find,
    in_step,
    whose,
)
from infercanary.judge.host import Steadied, steadied
from infercanary.judge.restarts import restarts_of
from infercanary.judge.statistics import CHANGED, FEWEST, Comparison, Restarts, Series
from infercanary.judge.upgrade import Upgrade, image_name, last_upgrade, speaking

State = Literal["settling", "no_baseline", "inconclusive", "equivalent", "regressed", "improved"]
STATES: tuple[State, ...] = get_args(State)

_LEVELS = statistics.look_levels()
_BASELINE_STARTS = 8  # of a container: the latest
_SHOWN = 120  # points a side in a picture
_UNKNOWN = statistics.Shift(math.nan, math.inf, 0.0)
_WITNESSES = 4  # siblings that are heard
_APART = 0.015  # logarithms, by which siblings may disagree
_MOST_TAKEN_OUT = 0.75  # of a shift, by which taking out the host's wander may have changed it


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict with what it rests on. Shifts are ratios (0.05 is 5 % slower), times Unix seconds."""

    state: State
    upgraded_at: float | None = None
    shift: float | None = None
    low: float | None = None
    high: float | None = None
    baseline_seconds: float | None = None
    current_seconds: float | None = None
    baseline_image: str = ""
    candidate_image: str = ""
    causes: Causes = Causes()
    rollback: bool = False
    siblings: int = 0
    """Of these it was taken out what they felt of the host at the same moments; 0 where that was not needed."""
    own: Part | None = None
    """After a rollback: the shift against what the same image did before."""
    restart_sd: float = statistics.PRIOR.sd
    runs: int = 0
    """Of the new image, that counted at the last look; before the first one, those of the start that has most."""
    starts: int = 0
    """Generations of both images that counted."""
    next_look: int | None = None
    """At how many runs of a start the judge looks again; None after the last look."""
    medians: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    """Seconds, before and after, in order of time: what a picture shows."""


def judge(starts: Sequence[Start], siblings: Sequence[Start], canary: str) -> Judgement:
    """The verdict on ``canary``: ``starts`` of its service in order of time, ``siblings`` of others on the host."""
    upgrade = last_upgrade(starts)
    restarts = restarts_of(starts)
    if upgrade is None:
        last = next((start.generation for start in reversed(speaking(starts))), None)
        return Judgement(
            state="no_baseline", candidate_image=image_name(last), restart_sd=restarts.sd, runs=_count(starts)
        )
    reading = _read(upgrade, restarts)
    reached = max((len(start.samples) for start in upgrade.after), default=0)
    old, new = (side[-1].generation if side else None for side in (upgrade.before, upgrade.after))
    known = at_once(upgrade.before, speaking(upgrade.after), canary)
    told = Judgement(
        state=reading.state,
        upgraded_at=upgrade.at,
        baseline_image=image_name(old),
        candidate_image=image_name(new),
        causes=known,
        rollback=bool(upgrade.own),
        restart_sd=restarts.sd,
        runs=reached,
        starts=len(upgrade.before) + len(upgrade.after),
        next_look=next((runs for runs in statistics.LOOKS if runs > reached), None),
    )
    if not any(len(start.samples) >= FEWEST for start in upgrade.before):
        return msgspec.structs.replace(told, state="no_baseline")
    if not math.isfinite(reading.shift.se):
        return told
    # Up to the last run that is judged: what siblings feel days later is no part of this shift.
    until = max(s.started_at for pair in reading.pairs for start in pair.after for s in start.samples)
    witnesses = _Witnesses(starts, siblings, upgrade.at)
    beside = [_around(start, upgrade.at, until) for start in witnesses.siblings]
    causes = find(
        reading.shift, reading.pairs, [pair for pair in beside if pair.after[0].samples], canary, known
    )
    measured, after = reading.pairs, upgrade.after  # what people are shown is as it was
    if reading.state == "inconclusive" and (calm := _calmed(witnesses, upgrade, reading)) is not None:
        raw, (reading, upgrade, restarts) = reading, calm
        causes = _without_host(causes, raw, reading)
    return msgspec.structs.replace(
        told,
        state=reading.state,
        shift=reading.seen.shift,
        low=reading.seen.low,
        high=reading.seen.high,
        baseline_seconds=_level(start for pair in measured for start in pair.before),
        current_seconds=_level(start for pair in measured for start in pair.after),
        causes=causes,
        restart_sd=restarts.sd,
        runs=_count(start for pair in reading.pairs for start in pair.after),
        starts=sum(len(pair.before) + len(pair.after) for pair in reading.pairs),
        siblings=reading.siblings,
        own=_own(upgrade, restarts),
        medians=(
            _picture(start for pair in measured for start in pair.before)[-_SHOWN:],
            _picture(after)[:_SHOWN],
        ),
    )


class Trial(NamedTuple):
    """The judge was tried on a restart of one image, after so many looks, and called a change or did not."""

    looks: int
    called: bool


Trials: TypeAlias = Mapping[tuple[str, str], Trial]
"""By the container and the boot id of the start that was tried."""


def trials(
    starts: Sequence[Start],
    siblings: Sequence[Start] = (),
    known: Trials = MappingProxyType({}),
    most: float = math.inf,
) -> Trials:
    """The judge tried on each start of an image whose container had started it before, ``known`` trials among them.

    The judge's own A/A test: nothing changed, so each call is a false alarm. Each is tried with what was known then: a
    wild restart that is already counted in how much starts differ would excuse itself. What was known then does not
    change, and so a trial is made anew only where its start has reached another look; ``most`` of them in one go.
    """
    left = most
    found: dict[tuple[str, str], Trial] = {}
    earlier: dict[tuple[str, str], list[Start]] = {}
    for place, start in enumerate(starts):
        g = start.generation
        key = g.container, g.boot_id
        before = earlier.setdefault((g.container, g.image_key), [])
        looks = sum(runs <= len(start.samples) for runs in statistics.LOOKS)
        if key in known and known[key].looks >= looks:
            found[key] = known[key]
        elif left > 0 and before and min(len(before[-1].samples), len(start.samples)) >= statistics.LOOKS[1]:
            left -= 1
            after = Start(msgspec.structs.replace(g, image_id=f"{g.image_key}, tried"), start.samples)
            past = [*starts[:place], after]
            upgrade = Upgrade(g.started_at, [*before], [after], [])
            reading = _read(upgrade, restarts_of(past))
            if reading.state == "inconclusive":
                calm = _calmed(_Witnesses(past, siblings, upgrade.at), upgrade, reading)
                reading = reading if calm is None else calm.reading
            found[key] = Trial(looks, reading.state in CHANGED)
        elif key in known:
            found[key] = known[key]  # until its turn comes
        before.append(start)
    return found


class _Reading(NamedTuple):
    """What the looks so far say, and what the last of them rests on."""

    state: State
    shift: statistics.Shift
    seen: Comparison
    pairs: Sequence[Pair]
    siblings: int = 0


def _read(upgrade: Upgrade, restarts: Restarts, slope_error: float = 0.0, siblings: int = 0) -> _Reading:
    reached = max((len(start.samples) for start in upgrade.after), default=0)
    looks = [
        _pairs(upgrade.before, _first(upgrade.after, runs)) for runs in statistics.LOOKS if runs <= reached
    ]
    state, shift, seen = _replayed(looks, restarts, slope_error)
    return _Reading(
        state, shift or _UNKNOWN, seen or statistics.judge(_UNKNOWN), looks[-1] if looks else (), siblings
    )


class _Calm(NamedTuple):
    """What is left without the host's wander."""

    reading: _Reading
    upgrade: Upgrade
    restarts: Restarts


class _Witnesses:
    """What siblings tell of the host, all of them together and each alone; worked out where it is asked for."""

    def __init__(self, starts: Sequence[Start], siblings: Sequence[Start], at: float) -> None:
        self._starts = starts
        self.siblings = [
            s for s in siblings if s.samples and s.samples[0].started_at < at <= s.samples[-1].started_at
        ]
        """That ran before that time and after."""

    @cached_property
    def together(self) -> Steadied | None:
        return steadied(self._starts, self.siblings[:_WITNESSES])

    @cached_property
    def alone(self) -> list[Steadied]:
        each = (steadied(self._starts, [sibling]) for sibling in self.siblings[:_WITNESSES])
        return [calm for calm in each if calm is not None]


def _calmed(witnesses: _Witnesses, upgrade: Upgrade, raw: _Reading) -> _Calm | None:
    """What is left without the host's wander, if that is an answer.

    A sibling may change by itself, which would be laid to this canary with the sign turned: so it takes two, each of
    which alone tells about the same, and what is called must be seen in the runs as they are too.
    """
    calm = _without(witnesses.together, upgrade)
    if calm is None or calm.reading.state not in (*CHANGED, "equivalent"):
        return None
    log = calm.reading.shift.log
    if calm.reading.state in CHANGED and abs(raw.shift.log - log) > _MOST_TAKEN_OUT * abs(log):
        return None
    alone = [each for witness in witnesses.alone if (each := _without(witness, upgrade)) is not None]
    apart = max(_APART, abs(log) / 2)
    agree = len(alone) > 1 and all(abs(each.reading.shift.log - log) <= apart for each in alone)
    return calm if agree else None


def _without(calm: Steadied | None, upgrade: Upgrade) -> _Calm | None:
    """A reading without what siblings felt; None where they do not tell that of every new start."""
    if calm is None:
        return None
    left = {(s.generation.container, s.generation.boot_id): s for s in calm.starts}

    def same(several: Sequence[Start]) -> list[Start]:
        keys = ((s.generation.container, s.generation.boot_id) for s in several)
        return [left[key] for key in keys if key in left]

    steady = Upgrade(upgrade.at, same(upgrade.before), same(upgrade.after), same(upgrade.own))
    judged = [start for start in upgrade.after if len(start.samples) >= FEWEST]
    if len(steady.after) < len(judged) or not steady.before:
        return None
    before, after = (
        mean(calm.levels[s.generation.boot_id] for s in side) for side in (steady.before, steady.after)
    )
    restarts = restarts_of(calm.starts)
    return _Calm(
        _read(steady, restarts, abs(after - before) * calm.slope_se, calm.siblings), steady, restarts
    )


def _without_host(causes: Causes, raw: _Reading, calm: _Reading) -> Causes:
    """The causes where the host's wander was taken out: that is its part, and what is left is the image's.

    But for what a control of the container's own moved by beyond that wander: no sibling feels a quota, or other cores.
    """
    left, felt = calm.shift.log, raw.shift.log - calm.shift.log
    of_host = in_step(causes.changes)
    moved = [math.log1p(shift) for name, shift in causes.controls.items() if name in of_host]
    # What it shares with the siblings is the wander, all of it where they felt more.
    beyond = [
        math.copysign(max(0.0, abs(log) - (abs(felt) if log * felt > 0 else 0.0)), log) for log in moved
    ]
    share = min(1.0, max((log / left for log in beyond if log * left > 0), default=0.0))
    image = statistics.judge(calm.shift._replace(log=(1 - share) * left))
    host = statistics.judge(calm.shift._replace(log=felt + share * left))
    return msgspec.structs.replace(
        causes,
        cause=whose(share) if calm.state in CHANGED else causes.cause,
        image=Part(image.shift, image.low, image.high),
        host=Part(host.shift, host.low, host.high),
    )


def _replayed(
    looks: Sequence[Sequence[Pair]], restarts: Restarts, slope_error: float = 0.0
) -> tuple[State, statistics.Shift | None, Comparison | None]:
    """The state after these looks, and the shift that the last one saw; ``slope_error`` widens its interval."""
    state: State = "settling"
    shift: statistics.Shift | None = None
    previous: Comparison | None = None
    for pairs, level in zip(looks, _LEVELS, strict=False):
        shift = statistics.pool(_medians(pairs), restarts)
        shift = shift._replace(se=math.hypot(shift.se, slope_error))
        seen = statistics.judge(shift, restart_sd=restarts.sd, level=level)
        state, previous = _next(state, seen, previous), seen
    return state, shift, previous


def _next(state: State, seen: Comparison, previous: Comparison | None) -> State:
    """A change is called at the second look in a row that shows it, and taken back likewise."""
    twice = previous is not None and previous.verdict == seen.verdict
    if seen.verdict in CHANGED:
        return seen.verdict if twice else state if state in CHANGED else "inconclusive"
    if state in CHANGED and not (seen.verdict == "equivalent" and twice):
        return state
    return seen.verdict


def _pairs(before: Sequence[Start], after: Sequence[Start]) -> list[Pair]:
    """By container, so that what differs between replicas drops out; those with new names have the others' baseline."""
    old: dict[str, list[Start]] = {}
    for start in before:
        if len(start.samples) >= FEWEST:
            old.setdefault(start.generation.container, []).append(start.latest)
    new: dict[str, list[Start]] = {}
    for start in after:
        if len(start.samples) >= FEWEST:
            new.setdefault(start.generation.container, []).append(start)
    orphans = [start for name, group in old.items() if name not in new for start in group[-_BASELINE_STARTS:]]
    every = [start for group in old.values() for start in group[-_BASELINE_STARTS:]]
    pairs = [Pair(old[name][-_BASELINE_STARTS:], group) for name, group in new.items() if name in old]
    # Those with new names are one pair: a baseline that several share is one measurement, not several. So where they
    # have it to share with those of old names, all are one.
    named_anew = [start for name, group in new.items() if name not in old for start in group]
    if not named_anew or not every:
        return pairs
    if not orphans:
        return [Pair(every, [start for group in new.values() for start in group])]
    return [*pairs, Pair(orphans, named_anew)]


def _own(upgrade: Upgrade, restarts: Restarts) -> Part | None:
    pairs = _pairs(upgrade.own, upgrade.after)
    shift = statistics.pool(_medians(pairs), restarts)
    if not pairs or not math.isfinite(shift.se):
        return None
    seen = statistics.judge(shift, restart_sd=restarts.sd)
    return Part(seen.shift, seen.low, seen.high)


def _around(start: Start, at: float, until: float) -> Pair:
    """A start that went on, before and after that time."""
    before = [s for s in start.samples if s.started_at < at][-BASELINE_RUNS:]
    after = [s for s in start.samples if at <= s.started_at <= until]
    return Pair([Start(start.generation, before)], [Start(start.generation, after)])


def _first(starts: Iterable[Start], runs: int) -> list[Start]:
    return [Start(start.generation, start.samples[:runs]) for start in starts]


def _medians(pairs: Iterable[Pair]) -> list[tuple[list[Series], list[Series]]]:
    return [([s.medians for s in pair.before], [s.medians for s in pair.after]) for pair in pairs]


def _picture(starts: Iterable[Start]) -> tuple[float, ...]:
    """The medians of all, in order of time."""
    ordered = sorted((s.started_at, s.median) for start in starts for s in start.samples if s.median)
    return tuple(value for _, value in ordered)


def _level(starts: Iterable[Start]) -> float | None:
    values = [s.median for start in starts for s in start.samples if s.median]
    return median(values) if values else None


def _count(starts: Iterable[Start]) -> int:
    return sum(sample.runs for start in starts for sample in start.samples)
