"""Threads of the probe's process: number, allowed CPUs, migrations and preemptions.

The metrics are sums over threads, because a series for each thread would create a new series with every new thread.
The files are read without psutil, which takes five times as long and does not read CPU wait
(docs/adr/0015-psutil.md). Reading a thread takes about 20 µs, so a sample reads at most :data:`DETAILED` threads:
first new threads, then the threads with the oldest reading. All other threads keep their last values. In a process
with more threads, some gauges are a few samples old, counters catch up later, and the last increase of an ended
thread is lost.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from operator import add, sub
from typing import Any, NamedTuple

from infercanary.contract.report import Family, Metric
from infercanary.probe import scopes
from infercanary.probe.samplers import Sampler, Unavailable, register
from infercanary.probe.samplers.cgroup import granted_cpus

log = logging.getLogger("infercanary.probe")

PINNED = Metric(
    "infercanary_process_pinned_threads",
    "gauge",
    "Threads that may run only on some of the process's allowed CPUs.",
    reading="Should be 0, unless pinning is intended. Two containers pinned to the same CPUs wait for each other.",
)
GRANTED = Metric(
    "infercanary_process_granted_cpus",
    "gauge",
    "Maximum cores for the process: the lowest of CPU quota, cpuset and affinity masks.",
    reading="An engine should not have more threads. A change comes from the limits, not from the image.",
)
OVERSUBSCRIPTION = Metric(
    "infercanary_thread_oversubscription_ratio",
    "gauge",
    "The engine's computing (intra-op) threads divided by the granted CPUs; missing if unknown.",
    reading="Above 1, threads wait for each other: set `OMP_NUM_THREADS`, or raise the quota.",
)

DETAILED = 128
_TASK = "/proc/self/task"

# skip the first line, which contains the thread's name
_MOVES = re.compile(rb"\n\S*nr_migrations\s*:\s*(\d+)")
_LAST_CPU = 36  # field 39 of stat (proc_pid_stat(5)), counted from the field after the name
# Computing time and CPU wait in nanoseconds, and number of time slices (Documentation/scheduler/sched-stats.rst).
# Without CONFIG_SCHED_INFO, the file is missing. If counting is off (delayacct), all numbers are zero, although every
# thread that ran has used a time slice.
_SCHEDSTAT = re.compile(rb"(\d+) (\d+) [1-9]\d*\s*")


class ThreadUsage(NamedTuple):
    """Use of one thread: since its start, between two readings (``after - before``), or as a sum (``+``).

    None means that the kernel does not count the value; a sum with None is None.
    """

    cpu_seconds: float = 0.0
    run_queue_seconds: float | None = 0.0
    voluntary: int = 0
    involuntary: int = 0
    migrations: int | None = 0
    process_cpu_seconds: float = 0.0
    """CPU seconds of all threads of the process, including this one."""
    blocks_read: int = 0
    """Number of disk blocks read for the thread, plus page faults that needed a disk."""

    @property
    def waited(self) -> float | None:
        """CPU wait caused by other processes, in seconds, without the wait for threads of the same process."""
        if self.run_queue_seconds is None:
            return None
        return max(0.0, self.run_queue_seconds - max(0.0, self.process_cpu_seconds - self.cpu_seconds))

    def __add__(self, other: ThreadUsage) -> ThreadUsage:  # type: ignore[override] # a tuple's + would join both
        return self._with(other, add)

    def __sub__(self, before: ThreadUsage) -> ThreadUsage:
        return self._with(before, sub)

    def _with(self, other: ThreadUsage, operation: Callable[[Any, Any], Any]) -> ThreadUsage:
        pairs = zip(self, other, strict=True)
        return ThreadUsage._make(None if None in pair else operation(*pair) for pair in pairs)


def thread_usage(*, before: bool = False) -> ThreadUsage:
    """Return the use of the calling thread since its start. Never raises; takes about 12 µs.

    Args:
        before: True for a reading before the measured work, False for a reading after the work.
    """
    # Reading a CPU clock may cause CPU wait: the scheduler then updates its counts and may end the time slice
    # (update_curr, Linux 6.6 and later). The order of the readings keeps this wait out of the measured work.
    if before:
        computed, of_process = time.thread_time(), time.process_time()
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    moves, queued = _moves("/proc/thread-self/sched"), _queued("/proc/thread-self/schedstat")
    # The CPU clock is exact; rusage's CPU time is up to 4 ms old (the scheduler's last tick).
    if not before:
        of_process, computed = time.process_time(), time.thread_time()
    return ThreadUsage(
        computed,
        queued,
        usage.ru_nvcsw,
        usage.ru_nivcsw,
        moves,
        of_process,
        usage.ru_inblock + usage.ru_majflt,
    )


class OnCpu(NamedTuple):
    """Computing time and CPU wait of one thread, in seconds."""

    computed: float
    queued: float
    """CPU wait."""


def threads_beside() -> dict[str, OnCpu]:
    """Return computing time and CPU wait of this process's other threads. Never raises; takes about 7 µs a thread.

    Returns:
        Thread number → times, for at most :data:`DETAILED` threads. Threads without counts are left out.
    """
    own = str(threading.get_native_id())
    try:
        tids = [tid for tid in os.listdir(_TASK) if tid != own]
    except OSError:
        return {}
    # Read the newest threads: an engine starts its worker threads when the canary's thread first calls the engine.
    tids.sort(key=int)
    found = {tid: _SCHEDSTAT.fullmatch(_read(f"{_TASK}/{tid}/schedstat")) for tid in tids[-DETAILED:]}
    return {tid: OnCpu(int(on[1]) / 1e9, int(on[2]) / 1e9) for tid, on in found.items() if on}


class Place(NamedTuple):
    """Allowed CPUs of a thread, and the CPU on which the thread ran last; None if unknown."""

    cpus: frozenset[int] | None = None
    last_cpu: int | None = None
    gpus: frozenset[str] | None = None
    """NVML's indexes of the GPUs that the thread used; empty on the CPU."""


