"""One canary: opened, warmed up, and run round by round. Its metrics are filled by the record."""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from itertools import islice
from time import perf_counter, sleep
from typing import Any, TypeVar

from infercanary.command.settings import UsageError
from infercanary.contract.report import relative_error
from infercanary.contract.vocabulary import COMPUTE_THREADS, DEVICE_COMPONENTS, OF_SERVER, CanaryState
from infercanary.probe.canary_metrics import CanaryMetrics
from infercanary.probe.contention import ContainerLoad, Helpers, explain_repeats
from infercanary.probe.deadline import (
    DeadlineExceeded,
    Interrupted,
    StillBusy,
    Worker,
    clear_frames,
    one_line,
)
from infercanary.probe.histogram import Tally
from infercanary.probe.identity import components
from infercanary.probe.measures import Taking
from infercanary.probe.memory import Ended, describe_shortage, give_back, place_of
from infercanary.probe.output import fingerprint
from infercanary.probe.pool import NoTurn, Pool
from infercanary.probe.result import Opened, RunResult
from infercanary.probe.samplers.cgroup import ContainerCpu
from infercanary.probe.samplers.threads import Place, ThreadUsage, thread_place, thread_usage
from infercanary.probe.start import since_start
from infercanary.probe.steady import WINDOW, is_steady
from infercanary.probe.targets import Failure, NoCuda, Reading, Target, is_reason
from infercanary.probe.targets.engines.outputs import pending
from infercanary.probe.targets.libraries import MISFITS, misfit
from infercanary.probe.timing import Timing, inferences
from infercanary.probe.watcher import Memory

T = TypeVar("T")

log = logging.getLogger("infercanary.probe")

_REOPEN_SECONDS = 60.0, 3600.0
_SHORT_SECONDS = 60.0, 600.0  # between runs while memory does not suffice: each takes some from the server
_PUT_OFF_SECONDS = 5.0, 600.0  # the same where runs are put off, which takes nothing
_RATE_SECONDS = 1.0, 60.0  # the same after a server refused requests for their rate
_REOPEN_DUTY = 0.01  # a failing open() may load a model each time: it keeps to this share of the time
_ABSENT = ("unreachable", "not_ready", "timed_out")  # nothing was loaded here: a server was waited for
_WAITED = 1.5  # cost over busy time: from here on the run waited for a good part of it
_TAKE_SECONDS = 1.0
_MAX_SKIPPED = 5  # runs skipped in a row: under a load that never pauses, a contended run is better than none
_WARM_UP_REPEATS = 100
_WARM_UP_SECONDS = 20.0
_MAX_VALUES = 1024
_GIVE_WAY_SECONDS = 0.5
_LET_GO_SECONDS = 1.0
_CROWDED = 8.0
_MAX_PHASES, _MAX_READINGS = 16, 64


