"""Metrics of a canary's failures: counted by reason, and shown in the words of the failure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from infercanary.contract.report import Metric
from infercanary.probe.histogram import Tally
from infercanary.probe.result import RunResult
from infercanary.probe.targets import REASONS, Reason

FAILURES = Metric(
    "infercanary_run_failures_total",
    "counter",
    "Runs that failed, and attempts to open, by reason.",
    ("canary", "reason"),
    reading="0 is healthy. `infercanary_canary_failure_info` has the words. `out_of_memory` is an alert: "
    "retried after 1 to 10 minutes.",
)
DETAIL = Metric(
    "infercanary_canary_failure_info",
    "gauge",
    "Why the canary fails, in the words of its first failure of that kind; missing while nothing fails.",
    ("canary", "reason", "detail"),
    reading="Alerts quote it. The words of the last failure are on the status page and in the probe's log.",
)
CUDA_MISSING = Metric(
    "infercanary_cuda_missing",
    "gauge",
    "1 if the canary should run on CUDA and its engine cannot, else 0, by reason.",
    ("canary", "reason"),
    reading="1 is an alert. The reason names the fix, and `infercanary_canary_failure_info` has the message.",
)

CUDA_MISSING_REASONS = ("cpu_only_build", "no_libraries", "version_mismatch", "provider_missing", "no_device")

_ANY: tuple[Reason, ...] = REASONS[:7]  # those that any target may have
_DETAIL_BYTES = 240  # the exporter takes labels of 256
_NUMBER = re.compile(r"\d[\w.]*")


class FailureMetrics:
    """Fills the metrics of one canary's failures in a :class:`Tally`.

    Args:
        name: The label ``canary``.
        tally: Where they are counted.
        reasons: Those that its target may raise, beside those that any may have.
    """

    def __init__(self, name: str, tally: Tally, reasons: Iterable[Reason]) -> None:
        self._name = name
        self._tally = tally
        self._kind: tuple[Reason, str] | None = None  # of the failure that is shown
        for reason in dict.fromkeys([*_ANY, *reasons]):  # at 0, so that the first one is an increase
            tally.add(FAILURES, 0, name, reason)

    def cuda(self, missing: str) -> None:
        """Set why its engine has no CUDA: one of ``CUDA_MISSING_REASONS``, or empty."""
        for reason in CUDA_MISSING_REASONS:
            self._tally.set(CUDA_MISSING, reason == missing, self._name, reason)

    def count(self, done: RunResult) -> None:
        """Count a run, if it failed, and show why; a run that did not fail ends that.

        Args:
            done: Any round. One that got no turn changes nothing.
        """
        if done.outcome == "busy":
            return
        reason = done.failure
        # A text that differs in numbers only would be a series of each failure.
        kind = None if reason is None else (reason, _NUMBER.sub("0", done.detail))
        if kind != self._kind:
            self._tally.forget(DETAIL, self._name)
        if reason is not None:
            self._tally.add(FAILURES, 1, self._name, reason)
            if kind != self._kind:
                detail = done.detail.encode()[:_DETAIL_BYTES].decode(errors="ignore")
                self._tally.set(DETAIL, 1, self._name, reason, detail)
        self._kind = kind
