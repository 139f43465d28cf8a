"""What alerts are about, as this exporter's own data shows it: the same conditions by the same numbers.

An alert fires where its condition has lasted (``for`` in prometheus/rules/alerts.yml); the status page shows it at
once. A condition has the labels that its alert has, so a test can compare them one by one. The numbers are the
policy's, the windows those of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from infercanary.exporter.signals import Row, Signals
from infercanary.judge.policy import Policy

CRITICAL, WARNING = "critical", "warning"
_MINUTE, _HOUR = 60.0, 3600.0
_NO_FAILURE = ("busy", "ok")


class Condition(NamedTuple):
    """One that holds."""

    alert: str
    severity: str
    words: str
    labels: Mapping[str, str] = {}
    """As the alert's, but for the host and the container; with what else is the reason."""

    @property
    def anchor(self) -> str:
        """Of its runbook."""
        return self.alert.lower()


class Known(NamedTuple):
    """What is known of a container, or of the exporter itself."""

    reported: Signals
    """Of its probe: nothing while that is down."""
    own: Signals
    """What the exporter adds: its polling, and its judge's findings."""
    policy: Policy
    now: float
    """A Unix time."""
    ended_at: float | None = None
    """When the kernel last ended it for memory; a Unix time."""
    others: Collection[str] = ()
    """Canaries of which it runs another image than the verdict is about: what that one did is not this container's."""

    def age(self, name: str, labels: Mapping[str, str]) -> float | None:
        """Seconds since the time that a series has.

        Args:
            name: Of the metric.
            labels: That the series must have.

        Returns:
            None where there is none.
        """
        found = [row.value for row in self.own.rows(name, **labels)]
        return self.now - max(found) if found else None

    def grew(
        self, name: str, minutes: float, *by: str, without: tuple[str, ...] = ()
    ) -> dict[tuple[str, ...], float]:
        """How much a probe's counter grew, by some of its labels.

        Args:
            name: Of the metric.
            minutes: How far back.
            by: Labels.
            without: Outcomes that do not count.

        Returns:
            The labels' values → growth.
        """
        total: dict[tuple[str, ...], float] = {}
        for labels, growth in self.reported.growth(name, minutes * _MINUTE):
            if labels.get("outcome") not in without:
                key = tuple(labels[label] for label in by)
                total[key] = total.get(key, 0.0) + growth
        return total


def conditions(view: Known) -> list[Condition]:
    """Those that hold in one container.

    Args:
        view: What is known of it.

    Returns:
        The worst first; of an alert with two severities for one thing, both.
    """
    found = [condition for check in _CONTAINERS for condition in check(view)]
    return sorted(found, key=lambda condition: condition.severity)


def impaired(own: Signals, policy: Policy, now: float) -> list[Condition]:
    """What is wrong with the exporter itself.

    Args:
        own: Its own families.
        policy: The numbers that decide.
        now: A Unix time.

    Returns:
        One for each reason of the alert.
    """
    reasons: dict[str, str] = {}
    if any(row.value > policy.event_loop_late for row in own.rows("infercanary_event_loop_lag_seconds")):
        reasons["slow"] = "the exporter is starved: its own polls come late, and probes may seem to be down"
    if (found := [row.value for row in own.rows("infercanary_discovery_up")]) and max(found) == 0:
        reasons["discovery"] = "what lists the containers does not answer: new ones are not found"
    if refused := sum(row.value for row in own.rows("infercanary_refused_containers")):
        reasons["refused"] = (
            f"{refused:g} containers are not monitored: no more fit into the exporter's memory or its limits"
        )
    if any(row.value == 0 for row in own.rows("infercanary_config_last_reload_successful")):
        reasons["config"] = (
            "changed settings were refused: the old settings still apply, and the log names the line"
        )
    dropped = sum(row.value for row in own.growth("infercanary_unjudged_runs_total", 15 * _MINUTE))
    if dropped > 0 or any(row.value == 0 for row in own.rows("infercanary_store_up")):
        reasons["store"] = "the judge's store fails: verdicts are not updated, and the log says why"
    aside = [now - row.value for row in own.rows("infercanary_store_set_aside_timestamp_seconds")]
    if aside and min(aside) < policy.finding_seconds:
        reasons["store_set_aside"] = (
            "the judge's store was corrupt and was set aside: earlier verdicts are lost"
        )
    name = "InferCanaryMonitoringImpaired"
    return [Condition(name, WARNING, words, {"reason": reason}) for reason, words in reasons.items()]


