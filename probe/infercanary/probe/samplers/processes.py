"""The memory of the host process, and what runs beside it in its container, by psutil.

psutil is used where a fact is read a few times in a round: docs/adr/0015-psutil.md has what that costs, and why threads
are read by hand. Processes are summed by the name of their command, since a process's id means nothing later. Reading
one takes about 40 µs, so one sample reads at most :data:`MOST` of them, those with the lowest ids.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

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


class _Read(NamedTuple):
    pid: int
    command: str
    cpu_seconds: float
    resident: int


@register
class ProcessSampler(Sampler):
    """Asks psutil.

    Args:
        is_contained: Whether the processes that this one sees are those of a container.
    """

    name = "processes"

    def __init__(self, is_contained: Callable[[], bool] = in_container) -> None:
        self._is_contained = is_contained
        self._last: dict[int, float] = {}  # process → its CPU seconds when it was last read
        self._seconds: dict[str, float] = defaultdict(
            float
        )  # command → CPU seconds, those of ended processes too

    def sample(self) -> Iterable[Family]:
        # Not kept: a server may fork, and the probe then runs in the child.
        own: dict[tuple[str, ...], float] = {(scopes.PROCESS, ""): psutil.Process().memory_info().rss}
        if not self._is_contained():
            yield scopes.RESIDENT.family(own)
            return
        alive, memory = {*psutil.pids()}, defaultdict[str, float](float)
        for pid, command, seconds, resident in islice(_others(), MOST):
            known = command in self._seconds or len(self._seconds) < COMMANDS
            command = command if known else OTHERS
            before = self._last.get(pid, 0.0)
            # The increase of each is added: a new sum would shrink when one ends. An id may be used again.
            self._seconds[command] += seconds - before if seconds >= before else seconds
            self._last[pid] = seconds
            memory[command] += resident
        self._last = {pid: seconds for pid, seconds in self._last.items() if pid in alive}
        yield scopes.CPU.family({(scopes.BESIDE, "", command): s for command, s in self._seconds.items()})
        yield scopes.RESIDENT.family(own | {(scopes.BESIDE, command): m for command, m in memory.items()})


def _others() -> Iterator[_Read]:
    """Every other process that can be read, the lowest id first."""
    for process in psutil.process_iter(["name", "cpu_times", "memory_info"]):
        name, cpu, memory = (process.info[fact] for fact in ("name", "cpu_times", "memory_info"))
        if process.pid != os.getpid() and cpu is not None and memory is not None:
            yield _Read(process.pid, printable(name or "?", _NAME), cpu.user + cpu.system, memory.rss)
