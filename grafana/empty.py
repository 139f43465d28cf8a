"""Queries that may give nothing, and why. Whatever else gives none has a mistake in it.

The list is that of a machine without a GPU on which nothing is in trouble: a check against the running stack fails for
a query that gives nothing and is not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from infercanary.judge.policy import LIVE

NO_GPU = "this machine has no GPU"
WELL = "as it should be"
NO_ALERT = "what it warns of did not happen"

EMPTY: Mapping[str, Sequence[str]] = {
    NO_GPU: (
        "gpu-host: variable gpu",
        "gpu-host: panel SM clock",
        "gpu-host: panel Clocks held back, by reason",
        "gpu-host: panel Power",
        "gpu-host: panel Temperature",
        "gpu-host: panel GPU in use",
        "gpu-host: panel Others on the GPU",
        "gpu-host: panel Device memory in use",
        "gpu-host: panel PCIe",
        "gpu-host: panel PCIe link, share of its maximum",
        "gpu-host: panel Errors of the GPU in this time range",
        "gpu-host: panel Threads far from the GPU",
        "recording instance_service_container_gpu_reason:infercanary_gpu_clock_event_seconds:rate5m",
        "recording instance_service_container_gpu:infercanary_gpu_recovery_action:max",
    ),
    WELL: (
        "fleet: panel Containers in trouble",
        "fleet: panel Alerts that fire",
        "fleet: panel Tags with more than one image",
        "self: panel Samplers B",
        "self: panel Polls that failed, by reason",
        "self: panel Input that was refused",
        "self: panel Budgets that were exceeded",
        "service: panel Where replicas differ now",
        "service: panel Shift of the last upgrade D",
        "service: panel Shift of the last upgrade E",
        "upgrade: panel Tags: share of the runs",
        "upgrade: panel Shift of the last upgrade D",
        "upgrade: panel Shift of the last upgrade E",
        "recording instance_service_canary_step:infercanary_cold_start_shift_ratio:max",
        "recording instance_service_canary_measure:infercanary_measure_shift_ratio:regressed",
        "recording instance:infercanary_store_set_aside_timestamp_seconds:max",
        "recording instance:infercanary_unjudged_runs:increase15m",
        "recording instance:alertmanager_notifications_failed:increase15m",
        "recording instance_service_container_gpu:infercanary_gpu_uncorrected_errors:increase1h",
        "recording instance_service_container_gpu:infercanary_gpu_xid_events:increase15m",
    ),
    "none is configured": (
        "self: panel Journals that fail",
        "service: panel Throughput against latency",
        "service: panel Points of the last sweep",
        "service: panel Time to the first token",
        "service: panel Time between tokens",
        "upgrade: panel Memory, energy and throughput G",
        "upgrade: panel Memory, energy and throughput H",
    ),
    f"no baseline for a drift yet: it takes {LIVE.drift_baseline_blocks} blocks of {LIVE.block_runs} runs, and "
    f"{LIVE.drift_recent_blocks} since": (
        "fleet: panel What the last upgrade did G",
        "recording instance_service_container_canary:infercanary_drift_ratio:max",
        "recording instance_service_container_canary:infercanary_drift_host_ratio:max",
        "recording instance_service_container_canary:infercanary_drift_age_seconds:min",
        "recording instance_service_canary:infercanary_drift_ratio:max",
        "recording service_canary:infercanary_drift_ratio:max",
    ),
    "in a server's own process nothing is profiled unless it asks for it": (
        "upgrade: panel Operators that changed",
    ),
    "no restart of an unchanged image yet": ("self: panel False alarms in the judge's own trial C",),
    "cgroup v1, or a kernel that does not report pressure": ("gpu-host: panel Pressure",),
    "too few repeats": (
        "service: panel Quantiles B",
        "service: panel Quantiles C",
        "recording service_canary:infercanary_latency_seconds:p90_rate5m",
        "recording service_canary:infercanary_latency_seconds:p99_rate1h",
    ),
}
"""Why → where: `dashboard: place` of :mod:`grafana.queries`, without its letter where it is all of a panel's queries;
`recording NAME` of a rule. Alerts are not here, nor what is recorded where it holds: they give nothing while all is
well."""

_WHY = {place: why for why, places in EMPTY.items() for place in places}


def why(place: str) -> str | None:
    """Why the query there may give nothing; None where it may not.

    Args:
        place: As ``queries()`` names it: ``dashboard: panel TITLE REF``; or ``alert NAME``, ``recording NAME``.

    Returns:
        A few words.
    """
    if place.startswith("alert ") or (place.startswith("recording ") and place.endswith(":holds")):
        return NO_ALERT
    return _WHY.get(place) or _WHY.get(place.rpartition(" ")[0])
