"""One point of a sweep: a target under a load, so many requests at a time, for so many seconds."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from time import monotonic, perf_counter, sleep
from typing import Any, Literal, NamedTuple

from infercanary.probe.deadline import one_line
from infercanary.probe.pool import Pool
from infercanary.probe.shortage import place_of
from infercanary.probe.targets import Failure, Target, Unsized
from infercanary.probe.timing import inferences

Reason = Literal["out_of_memory", "too_slow", "timed_out", "raised", "unsupported", "busy"]
"""Why a point has no numbers."""

LEAST_REQUESTS = 3
_MOST_REQUESTS = 10_000

_AIM = 0.8  # of the time that a point has: what is left is for a request that takes longer than those before
_LOOK_SECONDS = 0.1  # in which a server that grows by 200 MiB/s takes a third of the reserve
_WARM_UPS = 2
_WARM_UP_SHARE = 0.2
_GIVE_WAY_SECONDS, _GIVE_WAY_SHARE = 0.5, 0.2


class Load(NamedTuple):
    """Samples in a request, and requests at a time."""

    batch: int
    concurrency: int

    def is_at_least(self, other: Load) -> bool:
        """Whether it asks for as much as ``other`` does, or more.

        Args:
            other: Compared in both numbers.
        """
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


class Missing(NamedTuple):
    """Why a load gave no numbers."""

    reason: Reason
    detail: str
    was_tried: bool = True
    """Whether the load was put on; else it would not have fitted, and may fit later."""


class _Over(Exception):
    """The measurement was given up, or another of its threads failed."""


class Measurement:
    """Puts a load on copies of ``target`` for ``seconds``; in the server's pool, where there is one.

    :meth:`measure` runs in a thread that may hang; :meth:`give_up` may come from any other.

    Args:
        name: The canary's.
        target: What is copied; it is not run itself.
        load: Samples in a request, and copies that run side by side.
        seconds: How long it may take, making the copies included.
        pool: The server's own; None to run in threads of its own.
        look: Called between requests, some times a second; what it raises ends the measurement.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        load: Load,
        seconds: float,
        pool: Pool | None,
        look: Callable[[], object] | None = None,
    ) -> None:
        self._name = name
        self._target = target
        self._load = load
        self._seconds = seconds
        self._pool = pool
        self._look = look
        self._look_at = 0.0
        self.ended_at: float | None = None
        """When :meth:`measure` ended (monotonic), also one that was given up."""
        self._until = 0.0
        self._give_way = min(_GIVE_WAY_SECONDS, _GIVE_WAY_SHARE * seconds)
        self._over = threading.Event()
        self._turns: dict[int, Future[Any]] = {}  # each thread's last, in the server's pool
        self._failure: BaseException | None = None  # the first of any thread
        self._threads = [_Driver() for _ in range(load.concurrency)]

    def measure(self) -> Measured | Missing:
        """Measure the load: its numbers, or why there are none. Never raises.

        Returns:
            The numbers; or the reason why there are none, in a word and in a line.
        """
        self._until = perf_counter() + _AIM * self._seconds
        copies: list[Target] = []
        found: Measured | Missing
        try:
            if self._is_busy():
                return Missing("busy", f"the device was busy for {self._give_way:.3g} s")
            found = self._measured(copies)
        except Unsized as error:
            found = Missing("unsupported", str(error))
        except BaseException as error:
            if isinstance(error, Failure) and error.reason == "out_of_memory":
                found = Missing("out_of_memory", str(error), was_tried=False)
            else:
                found = Missing("out_of_memory" if place_of(error) is not None else "raised", one_line(error))
        # Only now: an error holds what the model had in memory when it was raised.
        self._failure = None
        for copy in copies:
            with suppress(BaseException):
                copy.close()
        self.ended_at = monotonic()
        return found

    def give_up(self) -> bool:
        """Let it end after the requests under way; whether some of those are in the server's pool."""
        self._over.set()
        held = [turn for turn in list(self._turns.values()) if not turn.cancel()]
        return not all(turn.done() for turn in held)

    def _measured(self, copies: list[Target]) -> Measured | Missing:
        self._target.reset_memory_peak()
        for _ in self._threads:
            copies.append(self._target.copy_with_batch(self._load.batch))
            if self._over.is_set():
                raise _Over
        if len(copies) == 1:
            self._drive(0, copies[0], lambda: None)
        else:
            self._together(copies)
        if self._failure is not None:
            raise self._failure
        fewest = min(len(driver.latencies) for driver in self._threads)
        if fewest < LEAST_REQUESTS:
            return Missing(
                "too_slow",
                f"{fewest} of at least {LEAST_REQUESTS} requests in {self._seconds:.3g} s; give the sweep more seconds",
            )
        memory = self._target.memory()
        latencies = [seconds for driver in self._threads for seconds in driver.latencies]
        rate = sum(driver.rate for driver in self._threads) * self._load.batch
        return Measured(statistics.median(latencies), rate, None if memory is None else int(memory.peak))

    def _together(self, copies: list[Target]) -> None:
        """Drive each copy in a thread; they begin to count together. As daemons they do not delay the exit."""
        barrier = threading.Barrier(len(copies))

        def drive(number: int, copy: Target) -> None:
            try:
                self._drive(number, copy, lambda: barrier.wait(max(0.0, self._until - perf_counter())))
            except threading.BrokenBarrierError:  # too slow to begin, or another thread failed
                pass
            except BaseException as error:
                self._failure = self._failure or error
                self._over.set()
                barrier.abort()

        threads = [
            threading.Thread(
                target=drive, args=(number, copy), name=f"infercanary-{self._name}-load-{number}", daemon=True
            )
            for number, copy in enumerate(copies)
        ]
        started = []
        try:
            for thread in threads:
                thread.start()
                started.append(thread)
        except RuntimeError:  # the host is out of threads
            self._over.set()
            barrier.abort()
            raise
        finally:
            for thread in started:
                thread.join()

    def _drive(self, number: int, copy: Target, ready: Callable[[], Any]) -> None:
        """Send one request after another until the time is over; those of the warm-up do not count."""
        copy.prepare()
        driver = self._threads[number]
        driver.inferences = max(1, int(inferences(copy.clock)))
        warm = perf_counter() + _WARM_UP_SHARE * max(0.0, self._until - perf_counter())
        latency = 0.0
        for _ in range(_WARM_UPS):
            latency = self._request(number, copy)
            if perf_counter() > warm:
                break
        ready()
        driver.begin = driver.end = perf_counter()
        driver.aside = 0.0
        most = _MOST_REQUESTS // self._load.concurrency
        while driver.end + latency <= self._until and len(driver.latencies) < most:
            latency = self._request(number, copy)
            driver.add(latency)

    def _request(self, number: int, copy: Target) -> float:
        """Seconds of one request, with the waiting for a turn in the server's pool."""
        if self._over.is_set():
            raise _Over("given up")
        begin = perf_counter()
        if self._look is not None and begin >= self._look_at:
            self._look_at = begin + _LOOK_SECONDS
            self._look()
            begin = perf_counter()
        driver = self._threads[number]
        if self._pool is None:
            _, result = copy.clock.measure(copy.run)
        else:
            self._turns[number] = turn = self._pool.submit(lambda: copy.clock.measure(copy.run))
            try:
                _, result = turn.result()
            except CancelledError:
                raise _Over("given up") from None
        end = perf_counter()
        copy.check(result)
        driver.aside += perf_counter() - end
        return (end - begin) / driver.inferences

    def _is_busy(self) -> bool:
        until = perf_counter() + self._give_way
        while self._target.is_busy():
            if perf_counter() > until:
                return True
            sleep(0.001)
        return False


class _Driver:
    """What one thread did: seconds of each request, and from when to when (``perf_counter``)."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.begin = self.end = 0.0
        self.aside = 0.0
        """Seconds in checks of results, which are no part of the load."""
        self.inferences = 1
        """How many the target's own clock measures at once."""

    def add(self, latency: float) -> None:
        """Add a measurement that has just ended, and whose inferences took ``latency`` seconds each."""
        self.end = perf_counter()
        self.latencies.append(latency)

    @property
    def rate(self) -> float:
        """Requests a second. By its own time: threads do not end at the same moment."""
        return self.inferences * len(self.latencies) / (self.end - self.begin - self.aside)
