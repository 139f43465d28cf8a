"""Queries that may return no series, with the reasons. Any other query that returns no series is wrong.

The list is for a machine without a GPU on which the last upgrade is the only problem. The check against the running
stack fails for an empty query that is missing here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NO_GPU = "this machine has no GPU"
WELL = "normal"
NO_ALERT = "no alert fires"

EMPTY: Mapping[str, Sequence[str]] = {
    NO_GPU: (
        "host: panel Thread affinity D",
        "host: panel Thread affinity E",
        "host: panel Driver state B",
        "host: panel GPU errors",
        "host: panel Clock",
        "host: panel Power and temperature",
        "host: panel GPU use and memory",
        "host: panel PCIe",
        "host: panel Neighbours on the GPU",
    ),
    WELL: (
        "fleet: panel Firing alerts",
        "fleet: panel Inventory D",
        "host: panel Throttling by reason",
        "self: panel Errors by kind",
        "self: panel Probes F",
        "service: panel Cold start A",
        "service: panel Cold start C",
        "service: panel Contended runs, by cause",
        "service: panel Where replicas differ",
    ),
    "not configured": (
        "service: panel Last sweep",
        "service: panel Memory, energy and throughput",
        "service: panel Time per phase B",
        "service: panel Time to the first token",
        "service: panel Time between tokens",
    ),
    "cgroup v1, or a kernel that does not report pressure": ("host: panel Pressure",),
    "no restart of an unchanged image yet": ("self: panel A/A test: false alarms on restarts C",),
    "too few repeats": (
        "service: panel All measured latencies B",
        "service: panel All measured latencies C",
        "recording service_canary:infercanary_latency_seconds:p90_rate5m",
        "recording service_canary:infercanary_latency_seconds:p99_rate1h",
    ),
    "no drift": (
        "recording instance_service_container_canary:infercanary_drift_ratio:recent",
        "recording instance_service_container_canary:infercanary_drift_ratio:by_host",
    ),
}
"""Places by reason. A place is `dashboard: place` as in :mod:`grafana.queries`, or `recording NAME` for a rule.
Without the letter of a query, a place means all queries of the panel. Alerts and recordings that exist only during a
problem are not listed.
"""

_WHY = {place: why for why, places in EMPTY.items() for place in places}


def why(place: str) -> str | None:
    """Return the reason why a query may return no series, or None if it must return a series.

    Args:
        place: Place as in ``queries()``: ``dashboard: panel TITLE REF``; or ``alert NAME``, ``recording
    NAME``.
    """
    if place.startswith("alert ") or (place.startswith("recording ") and place.endswith(":holds")):
        return NO_ALERT
    return _WHY.get(place) or _WHY.get(place.rpartition(" ")[0])
