"""Who had the CPU that a canary waited for: others inside its container, or others on the host."""

from __future__ import annotations

from time import perf_counter, process_time
from typing import NamedTuple

from infercanary.probe.samplers.cgroup import ContainerCpu
from infercanary.probe.samplers.threads import ThreadUsage


class Inside(NamedTuple):
    """CPU time of others inside the container while a canary's repeats ran: other threads and other processes."""

    cpu_seconds: float
    """Of all of them; threads that help the canary's engine are among them."""
    processes_seconds: float
    """Of other processes."""
    wall_seconds: float
    """How long that was."""

    @property
    def cores(self) -> float:
        """How many they took on average."""
        return self.cpu_seconds / self.wall_seconds


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
        return Inside(processes + threads, processes, max(1e-9, perf_counter() - self._at))


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
    processes = inside.processes_seconds / inside.wall_seconds * wall
    crowded = min(used.run_queue_seconds, threads + processes)
    return used.run_queue_seconds - crowded, crowded
