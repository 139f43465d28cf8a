"""Timed target: opens, warms up and times one target in a thread with a deadline."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from itertools import islice
from time import perf_counter, sleep
from typing import Any, TypeVar

from infercanary.command.settings import UsageError
from infercanary.contract.vocabulary import OF_SERVER
from infercanary.probe.contention import ContainerLoad, Helpers, explain_repeats
from infercanary.probe.deadline import DeadlineExceeded, Worker, clear_frames, one_line
from infercanary.probe.identity import components
from infercanary.probe.measures import Taking
from infercanary.probe.memory import describe_shortage, give_back, place_of
from infercanary.probe.pool import NoTurn, Pool
from infercanary.probe.result import Opened, RunResult
from infercanary.probe.samplers.cgroup import ContainerCpu
from infercanary.probe.samplers.threads import ThreadUsage, thread_place, thread_usage
from infercanary.probe.steady import is_steady
from infercanary.probe.targets import Failure, Reading, Target
from infercanary.probe.targets.engines.outputs import pending
from infercanary.probe.timing import Timing, inferences
from infercanary.probe.watcher import Memory

T = TypeVar("T")

log = logging.getLogger("infercanary.probe")

# after this number of skipped runs in a row (constant load), a contended run is better than no run
_MAX_SKIPPED = 5
_WARM_UP_REPEATS = 100
_WARM_UP_SECONDS = 20.0
_MAX_VALUES = 1024
_GIVE_WAY_SECONDS = 0.5
_LET_GO_SECONDS = 1.0
_CROWDED = 8.0
_MAX_PHASES, _MAX_READINGS = 16, 64


class TimedTarget:
    """Calls one target in a separate thread with a deadline. A hang affects only the runs of this target.

    Args:
        timeout: Maximum seconds of a run.
        pool: The server's own pool; None to run in a separate thread.
        sweep: Points of the canary's sweep, which are part of the canary's identity; None without a sweep.
        memory: Watches memory during the opening, and may refuse the opening; None for no watch.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        timeout: float,
        pool: Pool | None,
        sweep: object,
        memory: Memory | None,
    ) -> None:
        self.name = name
        self.target = target
        self.timeout = timeout
        self.pool = pool
        self.compute_threads = 0
        """Number of the engine's compute threads on the CPU; 0 if unknown."""
        self._sweep = sweep
        self._memory = memory
        self._container = ContainerCpu()
        self._taking = Taking(target, self._container)  # reads the measures of each run
        self._worker = Worker(f"infercanary-{name}")
        self._skipped = 0  # number of skipped runs in a row
        self._unopened: dict[str, str] = {}
        """Environment of an engine that could not be opened, including the versions that do not fit together."""
        self._phase_names: set[str] = set()
        self._turn: Future[Any] | None = None  # last turn of a run in the server's pool
        self._hang_reported = False
        self._most_repeats = math.inf  # maximum repeats of a round; smaller after a server's rate limit
        # start of the present call of a target's method; None outside these calls
        self._entered: float | None = None
        self._busy = 0.0  # seconds in the target's methods during this round
        self._usage = ThreadUsage()  # use of the thread by the last call of a method
        self._thread_id = 0  # id of the thread of the last call

    def be_a_guest(self) -> None:
        """Adapt to a server's process: do not reset memory peaks that the server may read."""
        self._taking.is_guest = True

    def interrupt(self) -> None:
        """End the present wait for the target, and all later waits. Callable from any thread."""
        self._worker.interrupt()

    def _run(self, repeats: int) -> RunResult:
        """Run one round.

        Raises:
            NoTurn: The server's pool or the device was always busy.
            DeadlineExceeded: The target did not return in time.
            StillBusy: The target still hangs in an earlier round.
            Interrupted: The probe stops.
            BaseException: Any exception that the target raised.
        """
        try:
            return self._worker.call(lambda: self._name_shortage(lambda: self._repeat(repeats)), self.timeout)
        except DeadlineExceeded:
            if self._turn is not None:
                # cancel the turn, because the budget would not be charged for a later turn
                self._turn.cancel()
            if self.pool is not None and self._entered is None:
                # Wait until the thread ends. Otherwise, on a busy machine, the next round might find the thread
                # hanging.
                with suppress(CancelledError, DeadlineExceeded):
                    self._worker.result(_LET_GO_SECONDS)
                raise NoTurn(f"no turn in the server's pool within {self.timeout:g} s") from None
            if self.pool is not None:
                self.pool.lost_a_thread()
            raise DeadlineExceeded(f"no result within {self.timeout:g} s (timeout_seconds)") from None

    def _charge(self, result: RunResult, since: float) -> RunResult:
        """Add busy seconds and cost to the result of the round that began at ``since`` (``perf_counter``).

        Waiting for a turn in the server's pool is not busy time. But if the canary waited, requests also wait for the
        canary. Then the round costs up to eight times its busy time, and rounds become rarer in proportion. So few
        requests are delayed that the server's 99th percentile does not change (benchmarks/overhead.py).
        """
        now, entered = perf_counter(), self._entered
        busy = self._busy + self._taking.seconds + (now - entered if entered is not None else 0.0)
        cost = busy + (_CROWDED - 1) * min(busy, max(0.0, now - since - busy))
        return result._replace(busy=busy, cost=cost)

    def _report_hang(self) -> None:
        """Tell the server, only once, that an opening past its deadline holds a thread of its pool."""
        if self._hang_reported or self.pool is None:
            return
        self._hang_reported = True
        if self._turn is not None:
            self._turn.cancel()
        if self._entered is not None:
            self.pool.lost_a_thread()

    # The target's thread calls the methods below.

    def _name_shortage(self, work: Callable[[], T]) -> T:
        """Do the work. If memory runs out, describe the shortage, and release the memory of the work.

        Raises:
            Failure: `out_of_memory`, or the work raised an exit or an interrupt.
            Exception: Any other exception of the work.
        """
        try:
            return work()
        except Failure:
            # keep the target's own reason, because a server's answer may contain words for a memory shortage
            raise
        except BaseException as error:
            # an exit or interrupt here comes from the target, not from the user
            if not isinstance(error, Exception):
                raise Failure("raised", one_line(error)) from None
            device = str(self.target.device) or "cpu"
            if (place := place_of(error, device)) is None:
                raise
            text = describe_shortage(error, place, device)
            clear_frames(error)
            self._turn = None
        give_back()
        # Raise outside the handler, so that the new error does not keep the old error's frames.
        raise Failure("out_of_memory", text)

    def _open(self) -> Opened:
        self._unopened = {}
        try:
            if self._memory is None:
                return self._name_shortage(self._open_and_warm_up)
            return self._memory.open(self.name, lambda: self._name_shortage(self._open_and_warm_up))
        except BaseException as error:
            clear_frames(error)  # without this call, the frames keep an engine alive longer than its stream
            if self.target.device:  # only targets with a device keep an engine
                with suppress(BaseException):
                    self._unopened = _texts(self.target.environment())
            # close a half-open target, because it may hold memory until the next attempt
            with suppress(BaseException):
                self.target.close()
            if isinstance(error, Failure) and error.reason == "out_of_memory":
                give_back()
            raise

    def _open_and_warm_up(self) -> Opened:
        begin = perf_counter()
        self.target.open()
        load = perf_counter() - begin
        environment = _texts(self.target.environment())
        first_run = self._measure()[0].wall
        self.target.calibrate()
        latencies: list[float] = []
        begin = perf_counter()
        while not (
            is_steady(latencies)
            or len(latencies) >= min(_WARM_UP_REPEATS, self._most_repeats)
            or perf_counter() - begin > _WARM_UP_SECONDS
        ):
            try:
                latencies.append(self._measure()[0].wall)
            except Failure as failure:
                self._make_fewer(failure, len(latencies))
        warm_up = perf_counter() - begin
        begin = perf_counter()
        environment |= components(self.name, self.target, self._sweep)
        return Opened(environment, load, first_run, warm_up, latencies, perf_counter() - begin)

    def _repeat(self, repeats: int) -> RunResult:
        begin = perf_counter()
        if self._skipped < _MAX_SKIPPED:
            self._wait_until_free()
        self._busy = 0.0
        self._call(self.target.prepare, in_pool=False)
        self._taking.begin()
        others = ContainerLoad(self._container)
        helpers = Helpers() if self.compute_threads > 1 else None
        timings: list[Timing] = []
        used: list[ThreadUsage] = []
        result: Any = None
        while not timings or (
            len(timings) < min(repeats, self._most_repeats)
            and perf_counter() - begin + timings[-1].wall < self.timeout / 2
        ):
            if timings:
                self._call(self.target.check, result, in_pool=False)
            try:
                timing, result = self._measure()
            except Failure as failure:
                self._make_fewer(failure, len(timings))
            else:
                timings.append(timing)
                used.append(self._usage)
        usage = sum(used, ThreadUsage())
        # If the canary calls a server, other processes in the container do the work, so contention inside is unknown.
        calls_a_server = bool(self._phase_names & OF_SERVER)
        inside = None if calls_a_server else others.since(usage)
        helped = helpers.helped() if helpers is not None else None
        place = thread_place(self._thread_id)
        measures = self._taking.end(timings, calls_a_server)
        batch = inferences(self.target.clock)
        waits, crowds, off_cpu = explain_repeats(used, [t.wall for t in timings], batch, inside, helped)
        values, readings = self._call(self._read, result)
        return RunResult(
            "ok", timings=timings, values=values, usage=usage, waits=waits, crowds=crowds, off_cpu=off_cpu,
            inside=inside, helpers=helpers is not None, readings=readings, inferences=batch * len(timings),
            measures=measures, place=place,
        )  # fmt: skip

    def _make_fewer(self, failure: Failure, allowed: int) -> None:
        """End the repeats at the server's rate limit. Later rounds make half as many repeats.

        Raises:
            Failure: The failure has another reason, or the server allowed no repeat.
        """
        if failure.reason != "rate_limited" or not allowed:
            raise failure
        self._most_repeats = max(1, allowed // 2)

    def _read(self, result: Any) -> tuple[list[float], list[Reading]]:
        """Read the values of the result, and the target's own readings. Raise an error for invalid readings."""
        values = [float(value) for value in islice(self.target.values(result), _MAX_VALUES)]
        readings = list(islice(self.target.readings(), _MAX_READINGS))
        for metric, value, labels in readings:
            form = (metric.kind, metric.labels[:1], len(metric.labels))
            if form != ("gauge", ("canary",), 1 + len(labels)) or not math.isfinite(value):
                raise ValueError(
                    f"the reading {metric.name} with {labels!r} and {value!r} is no gauge with the first label `canary`"
                )
        return values, readings

    def _wait_until_free(self) -> None:
        """Wait while the server's work occupies the target's device; see :meth:`Target.is_busy`."""
        begin = perf_counter()
        while self.target.is_busy():
            if perf_counter() - begin > _GIVE_WAY_SECONDS:
                raise NoTurn(f"the device was busy for {_GIVE_WAY_SECONDS:g} s")
            sleep(0.001)

    def _measure(self) -> tuple[Timing, Any]:
        """Run one repeat, and check its times: a target's own clock may return NaN, which a report cannot contain."""
        timing, result = self._call(self.target.clock.measure, self.target.run)
        if kind := pending(result):
            if isinstance(result, Coroutine):
                result.close()  # prevents Python's warning about a coroutine that was never awaited
            raise UsageError(
                f"the result is {kind}, which is not computed yet; give a function that waits for the result and "
                "returns the output"
            )
        phases = {str(name): _seconds(seconds) for name, seconds in timing.phases.items()}
        self._phase_names.update(phases)
        if len(self._phase_names) > _MAX_PHASES:
            raise ValueError(f"more than {_MAX_PHASES} names of phases, each of which is a time series")
        return Timing(_seconds(timing.wall), phases), result

    def _call(self, function: Callable[..., Any], *arguments: Any, in_pool: bool = True) -> Any:
        def work() -> Any:
            self._thread_id = threading.get_native_id()
            before = thread_usage(before=True)
            self._entered = begin = perf_counter()
            try:
                return function(*arguments)
            finally:
                self._entered = None
                self._busy += perf_counter() - begin
                self._usage = thread_usage() - before

        if self.pool is None or not in_pool:
            return work()
        self._turn = self.pool.submit(work)
        return self._turn.result()

    def _close(self) -> None:
        try:
            self.target.close()
        except BaseException as error:
            log.warning("canary %s: closing failed: %s", self.name, one_line(error))

    def _release(self) -> None:
        self._close()
        give_back()


def _texts(reported: Mapping[Any, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in reported.items()}


def _seconds(value: Any) -> float:
    if not 0 <= (seconds := float(value)) < math.inf:
        raise ValueError(f"the target's clock gave {value!r} as seconds")
    return seconds