# Each gives those of one alert or two -------------------------------------------------------------------------------


def _probe_down(view: Known) -> Iterator[Condition]:
    if any(row.value == 0 for row in view.own.rows("infercanary_up")):
        yield Condition(
            "InferCanaryProbeDown", WARNING, "its probe does not answer, so nothing is known about it"
        )


def _regressed(view: Known) -> Iterator[Condition]:
    """A verdict: it is the service's."""
    own, policy = view.own, view.policy
    for cause, on in own.rows("infercanary_shift_cause"):
        of = {"canary": cause["canary"]}
        if (
            not on
            or not _holds(own, "infercanary_verdict", verdict="regressed", **of)
            or not _recent(view, of)
        ):
            continue
        shift = _largest(own.rows("infercanary_shift_ratio", **of))
        low = _largest(own.rows("infercanary_shift_low_ratio", **of))
        image = _largest(own.rows("infercanary_shift_image_ratio", **of))
        severe = min(low, image) >= policy.severe_effect
        slower = f"{cause['canary']} is {_percent(shift)} slower since the upgrade"
        if cause["cause"] in ("image", "both") and (severe or shift >= policy.smallest_effect):
            what = "the model" if cause.get("changed") == "model" else "the image"
            by = f"host and {what.removeprefix('the ')}" if cause["cause"] == "both" else what
            severity = CRITICAL if severe else WARNING
            yield Condition("InferCanaryImageRegressed", severity, f"{slower}, by {by}", of)
        elif cause["cause"] == "unknown" and shift >= policy.smallest_effect:
            yield Condition(
                "InferCanaryRegressionUnexplained", WARNING, f"{slower}; the cause is not known", of
            )
        elif cause["cause"] == "host" and shift >= policy.smallest_effect:
            since = {**of, "since": "upgrade"}
            yield Condition("InferCanaryHostRegressed", WARNING, f"{slower}, by the host", since)


def _measures(view: Known) -> Iterator[Condition]:
    alert = "InferCanaryMeasureRegressed"
    for labels, on in view.own.rows("infercanary_measure_verdict", verdict="regressed"):
        of = {key: labels[key] for key in ("canary", "measure")}
        if on and _recent(view, {"canary": of["canary"]}):
            shift = abs(_largest(view.own.rows("infercanary_measure_shift_ratio", **of)))
            than = "less" if of["measure"].startswith("throughput") else "more"
            words = f"{of['canary']} has {_percent(shift)} {than} {of['measure'].replace('_', ' ')} since the upgrade"
            yield Condition(alert, WARNING, words, of)
    for labels, shift in view.own.rows("infercanary_cold_start_shift_ratio"):
        # As many times as long, less one; the rules have it so, too.
        if shift >= view.policy.cold_start_ratio - 1 and _recent(view, {"canary": labels["canary"]}):
            of = {"canary": labels["canary"], "measure": f"cold_start_{labels['step']}"}
            words = (
                f"{of['canary']} starts slower since the upgrade: {labels['step']} {_percent(shift)} longer"
            )
            yield Condition(alert, WARNING, words, of)


def _outputs(view: Known) -> Iterator[Condition]:
    alert, limit = "InferCanaryOutputChanged", view.policy.other_output
    for labels, error in view.own.rows("infercanary_upgrade_output_error_ratio"):
        if error > limit and _recent(view, labels):
            words = f"{labels['canary']} gives a different answer to the same input since the upgrade"
            yield Condition(alert, WARNING, words, {**labels, "since": "upgrade"})
    for labels, error in view.reported.rows("infercanary_output_error_ratio"):
        if error > limit:
            words = f"{labels['canary']} gives a different answer to the same input than after its start"
            yield Condition(alert, WARNING, words, {**labels, "since": "start"})


def _cuda(view: Known) -> Iterator[Condition]:
    alert = "InferCanaryCudaMissing"
    missing = [labels for labels, on in view.reported.rows("infercanary_cuda_missing") if on]
    for labels in missing:
        words = f"{labels['canary']} should run on a GPU, but its engine has no CUDA: {labels['reason']}"
        yield Condition(alert, CRITICAL, words, labels)
    for labels, on in view.own.rows("infercanary_cpu_fallback"):
        if on and _recent(view, labels) and labels["canary"] not in {each["canary"] for each in missing}:
            words = f"{labels['canary']} ran on a GPU before the upgrade, and runs on the CPU now"
            yield Condition(alert, CRITICAL, words, {**labels, "reason": "gpu_before_upgrade"})


