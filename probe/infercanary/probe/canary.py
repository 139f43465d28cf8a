"""One canary: a target with its clock, warm-up, rounds and numbers."""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

from infercanary.probe.deadline import DeadlineExceeded, StillBusy, Worker
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
_REOPEN_SECONDS = 60.0


class Round(NamedTuple):
    """What a canary did in one round: each repeat's timing, and the seconds it was busy, all told."""

    outcome: Outcome
    detail: str = ""
    timings: Sequence[Timing] = ()
    busy: float = 0.0

    @property
    def latencies(self) -> tuple[float, ...]:
        """Wall seconds of each repeat."""
        return tuple(timing.wall for timing in self.timings)

    @property
    def phases(self) -> dict[str, float]:
        """Median seconds of each phase over the repeats."""
        names = dict.fromkeys(name for timing in self.timings for name in timing.phases)
        return {n: statistics.median(t.phases[n] for t in self.timings if n in t.phases) for n in names}


class Canary:
    """Opens, warms up and times one target; whatever that target does stays inside.

    The target runs in a thread of its own with a deadline: a hang costs this canary its runs and nothing else.
    """

    def __init__(self, name: str, target: Target, tally: Tally, timeout: float, open_timeout: float) -> None:
        self.name = name
        self.environment: dict[str, str] = {}
        self._target = target
        self._tally = tally
        self._timeout = timeout
        self._open_timeout = open_timeout
        self._worker = Worker(f"infercanary-{name}")
        self._recent: deque[float] = deque(maxlen=_P90_REPEATS)  # wall seconds, warm-up included until steady
        self._costs: deque[float] = deque(maxlen=5)  # busy seconds per repeat, of the last runs
        self._steady = False
        self._opened = False
        self._retry_at = 0.0
        self._complaint = ""
        for outcome in OUTCOMES:
            tally.add(RUNS, 0, name, outcome)
        self._enter("opening")

    @property
    def repeat_cost(self) -> float:
        """Busy seconds per repeat: the median of the last runs, so that one disturbed run does not change the plan."""
        return statistics.median(self._costs) if self._costs else 0.0

    def open(self) -> None:
        """Load the target, time its first repeat, and warm it up.

        Raises :class:`UsageError` where the user must mend something; any other failure is logged and tried
        again a minute later.
        """
        self._retry_at = perf_counter() + _REOPEN_SECONDS
        self._enter("opening")
        try:
            self._worker.call(self._open, self._open_timeout)
        except UsageError as error:
            self._fail(f"cannot be opened: {error}")
            raise
        except StillBusy:
            self._enter("failing")
        except BaseException as error:
            self._fail(f"cannot be opened: {_one_line(error)}")
        else:
            self._opened = True
            self._complaint = ""
            self._enter("steady" if self._steady else "warming")

    def round(self, repeats: int) -> Round | None:
        """Run ``repeats`` repeats; None where the canary is not open (yet), and nothing was run."""
        if not self._opened:
            if perf_counter() < self._retry_at:
                return None
            try:
                self.open()
            except UsageError:
                return None
            if not self._opened:
                return None
        begin = perf_counter()
        try:
            timings, values = self._worker.call(lambda: self._repeat(repeats), self._timeout)
        except StillBusy:
            result = Round("timed_out", "still hanging in an earlier run")
        except DeadlineExceeded:
            result = Round("timed_out", f"no result within {self._timeout:g} s", busy=perf_counter() - begin)
        except BaseException as error:
            result = Round("raised", _one_line(error), busy=perf_counter() - begin)
        else:
            finite = all(map(math.isfinite, values))
            detail = "" if finite else "the output holds NaN or infinity"
            result = Round("ok" if finite else "not_finite", detail, timings, perf_counter() - begin)
        self._account(result)
        return result

    def close(self, seconds: float) -> None:
        """Let go of the target, unless it hangs."""
        if self._opened and not self._worker.busy:
            try:
                self._worker.call(self._target.close, seconds)
            except BaseException as error:
                log.warning("canary %s: closing failed: %s", self.name, _one_line(error))
        if not self._worker.stop(seconds):
            log.warning("canary %s: still hanging; its thread ends with the process", self.name)

    def _open(self) -> None:
        begin = perf_counter()
        self._target.open()
        self._tally.set(LOAD, perf_counter() - begin, self.name)
        self.environment = dict(self._target.environment())
        first, _ = self._target.clock.measure(self._target.run)
        self._tally.set(FIRST_RUN, first.wall, self.name)
        latencies: list[float] = []
        begin = perf_counter()
        while not (
            self._steady or len(latencies) >= _WARM_UP_REPEATS or perf_counter() - begin > _WARM_UP_SECONDS
        ):
            timing, _ = self._target.clock.measure(self._target.run)
            latencies.append(timing.wall)
            self._steady = is_steady(latencies)
        self._tally.set(WARM_UP, perf_counter() - begin, self.name)
        self._tally.set(WARM_UP_REPEATS, len(latencies), self.name)
        self._costs.append(statistics.median(latencies or [first.wall]))
        self._recent.clear()
        if not self._steady:
            self._recent.extend(latencies)  # scheduled runs go on where warm-up stopped

    def _repeat(self, repeats: int) -> tuple[list[Timing], list[float]]:
        timings = []
        result = None
        for _ in range(repeats):
            timing, result = self._target.clock.measure(self._target.run)
            timings.append(timing)
        return timings, list(self._target.values(result))

    def _account(self, result: Round) -> None:
        tally, name = self._tally, self.name
        tally.add(RUNS, 1, name, result.outcome)
        for timing in result.timings:
            tally.observe(LATENCY, timing.wall, name)
            for phase, seconds in timing.phases.items():
                tally.observe(PHASE, seconds, name, phase)
        if result.latencies:
            self._costs.append(result.busy / len(result.latencies))
            self._show_last_run(result)
        else:
            # A canary that fails has no latency now: its last good one would look healthy.
            self._recent.clear()
            for metric in (MEDIAN, MINIMUM, IQR, P90, PHASE_MEDIAN):
                tally.forget(metric, name)
        if result.outcome == "ok":
            if self._complaint:
                log.info("canary %s: answers again", name)
            self._complaint = ""
            self._enter("steady" if self._steady else "warming")
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
        if len(latencies) > 1:
            low, _, high = statistics.quantiles(latencies, n=4, method="inclusive")
            tally.set(IQR, high - low, name)
        if self._steady and len(self._recent) == _P90_REPEATS:
            tally.set(P90, statistics.quantiles(self._recent, n=10, method="inclusive")[-1], name)
        for phase, seconds in result.phases.items():
            tally.set(PHASE_MEDIAN, seconds, name, phase)

    def _enter(self, state: str) -> None:
        self.state = state
        for each in STATES:
            self._tally.set(STATE, each == state, self.name, each)

    def _fail(self, complaint: str) -> None:
        self._enter("failing")
        if complaint != self._complaint:  # once per change, not once per run
            log.error("canary %s: %s", self.name, complaint)
        self._complaint = complaint


def _one_line(error: BaseException) -> str:
    """``RuntimeError: its first line``: a model's error may be pages long."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__
