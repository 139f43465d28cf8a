"""One canary: a target with its clock, warm-up, rounds and numbers."""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

from infercanary.probe.deadline import DeadlineExceeded, Interrupted, StillBusy, Worker, one_line
from infercanary.probe.histogram import Tally
from infercanary.probe.report import LATENCY, PHASE, Metric, Outcome
from infercanary.probe.steady import is_steady
from infercanary.probe.targets import Target
from infercanary.probe.timing import Timing
from infercanary.settings import UsageError

log = logging.getLogger("infercanary.probe")

RUNS = Metric(
    "infercanary_runs_total",
    "counter",
    "Runs by outcome: ok, raised, timed_out (past its deadline, or still hanging), not_finite (NaN or infinity).",
    ("canary", "outcome"),
)
STATE = Metric(
    "infercanary_canary_state",
    "gauge",
    "1 for the canary's state now, 0 for the others: opening, warming, steady, failing.",
    ("canary", "state"),
)
LOAD = Metric(
    "infercanary_load_seconds", "gauge", "Cold start: time to load the target (model, inputs).", ("canary",)
)
FIRST_RUN = Metric(
    "infercanary_first_run_seconds", "gauge", "Cold start: wall time of the first repeat.", ("canary",)
)
WARM_UP = Metric(
    "infercanary_warm_up_seconds",
    "gauge",
    "Time in warm-up repeats, which are not in the histograms.",
    ("canary",),
)
WARM_UP_REPEATS = Metric("infercanary_warm_up_repeats", "gauge", "Repeats in warm-up.", ("canary",))
MEDIAN = Metric(
    "infercanary_run_median_seconds", "gauge", "Median wall time of the last run's repeats.", ("canary",)
)
MINIMUM = Metric(
    "infercanary_run_minimum_seconds", "gauge", "Minimum wall time of the last run's repeats.", ("canary",)
)
IQR = Metric(
    "infercanary_run_iqr_seconds",
    "gauge",
    "Interquartile range of the wall times of the last run's repeats.",
    ("canary",),
)
P90 = Metric(
    "infercanary_recent_p90_seconds",
    "gauge",
    "90th percentile of the last 64 repeats' wall time: the fewest that allow one. Missing until there are 64.",
    ("canary",),
)
PHASE_MEDIAN = Metric(
    "infercanary_run_phase_median_seconds",
    "gauge",
    "Median of each phase over the last run's repeats.",
    ("canary", "phase"),
)

OUTCOMES: tuple[Outcome, ...] = ("ok", "raised", "timed_out", "not_finite")
STATES = ("opening", "warming", "steady", "failing")

_P90_REPEATS = 64
_WARM_UP_REPEATS = 100
_WARM_UP_SECONDS = 20.0
_REOPEN_SECONDS = 60.0, 3600.0
_REOPEN_DUTY = 0.01  # a failing open() may load a model each time: it keeps to this share of the time
_MAX_VALUES = 1024
_MAX_PHASES = 16


class Round(NamedTuple):
    """What a canary did in one round: each repeat's timing, its busy seconds all told, and what they cost."""

    outcome: Outcome
    detail: str = ""
    timings: Sequence[Timing] = ()
    busy: float = 0.0
    cost: float = 0.0

    @property
    def latencies(self) -> tuple[float, ...]:
        """Wall seconds of each repeat."""
        return tuple(timing.wall for timing in self.timings)

    @property
    def phases(self) -> dict[str, float]:
        """Median seconds of each phase over the repeats."""
        names = dict.fromkeys(name for timing in self.timings for name in timing.phases)
        return {n: statistics.median(t.phases[n] for t in self.timings if n in t.phases) for n in names}


class _Opened(NamedTuple):
    """What the target's thread hands over when the target is open and warm."""

    environment: dict[str, str]
    load: float
    first_run: float
    warm_up: float
    latencies: list[float]


