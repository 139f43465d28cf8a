"""Contention of a canary: CPU wait caused by others inside its container or on the host, and why else it slept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter, process_time
from typing import NamedTuple

from infercanary.contract.bottleneck import ASLEEP, BLOCKED, QUEUED, READING
from infercanary.probe.samplers.cgroup import ContainerCpu
from infercanary.probe.samplers.threads import OnCpu, ThreadUsage, threads_beside


class Inside(NamedTuple):
    """CPU time of others inside the container while a canary's repeats ran: other threads and other processes."""

    cpu_seconds: float
    """Of all of them; threads that help the canary's engine are among them."""
    processes_seconds: float
    """Of other processes."""
    wall_seconds: float
    """How long that was."""
    away_seconds: float
    """In how much of it the canary did not compute: between repeats too, where the scheduler likes to take the CPU."""

    @property
    def cores(self) -> float:
        """How many they took on average."""
        return self.cpu_seconds / self.wall_seconds

    def share(self, away: float) -> float:
        """How much of what they took fell into a part of the time.

        Args:
            away: Seconds of that part in which the canary did not compute: only then another has its CPU.

        Returns:
            A ratio, at most 1.
        """
        return min(1.0, max(0.0, away) / self.away_seconds)


class ContainerLoad:
    """CPU time that others inside the container take, from its making on.

    Args:
        container: Counts the CPU time of all that is in it.
    """

    def __init__(self, container: ContainerCpu) -> None:
        self._container = container
        self._began, self._process, self._all = perf_counter(), process_time(), container.seconds()

    def since(self, usage: ThreadUsage) -> Inside | None:
        """CPU time of others; None where the container's is not known.

        Args:
            usage: Of the canary's own thread meanwhile.
        """
        now = self._container.seconds()
        if now is None or self._all is None:
            return None
        of_process = process_time() - self._process
        processes = max(0.0, now - self._all - of_process)
        threads = max(0.0, of_process - usage.cpu_seconds)
        wall = max(1e-9, perf_counter() - self._began)
        return Inside(processes + threads, processes, wall, max(1e-9, wall - usage.cpu_seconds))


def divide_wait(usage: ThreadUsage, wall: float, inside: Inside | None) -> tuple[float | None, float | None]:
    """CPU wait of a thread within ``wall``, by whom it was caused: others outside the container, others inside it.

    Who had the CPU is not counted by the kernel. Others inside had it for as long as they computed at most; what is
    beyond that, others outside had.

    Args:
        usage: Of the thread in that time.
        wall: Seconds.
        inside: CPU time of others inside in a longer time around it.

    Returns:
        Seconds of both; where the container is not known, what other processes had, and None.
    """
    if inside is None or usage.run_queue_seconds is None:
        return usage.waited, None
    threads = max(0.0, usage.process_cpu_seconds - usage.cpu_seconds)
    processes = inside.processes_seconds * inside.share(wall - usage.cpu_seconds)
    crowded = min(usage.run_queue_seconds, threads + processes)
    return usage.run_queue_seconds - crowded, crowded


class Helped(NamedTuple):
    """What the threads that an engine computes with did, over the time that it took."""

    computed: float
    """By the one that computed longest."""
    waited: float
    """For a CPU, by the one that waited longest."""
    queued: float
    """For a CPU, by all of them."""


class Helpers:
    """From its making on, how the other threads of the process fare: those that an engine computes with."""

    def __init__(self) -> None:
        self._began, self._before = perf_counter(), threads_beside()

    def helped(self) -> Helped:
        """How they fared since then.

        Returns:
            Ratios; 0 where nothing is counted.
        """
        took = max(1e-9, perf_counter() - self._began)
        computed, queued = [0.0], [0.0]
        for tid, on_cpu in threads_beside().items():
            before = self._before.get(tid, OnCpu(0.0, 0.0))
            computed.append(on_cpu.computed - before.computed)
            queued.append(max(0.0, on_cpu.queued - before.queued))
        return Helped(max(computed) / took, max(queued) / took, sum(queued) / took)


