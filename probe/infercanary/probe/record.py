"""What a canary's runs add up to: its metrics, and the one place where they are filled."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable

from infercanary.probe.histogram import Tally
from infercanary.probe.report import INTENDED, LATENCY, PHASE, Metric, Outcome
from infercanary.probe.round import Round
from infercanary.probe.runner import Opened
from infercanary.probe.tags import TAGS

RUNS = Metric(
    "infercanary_runs_total",
    "counter",
    "Runs by outcome: ok, raised, timed_out (past its deadline, or still hanging), not_finite (NaN or infinity), "
    "busy (no turn in the server's pool, or on the device, in time).",
    ("canary", "outcome"),
)
TAGGED = Metric(
    "infercanary_tagged_runs_total",
    "counter",
    "Runs with this tag: something may have disturbed them. They are counted and kept like all others.",
    ("canary", "tag"),
)
ELIGIBLE = Metric(
    "infercanary_eligible_ratio",
    "gauge",
    "Share of the last 100 runs that were ok, steady and without any tag: those that compare one image with another.",
    ("canary",),
)
STATE = Metric(
    "infercanary_canary_state",
    "gauge",
    "1 for the canary's state now, 0 for the others: opening, warming, steady, failing, busy.",
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
TIME_TO_STEADY = Metric(
    "infercanary_time_to_steady_seconds",
    "gauge",
    "Cold start: from the container's start (outside of one, the process's) until the canary was steady.",
    ("canary",),
)
BATCH = Metric(
    "infercanary_repeat_inferences",
    "gauge",
    "Inferences in one repeat: more than 1 where one alone is too short to be timed (under 100 µs on the device).",
    ("canary",),
)
OVERHEAD = Metric(
    "infercanary_clock_overhead_seconds",
    "gauge",
    "What the clock reads for an empty phase (CUDA: two events with nothing between). Never subtracted.",
    ("canary",),
)
CUDA_MISSING = Metric(
    "infercanary_cuda_missing",
    "gauge",
    "1 where the canary was to run on CUDA and its engine has none, else 0: a CPU-only build, or no device to be seen.",
    ("canary", "reason"),
)
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
OUTPUT_ERROR = Metric(
    "infercanary_output_error_ratio",
    "gauge",
    "How far the last run's output is from the first steady one since the start: relative error (L2), 1 at most.",
    ("canary",),
)
THREAD_CPU = Metric(
    "infercanary_canary_cpu_seconds_total",
    "counter",
    "CPU time of the thread that runs the canary's repeats, during them (its helper threads' is not in it).",
    ("canary",),
)
THREAD_RUN_QUEUE = Metric(
    "infercanary_canary_run_queue_seconds_total",
    "counter",
    "Time that this thread was ready to run during repeats and waited for a CPU.",
    ("canary",),
)
THREAD_SWITCHES = Metric(
    "infercanary_canary_context_switches_total",
    "counter",
    "Its context switches during repeats: voluntary (it waited) and involuntary (it was pushed off its CPU).",
    ("canary", "kind"),
)
THREAD_MIGRATIONS = Metric(
    "infercanary_canary_migrations_total",
    "counter",
    "Its moves from one CPU to another during repeats; missing where the kernel does not tell.",
    ("canary",),
)

OUTCOMES: tuple[Outcome, ...] = ("ok", "raised", "timed_out", "not_finite", "busy")
STATES = ("opening", "warming", "steady", "failing", "busy")
CUDA_MISSING_REASONS = ("cpu_only_build", "no_device")

_P90_REPEATS = 64
_RECENT_RUNS = 100


class Record:
    """Fills one canary's metrics in a :class:`Tally`."""

    def __init__(self, name: str, tally: Tally) -> None:
        self._name = name
        self._tally = tally
        self._recent: deque[float] = deque(maxlen=_P90_REPEATS)  # wall seconds of steady repeats
        self._eligible: deque[bool] = deque(maxlen=_RECENT_RUNS)
        for outcome in OUTCOMES:  # at 0, so that the first one is an increase
            tally.add(RUNS, 0, name, outcome)
        for tag in TAGS:
            tally.add(TAGGED, 0, name, tag)

    def state(self, now: str) -> None:
        """The canary's state."""
        for each in STATES:
            self._tally.set(STATE, each == now, self._name, each)

    def opened(self, opened: Opened) -> None:
        """What the cold start cost."""
        tally, name = self._tally, self._name
        tally.set(LOAD, opened.load, name)
        tally.set(FIRST_RUN, opened.first_run, name)
        tally.set(WARM_UP, opened.warm_up, name)
        tally.set(WARM_UP_REPEATS, len(opened.latencies), name)
        tally.set(BATCH, opened.batch, name)
        if opened.overhead is not None:
            tally.set(OVERHEAD, opened.overhead, name)

    def cuda(self, missing: str) -> None:
        """Why its engine has no CUDA; empty where it has."""
        for reason in CUDA_MISSING_REASONS:
            self._tally.set(CUDA_MISSING, reason == missing, self._name, reason)

    def steady(self, seconds: float) -> None:
        """It became steady, for the first time, ``seconds`` after the start."""
        self._tally.set(TIME_TO_STEADY, seconds, self._name)

    def failed(self, outcome: Outcome) -> None:
        """A run that has no latency: its last good one would look healthy."""
        self._tally.add(RUNS, 1, self._name, outcome)
        self._recent.clear()
        for metric in (MEDIAN, MINIMUM, IQR, P90, PHASE_MEDIAN, OUTPUT_ERROR):
            self._tally.forget(metric, self._name)

    def run(self, done: Round, steady: bool) -> None:
        """A run that has latencies, of a canary that is ``steady`` by now or not yet."""
        tally, name, latencies = self._tally, self._name, done.latencies
        tally.add(RUNS, 1, name, done.outcome)
        for timing in done.timings:
            tally.observe(LATENCY, timing.wall, name)
            for phase, seconds in timing.phases.items():
                tally.observe(PHASE, seconds, name, phase)
        if done.intended is not None:
            tally.observe(INTENDED, done.intended, name)
        tally.set(MEDIAN, statistics.median(latencies), name)
        tally.set(MINIMUM, min(latencies), name)
        tally.forget(IQR, name)
        if len(latencies) > 1:
            low, _, high = statistics.quantiles(latencies, n=4, method="inclusive")
            tally.set(IQR, high - low, name)
        if steady:
            self._recent.extend(latencies)
        if len(self._recent) == _P90_REPEATS:
            tally.set(P90, statistics.quantiles(self._recent, n=10, method="inclusive")[-1], name)
        tally.forget(PHASE_MEDIAN, name)
        for phase, seconds in done.phases.items():
            tally.set(PHASE_MEDIAN, seconds, name, phase)
        tally.forget(OUTPUT_ERROR, name)
        if done.output_error is not None:
            tally.set(OUTPUT_ERROR, done.output_error, name)
        self._thread(done)

    def tags(self, tags: Iterable[str], eligible: bool) -> None:
        """The tags of the run that was counted last, and whether it is fit for comparing images."""
        for tag in tags:
            self._tally.add(TAGGED, 1, self._name, tag)
        self._eligible.append(eligible)
        self._tally.set(ELIGIBLE, sum(self._eligible) / len(self._eligible), self._name)

    def _thread(self, done: Round) -> None:
        tally, name, usage = self._tally, self._name, done.usage
        tally.add(THREAD_CPU, usage.cpu_seconds, name)
        tally.add(THREAD_SWITCHES, usage.voluntary, name, "voluntary")
        tally.add(THREAD_SWITCHES, usage.involuntary, name, "involuntary")
        if usage.run_queue_seconds is not None:
            tally.add(THREAD_RUN_QUEUE, usage.run_queue_seconds, name)
        if usage.migrations is not None:
            tally.add(THREAD_MIGRATIONS, usage.migrations, name)
