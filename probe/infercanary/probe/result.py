"""Results of opening a canary, and of one round of a canary."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from infercanary.contract.bottleneck import Limit, parts, shares
from infercanary.contract.report import OUTPUT_TOLERANCE
from infercanary.contract.vocabulary import Outcome
from infercanary.probe.contention import Inside
from infercanary.probe.samplers.threads import Place, ThreadUsage
from infercanary.probe.targets import Reading, Reason
from infercanary.probe.timing import Timing


class RunResult(NamedTuple):
    """Result of a round: timings of the repeats, their cost, and the outcome. Times are in seconds."""

    outcome: Outcome
    detail: str = ""
    timings: Sequence[Timing] = ()
    busy: float = 0.0
    """Time spent in the target's methods."""
    cost: float = 0.0
    """Charge to the duty budget: ``busy``, or up to eight times ``busy`` if the round waited for its turn."""
    values: Sequence[float] = ()
    """Output of the last repeat."""
    output_error: float | None = None
    """Relative error of the output, compared with the first steady output."""
    usage: ThreadUsage = ThreadUsage()
    """Use of the thread that ran the repeats."""
    waits: Sequence[float | None] = ()
    """CPU wait of each repeat caused outside the container or, if ``crowds`` is unknown, by any other process. None if
    unknown.
    """
    crowds: Sequence[float | None] = ()
    """CPU wait of each repeat, caused by others inside the container; None if unknown."""
    off_cpu: Sequence[Mapping[str, float]] = ()
    """For each repeat: reason (of ``OFF_CPU``) → seconds in which the thread did not compute."""
    inside: Inside | None = None
    """CPU time of others inside the container during the repeats; None if unknown."""
    helpers: bool = False
    """True if the engine has compute threads besides the thread that runs the repeats."""
    controls: Mapping[str, float] = {}
    """Median seconds of each control that ran after the repeats."""
    reason: Reason | None = None
    """Reason of the failure, if the target gave a reason."""
    readings: Sequence[Reading] = ()
    """Additional numbers reported by the target."""
    inferences: int = 0
    """Inferences of all repeats together."""
    measures: Mapping[str, float] = {}
    """Name (of :mod:`infercanary.contract.measures`) → value."""
    place: Place | None = None
    """CPU and allowed CPUs of the thread that ran the last repeat."""

    @property
    def failure(self) -> Reason | None:
        """Reason of the failure; None without a failure, or if the canary got no turn."""
        if self.reason is not None or self.outcome == "busy":
            return self.reason
        if self.outcome != "ok":
            return self.outcome
        return "wrong_answer" if (self.output_error or 0.0) > OUTPUT_TOLERANCE else None

    @property
    def latencies(self) -> tuple[float, ...]:
        return tuple(timing.wall for timing in self.timings)

    @property
    def waited(self) -> float | None:
        """CPU wait caused outside the container, as a part of the median latency; None if unknown."""
        return self._share_of_median(self.waits)

    @property
    def crowded(self) -> float | None:
        """CPU wait caused inside the container, as a part of the median latency; None if unknown."""
        return self._share_of_median(self.crowds)

    @property
    def idle(self) -> dict[str, float]:
        """Reason (of ``OFF_CPU``) → part of the median latency without compute; empty if unknown."""
        reasons = dict.fromkeys(reason for repeat in self.off_cpu for reason in repeat)
        seconds = {
            reason: self._share_of_median([repeat.get(reason) for repeat in self.off_cpu])
            for reason in reasons
        }
        return {reason: number for reason, number in seconds.items() if number is not None}

    @property
    def bottlenecks(self) -> dict[Limit, float]:
        """Resource → its share of the median latency; empty without latencies."""
        if not self.timings:
            return {}
        return shares(parts(statistics.median(self.latencies), self.phases, self.idle))

    @property
    def phases(self) -> dict[str, float]:
        """Median seconds of each phase over the repeats."""
        names = dict.fromkeys(name for timing in self.timings for name in timing.phases)
        return {n: statistics.median(t.phases[n] for t in self.timings if n in t.phases) for n in names}

    def _share_of_median(self, seconds: Sequence[float | None]) -> float | None:
        """Return the median latency minus the median of the latencies without these seconds."""
        known = [number for number in seconds if number is not None]
        if not self.timings or len(known) != len(self.timings):
            return None
        without = [max(0.0, t.wall - number) for t, number in zip(self.timings, known, strict=True)]
        return max(0.0, statistics.median(self.latencies) - statistics.median(without))


class Opened(NamedTuple):
    """Result of opening and warming up a target. Times are in seconds."""

    environment: dict[str, str]
    load: float
    first_run: float
    warm_up: float
    latencies: list[float]
    """Wall time of each warm-up repeat."""
    aside: float = 0.0
    """Time after the last warm-up repeat, used to identify the model; not part of the cold start."""
