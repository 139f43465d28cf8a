"""States of a probe's canaries, as its last report has them. A probe is hostile, so what is kept is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from infercanary.contract.report import Family

_MOST = 16  # canaries, as many as have a history
FAILING = ("failing", "out_of_memory")
"""States in which a canary does not run."""


class ReportedCanaries(msgspec.Struct, frozen=True):
    """Canaries of one report."""

    states: Mapping[str, str] = {}
    failures: Mapping[str, str] = {}
    """Canary → its failure in words."""
    interval: float = 0.0
    """Seconds between two runs; 0 if unknown."""


def reported_canaries(families: Iterable[Family]) -> ReportedCanaries:
    """Read a report's families.

    Args:
        families: Accepted, but with any labels and values.
    """
    by_name = {family.name: family for family in families}
    interval = by_name.get("infercanary_interval_seconds")
    seconds = interval.points[0].value if interval is not None and interval.points else 0.0
    return ReportedCanaries(
        _by_canary(by_name.get("infercanary_canary_state"), "state"),
        _by_canary(by_name.get("infercanary_canary_failure_info"), "detail"),
        seconds if isinstance(seconds, float) else 0.0,
    )


def _by_canary(family: Family | None, label: str) -> dict[str, str]:
    """Canary → value of ``label`` in its series that is 1."""
    if family is None or not {"canary", label} <= {*family.labels}:
        return {}
    canary, other = family.labels.index("canary"), family.labels.index(label)
    series = [point.labels for point in family.points if point.value == 1]
    return {labels[canary]: labels[other] for labels in series[:_MOST]}
