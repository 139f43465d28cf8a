"""Contention of a canary: CPU wait caused by processes in its container or on the host, and other reasons for sleep."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter, process_time
from typing import NamedTuple

from infercanary.contract.bottleneck import ASLEEP, BLOCKED, QUEUED, READING
from infercanary.probe.samplers.cgroup import ContainerCpu
from infercanary.probe.samplers.threads import OnCpu, ThreadUsage, threads_beside


class Inside(NamedTuple):
    """CPU time of other threads and processes in the container during a canary's repeats."""

    cpu_seconds: float
    """CPU seconds of these threads and processes, including the engine's helper threads."""
    processes_seconds: float
    """CPU seconds of other processes."""
    wall_seconds: float
    """Length of the measured time."""
    away_seconds: float
    """Part of ``wall_seconds`` in which the canary did not compute, including the time between repeats: the scheduler
    then often gives the canary's CPU to others.
    """

    @property
    def cores(self) -> float:
        """Average number of cores that other threads and processes used."""
        return self.cpu_seconds / self.wall_seconds

    def share(self, away: float) -> float:
        """Return the share of the others' CPU time that falls into a part of the measured time.

        Args:
            away: Seconds of that part in which the canary did not compute, so that others could use its CPU.

        Returns:
            A ratio, 0 to 1.
        """
        return min(1.0, max(0.0, away) / self.away_seconds)


class ContainerLoad:
    """Counts the CPU time of all other threads and processes in the container, from the creation of this object.

    Args:
        container: CPU time of everything in the container.
    """

    def __init__(self, container: ContainerCpu) -> None:
        self._container = container
        self._began, self._process, self._all = perf_counter(), process_time(), container.seconds()

    def since(self, usage: ThreadUsage) -> Inside | None:
        """Return the CPU time of others in the container since the creation; None if unknown.

        Args:
            usage: Use of the canary's own thread over the same time.
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
    """Divide a thread's CPU wait by cause: processes outside the container, and threads and processes inside.

    The kernel does not record which process used the CPU. Wait up to the CPU time used inside counts as caused inside;
    the rest, as caused outside.

    Args:
        usage: Use of the thread within ``wall``.
        wall: Wall seconds.
        inside: CPU time of others inside, measured over a longer time that includes ``wall``.

    Returns:
        Seconds of wait caused outside and inside. If ``inside`` is unknown: wait caused by all other processes, and
        None.
    """
    if inside is None or usage.run_queue_seconds is None:
        return usage.waited, None
    threads = max(0.0, usage.process_cpu_seconds - usage.cpu_seconds)
    processes = inside.processes_seconds * inside.share(wall - usage.cpu_seconds)
    crowded = min(usage.run_queue_seconds, threads + processes)
    return usage.run_queue_seconds - crowded, crowded


class Helped(NamedTuple):
    """Activity of an engine's compute threads, as ratios of the elapsed time."""

    computed: float
    """Longest computing time of one thread."""
    waited: float
    """Longest CPU wait of one thread."""
    queued: float
    """Sum of the CPU wait of all threads."""


class Helpers:
    """Activity of the process's other threads, including the engine's, since the creation of this object."""

    def __init__(self) -> None:
        self._began, self._before = perf_counter(), threads_beside()

    def helped(self) -> Helped:
        """Return computing time and CPU wait of these threads since the creation of this object.

        Returns:
            Shares of the elapsed time; 0 if the kernel has no such counters.
        """
        took = max(1e-9, perf_counter() - self._began)
        computed, queued = [0.0], [0.0]
        for tid, on_cpu in threads_beside().items():
            before = self._before.get(tid, OnCpu(0.0, 0.0))
            computed.append(on_cpu.computed - before.computed)
            queued.append(max(0.0, on_cpu.queued - before.queued))
        return Helped(max(computed) / took, max(queued) / took, sum(queued) / took)


def off_cpu(used: ThreadUsage, wall: float, helped: Helped | None = None) -> dict[str, float]:
    """Divide the time in which a thread did not compute by reason, as far as the kernel counts the reasons.

    An engine divides its work among its threads in advance, and continues when the last thread has finished. Until
    then, the calling thread sleeps or spins. If a helper thread computes longer, the calling thread sleeps for the
    difference. Sleep beyond the difference counts as CPU wait, up to the CPU wait of the helper threads. Neither
    counts as a wait for a lock.

    Args:
        used: Use of the thread within ``wall``.
        wall: Wall seconds.
        helped: Activity of the other threads of its engine; None if there are none.

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
    used: Sequence[ThreadUsage],
    walls: Sequence[float],
    batch: int,
    inside: Inside | None,
    helped: Helped | None,
) -> tuple[list[float | None], list[float | None], list[dict[str, float]]]:
    """Return CPU wait by cause and time without compute by reason, for one inference of each repeat.

    Args:
        used: Use of the thread in each repeat.
        walls: Seconds per inference of each repeat.
        batch: Inferences in a repeat.
        inside: CPU time of others inside the container over the same time; None if unknown.
        helped: See :func:`off_cpu`.

    Returns:
        For each repeat, both results of :func:`divide_wait`, and the result of :func:`off_cpu`.
    """
    outside = []
    crowded = []
    reasons = []
    helpers = _helped_in_repeats(helped, walls)
    for usage, wall, helper in zip(used, walls, helpers, strict=True):
        seconds = wall * batch
        waits = [None if wait is None else wait / batch for wait in divide_wait(usage, seconds, inside)]
        outside.append(waits[0])
        crowded.append(waits[1])
        slept = off_cpu(usage, seconds, helper)
        reasons.append({reason: seconds / batch for reason, seconds in slept.items()})
    return outside, crowded, reasons


def _helped_in_repeats(helped: Helped | None, walls: Sequence[float]) -> list[Helped | None]:
    """Divide the activity of other threads among the repeats, because CPU wait is known only for all repeats together.

    Each repeat first gets CPU wait for the time by which it exceeds the fastest repeat. The remaining wait is divided
    equally. Otherwise, another process that stopped one of 50 repeats would seem to have slowed all repeats.
    """
    if helped is None or not walls:
        return [helped] * len(walls)
    waited, queued = _spread(helped.waited, walls), _spread(helped.queued, walls)
    return [Helped(helped.computed, *ratios) for ratios in zip(waited, queued, strict=True)]


def _spread(ratio: float, walls: Sequence[float]) -> list[float]:
    """Divide CPU wait among the repeats: ``ratio`` is a share of the time of all repeats, the result is a share of each
    repeat's time.
    """
    total, fastest = ratio * sum(walls), min(walls)
    longer = sum(wall - fastest for wall in walls)
    of_longer = min(1.0, total / longer) if longer > 0 else 0.0
    rest = max(0.0, total - longer) / len(walls)
    return [(of_longer * (wall - fastest) + rest) / max(wall, 1e-9) for wall in walls]
