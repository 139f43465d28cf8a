"""The metrics of a canary and of its runs, and the one place where they are filled."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping

from infercanary.contract.report import LATENCY, PHASE, Metric
from infercanary.contract.vocabulary import CANARY_STATES, OUTCOMES, TAGS, CanaryState
from infercanary.probe import scopes
from infercanary.probe.failing import Failing
from infercanary.probe.histogram import Tally
from infercanary.probe.measures import shown
from infercanary.probe.round import Round
from infercanary.probe.runner import Opened
from infercanary.probe.targets import Reason

RUNS = Metric(
    "infercanary_runs_total",
    "counter",
    "Runs by outcome: ok, raised, timed_out, not_finite (NaN or infinity), busy (no turn on the device).",
    ("canary", "outcome"),
    reading="Only `ok` is healthy; the probe's log has the reason. If nothing grows, see "
    "`infercanary_canary_state`.",
)
TAGGED = Metric(
    "infercanary_tagged_runs_total",
    "counter",
    "Runs with this tag: a condition that may have slowed them.",
    ("canary", "tag"),
    reading="A tag that comes with an image points to the image; one on all containers of a host, to the host.",
)
ELIGIBLE = Metric(
    "infercanary_eligible_ratio",
    "gauge",
    "Share of the last 100 runs that were ok, steady and without any tag.",
    ("canary",),
    reading="Near 1 is healthy. If it is lower, `infercanary_tagged_runs_total` shows what slows the runs.",
)
STATE = Metric(
    "infercanary_canary_state",
    "gauge",
    "1 for the canary's current state, 0 for the others.",
    ("canary", "state"),
    reading="`failing` and `out_of_memory` are alerts. `warming` that lasts: latencies do not settle. `opening` that "
    "lasts: the load is slow or hangs.",
)
COLD_START = Metric(
    "infercanary_cold_start_seconds",
    "gauge",
    "Cold start by step: load, first_run, warm_up, and time_to_steady since the container's start.",
    ("canary", "step"),
    reading="Compare images of one service. `time_to_steady` is missing until the canary is steady; a rollout should "
    "wait this long.",
)
MEDIAN = Metric(
    "infercanary_run_median_seconds",
    "gauge",
    "Median wall time of the last run's repeats.",
    ("canary",),
    reading="It is exact, while a histogram interpolates: draw it, or `avg_over_time(…[1h])` of it.",
)
IQR = Metric(
    "infercanary_run_iqr_seconds",
    "gauge",
    "Interquartile range of the wall times of the last run's repeats.",
    ("canary",),
    reading="Divide it by the median. A rise means contention: throttling, the garbage collector, or other work on the "
    "GPU.",
)
BOTTLENECK = Metric(
    "infercanary_bottleneck_ratio",
    "gauge",
    "Shares of the last run's median latency: compute (memory included), io, scheduling and unknown.",
    ("canary", "bottleneck"),
    reading="For `scheduling`, see CPU wait and the phases `launch` and `queue`. For a server, its work is `unknown`.",
)
OUTPUT_ERROR = Metric(
    "infercanary_output_error_ratio",
    "gauge",
    "Relative error (L2) of the last run's output against the first steady output; 1 at most.",
    ("canary",),
    reading="Below 0.01 it is rounding. Above, the run is tagged `output_changed`: a faster run is no improvement.",
)

_RECENT_RUNS = 100


class Record:
    """Fills one canary's metrics in a :class:`Tally`."""

    def __init__(self, name: str, tally: Tally, reasons: Iterable[Reason] = ()) -> None:
        """Begin at zero: every outcome, reason and tag has a series from the start.

        Args:
            name: The label ``canary``.
            tally: Where the metrics are counted.
            reasons: Of a failure that its target may raise, beside those that any may have.
        """
        self._name = name
        self._tally = tally
        self._eligible: deque[bool] = deque(maxlen=_RECENT_RUNS)
        self._readings: set[Metric] = set()  # that the last run had
        self.failing = Failing(name, tally, reasons)
        """What is counted and shown of failures."""
        for outcome in OUTCOMES:  # at 0, so that the first one is an increase
            tally.add(RUNS, 0, name, outcome)
        for tag in TAGS:
            tally.add(TAGGED, 0, name, tag)

    def state(self, now: CanaryState) -> None:
        """Set the canary's state.

        Args:
            now: Its series becomes 1, those of the other states 0.
        """
        for each in CANARY_STATES:
            self._tally.set(STATE, each == now, self._name, each)

    def opened(self, opened: Opened) -> None:
        """Set what the cold start took.

        Args:
            opened: Seconds of each step.
        """
        for step in ("load", "first_run", "warm_up"):
            self._tally.set(COLD_START, getattr(opened, step), self._name, step)

    def steady(self, seconds: float) -> None:
        """Set when it became steady for the first time, ``seconds`` after the start.

        Args:
            seconds: Since the container started, loading included.
        """
        self._tally.set(COLD_START, seconds, self._name, "time_to_steady")

    def failed(self, done: Round) -> None:
        """Count a run without a latency, and clear the last good one, which would look healthy.

        Args:
            done: The round; its outcome is not ``ok``.
        """
        self._count(done)
        for metric in (MEDIAN, IQR, BOTTLENECK, OUTPUT_ERROR, *self._readings):
            self._tally.forget(metric, self._name)
        self._readings.clear()

    def run(self, done: Round) -> None:
        """Count a run with latencies.

        Args:
            done: The round; its latencies are in seconds.
        """
        tally, name, latencies = self._tally, self._name, done.latencies
        self._count(done)
        for timing in done.timings:
            tally.observe(LATENCY, timing.wall, name)
            for phase, seconds in timing.phases.items():
                tally.observe(PHASE, seconds, name, phase)
        tally.set(MEDIAN, statistics.median(latencies), name)
        tally.forget(IQR, name)
        if len(latencies) > 1:
            low, _, high = statistics.quantiles(latencies, n=4, method="inclusive")
            tally.set(IQR, high - low, name)
        for bottleneck, share in done.bottlenecks.items():
            tally.set(BOTTLENECK, share, name, bottleneck)
        tally.forget(OUTPUT_ERROR, name)
        if done.output_error is not None:
            tally.set(OUTPUT_ERROR, done.output_error, name)
        for metric in self._readings:
            tally.forget(metric, name)
        self._readings = {reading.metric for reading in done.readings}
        for reading in done.readings:
            tally.set(reading.metric, reading.value, name, *reading.labels)
        self._thread(done)

    def tags(self, tags: Iterable[str], eligible: bool) -> None:
        """Count the tags of the run that was counted last, and whether it is fit for comparing images.

        Args:
            tags: Their names.
            eligible: Whether the run is fit for comparing images.
        """
        for tag in tags:
            self._tally.add(TAGGED, 1, self._name, tag)
        self._eligible.append(eligible)
        self._tally.set(ELIGIBLE, sum(self._eligible) / len(self._eligible), self._name)

    def measured(self, measures: Mapping[str, float]) -> None:
        """Set what the run that was counted last took beside its time; nothing of the one before stays.

        Args:
            measures: Name → value.
        """
        for metric, points in shown(measures).items():
            self._tally.forget(metric, self._name)
            for labels, value in points.items():
                self._tally.set(metric, value, self._name, *labels)

    def _count(self, done: Round) -> None:
        self._tally.add(RUNS, 1, self._name, done.outcome)
        self.failing.count(done)

    def _thread(self, done: Round) -> None:
        tally, usage, labels = self._tally, done.usage, (scopes.CANARY, self._name)
        tally.add(scopes.CPU, usage.cpu_seconds, *labels, "")
        tally.add(scopes.SWITCHES, usage.voluntary, *labels, "voluntary")
        tally.add(scopes.SWITCHES, usage.involuntary, *labels, "involuntary")
        if usage.run_queue_seconds is not None:
            tally.add(scopes.RUN_QUEUE, usage.run_queue_seconds, *labels)
        if usage.migrations is not None:
            tally.add(scopes.MIGRATIONS, usage.migrations, *labels)
