"""Queries that may give nothing, and why. Any other query that gives nothing has a mistake in it.

The list is that of a machine without a GPU on which nothing is wrong but the last upgrade: a check against the running
stack fails for an empty query that is not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NO_GPU = "this machine has no GPU"
WELL = "as it should be"
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
    "none is configured": (
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
"""Why → where: `dashboard: place` of :mod:`grafana.queries`, without its letter where it is all of a panel's queries;
`recording NAME` of a rule. Alerts and records that hold only while something is wrong are not here."""

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