def thread_place(tid: int) -> Place:
    """Return the place of a thread of this process. Never raises; takes about 6 µs.

    Args:
        tid: The kernel's number of the thread.

    Returns:
        Fields are None if the thread has ended.
    """
    return Place(_affinity(tid), _last_cpu(f"{_TASK}/{tid}/stat"))


class _Seen(NamedTuple):
    """Values of a thread at its last reading; unreadable values are None."""

    cpus: frozenset[int] | None = None
    last_cpu: int | None = None
    queued: float | None = None
    moves: int | None = None


@register
class ThreadSampler(Sampler):
    """Reads the threads of this process from /proc."""

    name = "threads"

    def __init__(
        self,
        *,
        local_cpus: Callable[[], Mapping[str, frozenset[int]]] = dict,
        compute_threads: Callable[[], int | None] = lambda: None,
        places: Callable[[], Mapping[str, Place]] = dict,
    ) -> None:
        """Args:
        local_cpus: Function that returns the CPUs on each GPU's NUMA node, as far as known.
        compute_threads: Function that returns the largest number of an engine's compute threads; None while unknown.
        places: Function that returns the known place of each canary's thread in its last run.
        """
        self._local_cpus = local_cpus
        self._compute_threads = compute_threads
        self._places = places
        self._seen: dict[str, _Seen] = {}  # threads in the order of their last reading, oldest first
        self._queued = 0.0
        self._moves = 0.0
        self._warned = False

    def sample(self) -> Iterable[Family]:
        try:
            tids = os.listdir(_TASK)
        except OSError as error:
            raise Unavailable(f"{_TASK} cannot be read ({error.strerror})") from None
        by_gpu = self._local_cpus()
        local = _union(by_gpu.values())
        self._look(tids, with_last_cpu=bool(local))
        seen = self._seen.values()
        masks = Counter(thread.cpus for thread in seen if thread.cpus is not None)
        # Use the union of all masks, because OpenMP may have pinned the main thread or the present thread.
        allowed = _union(masks)
        # Use counts of the whole process, with ended threads; /proc/self/status has only the main thread's switches.
        usage = resource.getrusage(resource.RUSAGE_SELF)
        off_node: dict[tuple[str, ...], float] = {}
        if local:
            off_node[scopes.OF_PROCESS] = sum(
                t.last_cpu is not None and t.last_cpu not in local for t in seen
            )
        allowed_cpus: dict[tuple[str, ...], float] = {scopes.OF_PROCESS: len(allowed)}
        for name, at in self._places().items():
            near = [cpus for gpu, cpus in by_gpu.items() if at.gpus is None or gpu in at.gpus]
            if at.cpus is not None:
                allowed_cpus[scopes.CANARY, name] = len(at.cpus)
            if at.last_cpu is not None and near:
                off_node[scopes.CANARY, name] = at.last_cpu not in _union(near)
        yield scopes.ALLOWED.family(allowed_cpus)
        yield PINNED.family(sum(threads for mask, threads in masks.items() if mask < allowed))
        if off_node:
            yield scopes.OFF_NODE.family(off_node)
        yield from self._grant(len(allowed))
        switches = {"voluntary": usage.ru_nvcsw, "involuntary": usage.ru_nivcsw}
        yield scopes.SWITCHES.family({(*scopes.OF_PROCESS, kind): count for kind, count in switches.items()})
        yield scopes.CPU.family({(*scopes.OF_PROCESS, ""): usage.ru_utime + usage.ru_stime})
        if any(thread.queued is not None for thread in seen):
            yield scopes.RUN_QUEUE.family({scopes.OF_PROCESS: self._queued})
        if any(thread.moves is not None for thread in seen):
            yield scopes.MIGRATIONS.family({scopes.OF_PROCESS: self._moves})

    def _grant(self, allowed: int) -> Iterable[Family]:
        granted = min(filter(None, (granted_cpus(), allowed)), default=None)
        if granted is not None:
            yield GRANTED.family(granted)
            if computing := self._compute_threads():
                # a single thread does not compete with other compute threads
                ratio = computing / max(1.0, granted)
                if ratio > 1 and not self._warned:
                    log.warning("%g computing threads share %g CPUs; set OMP_NUM_THREADS", computing, granted)
                self._warned = ratio > 1
                yield OVERSUBSCRIPTION.family(ratio)

    def _look(self, tids: Iterable[str], *, with_last_cpu: bool) -> None:
        """Read the next threads, and add the increases of their values to the counters.

        The counters add increases, because a sum over all threads would shrink when a thread ends.
        """
        alive = set(tids)
        known = {tid: thread for tid, thread in self._seen.items() if tid in alive}
        masks = {thread.cpus: thread.cpus for thread in known.values()}
        for tid in [*(alive - known.keys()), *known][:DETAILED]:
            before = known.pop(tid, _Seen())
            now = _one(f"{_TASK}/{tid}", tid, before, with_last_cpu=with_last_cpu)
            self._queued += _increase(before.queued, now.queued)
            self._moves += _increase(before.moves, now.moves)
            # Most threads have the same mask, so they share one object.
            known[tid] = now._replace(cpus=masks.setdefault(now.cpus, now.cpus))
        self._seen = known


