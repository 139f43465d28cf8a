"""Why a canary did not compute: who had the CPU that it waited for, others inside its container or on the host; and
what it slept for.
"""

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


class Crowd:
    """From its making on, what others inside the container take."""

    def __init__(self, container: ContainerCpu) -> None:
        """Begin now.

        Args:
            container: The CPU time of all that is in it.
        """
        self._container = container
        self._at, self._process, self._all = perf_counter(), process_time(), container.seconds()

    def since(self, own: ThreadUsage) -> Inside | None:
        """What they took.

        Args:
            own: What the canary's threads used meanwhile, which is theirs.

        Returns:
            None where the container's CPU time is not known.
        """
        now = self._container.seconds()
        if now is None or self._all is None:
            return None
        taken, of_process = now - self._all, process_time() - self._process
        processes = max(0.0, taken - of_process)
        threads = max(0.0, of_process - own.cpu_seconds)
        wall = max(1e-9, perf_counter() - self._at)
        return Inside(processes + threads, processes, wall, max(1e-9, wall - own.cpu_seconds))


def divided(used: ThreadUsage, wall: float, inside: Inside | None) -> tuple[float | None, float | None]:
    """Seconds of ``wall`` that a thread waited for others outside the container, and for others inside.

    Who had the CPU is not counted by the kernel. Others inside had it for as long as they computed at most; what is
    beyond that, others outside had.

    Args:
        used: What the thread used in that time.
        wall: Seconds.
        inside: What others inside took in a longer time around it.

    Returns:
        Both; where the container is not known, what other processes had, and None.
    """
    if inside is None or used.run_queue_seconds is None:
        return used.waited, None
    threads = max(0.0, used.process_cpu_seconds - used.cpu_seconds)
    processes = inside.processes_seconds * inside.share(wall - used.cpu_seconds)
    crowded = min(used.run_queue_seconds, threads + processes)
    return used.run_queue_seconds - crowded, crowded


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
        self._at, self._before = perf_counter(), threads_beside()

    def helped(self) -> Helped:
        """How they fared since then.

        Returns:
            Ratios; 0 where nothing is counted.
        """
        now = threads_beside()
        took = max(1e-9, perf_counter() - self._at)
        since = [(on, self._before.get(tid, OnCpu(0.0, 0.0))) for tid, on in now.items()]
        computed = max((on.computed - before.computed for on, before in since), default=0.0)
        queued = [max(0.0, on.queued - before.queued) for on, before in since]
        return Helped(computed / took, max(queued, default=0.0) / took, sum(queued) / took)


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


def of_each(
    used: Sequence[ThreadUsage],
    walls: Sequence[float],
    batch: int,
    inside: Inside | None,
    helped: Helped | None,
) -> tuple[list[float | None], list[float | None], list[dict[str, float]]]:
    """What each repeat waited for, for one of its inferences.

    Args:
        used: What the thread used from the first repeat's begin to each one's end.
        walls: Seconds of an inference of each repeat.
        batch: Inferences in a repeat.
        inside: What others inside the container took meanwhile; None where unknown.
        helped: See :func:`off_cpu`.

    Returns:
        For each repeat both of :func:`divided`, and :func:`off_cpu`.
    """
    waits: list[float | None] = []
    crowds: list[float | None] = []
    why = []
    for (before, now), wall, own in zip(
        pairwise([ThreadUsage(), *used]), walls, _helped_in_each(helped, walls), strict=True
    ):
        waited, crowded = divided(now - before, wall * batch, inside)
        waits.append(None if waited is None else waited / batch)
        crowds.append(None if crowded is None else crowded / batch)
        reasons = off_cpu(now - before, wall * batch, own)
        why.append({reason: seconds / batch for reason, seconds in reasons.items()})
    return waits, crowds, why


def _helped_in_each(helped: Helped | None, walls: Sequence[float]) -> list[Helped | None]:
    """How the other threads fared in each repeat: what they waited is counted over all repeats together.

    They waited where repeats took longer than the fastest one, and only what is more than that did each of them wait:
    a neighbour that stops one of 50 repeats has not slowed the others.
    """
    if helped is None or not walls:
        return [helped] * len(walls)
    waited, queued = (_spread(ratio, walls) for ratio in (helped.waited, helped.queued))
    return [Helped(helped.computed, *each) for each in zip(waited, queued, strict=True)]


def _spread(ratio: float, walls: Sequence[float]) -> list[float]:
    """A ratio of the time of all repeats as one of each."""
    fastest = min(walls)
    longer = sum(walls) - fastest * len(walls)
    total = ratio * sum(walls)
    of_longer = min(1.0, total / longer) if longer > 0 else 0.0
    rest = max(0.0, total - longer) / len(walls)
    return [(of_longer * (wall - fastest) + rest) / wall if wall > 0 else 0.0 for wall in walls]
