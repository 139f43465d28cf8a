"""Metrics of a canary and of its runs. Only this module sets these metrics."""

from __future__ import annotations

import re
import statistics
from collections import deque
from collections.abc import Iterable, Mapping

from infercanary.contract.report import LATENCY, PHASE, Metric
from infercanary.contract.vocabulary import CANARY_STATES, OUTCOMES, TAGS, CanaryState
from infercanary.probe import scopes
from infercanary.probe.histogram import Tally
from infercanary.probe.measures import SHOWN
from infercanary.probe.result import Opened, RunResult
from infercanary.probe.samplers.threads import ThreadUsage
from infercanary.probe.targets import REASONS, Reason

RUNS = Metric(
    "infercanary_runs_total",
    "counter",
    "Runs by outcome: ok, raised, timed_out, not_finite (NaN or infinity), busy (no turn on the device).",
    ("canary", "outcome"),
    reading="Only `ok` is healthy; the probe's log has the reasons of failures. If no counter grows, see "
    "`infercanary_canary_state`.",
)
TAGGED = Metric(
    "infercanary_tagged_runs_total",
    "counter",
    "Runs with this tag, a condition that may have slowed the runs.",
    ("canary", "tag"),
    reading="A tag that first appears with an image points to the image; a tag on all containers of a host points to "
    "the host.",
)
ELIGIBLE = Metric(
    "infercanary_eligible_ratio",
    "gauge",
    "Share of the last 100 runs that were ok, steady and without any tag.",
    ("canary",),
    reading="Near 1 is healthy. For a lower share, `infercanary_tagged_runs_total` shows what slows the runs.",
)
STATE = Metric(
    "infercanary_canary_state",
    "gauge",
    "1 for the canary's current state, 0 for all other states.",
    ("canary", "state"),
    reading="`failing` and `out_of_memory` are alerts. If `warming` lasts, latencies do not settle. If `opening` "
    "lasts, the load is slow or hangs.",
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
    reading="This median is exact, while a histogram interpolates. Draw the median, or its `avg_over_time(…[1h])`.",
)
IQR = Metric(
    "infercanary_run_iqr_seconds",
    "gauge",
    "Interquartile range of the wall times of the last run's repeats.",
    ("canary",),
    reading="Divide the range by the median. A rise means contention: throttling, the garbage collector, or other work "
    "on the "
    "GPU.",
)
BOTTLENECK = Metric(
    "infercanary_bottleneck_ratio",
    "gauge",
    "Shares of the last run's median latency: compute (memory included), io, scheduling and unknown.",
    ("canary", "bottleneck"),
    reading="For `scheduling`, see CPU wait and the phases `launch` and `queue`. A server's work is `unknown`.",
)
OUTPUT_ERROR = Metric(
    "infercanary_output_error_ratio",
    "gauge",
    "Relative error (L2) of the last run's output against the first steady output; 1 at most.",
    ("canary",),
    reading="An error below 0.01 is rounding. Above 0.01, the run is tagged `output_changed`: a faster run is no "
    "improvement.",
)

FAILURES = Metric(
    "infercanary_run_failures_total",
    "counter",
    "Failed runs, and failed attempts to open the canary, by reason.",
    ("canary", "reason"),
    reading="0 is healthy. `infercanary_canary_failure_info` has the message. `out_of_memory` is an alert; "
    "the probe retries after 1 to 10 minutes.",
)
DETAIL = Metric(
    "infercanary_canary_failure_info",
    "gauge",
    "Message of the canary's first failure with this reason; missing if no run fails.",
    ("canary", "reason", "detail"),
    reading="Alerts quote this message. The message of the last failure is on the status page and in the probe's log.",
)
CUDA_MISSING = Metric(
    "infercanary_cuda_missing",
    "gauge",
    "1 if the canary should run on CUDA but its engine cannot use CUDA, else 0; by reason.",
    ("canary", "reason"),
    reading="1 is an alert. The reason names the fix, and `infercanary_canary_failure_info` has the message.",
)

CUDA_MISSING_REASONS = ("cpu_only_build", "no_libraries", "version_mismatch", "provider_missing", "no_device")

_ANY: tuple[Reason, ...] = REASONS[:7]  # reasons of failures that all targets may give
_DETAIL_BYTES = 240  # bytes, because the exporter accepts labels of up to 256 bytes
_NUMBER = re.compile(r"\d[\w.]*")
_RECENT_RUNS = 100


