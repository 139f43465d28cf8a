"""Load of one point of a sweep: concurrent requests to a target for some seconds."""

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

Reason = Literal["out_of_memory", "short_of_memory", "too_slow", "timed_out", "raised", "unsupported"]
"""Reason why a point has no numbers. ``short_of_memory``: the load was not applied, or ended early."""

LEAST_REQUESTS = 3
# maximum number of requests for a thread: more requests improve neither the median nor the rate
_MOST_REQUESTS = 2_000
_AIM = 0.8  # used share of a point's time; the rest is reserved for a slow last request
_WARM_UPS = 2


class Load(NamedTuple):
    """Load of a server or model: samples in a request (batch), and concurrent requests."""

    batch: int
    concurrency: int

    def is_at_least(self, other: Load) -> bool:
        """True if both numbers are at least those of ``other``."""
        return self.batch >= other.batch and self.concurrency >= other.concurrency

    @property
    def words(self) -> str:
        """Return the load in words, for a sentence."""
        return f"batch {self.batch}" + (f", {self.concurrency} at a time" if self.concurrency > 1 else "")


class Measured(NamedTuple):
    """Result of a load: latency, rate and memory."""

    latency: float
    """Median seconds of a request."""
    rate: float
    """Samples per second, of all requests together."""
    peak_bytes: int | None
    """Peak of the device memory in use during the load; None if unknown."""
    device_bytes: int = 0
    """Part of the peak that was not in use before; 0 if unknown."""


class Missing(NamedTuple):
    """Missing result of a load, with the reason."""

    reason: Reason
    detail: str


class _GivenUp(Exception):
    """The measurement was abandoned, or another thread of the same measurement failed."""


class Measurement:
    """Applies a load to copies of ``target`` for ``seconds``, in the server's pool if there is one.

    :meth:`measure` runs in a thread that may hang; :meth:`give_up` may be called from any other thread.
    """

    def __init__(self, name: str, target: Target, load: Load, seconds: float, pool: Pool | None) -> None:
        self._name = name
        self._target = target
        self._load = load
        self._seconds = seconds
        self._pool = pool
        self.look: Callable[[], object] = lambda: None
        """Function called between requests; an exception from this function ends the measurement."""
        self._until = 0.0
        self._given_up = threading.Event()
        self._turns: dict[int, Future[Any]] = {}  # latest turn of each thread in the server's pool
        self._failures: list[BaseException] = []  # failures of all threads, oldest first
        self.latencies: list[list[float]] = [[] for _ in range(load.concurrency)]
        """Seconds of each request, by thread, without the warm-up."""

    def measure(self) -> Measured | Missing:
        """Measure the load. Returns the numbers, or the reason why there are none. Never raises."""
        self._until = perf_counter() + _AIM * self._seconds
        copies: list[Target] = []
        result: Measured | Missing
        try:
            result = self._measure(copies)
        except BaseException as error:
            result = _missing(error)
        # Release the errors now, because their frames hold memory of the model.
        self._failures.clear()
        self._turns.clear()
        for copy in copies:
            with suppress(BaseException):
                copy.close()
        return result

    def give_up(self) -> bool:
        """End after the present requests. True if some requests still run in the server's pool."""
        self._given_up.set()
        running = [turn for turn in list(self._turns.values()) if not turn.cancel()]
        return not all(turn.done() for turn in running)

    def _measure(self, copies: list[Target]) -> Measured | Missing:
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
        # Use each thread's own time, because threads do not end at the same moment.
        rate = self._load.batch * sum(1 / statistics.fmean(latencies) for latencies in self.latencies)
        if memory is None or before is None:
            return Measured(median, rate, None)
        return Measured(median, rate, memory.peak, max(0, memory.peak - before.in_use))

    def _drive_together(self, copies: Sequence[Target]) -> None:
        """Drive each copy in a thread; all threads begin to count together. Daemon threads do not delay the exit."""
        barrier = threading.Barrier(len(copies))
        started = []
        try:
            for number, copy in enumerate(copies):
                name, arguments = f"infercanary-{self._name}-load-{number}", (number, copy, barrier)
                thread = threading.Thread(target=self._drive, args=arguments, name=name, daemon=True)
                thread.start()
                started.append(thread)
        finally:  # needed even if no more threads can be started
            for thread in started:
                thread.join()

    def _drive(self, number: int, copy: Target, barrier: threading.Barrier) -> None:
        """Send requests one after another until the time is over. Warm-up requests do not count."""
        latencies = self.latencies[number]
        try:
            copy.prepare()
            at_once = max(1, int(inferences(copy.clock)))
            seconds = [self._request(number, copy) for _ in range(_WARM_UPS)][-1]
            barrier.wait(max(0.0, self._until - perf_counter()))
            while perf_counter() + seconds <= self._until and len(latencies) < _MOST_REQUESTS:
                seconds = self._request(number, copy)
                latencies.append(seconds / at_once)
        except threading.BrokenBarrierError:  # a thread started too slowly, or another thread failed
            pass
        except BaseException as error:
            self._failures.append(error)
            self._given_up.set()
            barrier.abort()

    def _request(self, number: int, copy: Target) -> float:
        """Send one request; return its seconds, including the wait for a turn in the server's pool."""
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
        return Missing("short_of_memory", str(error))
    return Missing("out_of_memory" if place_of(error) is not None else "raised", one_line(error))
