"""Why a canary fails: counted by reason, and shown in its own words; and what is wrong with one that runs."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from infercanary.contract.report import Metric
from infercanary.probe.histogram import Tally
from infercanary.probe.round import Round
from infercanary.probe.targets import REASONS, Reason
from infercanary.probe.targets.matmul import ADVICE, UNUSED

log = logging.getLogger("infercanary.probe")

FAILURES = Metric(
    "infercanary_run_failures_total",
    "counter",
    "Runs that failed, and attempts to open, by reason: raised, timed_out, not_finite, wrong_answer, out_of_memory "
    "(of the host or of the device), no_libraries and version_mismatch (libraries are missing, or do not fit "
    "together), wrong_shape. For a server also: unreachable (no connection, or it closed before the answer), "
    "not_ready, error_answer (an unexpected HTTP status, or an error in the stream), incomplete (the answer ended "
    "too early), malformed, too_large, rate_limited (status 429, or 503 with `Retry-After`).",
    ("canary", "reason"),
    reading="0 is healthy. `sum by (service, canary, reason) (increase(infercanary_run_failures_total[1h])) > 0` "
    "shows what to fix, and the probe's log says it in words. `wrong_answer` also counts runs that succeeded but are "
    "tagged `output_changed`. All other failed runs are in `infercanary_runs_total` as `raised`, `timed_out` or "
    "`not_finite`. `out_of_memory` is an alert: the next attempt is a minute later, then two, and so on up to ten.",
)
DETAIL = Metric(
    "infercanary_canary_failure_info",
    "gauge",
    "Why the canary fails, in the words of its first failure of that kind. Always 1; missing while nothing fails.",
    ("canary", "reason", "detail"),
    reading="Alerts quote it. If only a number in the words changes, there is no new series. The words of the last "
    "failure are on the status page and in the probe's log.",
)
CUDA_MISSING = Metric(
    "infercanary_cuda_missing",
    "gauge",
    "1 if the canary should run on CUDA and its engine cannot, else 0: the build is CPU-only, libraries are not "
    "found or do not fit together, or no device is visible.",
    ("canary", "reason"),
    reading="`max without (reason) (infercanary_cuda_missing) == 1` is an alert. `cpu_only_build`: the image has the "
    "wrong wheel. `no_libraries`: the image lacks libraries that its engine was built for, or LD_LIBRARY_PATH does "
    "not include them. `version_mismatch`: the releases of the engine, CUDA's libraries and the driver do not fit "
    "together. `provider_missing`: ONNX Runtime has CUDA, but not the provider that the settings ask for. "
    "`no_device`: the container was started without the GPU. `infercanary_canary_failure_info` has the message.",
)

CUDA_MISSING_REASONS = ("cpu_only_build", "no_libraries", "version_mismatch", "provider_missing", "no_device")

_ANY: tuple[Reason, ...] = REASONS[:7]  # those that any target may have
_DETAIL_BYTES = 240  # below the exporter's default of limits.label_bytes
_NUMBER = re.compile(r"\d[\w.]*")


class Failing:
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
        self._noticed: set[str] = set()
        named = {*_ANY, *reasons}
        for reason in REASONS:  # at 0, so that the first one is an increase
            if reason in named:
                tally.add(FAILURES, 0, name, reason)

    def cuda(self, missing: str, runs: bool) -> None:
        """Set why its engine has no CUDA; empty where it has.

        Args:
            missing: One of ``CUDA_MISSING_REASONS``, or empty.
            runs: Whether it runs, on the CPU then. One that does not says why itself.
        """
        self._notice(f"should run on CUDA, but runs on the CPU instead: {missing}", bool(missing) and runs)
        for reason in CUDA_MISSING_REASONS:
            self._tally.set(CUDA_MISSING, reason == missing, self._name, reason)

    def count(self, done: Round) -> None:
        """Count a run, if it failed, and show why; a run that did not fail ends that.

        Args:
            done: Any round. One that got no turn changes nothing.
        """
        if done.outcome == "busy":
            return
        reason = done.failure
        self._notice(
            "gives a different answer to the same input than after its start",
            reason == "wrong_answer" and done.reason is None,
        )
        self._notice(ADVICE, any(reading.metric is UNUSED and reading.value for reading in done.readings))
        if reason is not None:
            self._tally.add(FAILURES, 1, self._name, reason)
        # A text that differs in numbers only would be a series of each failure.
        kind = None if reason is None else (reason, _NUMBER.sub("0", done.detail))
        if kind == self._kind:
            return
        self._kind = kind
        self._tally.forget(DETAIL, self._name)
        if reason is not None:
            detail = done.detail.encode()[:_DETAIL_BYTES].decode(errors="ignore")
            self._tally.set(DETAIL, 1, self._name, reason, detail)

    def _notice(self, words: str, holds: bool) -> None:
        """Warn of what is no failure and has an alert, once when it begins."""
        if holds and words not in self._noticed:
            log.warning("canary %s: %s", self._name, words)
        (self._noticed.add if holds else self._noticed.discard)(words)
