"""The value of each metric that a probe declares, of a healthy server and of one in trouble."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Mapping
from functools import cache

from grafana.situations.moments import INTERVAL, Moment
from infercanary.contract.report import Metric

_Rule = Callable[[Moment, tuple[str, ...]], "float | None"]


def _is(which: Callable[[Moment], str]) -> _Rule:
    """Of a set of states: 1 for the one that holds."""
    return lambda now, labels: float(labels[-1] == which(now))


def _growing(each_second: float, trouble: str = "", then: float = 0.0) -> _Rule:
    """A counter, and by how much it grows while there is that trouble."""

    def value(now: Moment, _labels: tuple[str, ...]) -> float:
        return now.passed * each_second + (then * (now.passed - 120) if trouble in now.troubles else 0.0)

    return value


def _usual(value: float, trouble: str = "", then: float = 0.0) -> _Rule:
    def found(now: Moment, labels: tuple[str, ...]) -> float:
        wave = 1 + 0.02 * math.sin(now.at / 300 + zlib.crc32("".join(labels).encode()) % 7)
        return then if trouble and trouble in now.troubles else value * wave if value != 1 else 1.0

    return found


def _of_latency(share: float) -> _Rule:
    return lambda now, _labels: share * now.latency(int(now.passed / INTERVAL))


def _outcome(now: Moment) -> Mapping[str, float]:
    runs = now.passed / INTERVAL
    failed = max(0.0, (now.passed - 120) / INTERVAL / 2) if "failing" in now.troubles else 0.0
    return {"ok": float(int(runs - failed)), "raised": float(int(failed))}


def _tagged(now: Moment, labels: tuple[str, ...]) -> float:
    tags = {"warming": 2.0, "preempted": 0.03 * now.passed / INTERVAL}
    for trouble, tag in (
        ("throttled", "cgroup_throttled"),
        ("shared", "preempted"),
        ("late", "late"),
        ("memory", "memory_limit"),
    ):
        if trouble in now.troubles:
            tags[tag] = 0.6 * (now.passed - 120) / INTERVAL
    return float(int(tags.get(labels[1], 0.0)))


def _load(labels: tuple[str, ...], of_batch: float, of_concurrency: float) -> float:
    """How much more a sweep's point takes than one inference."""
    return float(float(labels[1]) ** of_batch * float(labels[2]) ** of_concurrency)