class Canary:
    """Opens, warms up and times one target; whatever that target does stays inside.

    The target runs in a thread of its own with a deadline: a hang costs this canary its runs and nothing else.
    That thread only calls the target; all that is counted and decided here is the probe's loop's.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        tally: Tally,
        timeout: float,
        open_timeout: float,
        executor: Executor | None = None,
    ) -> None:
        self.name = name
        self.is_open = False
        self.environment: dict[str, str] = {}
        self.mistake: UsageError | None = None
        """What the user must mend before it can be opened."""
        self._target = target
        self._tally = tally
        self._timeout = timeout
        self._open_timeout = open_timeout
        self._executor = executor
        self._worker = Worker(f"infercanary-{name}")
        self._opening_since: float | None = None
        self._retry_at = 0.0
        self._recent: deque[float] = deque(maxlen=_P90_REPEATS)  # wall seconds, warm-up included until steady
        self._costs: deque[float] = deque(maxlen=5)  # busy seconds per repeat, of the last runs
        self._phase_names: set[str] = set()
        self._failed_open: Round | None = None
        self._turn: Future[Any] | None = None  # the last one asked for in the server's pool
        self._entered: float | None = None  # when the target's method under way was entered
        self._busy = 0.0  # seconds in the target's methods this round
        self._steady = False
        self._complaint = ""
        for outcome in OUTCOMES:
            tally.add(RUNS, 0, name, outcome)
        self._enter("opening")

    @property
    def repeat_cost(self) -> float:
        """Cost per repeat (s): the median of the last runs, so that one disturbed run does not change the plan."""
        return statistics.median(self._costs) if self._costs else 0.0

    @property
    def is_opening(self) -> bool:
        """Whether its thread is loading or warming up: other canaries' runs are then disturbed."""
        return self._opening_since is not None

    def open(self, seconds: float) -> None:
        """Open the target in its thread, or go on waiting for that, for at most ``seconds``.

        The canary is then open, ``failing``, or still ``opening``. After a failure the next attempt waits for a
        minute or more, and calls before that do nothing; an attempt past its deadline is still taken when it ends.
        """
        now = perf_counter()
        if self.is_open or (self._opening_since is None and now < self._retry_at):
            return
        try:
            if self._opening_since is None:
                self._worker.begin(self._open)
                self._opening_since = now
            left = self._opening_since + self._open_timeout - now
            opened: _Opened = self._worker.result(min(seconds, max(0.0, left)))
        except (Interrupted, StillBusy):
            return
        except DeadlineExceeded:
            if self._opening_since is not None and perf_counter() >= self._opening_since + self._open_timeout:
                self._fail(
                    f"not open after {self._open_timeout:g} s (open_timeout_seconds); still waiting for it"
                )
            return
        except UsageError as error:
            # The first mistake is the caller's to tell: on the command line it ends the probe.
            self._put_off(f"cannot be opened: {error}", log_it=self.state != "opening")
            self.mistake = error
        except BaseException as error:
            self._put_off(f"cannot be opened: {one_line(error)}")
            self.mistake = None
        else:
            self._take(opened)
        self._worker.rest()
        self._opening_since = None

    def failed_open(self) -> Round | None:
        """The last attempt to open it, where that failed and was not asked for yet: to whoever reads runs, a run."""
        failed, self._failed_open = self._failed_open, None
        return failed

    def round(self, repeats: int) -> Round | None:
        """Run ``repeats`` repeats of the open canary; None where the probe stops meanwhile."""
        begin = perf_counter()
        try:
            timings, values = self._worker.call(lambda: self._repeat(repeats), self._timeout)
        except Interrupted:
            return None
        except StillBusy:
            result = Round("timed_out", "still hanging in an earlier run")
        except DeadlineExceeded:
            if self._turn is not None:
                self._turn.cancel()  # what got no turn in time must not come later, outside the budget
            what = "result" if self._entered is not None else "turn in the server's pool"
            detail = f"no {what} within {self._timeout:g} s (timeout_seconds)"
            result = Round("timed_out", detail, (), *self._spent(begin))
        except BaseException as error:
            result = Round("raised", one_line(error), (), *self._spent(begin))
        else:
            finite = all(map(math.isfinite, values))
            detail = "" if finite else "the output holds NaN or infinity"
            result = Round("ok" if finite else "not_finite", detail, timings, *self._spent(begin))
        self._worker.rest()
        self._account(result)
        return result

    def _spent(self, begin: float) -> tuple[float, float]:
        """Busy seconds and cost of the round that began at ``begin``.

        What it waited for its turn in the server's pool is not busy. But where it waited, requests wait for it too,
        by as much as it is busy: then it costs up to twice its time, and comes less often.
        """
        now, entered = perf_counter(), self._entered
        busy = self._busy + (now - entered if entered is not None else 0.0)
        return busy, busy + min(busy, max(0.0, now - begin - busy))

    def interrupt(self) -> None:
        """End the wait for the target, now and from now on; callable from any thread."""
        self._worker.interrupt()

    def close(self, seconds: float) -> bool:
        """Let go of the target once it does not run; whether that was within ``seconds``."""
        ended = self._worker.stop(seconds, self._close if self.is_open or self.is_opening else None)
        if not ended:
            log.warning("canary %s: still hanging; its thread ends with the process", self.name)
        return ended

    # From here to _close all runs in the target's thread; all else runs in the probe's loop.

    def _open(self) -> _Opened:
        try:
            begin = perf_counter()
            self._target.open()
            load = perf_counter() - begin
            told = self._target.environment()
            environment = {str(key): str(value) for key, value in told.items()}
            first_run = self._measure()[0].wall
            latencies: list[float] = []
            begin = perf_counter()
            while not (
                is_steady(latencies)
                or len(latencies) >= _WARM_UP_REPEATS
                or perf_counter() - begin > _WARM_UP_SECONDS
            ):
                latencies.append(self._measure()[0].wall)
            return _Opened(environment, load, first_run, perf_counter() - begin, latencies)
        except BaseException:
            with suppress(BaseException):  # half open, it may hold a model's memory until the next attempt
                self._target.close()
            raise

    def _repeat(self, repeats: int) -> tuple[list[Timing], list[float]]:
        """Fewer repeats where they would not fit the deadline: a slow run is worth more than none."""
        begin = perf_counter()
        self._busy = 0.0
        timing, result = self._measure()
        timings = [timing]
        while len(timings) < repeats and perf_counter() - begin + timing.wall < self._timeout / 2:
            timing, result = self._measure()
            timings.append(timing)
        values = self._with_target(self._target.values, result)
        return timings, [float(value) for value in islice(values, _MAX_VALUES)]

    def _measure(self) -> tuple[Timing, Any]:
        """One repeat; a target may bring its own clock, and what that says is checked: one NaN breaks a report."""
        timing, result = self._with_target(self._target.clock.measure, self._target.run)
        phases = {str(name): _seconds(seconds) for name, seconds in timing.phases.items()}
        self._phase_names.update(phases)
        if len(self._phase_names) > _MAX_PHASES:
            raise ValueError(f"more than {_MAX_PHASES} names of phases; each is a time series")
        return Timing(_seconds(timing.wall), phases), result

    def _with_target(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """In the server's own pool where one was given, repeat by repeat, so that requests go in between."""

        def work() -> Any:
            self._entered = begin = perf_counter()
            try:
                return function(*arguments)
            finally:
                self._entered = None
                self._busy += perf_counter() - begin

        if self._executor is None:
            return work()
        self._turn = self._executor.submit(work)
        return self._turn.result()

    def _close(self) -> None:
        try:
            self._target.close()
        except BaseException as error:
            log.warning("canary %s: closing failed: %s", self.name, one_line(error))

    def _take(self, opened: _Opened) -> None:
        tally, name, latencies = self._tally, self.name, opened.latencies
        tally.set(LOAD, opened.load, name)
        tally.set(FIRST_RUN, opened.first_run, name)
        tally.set(WARM_UP, opened.warm_up, name)
        tally.set(WARM_UP_REPEATS, len(latencies), name)
        self.environment = opened.environment
        self._steady = is_steady(latencies)
        self._costs.append(statistics.median(latencies))
        if not self._steady:
            self._recent.extend(latencies)  # scheduled runs go on where warm-up stopped
        self.is_open, self.mistake = True, None
        self._recover()

    def _put_off(self, complaint: str, log_it: bool = True) -> None:
        now = perf_counter()
        took = now - self._opening_since if self._opening_since is not None else 0.0
        least, most = _REOPEN_SECONDS
        self._retry_at = now + min(most, max(least, took / _REOPEN_DUTY))
        self._tally.add(RUNS, 1, self.name, "raised")
        self._failed_open = Round("raised", complaint)
        self._fail(complaint, log_it)

    def _account(self, result: Round) -> None:
        tally, name = self._tally, self.name
        tally.add(RUNS, 1, name, result.outcome)
        for timing in result.timings:
            tally.observe(LATENCY, timing.wall, name)
            for phase, seconds in timing.phases.items():
                tally.observe(PHASE, seconds, name, phase)
        if result.latencies:
            self._costs.append(result.cost / len(result.latencies))
            self._show_last_run(result)
        else:
            # A canary that fails has no latency now: its last good one would look healthy.
            self._recent.clear()
            for metric in (MEDIAN, MINIMUM, IQR, P90, PHASE_MEDIAN):
                tally.forget(metric, name)
        if result.outcome == "ok":
            self._recover()
        else:
            self._fail(f"{result.outcome}: {result.detail}")

    def _show_last_run(self, result: Round) -> None:
        tally, name, latencies = self._tally, self.name, result.latencies
        self._recent.extend(latencies)
        if not self._steady and is_steady(list(self._recent)):
            self._steady = True
            self._recent.clear()
        tally.set(MEDIAN, statistics.median(latencies), name)
        tally.set(MINIMUM, min(latencies), name)
        tally.forget(IQR, name)
        if len(latencies) > 1:
            low, _, high = statistics.quantiles(latencies, n=4, method="inclusive")
            tally.set(IQR, high - low, name)
        if self._steady and len(self._recent) == _P90_REPEATS:
            tally.set(P90, statistics.quantiles(self._recent, n=10, method="inclusive")[-1], name)
        tally.forget(PHASE_MEDIAN, name)
        for phase, seconds in result.phases.items():
            tally.set(PHASE_MEDIAN, seconds, name, phase)

    def _enter(self, state: str) -> None:
        self.state = state
        for each in STATES:
            self._tally.set(STATE, each == state, self.name, each)

    def _recover(self) -> None:
        if self._complaint:
            log.info("canary %s: answers again", self.name)
        self._complaint = ""
        self._enter("steady" if self._steady else "warming")

    def _fail(self, complaint: str, log_it: bool = True) -> None:
        self._enter("failing")
        if log_it and complaint != self._complaint:  # once per change, not once per run
            log.error("canary %s: %s", self.name, complaint)
        self._complaint = complaint


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"the target's clock gave {value!r} as seconds")
    return seconds
