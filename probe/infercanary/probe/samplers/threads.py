"""Threads of the host process: how many, where they may run, and how often they are moved or pushed aside.

Counts only: a series per thread would be a new series with every thread (and a thread's id means nothing later).
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable
from pathlib import Path

from infercanary.probe.report import Family, Metric

THREADS = Metric("infercanary_process_threads", "gauge", "Threads of the process that the probe runs in.")
ALLOWED = Metric(
    "infercanary_process_allowed_cpus",
    "gauge",
    "CPUs that some thread of the process may run on, by the threads' affinity masks.",
)
PINNED = Metric(
    "infercanary_process_pinned_threads",
    "gauge",
    "Threads that may not run on all of the process's allowed CPUs.",
)
SWITCHES = Metric(
    "infercanary_process_context_switches_total",
    "counter",
    "Context switches of the process: voluntary (it waited) and involuntary (it was pushed off its CPU).",
    ("kind",),
)
MIGRATIONS = Metric(
    "infercanary_process_migrations_total",
    "counter",
    "Moves of its live threads from one CPU to another; missing where the kernel does not tell (CONFIG_SCHED_DEBUG).",
)
RUN_QUEUE = Metric(
    "infercanary_process_run_queue_seconds_total",
    "counter",
    "Time that the process's main thread was ready to run and waited for a CPU.",
)
CPU = Metric(
    "infercanary_process_cpu_seconds_total", "counter", "CPU time of the process that the probe runs in."
)


class ThreadSampler:
    """Reads /proc of this process."""

    name = "threads"

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self._proc = proc
        self._migrations: dict[str, int] = {}
        self._migrated = 0

    def sample(self) -> Iterable[Family]:
        """See :class:`~infercanary.probe.samplers.Sampler`."""
        tids = [entry.name for entry in (self._proc / "task").iterdir()]
        masks = list(filter(None, map(_affinity, tids)))
        # Not the mask of the main thread, nor of this one: OpenMP may have pinned either.
        allowed = frozenset[int]().union(*masks)
        # Of the whole process, ended threads included; /proc/self/status tells the main thread's switches only.
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield THREADS.family(len(tids))
        yield ALLOWED.family(len(allowed))
        yield PINNED.family(sum(mask < allowed for mask in masks))
        yield SWITCHES.family({("voluntary",): usage.ru_nvcsw, ("involuntary",): usage.ru_nivcsw})
        yield CPU.family(usage.ru_utime + usage.ru_stime)
        if (queued := self._run_queue_ns()) is not None:
            yield RUN_QUEUE.family(queued / 1e9)
        if self._count_migrations(tids):
            yield MIGRATIONS.family(self._migrated)

    def _run_queue_ns(self) -> int | None:
        """Second field of schedstat (Documentation/scheduler/sched-stats.rst); absent without CONFIG_SCHED_INFO."""
        try:
            return int((self._proc / "schedstat").read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return None

    def _count_migrations(self, tids: list[str]) -> bool:
        """Add up each thread's increase: a thread that ends must not take its share out of a counter."""
        seen = {}
        for tid in tids:
            try:
                text = (self._proc / "task" / tid / "sched").read_text()
            except OSError:
                continue
            if found := re.search(r"nr_migrations\s*:\s*(\d+)", text):
                seen[tid] = int(found[1])
        for tid, moves in seen.items():
            before = self._migrations.get(tid, 0)
            self._migrated += moves - before if moves >= before else moves  # a thread's id may be used again
        self._migrations = seen
        return bool(seen)


def _affinity(tid: str) -> frozenset[int] | None:
    try:
        return frozenset(os.sched_getaffinity(int(tid)))
    except OSError:  # it ended meanwhile
        return None