_RULES: Mapping[str, _Rule] = {
    "runs_total": lambda now, labels: _outcome(now).get(labels[1], 0.0),
    "run_failures_total": lambda now, labels: _outcome(now)["raised"] * (labels[1] == "raised"),
    "tagged_runs_total": _tagged,
    "canary_state": _is(lambda now: "failing" if "failing" in now.troubles else "steady"),
    "nvml_state": _is(lambda now: "ok" if now.server.gpu else "no_driver"),
    "cuda_missing": _is(lambda _: "cpu_only_build"),
    "run_(median|phase_median)_seconds": lambda now, labels: now.phases.get(labels[-1], 1.0)
    * now.latency(int(now.passed / INTERVAL)),
    "run_minimum_seconds": _of_latency(0.98),
    "run_iqr_seconds": _of_latency(0.01),
    "recent_p90_seconds": _of_latency(1.04),
    "bottleneck_ratio": lambda now, labels: {"compute": 0.9, "scheduling": 0.1}.get(labels[1], 0.0),
    "eligible_ratio": _usual(0.97, "throttled", 0.3),
    "output_error_ratio": lambda now, _: 0.2 if "wrong" in now.troubles else 0.0,
    "load_seconds": lambda now, _: 0.4 * (1 + 2 * now.image.slower),
    "first_run_seconds": _usual(0.3),
    "time_to_steady_seconds": _usual(6.0),
    "warm_up_seconds": _usual(2.0),
    "run_samples_per_second": lambda now, _: 8 / now.latency(int(now.passed / INTERVAL)),
    "run_memory_peak_bytes": _usual(6e8),
    "run_energy_joules": _usual(12.0),
    "control_up|sampler_success": lambda now, labels: float(not ("journal" in now.troubles and labels[0] == "network")),
    "control_seconds": _usual(0.0004, "host", 0.0005),
    "control_flops_per_second": _usual(2e10),
    "control_bytes_per_second": _usual(2e10),
    "(canary_|process_|probe_)cpu_seconds_total": _growing(0.01),
    "process_cpu_seconds_total": _growing(0.8),
    "cgroup_cpu_seconds_total": _growing(1.6),
    "cgroup_cpu_quota_cores": _usual(4.0),
    "cgroup_cpu_periods_total": _growing(10.0),
    "cgroup_cpu_throttled_periods_total": _growing(0.0, "throttled", 4.0),
    "cgroup_cpu_throttled_seconds_total": _growing(0.0, "throttled", 0.6),
    "cgroup_memory(_peak|_working_set|)_bytes": _usual(6.4e8, "memory", 9.9e8),
    "cgroup_memory_limit_bytes": lambda _now, _: 1e9,
    "cgroup_memory_limit_hits_total": _growing(0.0, "memory", 0.1),
    "cgroup_oom_kills_total": _growing(0.0, "memory", 0.01),
    "cgroup_pressure_waiting_seconds_total": _growing(0.002, "shared", 0.3),
    "cgroup_pressure_stalled_seconds_total": _growing(0.0005),
    "cgroup_pids_limit": lambda _now, _: 4096.0,
    "process_resident_memory_bytes": _usual(5.6e8),
    "memory_room_bytes": _usual(3e8, "memory", 1e7),
    "(canary|process)_run_queue_seconds_total": _growing(0.002, "shared", 0.4),
    "(canary|process)_migrations_total": _growing(0.2),
    "(canary|process)_context_switches_total": _growing(1.0),
    "canary_waiting_ratio": _usual(0.004, "shared", 0.3),
    "(process_|canary_)(allowed|granted)_cpus": lambda _now, _: 4.0,
    "process_threads": lambda now, _: 24.0,
    "thread_oversubscription_ratio": _usual(0.5, "throttled", 4.0),
    "thread_pool_size": lambda _now, _: 4.0,
    "canary_off_node|process_off_node_.*|process_pinned_threads": lambda _now, _: 0.0,
    "gc_collections_total": lambda now, labels: now.passed / {"0": 2, "1": 20, "2": 200}[labels[0]],
    "gc_pause_seconds_total": _growing(0.0004),
    "interval_seconds": lambda _now, _: INTERVAL,
    "duty_ratio": _usual(0.006),
    "duty_cap_ratio": lambda _now, _: 0.01,
    "busy_seconds_total": _growing(0.006),
    "lateness_seconds": _usual(0.002, "late", 0.8),
    "missed_slots_total": _growing(0.0, "late", 0.05),
    "journal_errors_total": _growing(0.0, "journal", 0.02),
    "probe_start_timestamp_seconds": lambda now, _: now.started,
    "sweep_interval_seconds": lambda _now, _: 1800.0,
    "sweep_timestamp_seconds": lambda now, _: now.started + 300 if now.passed > 300 else None,
    "sweep_latency_seconds": lambda now, labels: now.server.latency * _load(labels, 0.6, 0.8),
    "sweep_samples_per_second": lambda now, labels: _load(labels, 0.4, 0.2) / now.server.latency,
    "sweep_peak_memory_bytes": lambda _now, labels: 1e8 * float(labels[1]),
    "gpu_(xid|ecc).*_total": _growing(0.0, "gpu", 0.001),
    "first_token_seconds": _of_latency(0.2),
    "between_tokens_seconds": _of_latency(0.01),
    "output_tokens": lambda _now, _: 64.0,
    ".*_info": lambda _now, _: 1.0,
    "tcp_received_segments_total": _growing(20.0),
}  # fmt: skip
"""Metric without the prefix, a regular expression → its value; the first that fits, else what :func:`value` says."""


def value(now: Moment, metric: Metric, stem: str, labels: tuple[str, ...]) -> float | None:
    """What a probe says.

    Args:
        now: The server.
        metric: As it is declared.
        stem: Its name without the prefix.
        labels: Their values.

    Returns:
        None where it says nothing.
    """
    if (rule := _rule(stem)) is not None:
        return rule(now, labels)
    if metric.kind == "counter":
        return 0.0
    if stem.endswith("_ratio"):
        return 0.05
    return 0.002 if stem.endswith("_seconds") else 1.0


@cache
def _rule(stem: str) -> _Rule | None:
    return next((rule for pattern, rule in _RULES.items() if re.fullmatch(pattern, stem)), None)


def on_gpu(now: Moment, stem: str, labels: tuple[str, ...], value: float) -> float:
    """What the H100 said, as time goes on.

    Args:
        now: The server.
        stem: The metric's name without the prefix.
        labels: Their values.
        value: When it was asked.

    Returns:
        The value now.
    """
    bad = "gpu" in now.troubles
    rates = {"gpu_energy_joules_total": 320.0, "gpu_pcie_bytes_total": 2e9}
    if stem.endswith("_total"):
        if bad and ("xid" in stem or labels[-1] in ("sw_thermal", "uncorrected")):
            return value + 0.3 * (now.passed - 120)
        return value + rates.get(stem, 0.0) * now.passed
    if bad and stem == "gpu_sm_clock_hertz":
        return 0.6 * value
    return value
