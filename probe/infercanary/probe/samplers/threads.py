"""Threads of the host process: how many, where they may run, and how often they are moved or pushed aside.

Counts only: a series per thread would be a new series with every thread (and a thread's id means nothing later).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import psutil

from infercanary.probe.report import Family, Metric

THREADS = Metric("infercanary_process_threads", "gauge", "Threads of the process that the probe runs in.")
ALLOWED = Metric(
    "infercanary_process_allowed_cpus", "gauge", "CPUs that the process may run on (its affinity mask)."
)
PINNED = Metric(
    "infercanary_process_pinned_threads",
    "gauge",
    "Threads whose own affinity mask is narrower than the process's.",
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
        self._process = psutil.Process()
        self._migrations: dict[str, int] = {}
        self._migrated = 0

    def sample(self) -> Iterable[Family]:
        """See :class:`~infercanary.probe.samplers.Sampler`."""
        tids = [entry.name for entry in (self._proc / "task").iterdir()]
        allowed = os.sched_getaffinity(0)
        process = self._process
        with process.oneshot():
            switches = process.num_ctx_switches()
            times = process.cpu_times()
        yield THREADS.family(len(tids))
        yield ALLOWED.family(len(allowed))
        yield PINNED.family(sum(self._narrower(int(tid), len(allowed)) for tid in tids))
        yield SWITCHES.family({("voluntary",): switches.voluntary, ("involuntary",): switches.involuntary})
        yield CPU.family(times.user + times.system)
        if (queued := self._run_queue_ns()) is not None:
            yield RUN_QUEUE.family(queued / 1e9)
        if self._count_migrations(tids):
            yield MIGRATIONS.family(self._migrated)

    @staticmethod
    def _narrower(tid: int, allowed: int) -> bool:
        try:
            return len(os.sched_getaffinity(tid)) < allowed
        except ProcessLookupError:  # it ended meanwhile
            return False

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
        self._migrated += sum(n - self._migrations.get(tid, 0) for tid, n in seen.items())
        self._migrations = seen
        return bool(seen)
