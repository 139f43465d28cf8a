"""Rules that give tags to a run, based on the samples around the run. A new rule is an entry here and in the
vocabulary.

Tagged runs are kept, because dropping them would hide an image that throttles itself. All code here is pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from infercanary.contract.bottleneck import QUEUED
from infercanary.contract.report import OUTPUT_TOLERANCE, Family
from infercanary.contract.vocabulary import (
    BESIDE_CANARY,
    CPU_WAIT_INSIDE,
    CPU_WAIT_OUTSIDE,
    FAILING,
    GPU_BUSY,
    GPU_CLOCK_LIMITED,
    LOW_CLOCK,
    MEMORY_LIMIT,
    STALLED,
    THROTTLED,
    WARMING,
    CanaryState,
)
from infercanary.probe.result import RunResult

Points: TypeAlias = "Mapping[tuple[str, ...], float]"
"""Label values → value."""
Values: TypeAlias = "Mapping[str, Points]"
"""Name of a metric → its points."""


class Sample(dict[str, Points]):
    """Plain numbers of one sample: metric → points."""

    began: float | None = None
    """Start of the sample (monotonic). None if a sampler was late, because the values may then be older."""
    ended = 0.0


class Window(NamedTuple):
    """One run, with the samples around it."""

    done: RunResult
    lateness: float
    """Delay of the round's start, seconds."""
    first: Values
    """First sample of this probe."""
    previous: Sample
    """Sample at the end of the previous run: events since then may still affect this run."""
    quiet: Values
    """Sample before the round: a GPU busy in this sample has other users. Empty right after the probe's own work."""
    before: Sample
    after: Sample
    gpus: frozenset[str] | None = None
    """Indexes of the canary's GPUs; empty on a CPU. None if unknown: then every GPU of the container counts."""

    def grown(self, metric: str, *labels: str, since: Values | None = None) -> float:
        """Return the increase of a counter from sample ``since`` to the sample after the run, as a sum over points.

        Args:
            metric: Name of the counter; a counter missing in a sample did not increase.
            labels: The first label values of the points to sum; none for all points.
            since: An earlier sample; None for the sample just before the run.
        """
        earlier = self.before if since is None else since
        return sum(
            max(0.0, value - earlier.get(metric, {}).get(known, value))
            for known, value in self.after.get(metric, {}).items()
            if known[: len(labels)] == labels
        )

    def of_gpus(self, metric: str, sample: Values) -> dict[tuple[str, ...], float]:
        """Return the points of a sample for the canary's own GPUs and their MIG devices.

        Args:
            metric: Name of a metric whose first label is the GPU.
            sample: Any sample of the window.

        Returns:
            Label values → value; for all GPUs if the canary's GPUs are unknown.
        """
        return {
            labels: value
            for labels, value in sample.get(metric, {}).items()
            if self.gpus is None or labels[0].partition(":")[0] in self.gpus
        }

    @property
    def seconds(self) -> float | None:
        """Seconds from the start of sample ``before`` to the end of sample ``after``; None if a sampler was late."""
        if self.before.began is None or self.after.began is None:
            return None
        return self.after.ended - self.before.began

    @property
    def sm_clock(self) -> float | None:
        """SM clock (Hz) of the canary's GPUs right after the run: before the run, an idle GPU may have a low clock."""
        clocks = self.of_gpus("infercanary_gpu_sm_clock_hertz", self.after).values()
        return sum(clocks) / len(clocks) if clocks else None

    @property
    def waited(self) -> float | None:
        """CPU wait caused by others, in seconds of the latency; None if unknown."""
        return self._not_held_back(self.done.waited)

    @property
    def crowded(self) -> float | None:
        """CPU wait caused by others inside the container, in seconds of the latency; None if unknown."""
        return self._not_held_back(self.done.crowded)

    def _not_held_back(self, waited: float | None) -> float | None:
        """Return the measured CPU wait, or None if a CPU quota may be the cause.

        The kernel counts throttling by a quota as CPU wait too, and does not separate the two. If their sum is
        negligible, both are 0.
        """
        if waited is None or _throttled(self) <= 0:
            return waited
        queued = self.done.idle.get(QUEUED, math.inf)
        is_little = bool(self.done.timings) and queued <= _LITTLE * statistics.median(self.done.latencies)
        return 0.0 if is_little else None

    @property
    def received(self) -> float | None:
        """TCP segments per second that the container received since the previous run; None if unknown."""
        metric, elapsed = "infercanary_tcp_received_segments_total", self.after.ended - self.previous.ended
        if metric not in self.previous or metric not in self.after or elapsed <= 0:
            return None
        return self.grown(metric, since=self.previous) / elapsed


def values(families: Iterable[Family]) -> Values:
    """Return the plain numbers of ``families``, without histograms.

    Returns:
        Name → label values → value.
    """
    return {
        family.name: {
            point.labels: point.value for point in family.points if isinstance(point.value, (int, float))
        }
        for family in families
    }


def gpus_at(bus_id: str, sample: Values) -> frozenset[str] | None:
    """Return the indexes of the GPU at this PCI address; None if NVML knows no GPU there.

    Args:
        bus_id: In any notation of NVML, sysfs or CUDA.
        sample: A sample with the metric ``infercanary_gpu_info``.

    Returns:
        Indexes as text, or None.
    """
    place = _pci_place(bus_id)
    shown = sample.get("infercanary_gpu_info", {})
    return (
        frozenset(labels[0].partition(":")[0] for labels in shown if _pci_place(labels[3]) == place) or None
    )


