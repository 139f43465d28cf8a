"""Evidence of a cause: what else moved between the runs that are compared."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from infercanary.contract.vocabulary import (
    BY_ITSELF,
    COMPUTE_THREADS,
    CONTROLS,
    GPU_BUSY,
)
from infercanary.judge.align import replica_of
from infercanary.judge.crowding import LATENCY, computing, crowding, level
from infercanary.judge.model import Pair, Sample, Start, have_alike_controls, medians
from infercanary.judge.policy import Policy
from infercanary.judge.pooling import NO_RESTART, Pooling, middle_of
from infercanary.judge.shift import Shift
from infercanary.judge.statistics import Series

Value: TypeAlias = Callable[[Sample], "float | None"]


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
        self, shift: Shift, compared: Sequence[Pair], beside: Iterable[Pair], policy: Policy
    ) -> None:
        self.shift, self.compared, self.policy = shift, compared, policy
        self.old, self.new = (
            [start for pair in compared for start in getattr(pair, side)] for side in ("before", "after")
        )
        self.before, self.after = _samples(self.old), _samples(self.new)
        self.is_single = all(map(is_single, (*self.old, *self.new)))
        """Whether the engine computes with one thread: of several, one knows only its own waiting."""
        self.crowding = crowding(self.before, self.after, policy.pool.fewest_new_runs)
        """Processes that caused the CPU wait: in the container, or on the host."""
        self.latencies = level(self.before, LATENCY), level(self.after, LATENCY)
        """Medians before and after, in seconds."""
        self.risen = self._risen(self.old, self.new)
        """Tag → the share of runs that had it before and after, of the tags of clearly more runs than before."""
        self._concurrent = [ran for pair in compared if not pair.is_same_period for ran in pair.concurrent]
        """Replicas on the old image whose shift is taken off."""
        # A sibling that its own container holds back more than before, such as by a lower quota, tells nothing. Where
        # both images are compared in the same minutes, a host that has both is no part of the shift.
        same = {start.generation.host for pair in compared if pair.is_same_period for start in pair.before}
        self._beside = [
            (pair, self.shift_of([pair._replace(concurrent=self._concurrent)], LATENCY))
            for pair in beside
            if pair.before[0].generation.host not in same
            and BY_ITSELF.isdisjoint(self._risen(pair.before, pair.after))
        ]
        self.felt = [sibling for _, sibling in self._beside if self.tells(sibling)]
        """Shifts of the siblings that tell something, beyond that of the replicas that stay on the old image."""
        self.siblings = middle_of(self.felt) if self.felt else None
        """The shift of the sibling in the middle."""

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
        return part.log / (self.shift.log or math.inf)

    @property
    def awaits_siblings(self) -> bool:
        """Whether nothing beside tells anything yet, and a sibling will soon.

        That is one that goes on and has too few runs yet; one that tells nothing for as long as the new starts have few
        runs, and one that is alone for as long as it tells nothing.
        """
        few = len(self._beside) < 2 or max(len(start.samples) for start in self.new) < 24
        return not self.felt and any(
            self._goes_on(pair) for pair, shift in self._beside if few or not math.isfinite(shift.se)
        )

    def _goes_on(self, sibling: Pair) -> bool:
        """Whether it still ran at the last run that is judged, by its pace: a new start runs more often at first."""
        start = Start(sibling.before[0].generation, _samples((*sibling.before, *sibling.after)))
        next_run = start.times[-1] + self.policy.pool.gone_runs * start.pace
        return bool(next_run >= max(s.started_at for s in self.after))

    @cached_property
    def controls(self) -> dict[str, Shift]:
        """Control → its shift, of those that enough runs have."""
        names = sorted(CONTROLS) if have_alike_controls((*self.old, *self.new)) else ()
        return {
            name: shift
            for name in names
            if math.isfinite((shift := self.shift_of(self.compared, lambda s: s.controls.get(name))).se)  # noqa: B023
        }

    @cached_property
    def waiting(self) -> Shift | None:
        """The part of the shift that is CPU wait; None where that is unknown, or no part of it.

        No control shows it: a control is over before the scheduler takes its CPU away.
        """
        rest = self.shift_of(self.compared, computing)
        # Of the same runs, and weighted alike: those whose waiting a quota may have made are in neither.
        whole = self.shift_of(self.compared, lambda s: s.median if computing(s) else None)
        # Without the scatter that the waiting made, but with what restarts do.
        rest = rest.widened(max(0.0, self.shift.se**2 - whole.se**2), self.shift.df)
        part = rest._replace(log=whole.log - rest.log)
        return part if self.is_single and self.moved(part) and self.share(part) > 0 else None

    @cached_property
    def clock(self) -> Shift | None:
        """The part of the shift that the SM clock explains: its own shift, times the slope of latency within starts.

        The slope is least squares' about each start's means, held between 0 (memory-bound) and -1 (compute-bound).
        """
        clock = self.shift_of(self.compared, attrgetter("sm_clock"))
        if not math.isfinite(clock.se):
            return None
        logs = [
            np.log([(s.sm_clock, s.median) for s in start.samples if s.sm_clock and s.median])
            for start in (*self.old, *self.new)
        ]
        x, y = np.concatenate([points - points.mean(axis=0) for points in logs if points.size]).T
        # Without a clock that moved within a start the canary is taken for compute-bound.
        slope = float(np.clip((x @ y - 1e-9) / (x @ x + 1e-9), -1, 0))
        return Shift(slope * clock.log, abs(slope) * clock.se, clock.df)

    @property
    def phases(self) -> dict[str, float]:
        """Phase → its share of the change in seconds, of those that made much of it; the largest first."""
        old, new = (medians([s.phases for s in side]) for side in (self.before, self.after))
        grown = self.latencies[1] - self.latencies[0] or math.inf
        shares = {name: (new.get(name, 0.0) - old[name]) / grown for name in old}
        least = self.policy.attribute.phase_share
        return {name: x for name, x in sorted(shares.items(), key=lambda item: -item[1]) if x >= least}

    def _risen(self, before: Iterable[Start], after: Iterable[Start]) -> dict[str, tuple[float, float]]:
        old, new, least = _tags(before), _tags(after), self.policy.attribute.tag_share
        return {tag: (old[tag], new[tag]) for tag in sorted(new) if new[tag] - old[tag] >= least}

    @property
    def gpu_users(self) -> tuple[float, float] | None:
        """Shares of runs that met others on the GPU before and after, where these may have made the shift: more runs
        met them and took longer, or fewer did and took less, beyond what replicas on the old image met."""
        stayed = [ran.before for ran in self._concurrent], [ran.during for ran in self._concurrent]
        old, new, earlier, meanwhile = (_tags(s)[GPU_BUSY] for s in (self.old, self.new, *stayed))
        more = new - old - (meanwhile - earlier)
        is_likely = math.copysign(1.0, self.shift.log) * more >= self.policy.attribute.tag_share
        return (old, new) if is_likely else None

    def shift_of(self, compared: Iterable[Pair], value: Value) -> Shift:
        """Shift of a value of each run that restarts do not affect."""

        def points(start: Start) -> Series:
            return Series.of([x for s in start.samples if (x := value(s)) is not None and x > 0])

        return Pooling(self.policy.pool).shift([replica_of(pair, points) for pair in compared], NO_RESTART)


def is_single(start: Start) -> bool:
    """Whether its engine computes with one thread, as far as it reports that."""
    return all(start.generation.environment.get(name, "1") == "1" for name in COMPUTE_THREADS)


def _samples(starts: Iterable[Start]) -> list[Sample]:
    return [sample for start in starts for sample in start.samples]


def _tags(starts: Iterable[Start]) -> Mapping[str, float]:
    """Tag → the share of runs that had it; 0 for any other."""
    samples = _samples(starts)
    had = Counter(tag for sample in samples for tag in sample.labelled_tags)
    return defaultdict(float, {tag: count / len(samples) for tag, count in had.items()})
