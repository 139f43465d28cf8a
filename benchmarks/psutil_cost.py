"""What psutil's calls cost beside ours, in a process of 4, 32 and 128 threads.

Each line is one fact, read in both ways, in turns: CPU time, so that a busy machine counts less. Only the ratio counts,
of the medians over all turns, with a 95 % bootstrap interval. docs/adr/0015-psutil.md is what was decided by it.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import psutil

from infercanary.probe.samplers.threads import thread_place, thread_usage

_CALLS = 3
"""Of each way in a turn."""
_RESAMPLES = 500
_MEMORY = 256 << 20
"""Bytes that the process has touched: what is unique to it is found by a walk over its pages."""
_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """Of one fact: median seconds of a call, and how many times ours psutil's takes."""

    fact: str
    ours: float
    theirs: float
    low: float
    high: float

    def __str__(self) -> str:
        ratio = f"{self.theirs / self.ours:6.1f} [{self.low:.1f}, {self.high:.1f}]"
        return f"{self.fact:44} {self.ours * 1e6:8.1f} µs {self.theirs * 1e6:8.1f} µs {ratio}"


def _places() -> list[object]:
    return [thread_place(int(tid)) for tid in os.listdir("/proc/self/task")]


def _places_by_psutil() -> list[object]:
    threads = [psutil.Process(each.id) for each in psutil.Process().threads()]
    return [(thread.cpu_affinity(), thread.cpu_num()) for thread in threads]


def _place_by_psutil() -> object:
    thread = psutil.Process(threading.get_native_id())
    return thread.cpu_affinity(), thread.cpu_num()


def _usage_by_psutil() -> object:
    with (thread := psutil.Process(threading.get_native_id())).oneshot():
        return thread.cpu_times(), thread.num_ctx_switches(), time.process_time()


def _process() -> object:
    return resource.getrusage(resource.RUSAGE_SELF)


def _process_by_psutil() -> object:
    with (own := psutil.Process()).oneshot():
        return own.cpu_times(), own.num_ctx_switches()


def _stat(pid: str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _memory(pid: str = "self") -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def _age() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(_stat("self")[19]) / _TICKS


def _age_by_psutil() -> float:
    boot = psutil.boot_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - (psutil.Process().create_time() - boot)


def _processes() -> Iterator[object]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield Path(f"/proc/{pid}/comm").read_text(), _stat(pid)[11:13], _memory(pid)
        except OSError:  # it ended
            continue


def _processes_by_psutil() -> Iterator[object]:
    return psutil.process_iter(["name", "cpu_times", "memory_info"])


FACTS: tuple[tuple[str, Callable[[], object], Callable[[], object]], ...] = (
    ("each thread's CPUs and last CPU", _places, _places_by_psutil),
    ("the canary's thread: its place", lambda: thread_place(threading.get_native_id()), _place_by_psutil),
    ("the canary's thread: CPU, switches (+ queue)", thread_usage, _usage_by_psutil),
    ("the process: CPU, switches", _process, _process_by_psutil),
    (
        "how many threads",
        lambda: len(os.listdir("/proc/self/task")),
        lambda: psutil.Process().num_threads(),
    ),
    ("since when the process runs", _age, _age_by_psutil),
    ("resident memory", _memory, lambda: psutil.Process().memory_info().rss),
    ("unique memory (USS), beside psutil's resident", lambda: psutil.Process().memory_info().rss,
     lambda: psutil.Process().memory_full_info().uss),
    ("every process: name, CPU, memory", lambda: [*_processes()], lambda: [*_processes_by_psutil()]),
)  # fmt: skip


def _seconds(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    for _ in range(_CALLS):
        call()
    return (time.thread_time() - begin) / _CALLS


def measure(threads: int, turns: int) -> list[Cost]:
    """What each fact costs in this process, with so many threads.

    Args:
        threads: Of the process, this one included.
        turns: How often each way is measured.

    Returns:
        A cost for each fact.
    """
    stop, rng, found = threading.Event(), random.Random(1), []
    touched = b"1" * _MEMORY
    started = [threading.Thread(target=stop.wait) for _ in range(threads - 1)]
    for thread in started:
        thread.start()
    for fact, ours, theirs in FACTS:
        ours(), theirs()
        pairs = [(_seconds(ours), _seconds(theirs)) for _ in range(turns)]
        ratios = sorted(_ratio(rng.choices(pairs, k=turns)) for _ in range(_RESAMPLES))
        a, b = (statistics.median(way) for way in zip(*pairs, strict=True))
        found.append(Cost(fact, a, b, ratios[_RESAMPLES // 40], ratios[-1 - _RESAMPLES // 40]))
    stop.set()
    del touched
    return found


def _ratio(pairs: list[tuple[float, float]]) -> float:
    ours, theirs = zip(*pairs, strict=True)
    return float(statistics.median(theirs) / statistics.median(ours))


def main() -> None:
    """Print a table for each number of threads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=60, help="(default: %(default)s)")
    arguments = parser.parse_args()
    for threads in (4, 32, 128):
        with ProcessPoolExecutor(1, get_context("spawn")) as child:
            costs = child.submit(measure, threads, arguments.turns).result()
        print(
            f"{threads} threads, {len(psutil.pids())} processes, psutil {psutil.__version__}: ours, psutil's, ratio"
        )
        print(*costs, sep="\n")
        print()


if __name__ == "__main__":
    main()