def off_cpu(used: ThreadUsage, wall: float, helped: Helped | None = None) -> dict[str, float]:
    """Why a thread did not compute, as far as the kernel counts it.

    An engine divides its work beforehand, and goes on when the last of its threads is done, wherever the others are.
    The calling one sleeps or spins until then. It would sleep as well where another computes longer than it does; what
    it sleeps beyond that, while others wait for a CPU, is their waiting. None of it is a lock.

    Args:
        used: What the thread used in that time.
        wall: Seconds.
        helped: What the other threads did that its engine computes with; None where there are none.

    Returns:
        Reason (of ``OFF_CPU``) → seconds.
    """
    if used.run_queue_seconds is None:
        slept = max(0.0, wall - used.cpu_seconds)
        return {READING: slept, ASLEEP: 0.0} if used.blocks_read else {READING: 0.0, ASLEEP: slept}
    queued = min(wall, used.run_queue_seconds)
    slept = max(0.0, wall - used.cpu_seconds - queued)
    if used.blocks_read:
        return {QUEUED: queued, BLOCKED: 0.0, READING: slept}
    if helped is not None:
        waited = min(
            helped.queued * wall, max(0.0, slept - max(0.0, helped.computed * wall - used.cpu_seconds))
        )
        computed = min(slept - waited, max(0.0, used.process_cpu_seconds - used.cpu_seconds))
        slept -= waited + computed
        queued = min(max(queued + waited, helped.waited * wall), wall - slept)
    return {QUEUED: queued, BLOCKED: slept, READING: 0.0}


def explain_repeats(
    ends: Sequence[ThreadUsage],
    walls: Sequence[float],
    batch: int,
    inside: Inside | None,
    helped: Helped | None,
) -> tuple[list[float | None], list[float | None], list[dict[str, float]]]:
    """CPU wait and other sleep of each repeat, for one of its inferences.

    Args:
        ends: Usage of the thread from the first repeat's begin to the end of each.
        walls: Seconds of an inference of each repeat.
        batch: Inferences in a repeat.
        inside: CPU time of others inside the container meanwhile; None where unknown.
        helped: See :func:`off_cpu`.

    Returns:
        For each repeat both of :func:`divide_wait`, and :func:`off_cpu`.
    """
    outside: list[float | None] = []
    crowded: list[float | None] = []
    reasons = []
    helpers = _helped_in_repeats(helped, walls)
    for (before, end), wall, helper in zip(pairwise([ThreadUsage(), *ends]), walls, helpers, strict=True):
        usage, seconds = end - before, wall * batch
        waits = [None if wait is None else wait / batch for wait in divide_wait(usage, seconds, inside)]
        outside.append(waits[0])
        crowded.append(waits[1])
        slept = off_cpu(usage, seconds, helper)
        reasons.append({reason: seconds / batch for reason, seconds in slept.items()})
    return outside, crowded, reasons


def _helped_in_repeats(helped: Helped | None, walls: Sequence[float]) -> list[Helped | None]:
    """How the other threads fared in each repeat: what they waited is counted over all repeats together.

    They waited where repeats took longer than the fastest one, and only what is more than that did each of them wait:
    a neighbour that stops one of 50 repeats has not slowed the others.
    """
    if helped is None or not walls:
        return [helped] * len(walls)
    waited, queued = _spread(helped.waited, walls), _spread(helped.queued, walls)
    return [Helped(helped.computed, *ratios) for ratios in zip(waited, queued, strict=True)]


def _spread(ratio: float, walls: Sequence[float]) -> list[float]:
    """A ratio of the time of all repeats as one of each."""
    total, fastest = ratio * sum(walls), min(walls)
    longer = sum(wall - fastest for wall in walls)
    of_longer = min(1.0, total / longer) if longer > 0 else 0.0
    rest = max(0.0, total - longer) / len(walls)
    return [(of_longer * (wall - fastest) + rest) / max(wall, 1e-9) for wall in walls]