def _tensor_cores(view: Known) -> Iterator[Condition]:
    for labels, on in view.reported.rows("infercanary_matmul_tensorcores_unused"):
        if on:
            words = (
                f"{labels['canary']}: Tensor Cores are not in use: half precision is no faster than float32"
            )
            yield Condition("InferCanaryTensorCoresUnused", WARNING, words, labels)


def _drift(view: Known) -> Iterator[Condition]:
    for labels, drift in view.own.rows("infercanary_drift_ratio"):
        age = view.age("infercanary_drift_timestamp_seconds", labels)
        if drift < view.policy.smallest_effect or age is None or age >= view.policy.finding_seconds:
            continue
        words = (
            f"{labels['canary']} is {_percent(drift)} slower than on its image's first day, with no upgrade"
        )
        hosts = _largest(view.own.rows("infercanary_drift_host_ratio", **labels))
        if hosts / drift >= view.policy.host_share:
            since = {**labels, "since": "first_day"}
            yield Condition("InferCanaryHostRegressed", WARNING, f"{words}, by the host", since)
        else:
            yield Condition("InferCanaryDriftWithoutUpgrade", WARNING, words, labels)


_LOST, _OUT_OF_REACH = ("lost", "failing", "hanging"), ("no_permission", "version_mismatch")


def _gpu(view: Known) -> Iterator[Condition]:
    alert, reported = "InferCanaryGpuFailing", view.reported
    for labels, on in reported.rows("infercanary_nvml_state"):
        state = labels["state"]
        if on and state in _LOST:
            yield Condition(alert, CRITICAL, f"the driver of its GPU reports: {state}", {"reason": state})
        elif on and state in _OUT_OF_REACH:
            words = f"it cannot reach its GPU's driver any more: {state}"
            yield Condition(alert, WARNING, words, {"reason": state})
    found: list[tuple[str, str, str, str]] = []
    for labels, growth in reported.growth("infercanary_gpu_ecc_errors_total", _HOUR):
        if labels["severity"] == "uncorrected" and growth > 0:
            found.append((CRITICAL, labels["gpu"], "uncorrected_memory_error", "its memory fails"))
    for labels, on in reported.rows("infercanary_gpu_row_remap_failed"):
        if on:
            found.append(
                (CRITICAL, labels["gpu"], "row_remap_failed", "its memory fails, and has no spare rows")
            )
    for labels, growth in reported.growth("infercanary_gpu_xid_events_total", 15 * _MINUTE):
        if growth > 0:
            found.append((WARNING, labels["gpu"], "xid", "the driver reported errors of it"))
    waiting = (
        *reported.rows("infercanary_gpu_row_remap_pending"),
        *reported.rows("infercanary_gpu_recovery_action"),
    )
    gpus = dict.fromkeys(labels["gpu"] for labels, value in waiting if value > 0)
    found += [(WARNING, gpu, "reset_needed", "it waits for a reset") for gpu in gpus]
    for severity, gpu, reason, words in found:
        yield Condition(alert, severity, f"GPU {gpu}: {words}", {"gpu": gpu, "reason": reason})


_HELD_BACK = ("sw_thermal", "hw_thermal", "hw_power_brake")


def _gpu_throttled(view: Known) -> Iterator[Condition]:
    span = view.reported.span(5 * _MINUTE)
    for labels, seconds in view.reported.growth("infercanary_gpu_clock_event_seconds_total", 5 * _MINUTE):
        if labels["reason"] in _HELD_BACK and seconds / span > view.policy.gpu_throttled:
            words = f"GPU {labels['gpu']} is held back by {labels['reason']} for {_percent(seconds / span)} of the time"
            yield Condition("InferCanaryGpuThrottled", WARNING, words, labels)


def _cpu_throttled(view: Known) -> Iterator[Condition]:
    periods = view.grew("infercanary_cgroup_cpu_periods_total", 5).get((), 0.0)
    throttled = view.grew("infercanary_cgroup_cpu_throttled_periods_total", 5).get((), 0.0)
    if periods and throttled / periods > view.policy.cpu_throttled:
        words = f"it runs out of its CPU quota in {_percent(throttled / periods)} of the periods"
        yield Condition("InferCanaryCpuThrottled", WARNING, words)


