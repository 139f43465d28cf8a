"""Bottleneck of a run: shares of its time for memory, compute, I/O (transfers, page cache, sockets) and scheduling.

The seconds come from phases and from the kernel's counters of the thread. A clock cannot separate computing from
waiting for memory, so both count as `processor` time. Only the controls can divide a change of this time into compute
and memory (docs/adr/0014-bottlenecks-by-name.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

from infercanary.contract.vocabulary import OF_SERVER, PHASES, Bottleneck

Limit = Literal[Bottleneck, "unknown"]
"""Resource that limited a part of a run's time."""
LIMITS: tuple[Limit, ...] = ("compute", "memory", "io", "scheduling", "unknown")
assert set(LIMITS) == {*get_args(Bottleneck), "unknown"}

QUEUED: Final = "queued"
BLOCKED: Final = "blocked"
READING: Final = "reading"
ASLEEP: Final = "asleep"
OFF_CPU = (QUEUED, BLOCKED, READING, ASLEEP)
"""Reasons why a canary's thread did not compute. ``queued``: runnable but without a CPU, because of CPU wait, the CPU
quota, or other threads of its engine. ``blocked``: asleep without I/O, for example waiting for a lock. ``reading``:
asleep during a read from a block device. ``asleep``: queued or blocked, if the kernel does not measure CPU wait.
"""

_LAUNCH, _COMPUTE = "launch", "compute"
_WAITING = [phase.name for phase in PHASES.values() if phase.is_waiting and phase.name != _LAUNCH]
_TRANSFERS = [phase.name for phase in PHASES.values() if phase.is_transfer]


class Parts(NamedTuple):
    """Parts of a run's median latency by resource, in seconds."""

    processor: float
    """Time on the CPU or the device: computing or waiting for memory."""
    io: float
    scheduling: float
    unknown: float
    launch: float = 0.0
    """Host time for launching the device's work. The sum of the parts excludes launches, because launches overlap with
    the work.
    """

    @property
    def is_launched_slowly(self) -> bool:
        """True if the device waits for launches: launching takes at least as long as the device's work."""
        return self.launch >= self.processor > 0


def parts(latency: float, phases: Mapping[str, float], off_cpu: Mapping[str, float]) -> Parts:
    """Divide a run's latency by resource.

    Args:
        latency: Median seconds of a repeat.
        phases: Median seconds by phase.
        off_cpu: Seconds without compute, by reason (one of ``OFF_CPU``); empty if unknown.

    Returns:
        Parts of 0 or more, whose sum is the latency.
    """
    io = sum(phases.get(name, 0.0) for name in _TRANSFERS)
    waiting = sum(phases.get(name, 0.0) for name in _WAITING)
    queued = off_cpu.get(QUEUED, 0.0)
    if _LAUNCH in phases:  # the thread sleeps while the device works
        return _bounded(latency, phases.get(_COMPUTE, 0.0), io, waiting, phases[_LAUNCH])
    if not OF_SERVER.isdisjoint(phases):  # timed by the client, which cannot see the server's work
        return _bounded(latency, 0.0, io, waiting + queued)
    reading, unknown = off_cpu.get(READING, 0.0), off_cpu.get(ASLEEP, 0.0)
    scheduling = queued + off_cpu.get(BLOCKED, 0.0)
    # A custom target may report the same waiting or reading as a phase. The maximum counts the time once.
    io, scheduling = max(io, reading), max(waiting, scheduling)
    processor = max(0.0, latency - io - scheduling - unknown) if off_cpu else 0.0
    return _bounded(latency, processor, io, scheduling)


def shares(of: Parts) -> dict[Limit, float]:
    """Return each resource's share of a run's time.

    Returns:
        Ratios with sum 1; empty if the latency is 0. ``compute`` includes ``memory``, because a single run cannot
        separate the two. If the device waits for launches, processor time counts as ``scheduling``.
    """
    processor, io, scheduling, unknown, _ = of
    whole = processor + io + scheduling + unknown
    if whole <= 0:
        return {}
    if of.is_launched_slowly:
        processor, scheduling = 0.0, scheduling + processor
    found: dict[Limit, float] = {
        "compute": processor,
        "io": io,
        "scheduling": scheduling,
        "unknown": unknown,
    }
    return {limit: seconds / whole for limit, seconds in found.items()}


def _bounded(latency: float, processor: float, io: float, scheduling: float, launch: float = 0.0) -> Parts:
    """Scale the parts so that their sum is the latency.

    A sum of medians may exceed the median latency. If the sum is smaller, the rest is unknown.
    """
    found = processor + io + scheduling
    scale = latency / found if found > latency else 1.0
    return Parts(processor * scale, io * scale, scheduling * scale, max(0.0, latency - found), launch * scale)