def _one(folder: str, tid: str, before: _Seen, *, with_last_cpu: bool) -> _Seen:
    """Read one thread.

    A value that cannot be read (the thread ended, or no file descriptor is free) keeps its old value.
    """
    now = _Seen(
        _affinity(int(tid)),
        _last_cpu(f"{folder}/stat") if with_last_cpu else None,
        _queued(f"{folder}/schedstat"),
        _moves(f"{folder}/sched"),
    )
    return _Seen(*map(_newer, before, now))


def _newer(before: Any, now: Any) -> Any:
    return before if now is None else now


def _increase(before: float | None, now: float | None) -> float:
    if now is None:
        return 0
    # a new thread may have the id of an ended thread
    return now if before is None or now < before else now - before


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)


def _affinity(tid: int) -> frozenset[int] | None:
    try:
        return frozenset(os.sched_getaffinity(tid))
    except OSError:  # the thread ended during the reading
        return None


def _queued(schedstat: str) -> float | None:
    found = _SCHEDSTAT.fullmatch(_read(schedstat))
    return int(found[2]) / 1e9 if found else None


def _last_cpu(stat: str) -> int | None:
    fields = _read(stat).rpartition(b")")[2].split()  # the name in parentheses may contain any character
    return int(fields[_LAST_CPU]) if len(fields) > _LAST_CPU else None


def _moves(sched: str) -> int | None:
    found = _MOVES.search(_read(sched))
    return int(found[1]) if found else None


def _read(path: str) -> bytes:
    """Return the beginning of a file; empty if unreadable.

    The function is called for every thread, so it uses os.read, which takes a third of pathlib's time.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 8192)
    except OSError:  # the thread ended before the reading
        return b""
    finally:
        os.close(descriptor)