def _cores(view: Known) -> Iterator[Condition]:
    """By its own threads, or by others."""
    threads = _largest(view.reported.rows("infercanary_thread_oversubscription_ratio"))
    waits = _largest(view.own.rows("infercanary_canary_waiting_ratio"))
    if threads > view.policy.threads_per_cpu:
        words = f"it computes with {threads:.3g} threads for each CPU that it is granted"
        yield Condition("InferCanaryThreadsOversubscribed", WARNING, words)
    elif waits > view.policy.waiting_share:
        words = f"it waits for CPUs that others on the host use, for {_percent(waits)} of its latency"
        yield Condition("InferCanarySharedCores", WARNING, words)


def _memory(view: Known) -> Iterator[Condition]:
    alert = "InferCanaryOutOfMemory"
    ended = view.ended_at is not None and view.now - view.ended_at <= 15 * _MINUTE
    if ended or sum(view.grew("infercanary_cgroup_oom_kills_total", 15).values()) > 0:
        words = "the kernel killed it, or a process in it, because memory ran out"
        yield Condition(alert, WARNING, words, {"reason": "killed"})
    refused = view.grew("infercanary_run_failures_total", 15, "canary", "reason")
    short = {
        canary for (canary, reason), growth in refused.items() if reason == "out_of_memory" and growth > 0
    }
    now = view.reported.rows("infercanary_canary_failure_info", reason="out_of_memory")
    for canary in sorted(short | {labels["canary"] for labels, _ in now}):
        labels = {"canary": canary, "reason": "allocation"}
        yield Condition(alert, WARNING, f"there is not enough memory for {canary}", labels)


def _canaries(view: Known) -> Iterator[Condition]:
    policy, runs = view.policy, "infercanary_runs_total"
    bad = view.grew(runs, 30, "canary", without=_NO_FAILURE)
    had_a_turn = view.grew(runs, 30, "canary", without=("busy",))
    all_runs = view.grew(runs, 15, "canary")
    states = {
        labels["canary"]: labels["state"]
        for labels, on in view.reported.rows("infercanary_canary_state")
        if on
    }
    for canary, state in states.items():
        answered = had_a_turn.get((canary,), 0.0) - bad.get((canary,), 0.0)
        if state == "failing" and not (answered > 0 and bad.get((canary,), 0.0) < policy.failing_runs):
            words = f"{canary} fails: the model does not answer a fixed, valid input"
            yield Condition("InferCanaryCanaryFailing", CRITICAL, words, {"canary": canary})
    for (canary,), failed in bad.items():
        share = failed / had_a_turn[canary,] if had_a_turn[canary,] else 0.0
        if share > policy.failed_share and failed >= policy.fewest_failed:
            words = f"{_percent(share)} of the runs of {canary} fail"
            yield Condition("InferCanaryCanaryFailing", WARNING, words, {"canary": canary})
    interval = _largest(view.reported.rows("infercanary_interval_seconds"), least=policy.stale_interval)
    known = view.reported.span(15 * _MINUTE) >= 14 * _MINUTE
    for (canary,), growth in all_runs.items():
        if (
            known
            and not growth
            and interval < policy.stale_interval
            and states.get(canary) not in ("opening", "failing")
        ):
            words = f"{canary} has not run for 15 minutes"
            yield Condition("InferCanaryCanaryStale", WARNING, words, {"canary": canary})


_CONTAINERS: tuple[Callable[[Known], Iterator[Condition]], ...] = (
    _probe_down,
    _regressed,
    _measures,
    _outputs,
    _cuda,
    _tensor_cores,
    _drift,
    _gpu,
    _gpu_throttled,
    _cpu_throttled,
    _cores,
    _memory,
    _canaries,
)


def _recent(view: Known, labels: Mapping[str, str]) -> bool:
    """Whether the upgrade is so recent that what it brought is an alert, and is this container's."""
    if labels["canary"] in view.others:
        return False
    age = view.age("infercanary_upgrade_timestamp_seconds", {"canary": labels["canary"]})
    return age is not None and age < view.policy.finding_seconds


def _holds(signals: Signals, name: str, **labels: str) -> bool:
    return any(row.value == 1 for row in signals.rows(name, **labels))


def _largest(rows: Iterable[Row], least: float = 0.0) -> float:
    return max((row.value for row in rows), default=least)


def _percent(share: float) -> str:
    """With as many digits as Prometheus' ``humanizePercentage`` has, which the alert is written with."""
    return f"{100 * share:.4g} %"