class Canary:
    """Opens, warms up and times one target, whose failures do not leave it.

    The target runs in a thread of its own with a deadline: a hang costs this canary its runs, and nothing else.

    Args:
        timeout: Seconds that a run may take.
        open_timeout: Seconds that opening and warming up may take.
        pool: The server's own; None to run in a thread of the canary's own.
        container: CPU time of the container, read around each run; None for one of its own.
        sweep: Points that its sweep measures, a part of its identity; None without one.
        memory: Watches its opening, and may refuse it; None for nothing.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        tally: Tally,
        timeout: float,
        open_timeout: float,
        pool: Pool | None = None,
        container: ContainerCpu | None = None,
        sweep: object = None,
        memory: Memory | None = None,
    ) -> None:
        self.name = name
        self.state: CanaryState = "opening"
        self.is_open = False
        self.environment: dict[str, str] = {}
        self.device = str(target.device) if str(target.device).startswith("cuda") else "cpu"
        """Where the target computes: ``cpu`` or ``cuda[:N]``. The controls that follow its runs go there too."""
        self.compute_threads = 0
        """Threads with which its engine computes on the CPU; 0 where that is not known."""
        self.output: tuple[float, ...] | None = None
        """The fingerprint of the first steady output since the start; empty where outputs hold no numbers."""
        self.crowding = 1.0
        """Cost of the last run over its time: above 1 where it waited in the server's pool."""
        self.last_tags: tuple[str, ...] = ()
        """Of its last run."""
        self.place: Place | None = None
        """Where the thread of the last run was; None where that failed."""
        self.mistake: UsageError | None = None
        """What the user must fix before it can be opened."""
        self.target = target
        self.timeout = timeout
        self.pool = pool
        self._sweep = sweep
        self._memory = memory
        self._container = ContainerCpu() if container is None else container
        self._taking = Taking(target, self._container)  # the measures of its runs
        self._worker = Worker(f"infercanary-{name}")
        self._metrics = CanaryMetrics(name, tally, target.reasons)
        self._open_timeout = open_timeout
        self._opening_since: float | None = None
        self._retry_at = 0.0
        self._rest = 0.0  # seconds until the next run, longer with each failure of a kind that rests
        self._unfit = ""  # reason why its libraries do not fit, where the target does not name it
        self._costs: deque[float] = deque(maxlen=5)  # busy seconds per repeat, of the last runs
        self._unsteady: deque[float] | None = deque(maxlen=8 * WINDOW)  # wall seconds; None once steady
        self._reference: list[float] | None = None
        self._to_close: Ended | None = None  # why, while a run that hangs delays it
        self._failed: RunResult | None = None  # without having run, and not taken yet
        self._skipped = 0  # runs in a row
        self._complaint = ""
        self._unopened: dict[str, str] = {}
        """The engine's environment where it could not be opened: versions that do not fit are in it."""
        self._phase_names: set[str] = set()
        self._turn: Future[Any] | None = None  # the last one asked for in the server's pool
        self._hang_reported = False
        self._most_repeats = math.inf  # less once a server refused requests for their rate
        self._entered: float | None = None  # when the target's method under way was entered
        self._busy = 0.0  # seconds in the target's methods this round
        self._usage = ThreadUsage()  # of the threads that ran this round's repeats
        self._thread_id = 0  # of the thread that the target's method was called in last
        self._metrics.state(self.state)

    @property
    def repeat_cost(self) -> float:
        """Cost per repeat (s): the median of the last runs, so that one contended run does not change the plan."""
        return statistics.median(self._costs) if self._costs else 0.0

    @property
    def is_fit(self) -> bool:
        """Whether it is open, and its last run went well."""
        return self.is_open and self.state in ("warming", "steady")

    @property
    def gives_way(self) -> bool:
        """Whether its last run queued behind requests or another GPU user, which then queue behind it as well."""
        return self.state == "busy" or (self.pool is not None and self.crowding > _WAITED)

    @property
    def gpus(self) -> tuple[int, ...] | None:
        """CUDA's numbers of the GPUs that it runs on; None where that is not known, as of a server."""
        if not self.target.device:
            return None
        if self.device == "cpu" or self.cuda_missing:  # it runs on the CPU instead
            return ()
        return (int(self.device.partition(":")[2] or 0),)

    @property
    def cuda_missing(self) -> str:
        """Reason why it found no CUDA, which it was to run on; empty where it did, or does not need any."""
        return str(self.target.cuda_missing) or self._unfit

    @property
    def is_opening(self) -> bool:
        """Whether its thread is loading or warming up, which disturbs other canaries' runs."""
        return self._opening_since is not None

    def open(self, seconds: float) -> None:
        """Open the target in its thread, or go on waiting for that, for at most ``seconds``.

        The canary is then open, ``failing``, ``out_of_memory``, or still ``opening``. After a failure the next attempt
        waits for a minute or more, and calls before that do nothing; an attempt past its deadline is still taken when
        it ends.
        """
        now = perf_counter()
        if self.is_open or (self._opening_since is None and now < self._retry_at):
            return
        self.mistake = None
        try:
            if self._opening_since is None:
                self._worker.begin(self._open)
                self._opening_since, self._hang_reported = now, False
            left = self._opening_since + self._open_timeout - now
            opened: Opened = self._worker.result(min(seconds, max(0.0, left)))
        except (Interrupted, StillBusy):
            return
        except (KeyboardInterrupt, SystemExit):  # a person's: the runner names a target's own
            raise
        except DeadlineExceeded:
            if self._opening_since is not None and perf_counter() >= self._opening_since + self._open_timeout:
                self._report_hang()
                self._fail(
                    f"not open after {self._open_timeout:g} s (open_timeout_seconds); still waiting for it"
                )
            return
        except BaseException as error:
            self._refuse(error)
        else:
            self._take(opened)
        finally:
            self._worker.rest()
        if self.device != "cpu":
            self._metrics.cuda(self.cuda_missing)
        self._opening_since = None

    def failed(self) -> RunResult | None:
        """Take the last attempt to open it, or a run that was put off, as a failed run; None where there is none."""
        failed, self._failed = self._failed, None
        return failed

    def put_off(self, why: str) -> None:
        """Make no run, since too little memory is left; the first reason stays, for its sizes change with each."""
        now = perf_counter()
        if now < self._retry_at:
            return
        self._retry_at = now + self._longer_rest(_PUT_OFF_SECONDS)
        detail = self._complaint if self.state == "out_of_memory" else why
        self._count_failed(RunResult("raised", detail, reason="out_of_memory"))

    def close_for_memory(self, ended: Ended) -> None:
        """Close the target, since the server needs its memory; it is opened again later."""
        if self.is_opening:
            self.open(_TAKE_SECONDS)  # its thread has opened it just now
        self._to_close = ended if self.is_open else None
        if self._to_close is None:
            return
        is_closed = True
        try:
            self._worker.call(self._release, self.timeout)
            self._worker.rest()
        except (DeadlineExceeded, Interrupted):  # it goes on, maybe for ever, or the probe stops
            is_closed = False
        except (StillBusy, RuntimeError):  # a run hangs, or the host is out of threads: later
            return
        # Also if closing goes on: a closed target must not run.
        self.is_open, self._to_close = False, None
        self._retry_at = perf_counter() + max(0.0, ended.retry_at - time.monotonic())
        why = ended.why if is_closed else f"{ended.why}; closing it takes long, and it may keep its memory"
        self._count_failed(RunResult("raised", why, reason="out_of_memory"))

    def round(self, repeats: int) -> RunResult | None:
        """Run a round of at most ``repeats``; None where the probe stops, or a lack of memory is waited out.

        Whatever the target does, this does not raise.
        """
        if self._to_close is not None:
            self.close_for_memory(self._to_close)
        begin = perf_counter()
        if begin < self._retry_at or not self.is_open:
            return None
        try:
            result = self._check(self._run(repeats))
        except Interrupted:
            return None
        except (KeyboardInterrupt, SystemExit):  # a person's: the runner names a target's own
            raise
        except (StillBusy, NoTurn) as error:  # which cost nothing
            result = _describe(error)
        except BaseException as error:
            result = self._charge(_describe(error), begin)
            self._retry_at = perf_counter() + self._rest_after(error)
        else:
            result = self._charge(result, begin)
        self.place = result.place
        self._account(result)
        return result

    def count(self, tags: tuple[str, ...], measures: Mapping[str, float], eligible: bool) -> None:
        """Count the tags and measures of the last round; ``eligible`` if it is fit for comparing images."""
        self.last_tags = tags
        self._metrics.found(tags, measures, eligible)

    def be_a_guest(self) -> None:
        """Run in a server's process from now on: counts that are the server's too are not reset."""
        self._taking.is_guest = True

    def interrupt(self) -> None:
        """End the wait for the target, now and from now on; callable from any thread."""
        self._worker.interrupt()

    def close(self, seconds: float) -> bool:
        """Let go of the target as soon as it does not run; whether that was within ``seconds``."""
        ended = self._worker.stop(seconds, self._close if self.is_open or self.is_opening else None)
        if not ended:
            log.warning("canary %s: still hanging; its thread ends with the process", self.name)
        return ended

    def _take(self, opened: Opened) -> None:
        self._metrics.opened(opened)
        self.environment = opened.environment
        self.compute_threads = _threads(opened.environment, COMPUTE_THREADS)
        self._costs.append(statistics.median(opened.latencies or [opened.first_run]))
        self.is_open, self._unfit, self._retry_at = True, "", 0.0
        self._settle(opened.latencies, opened.aside)
        self._recover()
        if self.device != "cpu" and self.cuda_missing:
            log.warning("canary %s: runs on the CPU instead of CUDA: %s", self.name, self.cuda_missing)

    def _refuse(self, error: BaseException) -> None:
        """Say why it could not be opened, and plan the next attempt."""
        result = _describe(error)
        reason = result.reason
        if isinstance(error, NoCuda):
            reason = self.cuda_missing if is_reason(self.cuda_missing) else None
        elif not isinstance(error, Failure) and (unfit := misfit(result.detail)) is not None:
            # Libraries of a model's module that do not fit are no mistake in the settings.
            reason = unfit.reason
            result = result._replace(detail=f"{result.detail}; {unfit.fix}")
        elif isinstance(error, UsageError):
            self.mistake = error  # the caller reports the first one: on the command line it ends the probe
        rest = self._rest_after(error)
        if reason != "rate_limited":
            least, longest = _REOPEN_SECONDS
            took = 0.0
            if reason not in _ABSENT and self._opening_since is not None:
                took = perf_counter() - self._opening_since
            rest = min(
                longest, max(least, rest, took / _REOPEN_DUTY, getattr(error, "retry_after", None) or 0.0)
            )
        self._retry_at = perf_counter() + rest
        self._unfit = reason if reason in MISFITS else ""
        # What does not fit together is what must be seen; where it runs, it does not run.
        self.environment = {
            name: version for name, version in self._unopened.items() if name not in DEVICE_COMPONENTS
        }
        is_reported = self.mistake is not None and self.state == "opening"
        self._count_failed(
            RunResult("raised", f"cannot be opened: {result.detail}", reason=reason), log_it=not is_reported
        )

    def _report_hang(self) -> None:
        """Notify the server, once, that opening is past its deadline, where it holds a thread of the server's pool."""
        if self._hang_reported or self.pool is None:
            return
        self._hang_reported = True
        if self._turn is not None:
            self._turn.cancel()
        if self._entered is not None:
            self.pool.lost_a_thread()

    def _check(self, result: RunResult) -> RunResult:
        """Check the output, and keep the first steady one that holds numbers to compare later ones with."""
        if not all(map(math.isfinite, result.values)):
            return result._replace(outcome="not_finite", detail="the output holds NaN or infinity")
        if self._reference is not None:
            return result._replace(output_error=relative_error(result.values, self._reference))
        if not result.values:
            if self.output is None:
                log.warning("canary %s: output not checked: no numbers were read from it", self.name)
            self.output = ()
        elif self.state == "steady":
            self._reference, self.output = list(result.values), fingerprint(result.values)
        return result

    def _run(self, repeats: int) -> RunResult:
        """Run one round.

        Raises:
            NoTurn: The server's pool or the device was busy all the time.
            DeadlineExceeded: The target did not return in time.
            StillBusy: It still hangs in an earlier round.
            Interrupted: The probe stops.
            BaseException: Whatever the target raised.
        """
        try:
            return self._worker.call(lambda: self._name_shortage(lambda: self._repeat(repeats)), self.timeout)
        except DeadlineExceeded:
            if self._turn is not None:
                self._turn.cancel()  # a turn that comes later would be outside the budget
            if self.pool is not None and self._entered is None:
                # Let the thread notice: on a busy machine the next round would take it for hanging.
                with suppress(CancelledError, DeadlineExceeded):
                    self._worker.result(_LET_GO_SECONDS)
                raise NoTurn(f"no turn in the server's pool within {self.timeout:g} s") from None
            if self.pool is not None:
                self.pool.lost_a_thread()
            raise DeadlineExceeded(f"no result within {self.timeout:g} s (timeout_seconds)") from None
        finally:
            self._worker.rest()

    def _charge(self, result: RunResult, since: float) -> RunResult:
        """Add busy seconds and cost to the result of the round that began at ``since`` (``perf_counter``).

        Waiting for a turn in the server's pool is not busy time. But where the canary waited, requests wait for it too:
        the round then costs up to eight times its busy time, and rounds become as much rarer. So few requests are
        delayed that the server's 99th percentile stays what it was (benchmarks/overhead.py).
        """
        now, entered = perf_counter(), self._entered
        busy = self._busy + self._taking.seconds + (now - entered if entered is not None else 0.0)
        cost = busy + (_CROWDED - 1) * min(busy, max(0.0, now - since - busy))
        return result._replace(busy=busy, cost=cost)

    def _account(self, result: RunResult) -> None:
        if result.outcome == "ok":
            self._rest = 0.0
        self._skipped = self._skipped + 1 if result.outcome == "busy" else 0
        if result.latencies:
            self._costs.append(result.cost / len(result.latencies))
            self.crowding = result.cost / result.busy if result.busy else 1.0
            self._settle(result.latencies)
        self._metrics.run(result)
        if result.outcome == "ok":
            self._recover()
        elif result.outcome == "busy":
            self._fail(f"skipped: {result.detail}", state="busy")
        else:
            self._fail(f"{result.outcome}: {result.detail}", state=_state_of(result))

    def _count_failed(self, result: RunResult, log_it: bool = True) -> None:
        """Count a run that was not made, and keep it for :meth:`failed`."""
        self._failed = result
        self._metrics.run(result)
        self._fail(result.detail, log_it, _state_of(result))

    def _rest_after(self, error: BaseException) -> float:
        """Seconds without a run after this failure, longer with each in a row; 0 where the next slot will do."""
        reason = error.reason if isinstance(error, Failure) else None
        if isinstance(error, Failure) and reason == "rate_limited":
            # Longer each time also where the server says how long: that may be for a single request.
            return max(self._longer_rest(_RATE_SECONDS), error.retry_after or 0.0)
        return self._longer_rest(_SHORT_SECONDS) if reason == "out_of_memory" else 0.0

    def _longer_rest(self, bounds: tuple[float, float]) -> float:
        least, longest = bounds
        self._rest = min(longest, max(least, 2 * self._rest))
        return self._rest

    def _settle(self, latencies: Iterable[float], aside: float = 0.0) -> None:
        """Whether it is steady by now, or was so many seconds ago; scheduled runs go on where warm-up stopped."""
        if self._unsteady is None:
            return
        self._unsteady.extend(latencies)
        if is_steady(list(self._unsteady)):
            self._unsteady = None
            if (seconds := since_start()) is not None:
                self._metrics.steady(max(0.0, seconds - aside))

    def _recover(self) -> None:
        if self._complaint:
            log.info("canary %s: answers again", self.name)
        self._complaint = ""
        self._enter("steady" if self._unsteady is None else "warming")

    def _fail(self, complaint: str, log_it: bool = True, state: CanaryState = "failing") -> None:
        self._enter(state)
        if log_it and complaint != self._complaint:  # once per change, not once per run
            log.error("canary %s: %s", self.name, complaint)
        self._complaint = complaint

    def _enter(self, state: CanaryState) -> None:
        self.state = state
        self._metrics.state(state)

    # From here on all runs in the target's thread.

    def _name_shortage(self, work: Callable[[], T]) -> T:
        """Do the work; where there is not enough memory for it, say who has it, and give back what the work took.

        Raises:
            Failure: `out_of_memory`.
            BaseException: Whatever else the work raised.
        """
        try:
            return work()
        except Failure:
            raise  # the target knows better: a server's answer may have such words
        except (
            KeyboardInterrupt,
            SystemExit,
            GeneratorExit,
        ) as error:  # not a person's: this is the target's thread
            raise Failure("raised", one_line(error)) from None
        except BaseException as error:
            device = str(self.target.device) or "cpu"
            if (place := place_of(error, device)) is None:
                raise
            text = describe_shortage(error, place, device)
            clear_frames(error)
            self._turn = None
        give_back()
        # Outside of the handler, so that it does not hold the error's frames.
        raise Failure("out_of_memory", text)

    def _open(self) -> Opened:
        self._unopened = {}
        try:
            if self._memory is None:
                return self._name_shortage(self._open_and_warm_up)
            return self._memory.open(self.name, lambda: self._name_shortage(self._open_and_warm_up))
        except BaseException as error:
            if self.target.device:  # else there is no engine here
                with suppress(BaseException):
                    self._unopened = _texts(self.target.environment())
            with suppress(BaseException):  # half open, it may hold a model's memory until the next attempt
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
        self._usage = ThreadUsage()
        others = ContainerLoad(self._container)
        helpers = Helpers() if self.compute_threads > 1 else None
        timing, result = self._measure()
        used, timings = [self._usage], [timing]
        while (
            len(timings) < min(repeats, self._most_repeats)
            and perf_counter() - begin + timing.wall < self.timeout / 2
        ):
            self._check_repeat(result)
            try:
                timing, result = self._measure()
            except Failure as failure:
                self._make_fewer(failure, len(timings))
            else:
                timings.append(timing)
                used.append(self._usage)
        usage = self._usage
        # The work of a canary that calls a server is done by others in the container: what is beside it is not known.
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
        """End the repeats where the server refuses them for their rate, and make half as many from now on.

        Raises:
            Failure: It is another, or the server allowed none.
        """
        if failure.reason != "rate_limited" or not allowed:
            raise failure
        self._most_repeats = max(1, allowed // 2)

    def _check_repeat(self, result: Any) -> None:
        """Let the target check a repeat's result; the thread's usage is that of the repeats alone."""
        usage = self._usage
        self._call(self.target.check, result, in_pool=False)
        self._usage = usage

    def _read(self, result: Any) -> tuple[list[float], list[Reading]]:
        """Read the result's values, and the target's own readings: a bad one would make the report invalid."""
        values = [float(value) for value in islice(self.target.values(result), _MAX_VALUES)]
        readings: list[Reading] = list(islice(self.target.readings(), _MAX_READINGS))
        for metric, value, labels in readings:
            if metric.kind != "gauge" or metric.labels[:1] != ("canary",):
                raise ValueError(f"the reading {metric.name} is no gauge whose first label is canary")
            if len(labels) != len(metric.labels) - 1 or not math.isfinite(value):
                raise ValueError(f"the reading {metric.name} has {labels!r} and {value!r}")
        return values, readings

    def _wait_until_free(self) -> None:
        """Give way to work that the host has put on the target's device; see :meth:`Target.is_busy`."""
        begin = perf_counter()
        while self.target.is_busy():
            if perf_counter() - begin > _GIVE_WAY_SECONDS:
                raise NoTurn(f"the device was busy for {_GIVE_WAY_SECONDS:g} s")
            sleep(0.001)

    def _measure(self) -> tuple[Timing, Any]:
        """One repeat. A target may have its own clock, so times are checked: one NaN would make the report invalid."""
        timing, result = self._call(self.target.clock.measure, self.target.run)
        if kind := pending(result):
            if isinstance(result, Coroutine):
                result.close()  # else Python warns that nobody awaited it
            raise UsageError(
                f"it returns {kind}, and nothing was computed yet; give a function that runs it to its end and returns "
                "the output"
            )
        phases = {str(name): _seconds(seconds) for name, seconds in timing.phases.items()}
        self._phase_names.update(phases)
        if len(self._phase_names) > _MAX_PHASES:
            raise ValueError(f"more than {_MAX_PHASES} names of phases; each is a time series")
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
                self._usage += thread_usage() - before

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


def _describe(error: BaseException) -> RunResult:
    if isinstance(error, StillBusy):
        return RunResult("timed_out", "still hanging in an earlier run")
    if isinstance(error, NoTurn):
        return RunResult("busy", str(error))
    if isinstance(error, Failure):
        return RunResult(
            "timed_out" if error.reason == "timed_out" else "raised", str(error), reason=error.reason
        )
    if isinstance(error, DeadlineExceeded):
        return RunResult("timed_out", str(error))
    return RunResult("raised", str(error) if isinstance(error, UsageError) else one_line(error))


def _state_of(result: RunResult) -> CanaryState:
    return "out_of_memory" if result.reason == "out_of_memory" else "failing"


def _threads(environment: Mapping[str, str], components: Iterable[str]) -> int:
    """The number that the first known one of ``components`` has; 0 where none is known."""
    text = next(filter(None, (environment.get(component, "") for component in components)), "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _texts(reported: Mapping[Any, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in reported.items()}


def _seconds(value: Any) -> float:
    if not 0 <= (seconds := float(value)) < math.inf:
        raise ValueError(f"the target's clock gave {value!r} as seconds")
    return seconds
