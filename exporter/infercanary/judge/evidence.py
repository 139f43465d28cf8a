"""Evidence of a cause: what else moved between the runs that are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from infercanary.contract.vocabulary import (
    BY_ITSELF,
    COMPUTE_THREADS,
    CPU_WAIT_INSIDE,
    GPU_BUSY,
)
from infercanary.judge.crowding import Crowding, computing, crowding, level
from infercanary.judge.model import Concurrent, Generation, Pair, Sample, Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.pooling import NO_RESTART, Pooling, Replica, middle_of
from infercanary.judge.shift import Shift
from infercanary.judge.statistics import Series

Value = Callable[[Sample], "float | None"]


class Evidence:
    """What else moved with a shift.

    Shifts are logarithms, without what restarts do; those of too few runs have an infinite error.

    Args:
        shift: Of the canary.
        compared: For each replica its starts before and after.
        beside: The same of siblings, whose image did not change.
        policy: When something has moved.
    """

    def __init__(
        self, shift: Shift, compared: Iterable[Pair], beside: Iterable[Pair] = (), policy: Policy = LIVE
    ) -> None:
        self.shift, self.compared, self.policy = shift, [*compared], policy
        self.old, self.new = (
            sorted((start for pair in self.compared for start in getattr(pair, side)), key=_began)
            for side in ("old", "after")
        )
        """Starts of both sides, in order of time."""
        self.before, self.after = (
            [s for start in side for s in start.samples] for side in (self.old, self.new)
        )
        # A sibling that its own container holds back more than before, such as by a lower quota, tells nothing. Where
        # both images are compared in the same minutes, a host that has both is no part of the shift.
        same = {start.generation.host for pair in self.compared if pair.stayed for start in pair.old}
        self._beside = [
            pair
            for pair in beside
            if pair.before[0].generation.host not in same
            and BY_ITSELF.isdisjoint(Evidence(shift, [pair], policy=policy).risen)
        ]

    def moved(self, shift: Shift) -> bool:
        """Whether a shift is of the smallest effect or more, and beyond its own noise."""
        return abs(shift.log) >= max(
            self.policy.decide.log_effect, self.policy.attribute.moved_sigmas * shift.se
        )

    def tells(self, shift: Shift) -> bool:
        """Whether a control or a sibling moved, or surely did not move as far as the canary did."""
        room = (self.policy.attribute.whole_share - self.share(shift)) * abs(self.shift.log)
        return self.moved(shift) or 2 * shift.se <= room

    def share(self, part: Shift) -> float:
        """A part of the shift over the whole, below 0 where it went the other way."""
        return part.log / self.shift.log if self.shift.log else 0.0

    @cached_property
    def controls(self) -> dict[str, Shift]:
        """Control → its shift."""
        return {
            name: self._shift(self.compared, lambda s, name=name: s.controls.get(name))  # type: ignore[misc]
            for name in _names(s.controls for s in self.before)
        }

    @cached_property
    def felt(self) -> list[Shift]:
        """Shifts of the siblings that tell something, beyond that of the replicas that stay on the old image."""
        pairs = [pair._replace(concurrent=self._concurrent) for pair in self._beside]
        return [shift for pair in pairs if self.tells(shift := self._shift([pair], lambda s: s.median))]

    @property
    def _concurrent(self) -> list[Concurrent]:
        """Replicas on the old image whose shift is taken off."""
        return [each for pair in self.compared if not pair.stayed for each in pair.concurrent]

    @property
    def siblings(self) -> Shift | None:
        """The shift of the sibling in the middle."""
        return middle_of(self.felt) if self.felt else None

    @property
    def awaits_siblings(self) -> bool:
        """Whether a sibling goes on that has too few runs yet, or tells nothing while new starts have few; one that is
        alone, for as long as it tells nothing."""
        few = len(self._beside) < 2 or max(len(start.samples) for start in self.new) < 24
        return any(
            self.goes_on([*pair.before[0].samples, *pair.after[0].samples])
            for pair in self._beside
            if few or not math.isfinite(self._shift([pair], lambda s: s.median).se)
        )

    def goes_on(self, samples: Sequence[Sample]) -> bool:
        """Whether a start with these runs was still running at the last run that is compared."""
        until = max((s.started_at for s in self.after), default=math.inf)
        last = [s.started_at for s in samples[-12:]]  # its recent pace: a new start runs more often at first
        return len(last) > 1 and last[-1] + self.policy.pool.gone_runs * float(np.diff(last).mean()) >= until

    @cached_property
    def is_single(self) -> bool:
        """Whether the engine computes with one thread: of several, one knows only its own waiting."""
        return all(threads(side[-1].generation) == "1" for side in (self.old, self.new))

    @cached_property
    def waiting(self) -> tuple[Shift, Shift] | None:
        """The part of the shift that is CPU wait, and the shift of the same runs.

        None where it is unknown. No control shows it: a control is over before the scheduler takes its CPU away.
        """
        if not self.is_single:
            return None
        rest = self._shift(self.compared, computing)
        # Of the same runs, and weighted alike: those whose waiting a quota may have made are in neither.
        whole = self._shift(self.compared, lambda s: s.median if computing(s) else None)
        return (Shift(whole.log - rest.log, rest.se, rest.df), whole) if math.isfinite(rest.se) else None

    @property
    def waits(self) -> bool:
        """Whether that waiting is a part of the shift."""
        return self.waiting is not None and self.moved(self.waiting[0]) and self.share(self.waiting[0]) > 0

    @cached_property
    def crowding(self) -> Crowding | None:
        """Processes that caused the CPU wait: in the container, or on the host."""
        pool, attribute = self.policy.pool, self.policy.attribute
        return crowding(self.before, self.after, pool.fewest_new_runs, attribute.more_requests)

    @property
    def is_crowded(self) -> bool:
        """Whether the canary shares the container's CPU with others inside."""
        few = 1 - self.policy.attribute.whole_share
        return CPU_WAIT_INSIDE in self.risen or (self.waits and (self.crowding or Crowding()).inside > few)

    @cached_property
    def clock(self) -> Shift | None:
        """The part of the shift that the SM clock explains: its own shift, times the slope of latency within starts.

        The slope is least squares' about each start's means, held between 0 (memory-bound) and -1 (compute-bound).
        """
        clock = self._shift(self.compared, lambda s: s.sm_clock)
        if not math.isfinite(clock.se):
            return None
        starts = [start for pair in self.compared for start in (*pair.before, *pair.after)]
        logs = [
            np.log([(s.sm_clock, s.median) for s in start.samples if s.sm_clock and s.median])
            for start in starts
        ]
        x, y = np.concatenate([points - points.mean(axis=0) for points in logs if points.size]).T
        # Without a clock that moved within a start the canary is taken for compute-bound.
        slope = max(-1.0, min(0.0, float(x @ y / (x @ x)))) if x @ x > 1e-9 else -1.0
        return Shift(slope * clock.log, abs(slope) * clock.se, clock.df)

    @cached_property
    def phases(self) -> dict[str, float]:
        """Phase → its share of the change in seconds, so that shares add up; the largest first."""
        whole = self._grown(lambda s: s.median)
        names = _names(s.phases for s in self.before) if whole else []
        shares = {name: self._grown(lambda s, name=name: s.phases.get(name)) / whole for name in names}  # type: ignore[misc]
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def _grown(self, value: Value) -> float:
        return level(self.after, value) - level(self.before, value)

    @cached_property
    def tags(self) -> dict[str, tuple[float, float]]:
        """Tag → the share of runs that had it before and after."""
        names = sorted({tag for sample in (*self.before, *self.after) for tag in sample.labelled_tags})
        return {tag: (_share_of(self.before, tag), _share_of(self.after, tag)) for tag in names}

    @property
    def risen(self) -> dict[str, tuple[float, float]]:
        """The tags of clearly more runs than before."""
        least = self.policy.attribute.tag_share
        return {tag: both for tag, both in self.tags.items() if both[1] - both[0] >= least}

    @property
    def is_beside_gpu_users(self) -> bool:
        """Whether others on the GPU may have made the shift: more runs than before met others there and took longer, or
        fewer did and took less, beyond what replicas on the old image met."""

        earlier, during = ([s for each in self._concurrent for s in each[i].samples] for i in (0, 1))
        before, after, without, then = (
            _share_of(runs, GPU_BUSY) for runs in (self.before, self.after, earlier, during)
        )
        more = after - before - (then - without)
        return abs(more) >= self.policy.attribute.tag_share and more * self.shift.log > 0

    def _shift(self, compared: Iterable[Pair], value: Value) -> Shift:
        """Shift of a value of each run that restarts do not affect."""

        def points(start: Start) -> Series:
            return Series.of([x for s in start.samples if (x := value(s)) is not None and x > 0])

        pool, replicas = self.policy.pool, []
        for pair in compared:
            beside = [(points(one.before), points(one.during)) for one in pair.concurrent]
            replicas.append(
                Replica(
                    [points(s) for s in pair.before],
                    [points(s) for s in pair.after],
                    [
                        (a, b)
                        for a, b in beside
                        if len(a) >= pool.fewest_runs and len(b) >= pool.concurrent_runs
                    ],
                    {
                        at: now
                        for at, s in pair.stayed.items()
                        if len(now := points(s)) >= pool.concurrent_runs
                    },
                )
            )
        return Pooling(pool).shift(replicas, NO_RESTART)


def threads(generation: Generation) -> str:
    """Number of threads the engine computes with, as it reports them; `1` where no engine reports one."""
    names = COMPUTE_THREADS
    return next((generation.environment[name] for name in names if name in generation.environment), "1")


def _began(start: Start) -> float:
    return start.generation.started_at


def _share_of(samples: Collection[Sample], tag: str) -> float:
    return sum(tag in sample.labelled_tags for sample in samples) / max(1, len(samples))


def _names(mappings: Iterable[Mapping[str, float]]) -> list[str]:
    """All keys, in order of appearance."""
    return [*dict.fromkeys(name for mapping in mappings for name in mapping)]