def _pci_place(bus_id: str) -> tuple[str, str]:
    """Normalize a PCI address, because NVML writes the domain with 8 digits, and CUDA with 4."""
    domain, _, place = bus_id.lower().partition(":")
    return domain.lstrip("0"), place


def tags(window: Window) -> tuple[str, ...]:
    """Return the run's tags in the order of the rules."""
    return tuple(tag for tag, applies in _RULES.items() if applies(window))


def state_tags(state: CanaryState, *, is_beside: bool) -> tuple[str, ...]:
    """Return the tags that follow from the state of the canaries.

    Args:
        state: State of the canary that ran.
        is_beside: True if another canary was loading during the run, or a sweep or profile still ran.
    """
    own = _OF_STATE.get(state)
    return (*([own] if own else []), *([BESIDE_CANARY] if is_beside else []))


def clock_reason(window: Window) -> str:
    """Return the reason that limited the clock of the canary's GPUs for the longest time.

    Returns:
        The driver's name of the reason; ``low_clock`` if the clock was low but the driver counted no reason; empty
        without a limit.
    """
    longest = max(_CLOCK_REASONS, key=partial(_held_down, window))  # of equal reasons, the first is taken
    if _held_down(window, longest) > 0:
        return longest
    return LOW_CLOCK if _is_clock_low(window) else ""


_LATE_SECONDS = 0.25
_SHARE = 0.05  # minimum share of the run: less CPU wait, I/O pressure and garbage collection gives no tag
_LEAST_SECONDS = 0.002
_LITTLE = 0.03  # minimum share of the latency, which is the smallest effect that the judge considers
_GPU_BUSY = 0.1
# Reasons for a low clock, most severe first.
_CLOCK_REASONS = ("hw_power_brake", "hw_thermal", "sw_thermal", "sw_power_cap", "sync_boost")
# minimum share of the maximum clock: nvbench discards runs below this share (--throttle-threshold)
_CLOCK_LOW = 0.75


def _counts(seconds: float, w: Window) -> bool:
    return seconds > max(_LEAST_SECONDS, _SHARE * w.done.busy)


def _throttled(w: Window) -> float:
    return w.grown("infercanary_cgroup_cpu_throttled_seconds_total")


def _queued(w: Window) -> float:
    """Return the CPU wait of the run's threads in seconds, without the time throttled by a CPU quota."""
    # Subtract throttling, which has its own tag: the kernel also counts throttling by a quota as CPU wait.
    return (w.done.usage.run_queue_seconds or 0.0) - _throttled(w)


def _inside(w: Window) -> float:
    """Return the CPU seconds of others inside the container during the repeats, without the engine's own helper
    threads.
    """
    inside = w.done.inside
    if inside is None:
        return 0.0
    took = inside.processes_seconds if w.done.helpers else inside.cpu_seconds
    return took * inside.share(w.done.busy - w.done.usage.cpu_seconds)


def _held_down(w: Window, reason: str) -> float:
    """Return the seconds of limited clock, summed over the canary's GPUs. A GPU missing in the sample before the run
    counts 0.
    """
    metric = "infercanary_gpu_clock_event_seconds_total"
    return sum(w.grown(metric, *labels) for labels in w.of_gpus(metric, w.after) if labels[1:] == (reason,))


def _is_clock_low(w: Window) -> bool:
    highest = w.after.get("infercanary_gpu_sm_clock_max_hertz", {})
    return any(
        value < _CLOCK_LOW * highest.get(gpu, 0.0)
        for gpu, value in w.of_gpus("infercanary_gpu_sm_clock_hertz", w.after).items()
    )


def _changed(*metrics: str) -> Callable[[Window], bool]:
    return lambda w: any(m in w.first and m in w.after and w.first[m] != w.after[m] for m in metrics)


_RULES: dict[str, Callable[[Window], bool]] = {
    STALLED: lambda w: (
        w.lateness > _LATE_SECONDS or w.grown("infercanary_stalled_seconds_total", since=w.previous) > 0
    ),
    CPU_WAIT_OUTSIDE: lambda w: _counts(_queued(w) - _inside(w), w),
    CPU_WAIT_INSIDE: lambda w: _counts(min(_queued(w), _inside(w)), w),
    THROTTLED: lambda w: _throttled(w) > 0,
    # Compare the lists as well, because the same number may mean other CPUs. A list too long for a label is missing.
    "cpuset_changed": _changed("infercanary_cgroup_cpuset_cpus", "infercanary_cgroup_cpuset_info"),
    MEMORY_LIMIT: lambda w: (
        w.grown("infercanary_cgroup_memory_limit_hits_total", since=w.previous) > 0
        or w.grown("infercanary_cgroup_oom_kills_total", since=w.previous) > 0
    ),
    "io_pressure": lambda w: _counts(w.grown("infercanary_cgroup_pressure_waiting_seconds_total", "io"), w),
    "gc": lambda w: _counts(w.grown("infercanary_gc_pause_seconds_total"), w),
    GPU_CLOCK_LIMITED: lambda w: clock_reason(w) != "",
    GPU_BUSY: lambda w: any(
        share > _GPU_BUSY for share in w.of_gpus("infercanary_gpu_utilization_ratio", w.quiet).values()
    ),
    "output_changed": lambda w: (w.done.output_error or 0.0) > OUTPUT_TOLERANCE,
}

_OF_STATE: Mapping[CanaryState, str] = {
    "warming": WARMING,
    "failing": FAILING,
    "out_of_memory": FAILING,
    "busy": FAILING,
}
