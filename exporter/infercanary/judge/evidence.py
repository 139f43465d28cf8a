"""Evidence of a cause: other values that moved between the compared runs."""

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
    """Other values that moved with a shift. Shifts are logarithms without restart variance; too few runs give an
    infinite error.

    Args:
        shift: Shift of the canary.
        compared: Starts before and after of each replica.
        beside: The same for siblings, whose image did not change.
        policy: Limits from which a value has moved.
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
        """True if the engine computes with one thread. With several, a thread knows only its own wait."""
        self.crowding = crowding(self.before, self.after, policy.pool.fewest_new_runs)
        """Processes that caused the CPU wait: in the container, or on the host."""
        self.latencies = level(self.before, LATENCY), level(self.after, LATENCY)
        """Medians before and after, in seconds."""
        self.risen = self._risen(self.old, self.new)
        """Share of runs with a tag before and after, for tags that clearly more runs have now."""
        self._concurrent = [ran for pair in compared if not pair.is_same_period for ran in pair.concurrent]
        """Replicas on the old image whose shift is subtracted."""
        # A sibling that its own container holds back more than before, such as by a lower quota, is no evidence. If
        # both images are compared over the same period, a host that has both is no part of the shift.
        same = {start.generation.host for pair in compared if pair.is_same_period for start in pair.before}
        self._beside = [
            (pair, self.shift_of([pair._replace(concurrent=self._concurrent)], LATENCY))
            for pair in beside
            if pair.before[0].generation.host not in same
            and BY_ITSELF.isdisjoint(self._risen(pair.before, pair.after))
        ]
        self.felt = [sibling for _, sibling in self._beside if self.tells(sibling)]
        """Shifts of siblings that are evidence, beyond the shift of replicas on the old image."""
        self.siblings = middle_of(self.felt) if self.felt else None
        """Median sibling's shift."""

    def moved(self, shift: Shift) -> bool:
        """Return True if a shift is at least the smallest effect and beyond its own noise."""
        return abs(shift.log) >= max(
            self.policy.decide.log_effect, self.policy.attribute.moved_sigmas * shift.se
        )

    def tells(self, shift: Shift) -> bool:
        """Return True if a control or sibling moved, or surely moved less than the canary."""
        room = (self.policy.attribute.whole_share - self.share(shift)) * abs(self.shift.log)
        return self.moved(shift) or 2 * shift.se <= room

    def share(self, part: Shift) -> float:
        """Return a part of the shift as a share; below 0 for the opposite direction."""
        return part.log / (self.shift.log or math.inf)

    @property
    def awaits_siblings(self) -> bool:
        """Return True if the judge should wait for siblings: no sibling or control is evidence yet, but a running
        sibling will have enough runs soon.

        A sibling that stays without evidence is waited for only while the new starts have few runs, or if no other
        sibling is there.
        """
        few = len(self._beside) < 2 or max(len(start.samples) for start in self.new) < 24
        return not self.felt and any(
            self._goes_on(pair) for pair, shift in self._beside if few or not math.isfinite(shift.se)
        )

    def _goes_on(self, sibling: Pair) -> bool:
        """Return True if it still ran at the last judged run, by its interval: a new start runs more often at first."""
        start = Start(sibling.before[0].generation, _samples((*sibling.before, *sibling.after)))
        next_run = start.times[-1] + self.policy.pool.gone_runs * start.pace
        return bool(next_run >= max(s.started_at for s in self.after))

    @cached_property
    def controls(self) -> dict[str, Shift]:
        """Shift of each control that enough runs have."""
        names = sorted(CONTROLS) if have_alike_controls((*self.old, *self.new)) else ()
        return {
            name: shift
            for name in names
            if math.isfinite((shift := self.shift_of(self.compared, lambda s: s.controls.get(name))).se)  # noqa: B023
        }

    @cached_property
    def waiting(self) -> Shift | None:
        """Part of the shift that is CPU wait; None if unknown, or if it is no part of the shift.

        Controls do not show it: a control ends before the scheduler takes its CPU away.
        """
        rest = self.shift_of(self.compared, computing)
        # Both from the same runs with the same weights: runs whose wait may be due to a quota are in neither.
        whole = self.shift_of(self.compared, lambda s: s.median if computing(s) else None)
        # Without the scatter that the wait made, but with restart variance.
        rest = rest.widened(max(0.0, self.shift.se**2 - whole.se**2), self.shift.df)
        part = rest._replace(log=whole.log - rest.log)
        return part if self.is_single and self.moved(part) and self.share(part) > 0 else None

    @cached_property
    def clock(self) -> Shift | None:
        """Part of the shift that the SM clock explains: the clock's shift times the slope of latency within starts.

        The slope is fitted by least squares about each start's means, and kept between 0 (memory-bound) and -1
        (compute-bound).
        """
        clock = self.shift_of(self.compared, attrgetter("sm_clock"))
        if not math.isfinite(clock.se):
            return None
        logs = [
            np.log([(s.sm_clock, s.median) for s in start.samples if s.sm_clock and s.median])
            for start in (*self.old, *self.new)
        ]
        x, y = np.concatenate([points - points.mean(axis=0) for points in logs if points.size]).T
        # If no clock moved within a start, assume that the canary is compute-bound.
        slope = float(np.clip((x @ y - 1e-9) / (x @ x + 1e-9), -1, 0))
        return Shift(slope * clock.log, abs(slope) * clock.se, clock.df)

    @property
    def phases(self) -> dict[str, float]:
        """Share of the change in seconds of each important phase, the largest first."""
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
        """Return the shares of runs that met other users of the GPU before and after, if these may have made the
        shift.

        They may if more runs met them and took longer (or fewer did and took less), beyond replicas on the old image.
        """
        stayed = [ran.before for ran in self._concurrent], [ran.during for ran in self._concurrent]
        old, new, earlier, meanwhile = (_tags(s)[GPU_BUSY] for s in (self.old, self.new, *stayed))
        more = new - old - (meanwhile - earlier)
        is_likely = math.copysign(1.0, self.shift.log) * more >= self.policy.attribute.tag_share
        return (old, new) if is_likely else None

    def shift_of(self, compared: Iterable[Pair], value: Value) -> Shift:
        """Return the shift of a value that restarts do not affect."""

        def points(start: Start) -> Series:
            return Series.of([x for s in start.samples if (x := value(s)) is not None and x > 0])

        return Pooling(self.policy.pool).shift([replica_of(pair, points) for pair in compared], NO_RESTART)


def is_single(start: Start) -> bool:
    """Return True if the engine reports one thread."""
    return all(start.generation.environment.get(name, "1") == "1" for name in COMPUTE_THREADS)


def _samples(starts: Iterable[Start]) -> list[Sample]:
    return [sample for start in starts for sample in start.samples]


def _tags(starts: Iterable[Start]) -> Mapping[str, float]:
    """Return the share of runs that had each tag; 0 for any other tag."""
    samples = _samples(starts)
    had = Counter(tag for sample in samples for tag in sample.labelled_tags)
    return defaultdict(float, {tag: count / len(samples) for tag, count in had.items()})
