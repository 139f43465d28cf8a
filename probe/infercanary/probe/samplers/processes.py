"""Processes: memory of the probe's process, and CPU time and memory of other processes in its container, by psutil.

psutil reads only values that are needed a few times in a round; docs/adr/0015-psutil.md gives its cost, and says why
threads are read without psutil. Memory is summed by command name, because process ids have no meaning later. Reading
one process takes about 40 µs, so a sample reads at most :data:`MOST` processes, lowest ids first.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice

import psutil

from infercanary.contract.report import Family
from infercanary.contract.text import printable
from infercanary.probe import scopes
from infercanary.probe.samplers import Sampler, register
from infercanary.probe.start import in_container

MOST = 64
COMMANDS = 8
OTHERS = "others"

_NAME = 64  # characters


@register
class ProcessSampler(Sampler):
    name = "processes"

    def __init__(self) -> None:
        self._last: dict[int, float] = {}  # process → CPU seconds at its last reading
        self._seconds: dict[str, float] = defaultdict(
            float
        )  # command → CPU seconds, including ended processes

    def sample(self) -> Iterable[Family]:
        # Not cached: after a fork of the server, the probe runs in the child.
        own: dict[tuple[str, ...], float] = {(scopes.PROCESS, ""): psutil.Process().memory_info().rss}
        if not in_container():
            yield scopes.RESIDENT.family(own)
            return
        alive, memory = {*psutil.pids()}, defaultdict[str, float](float)
        for pid, command, seconds, resident in islice(_others(), MOST):
            known = command in self._seconds or len(self._seconds) < COMMANDS
            command = command if known else OTHERS
            before = self._last.get(pid, 0.0)
            # Sum the increases of each process, because a total over running processes shrinks when a process ends.
            self._seconds[command] += seconds - before if seconds >= before else seconds
            self._last[pid] = seconds
            memory[command] += resident
        self._last = {pid: seconds for pid, seconds in self._last.items() if pid in alive}
        yield scopes.CPU.family({(scopes.BESIDE, "", command): s for command, s in self._seconds.items()})
        yield scopes.RESIDENT.family(own | {(scopes.BESIDE, command): m for command, m in memory.items()})


def _others() -> Iterator[tuple[int, str, float, int]]:
    """Yield PID, command, CPU seconds and resident bytes of the other readable processes, lowest PID first."""
    for process in psutil.process_iter(["name", "cpu_times", "memory_info"]):
        name, cpu, memory = (process.info[fact] for fact in ("name", "cpu_times", "memory_info"))
        if process.pid != os.getpid() and cpu is not None and memory is not None:
            yield process.pid, printable(name or "?", _NAME), cpu.user + cpu.system, memory.rss
