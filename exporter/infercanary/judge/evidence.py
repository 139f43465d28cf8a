"""Evidence of a cause: controls, siblings, CPU wait, clock, tags and phases that changed between the compared runs."""

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
    """Shifts of controls, siblings, CPU wait and clock, as evidence of the cause of the canary's shift.

    These shifts are logarithms without restart variance. With too few runs their standard error is infinite.

    Args:
        shift: Shift of the canary.
        compared: Starts of each replica, before and after.
        beside: Starts of each sibling, before and after. A sibling's image did not change.
        policy: Thresholds of a moved value.
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
        """True if the engine computes with one thread. Otherwise the CPU wait of the other threads is unknown."""
        self.crowding = crowding(self.before, self.after, policy.pool.fewest_new_runs)
        """Origin of the CPU wait: the container or the host; None if unknown."""
        self.latencies = level(self.before, LATENCY), level(self.after, LATENCY)
        """Median latencies before and after, in seconds."""
        self.risen = self._risen(self.old, self.new)
        """Share of runs before and after, by tag, for tags that became clearly more frequent."""
        self._concurrent = [ran for pair in compared if not pair.is_same_period for ran in pair.concurrent]
        """Replicas on the old image whose shift is subtracted."""
        # A sibling is no evidence if its own container slows it down more than before, such as by a lower quota. A host
        # that ran both images in the same period does not contribute to the shift, so siblings on this host do not
        # count.
        same = {start.generation.host for pair in compared if pair.is_same_period for start in pair.before}
        self._beside = [
            (pair, self.shift_of([pair._replace(concurrent=self._concurrent)], LATENCY))
            for pair in beside
            if pair.before[0].generation.host not in same
            and BY_ITSELF.isdisjoint(self._risen(pair.before, pair.after))
        ]
        self.felt = [sibling for _, sibling in self._beside if self.tells(sibling)]
        """Shifts of siblings that are evidence, after subtracting the shift of replicas on the old image."""
        self.siblings = middle_of(self.felt) if self.felt else None
        """Median shift of the siblings that are evidence; None without any."""

    def moved(self, shift: Shift) -> bool:
        """Return True if a shift is at least the smallest effect and significant."""
        return abs(shift.log) >= max(
            self.policy.decide.log_effect, self.policy.attribute.moved_sigmas * shift.se
        )

    def tells(self, shift: Shift) -> bool:
        """Return True if a control or sibling is evidence: it moved, or it surely moved less than the canary."""
        room = (self.policy.attribute.whole_share - self.share(shift)) * abs(self.shift.log)
        return self.moved(shift) or 2 * shift.se <= room

    def share(self, part: Shift) -> float:
        """Return a shift as a share of the canary's shift; below 0 for the opposite direction."""
        return part.log / (self.shift.log or math.inf)

    @property
    def awaits_siblings(self) -> bool:
        """Return True if the judge should wait, because a first sibling will soon have enough runs to be evidence.

        A sibling with enough runs may still be no evidence. The judge waits for more of its runs only while the new
        starts have few runs, or if there is no other sibling.
        """
        few = len(self._beside) < 2 or max(len(start.samples) for start in self.new) < 24
        return not self.felt and any(
            self._goes_on(pair) for pair, shift in self._beside if few or not math.isfinite(shift.se)
        )

    def _goes_on(self, sibling: Pair) -> bool:
        """Return True if a sibling was still running at the last judged run.

        The sibling's own run interval decides, because a new start has shorter intervals at first.
        """
        start = Start(sibling.before[0].generation, _samples((*sibling.before, *sibling.after)))
        next_run = start.times[-1] + self.policy.pool.gone_runs * start.pace
        return bool(next_run >= max(s.started_at for s in self.after))

    @cached_property
    def controls(self) -> dict[str, Shift]:
        """Shift by control, for controls with enough runs."""
        names = sorted(CONTROLS) if have_alike_controls((*self.old, *self.new)) else ()
        return {
            name: shift
            for name in names
            if math.isfinite((shift := self.shift_of(self.compared, lambda s: s.controls.get(name))).se)  # noqa: B023
        }

    @cached_property
    def waiting(self) -> Shift | None:
        """Part of the shift that is CPU wait; None if unknown, or if the CPU wait did not clearly change in the shift's
        direction.

        Controls do not show CPU wait, because a control ends before its time slice does.
        """
        rest = self.shift_of(self.compared, computing)
        # Both shifts use the same runs and weights. Runs with unknown wait are left out of both.
        whole = self.shift_of(self.compared, lambda s: s.median if computing(s) else None)
        # The error includes restart variance, but not the scatter that the wait caused.
        rest = rest.widened(max(0.0, self.shift.se**2 - whole.se**2), self.shift.df)
        part = rest._replace(log=whole.log - rest.log)
        return part if self.is_single and self.moved(part) and self.share(part) > 0 else None

    @cached_property
    def clock(self) -> Shift | None:
        """Part of the shift that the SM clock explains; None if the clock is unknown.

        This part is the clock's shift times the slope of latency over clock within starts. The slope is fitted by
        least squares around each start's means, and limited to the range from -1 (compute-bound) to 0 (memory-bound).
        """
        clock = self.shift_of(self.compared, attrgetter("sm_clock"))
        if not math.isfinite(clock.se):
            return None
        logs = [
            np.log([(s.sm_clock, s.median) for s in start.samples if s.sm_clock and s.median])
            for start in (*self.old, *self.new)
        ]
        x, y = np.concatenate([points - points.mean(axis=0) for points in logs if points.size]).T
        # The tiny terms make the slope -1 (compute-bound) if the clock was constant within each start.
        slope = float(np.clip((x @ y - 1e-9) / (x @ x + 1e-9), -1, 0))
        return Shift(slope * clock.log, abs(slope) * clock.se, clock.df)

    @property
    def phases(self) -> dict[str, float]:
        """Share of the change in seconds by phase, the largest first. Small shares are left out."""
        old, new = (medians([s.phases for s in side]) for side in (self.before, self.after))
        grown = self.latencies[1] - self.latencies[0] or math.inf
        shares = {name: (new.get(name, 0.0) - old[name]) / grown for name in old}
        least = self.policy.attribute.phase_share
        return {name: x for name, x in sorted(shares.items(), key=lambda item: -item[1]) if x >= least}

    def _risen(self, before: Iterable[Start], after: Iterable[Start]) -> dict[str, tuple[float, float]]:
        old, new, least = tag_shares(before), tag_shares(after), self.policy.attribute.tag_share
        return {tag: (old[tag], new[tag]) for tag in sorted(new) if new[tag] - old[tag] >= least}

    @property
    def gpu_users(self) -> tuple[float, float] | None:
        """Return the share of runs with other GPU users, before and after; None if these users cannot be the cause.

        Other GPU users may be the cause if their share and the latency both rose, or if both fell. The change of this
        share in replicas on the old image is subtracted.
        """
        stayed = [ran.before for ran in self._concurrent], [ran.during for ran in self._concurrent]
        old, new, earlier, meanwhile = (tag_shares(s)[GPU_BUSY] for s in (self.old, self.new, *stayed))
        more = new - old - (meanwhile - earlier)
        is_likely = math.copysign(1.0, self.shift.log) * more >= self.policy.attribute.tag_share
        return (old, new) if is_likely else None

    def shift_of(self, compared: Iterable[Pair], value: Value) -> Shift:
        """Return the shift of a value, without restart variance."""

        def points(start: Start) -> Series:
            return Series.of([x for s in start.samples if (x := value(s)) is not None and x > 0])

        return Pooling(self.policy.pool).shift([replica_of(pair, points) for pair in compared], NO_RESTART)


def is_single(start: Start) -> bool:
    """Return True if the engine computes with one thread, which is assumed if the number is unknown."""
    return all(start.generation.environment.get(name, "1") == "1" for name in COMPUTE_THREADS)


def _samples(starts: Iterable[Start]) -> list[Sample]:
    return [sample for start in starts for sample in start.samples]


def tag_shares(starts: Iterable[Start]) -> Mapping[str, float]:
    """Return the share of runs by tag; 0 for a tag that no run has."""
    samples = _samples(starts)
    had = Counter(tag for sample in samples for tag in sample.labelled_tags)
    return defaultdict(float, {tag: count / len(samples) for tag, count in had.items()})
