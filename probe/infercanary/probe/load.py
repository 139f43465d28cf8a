"""One point of a sweep: a target under a load, so many requests at a time, for so many seconds."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import perf_counter
from typing import Any, Literal, NamedTuple

from infercanary.probe.deadline import one_line
from infercanary.probe.memory import place_of
from infercanary.probe.pool import Pool
from infercanary.probe.targets import Failure, Target, Unsized
from infercanary.probe.timing import inferences

Reason = Literal["out_of_memory", "too_slow", "timed_out", "raised", "unsupported", "busy"]
"""Why a point has no numbers."""

LEAST_REQUESTS = 3
_MOST_REQUESTS = 2_000  # of a thread: more make neither a median nor a rate better
_AIM = 0.8  # of the time that a point has: what is left is for a request that takes longer than those before
_WARM_UPS = 2


class Load(NamedTuple):
    """Samples in a request, and requests at a time."""

    batch: int
    concurrency: int

    def is_at_least(self, other: Load) -> bool:
        """Whether it asks for as much as ``other`` does, or more, in both numbers."""
        return self.batch >= other.batch and self.concurrency >= other.concurrency

    @property
    def words(self) -> str:
        """As a sentence says it."""
        return f"batch {self.batch}" + (f", {self.concurrency} at a time" if self.concurrency > 1 else "")


class Measured(NamedTuple):
    """The result of a load."""

    latency: float
    """Median seconds of a request."""
    rate: float
    """Samples a second, of all requests together."""
    peak_bytes: int | None
    """The most device memory in use meanwhile; None where the target does not know."""
    device_bytes: int = 0
    """Of it, what was not in use before; 0 where the target does not know."""


class Missing(NamedTuple):
    """Why a load gave no numbers."""

    reason: Reason
    detail: str
    was_tried: bool = True
    """Whether the load was put on; else memory would not have sufficed, and may do later."""


class _GivenUp(Exception):
    """The measurement was given up, or another of its threads failed."""


class Measurement:
    """Puts a load on copies of ``target`` for ``seconds``; in the server's pool, where there is one.

    :meth:`measure` runs in a thread that may hang; :meth:`give_up` may come from any other.
    """

    def __init__(self, name: str, target: Target, load: Load, seconds: float, pool: Pool | None) -> None:
        self._name = name
        self._target = target
        self._load = load
        self._seconds = seconds
        self._pool = pool
        self.look: Callable[[], object] = lambda: None
        """Called between requests; what it raises ends the measurement."""
        self._until = 0.0
        self._given_up = threading.Event()
        self._turns: dict[int, Future[Any]] = {}  # each thread's last, in the server's pool
        self._failures: list[BaseException] = []  # of any thread, in order of time
        self.latencies: list[list[float]] = [[] for _ in range(load.concurrency)]
        """Seconds of each request, by thread, without the warm-up."""

    def measure(self) -> Measured | Missing:
        """Measure the load: its numbers, or why there are none. Never raises."""
        self._until = perf_counter() + _AIM * self._seconds
        copies: list[Target] = []
        result: Measured | Missing
        try:
            result = self._measure(copies)
        except BaseException as error:
            result = _missing(error)
        # Only now: an error holds what the model had in memory when it was raised.
        self._failures.clear()
        self._turns.clear()
        for copy in copies:
            with suppress(BaseException):
                copy.close()
        return result

    def give_up(self) -> bool:
        """End after the requests under way; whether some of them are in the server's pool."""
        self._given_up.set()
        running = [turn for turn in list(self._turns.values()) if not turn.cancel()]
        return not all(turn.done() for turn in running)

    def _measure(self, copies: list[Target]) -> Measured | Missing:
        if self._target.is_busy():
            return Missing("busy", "the host keeps the device busy")
        self._target.reset_memory_peak()
        before = self._target.memory()
        for _ in self.latencies:
            copies.append(self._target.copy_with_batch(self._load.batch))
            if self._given_up.is_set():
                raise _GivenUp
        self._drive_together(copies)
        if self._failures:
            raise self._failures[0]
        fewest = min(map(len, self.latencies))
        if fewest < LEAST_REQUESTS:
            few = f"{fewest} of at least {LEAST_REQUESTS} requests in {self._seconds:.3g} s"
            return Missing("too_slow", f"{few}; give the sweep more seconds")
        memory = self._target.memory()
        median = statistics.median(seconds for latencies in self.latencies for seconds in latencies)
        # Each thread by its own time: they do not end at the same moment.
        rate = self._load.batch * sum(1 / statistics.fmean(latencies) for latencies in self.latencies)
        if memory is None or before is None:
            return Measured(median, rate, None)
        return Measured(median, rate, memory.peak, max(0, memory.peak - before.in_use))

    def _drive_together(self, copies: Sequence[Target]) -> None:
        """Drive each copy in a thread; they begin to count together. As daemons they do not delay the exit."""
        barrier = threading.Barrier(len(copies))
        started = []
        try:
            for number, copy in enumerate(copies):
                name, arguments = f"infercanary-{self._name}-load-{number}", (number, copy, barrier)
                thread = threading.Thread(target=self._drive, args=arguments, name=name, daemon=True)
                thread.start()
                started.append(thread)
        finally:  # also where the host is out of threads
            for thread in started:
                thread.join()

    def _drive(self, number: int, copy: Target, barrier: threading.Barrier) -> None:
        """Send one request after another until the time is over; those of the warm-up do not count."""
        latencies = self.latencies[number]
        try:
            copy.prepare()
            at_once = max(1, int(inferences(copy.clock)))
            seconds = [self._request(number, copy) for _ in range(_WARM_UPS)][-1]
            barrier.wait(max(0.0, self._until - perf_counter()))
            while perf_counter() + seconds <= self._until and len(latencies) < _MOST_REQUESTS:
                seconds = self._request(number, copy)
                latencies.append(seconds / at_once)
        except threading.BrokenBarrierError:  # too slow to begin, or another thread failed
            pass
        except BaseException as error:
            self._failures.append(error)
            self._given_up.set()
            barrier.abort()

    def _request(self, number: int, copy: Target) -> float:
        """Seconds of one request, with the waiting for a turn in the server's pool."""
        if self._given_up.is_set():
            raise _GivenUp
        self.look()
        begin = perf_counter()
        if self._pool is None:
            _, result = copy.clock.measure(copy.run)
        else:
            self._turns[number] = turn = self._pool.submit(lambda: copy.clock.measure(copy.run))
            _, result = turn.result()
        seconds = perf_counter() - begin
        copy.check(result)
        return seconds


def _missing(error: BaseException) -> Missing:
    if isinstance(error, Unsized):
        return Missing("unsupported", str(error))
    if isinstance(error, Failure) and error.reason == "out_of_memory":
        return Missing("out_of_memory", str(error), was_tried=False)
    return Missing("out_of_memory" if place_of(error) is not None else "raised", one_line(error))
