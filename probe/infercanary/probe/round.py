"""What a canary did in one round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from infercanary.contract.bottleneck import Limit, parts, shares
from infercanary.contract.report import OUTPUT_TOLERANCE
from infercanary.contract.vocabulary import Outcome
from infercanary.probe.contention import Inside
from infercanary.probe.samplers.threads import ThreadUsage
from infercanary.probe.targets import Reading, Reason
from infercanary.probe.timing import Timing


class Round(NamedTuple):
    """Each repeat's timing, what the round took and cost, and how it ended. Times in seconds."""

    outcome: Outcome
    detail: str = ""
    timings: Sequence[Timing] = ()
    busy: float = 0.0
    """Spent in the target's methods."""
    cost: float = 0.0
    """What the budget is charged: busy, and the waiting that it causes to others."""
    output_error: float | None = None
    """Relative error of the output against the first steady one."""
    usage: ThreadUsage = ThreadUsage()
    """Of the thread that ran the repeats."""
    waits: Sequence[float | None] = ()
    """How long each repeat waited for CPUs that others had, outside the container where ``crowds`` is known; None where
    unknown."""
    crowds: Sequence[float | None] = ()
    """How long each repeat waited for CPUs that others inside the container had; None where unknown."""
    off_cpu: Sequence[Mapping[str, float]] = ()
    """Of each repeat, reason (of ``OFF_CPU``) → seconds in which its thread did not compute."""
    inside: Inside | None = None
    """What others inside the container took meanwhile; None where unknown."""
    helpers: bool = False
    """Whether the engine computes with more threads than the one that runs the repeats."""
    controls: Mapping[str, float] = {}
    """Median seconds of each control that ran after the repeats."""
    reason: Reason | None = None
    """Why it failed, where the target named it."""
    readings: Sequence[Reading] = ()
    """What the target reported beside its timing."""
    inferences: int = 0
    """Of all repeats together."""
    measures: Mapping[str, float] = {}
    """What it took beside its time: name (of :mod:`infercanary.contract.measures`) → value."""

    @property
    def failure(self) -> Reason | None:
        """Why it failed; None where it did not, or got no turn."""
        if self.reason is not None or self.outcome == "busy":
            return self.reason
        if self.outcome != "ok":
            return self.outcome
        return "wrong_answer" if (self.output_error or 0.0) > OUTPUT_TOLERANCE else None

    @property
    def latencies(self) -> tuple[float, ...]:
        """Wall seconds of each repeat."""
        return tuple(timing.wall for timing in self.timings)

    @property
    def waited(self) -> float | None:
        """How much the median latency is higher for waiting for CPUs that others had; None where unknown."""
        return self._higher_by(self.waits)

    @property
    def crowded(self) -> float | None:
        """How much the median latency is higher for what others inside the container took; None where unknown."""
        return self._higher_by(self.crowds)

    @property
    def idle(self) -> dict[str, float]:
        """Reason (of ``OFF_CPU``) → how much the median latency is higher for it; empty where unknown."""
        reasons = dict.fromkeys(reason for each in self.off_cpu for reason in each)
        found = {reason: self._higher_by([each.get(reason) for each in self.off_cpu]) for reason in reasons}
        return {reason: seconds for reason, seconds in found.items() if seconds is not None}

    @property
    def bottlenecks(self) -> dict[Limit, float]:
        """Resource → its share of the median latency; empty without latencies."""
        if not self.timings:
            return {}
        return shares(parts(statistics.median(self.latencies), self.phases, self.idle))

    def _higher_by(self, each: Sequence[float | None]) -> float | None:
        waits = [wait for wait in each if wait is not None]
        if not self.timings or len(waits) != len(self.timings):
            return None
        running = [max(0.0, t.wall - wait) for t, wait in zip(self.timings, waits, strict=True)]
        return max(0.0, statistics.median(self.latencies) - statistics.median(running))

    @property
    def phases(self) -> dict[str, float]:
        """Median seconds of each phase over the repeats."""
        names = dict.fromkeys(name for timing in self.timings for name in timing.phases)
        return {n: statistics.median(t.phases[n] for t in self.timings if n in t.phases) for n in names}