class CanaryMetrics:
    """Sets one canary's metrics in a :class:`Tally`. Each outcome, reason and tag has a series from the start.

    Args:
        name: The label ``canary``.
        tally: Storage of the metrics.
        reasons: Reasons of failures that the target may give, besides the common reasons.
    """

    def __init__(self, name: str, tally: Tally, reasons: Iterable[Reason] = ()) -> None:
        self._name = name
        self._tally = tally
        self._eligible: deque[bool] = deque(maxlen=_RECENT_RUNS)
        self._readings: set[Metric] = set()  # metrics that the last run's readings set
        # published failure: reason, and message without numbers
        self._failure: tuple[Reason, str] | None = None
        for outcome in OUTCOMES:  # start at 0, so that the first failure is an increase
            tally.add(RUNS, 0, name, outcome)
        for reason in dict.fromkeys([*_ANY, *reasons]):
            tally.add(FAILURES, 0, name, reason)
        for tag in TAGS:
            tally.add(TAGGED, 0, name, tag)

    def state(self, state: CanaryState) -> None:
        """Set the gauge of the canary's state: 1 for the current state, 0 for all other states."""
        for other in CANARY_STATES:
            self._set(STATE, other == state, other)

    def cuda(self, missing: str) -> None:
        """Set the reason why the engine lacks CUDA: one of ``CUDA_MISSING_REASONS``, or empty."""
        for reason in CUDA_MISSING_REASONS:
            self._set(CUDA_MISSING, reason == missing, reason)

    def opened(self, opened: Opened) -> None:
        """Set the seconds of each step of the cold start."""
        for step in ("load", "first_run", "warm_up"):
            self._set(COLD_START, getattr(opened, step), step)

    def steady(self, seconds: float) -> None:
        """Set the time until the canary was first steady: seconds since the container's start, with loading."""
        self._set(COLD_START, seconds, "time_to_steady")

    def run(self, done: RunResult) -> None:
        """Count a run. A run without a latency removes the last latency, which would look healthy."""
        self._tally.add(RUNS, 1, self._name, done.outcome)
        if done.outcome != "busy":  # a busy run was not executed, so keep the text of the last failure
            self._show_failure(done.failure, done.detail)
        for metric in (MEDIAN, IQR, BOTTLENECK, OUTPUT_ERROR, *self._readings):
            self._tally.forget(metric, self._name)
        self._readings = {reading.metric for reading in done.readings}
        if not (latencies := done.latencies):
            return
        for timing in done.timings:
            self._tally.observe(LATENCY, timing.wall, self._name)
            for phase, seconds in timing.phases.items():
                self._tally.observe(PHASE, seconds, self._name, phase)
        self._set(MEDIAN, statistics.median(latencies))
        if len(latencies) > 1:
            low, _, high = statistics.quantiles(latencies, n=4, method="inclusive")
            self._set(IQR, high - low)
        for bottleneck, share in done.bottlenecks.items():
            self._set(BOTTLENECK, share, bottleneck)
        if done.output_error is not None:
            self._set(OUTPUT_ERROR, done.output_error)
        for reading in done.readings:
            self._set(reading.metric, reading.value, *reading.labels)
        self._add_usage(done.usage)

    def found(self, tags: Iterable[str], measures: Mapping[str, float], eligible: bool) -> None:
        """Count the tags and measures of the last counted run.

        Args:
            measures: Name → value; values of earlier runs are removed.
            eligible: True if the run can be used to compare images.
        """
        for tag in tags:
            self._tally.add(TAGGED, 1, self._name, tag)
        self._eligible.append(eligible)
        self._set(ELIGIBLE, sum(self._eligible) / len(self._eligible))
        for measure, (metric, labels) in SHOWN.items():
            self._tally.forget(metric, self._name, *labels)
            if measure in measures:
                self._set(metric, measures[measure], *labels)

    def _show_failure(self, reason: Reason | None, detail: str) -> None:
        """Count a failure and publish its text. Without a reason, remove the published text."""
        # Ignore numbers. Otherwise, failures with different numbers would each be a new series.
        failure = None if reason is None else (reason, _NUMBER.sub("0", detail))
        if failure != self._failure:
            self._tally.forget(DETAIL, self._name)
        if reason is not None:
            self._tally.add(FAILURES, 1, self._name, reason)
            if failure != self._failure:
                self._set(DETAIL, 1, reason, detail.encode()[:_DETAIL_BYTES].decode(errors="ignore"))
        self._failure = failure

    def _set(self, metric: Metric, value: float, *labels: str) -> None:
        self._tally.set(metric, value, self._name, *labels)

    def _add_usage(self, usage: ThreadUsage) -> None:
        labels = scopes.CANARY, self._name
        for metric, amount, kind in (
            (scopes.CPU, usage.cpu_seconds, ("",)),
            (scopes.SWITCHES, usage.voluntary, ("voluntary",)),
            (scopes.SWITCHES, usage.involuntary, ("involuntary",)),
            (scopes.RUN_QUEUE, usage.run_queue_seconds, ()),
            (scopes.MIGRATIONS, usage.migrations, ()),
        ):
            if amount is not None:
                self._tally.add(metric, amount, *labels, *kind)
