"""What one source reports of what alerts are about: the values now, and how much its counters grew within the hour."""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from infercanary.contract.report import Family

_MARK_SECONDS = 60.0
_MARKS = 62  # an hour of them, and one more on either side
_SERIES = 512  # of one source: what reports more is not watched beyond
_LABEL_BYTES = 64 << 10  # of the same

Watched = Mapping[str, frozenset[str]]
"""Name of a metric → the labels that its series must have: what reads them takes them for granted."""
REPORTED: Watched = {
    f"infercanary_{name}": frozenset(labels.split())
    for name, labels in (
        ("canary_failure_info", "canary reason detail"),
        ("canary_state", "canary state"),
        ("cgroup_cpu_periods_total", ""),
        ("cgroup_cpu_throttled_periods_total", ""),
        ("cgroup_oom_kills_total", ""),
        ("cuda_missing", "canary reason"),
        ("gpu_clock_event_seconds_total", "gpu reason"),
        ("gpu_ecc_errors_total", "gpu severity"),
        ("gpu_recovery_action", "gpu"),
        ("gpu_row_remap_failed", "gpu"),
        ("gpu_row_remap_pending", "gpu"),
        ("gpu_xid_events_total", "gpu"),
        ("interval_seconds", ""),
        ("matmul_tensorcores_unused", "canary"),
        ("nvml_state", "state"),
        ("output_error_ratio", "canary"),
        ("run_failures_total", "canary reason"),
        ("runs_total", "canary outcome"),
        ("thread_oversubscription_ratio", ""),
    )
}
"""What conditions of alerts read of a probe's report."""
OWN: Watched = {
    f"infercanary_{name}": frozenset()
    for name in (
        "canary_waiting_ratio",
        "cold_start_shift_ratio",
        "config_last_reload_successful",
        "cpu_fallback",
        "discovery_up",
        "drift_host_ratio",
        "drift_ratio",
        "drift_timestamp_seconds",
        "event_loop_lag_seconds",
        "measure_shift_ratio",
        "measure_verdict",
        "refused_containers",
        "shift_cause",
        "shift_image_ratio",
        "shift_low_ratio",
        "shift_ratio",
        "store_set_aside_timestamp_seconds",
        "store_up",
        "unjudged_runs_total",
        "up",
        "upgrade_output_error_ratio",
        "upgrade_timestamp_seconds",
        "verdict",
    )
}
"""And of what the exporter knows itself, whose labels are its own."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""Name, and labels with their values."""


class Row(NamedTuple):
    """One series."""

    labels: dict[str, str]
    value: float


class Signals:
    """Remembers what a report said, and what its counters were a while ago.

    A counter that begins anew with its process goes on here, as it does for Prometheus. What is first seen has not
    grown.

    Args:
        watched: The metrics to remember. A series that lacks a label is passed over.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._now: dict[Series, float] = {}
        self._last: dict[Series, float] = {}
        self._places: dict[Series, int] = {}
        self._label_bytes = 0  # of all that ever had a place
        self._grown: list[float] = []
        self._marks: deque[tuple[float, Sequence[float]]] = deque(maxlen=_MARKS)
        self._at = 0.0

    def take(self, families: Iterable[Family], at: float) -> None:
        """Note a whole report: what is not in it is not there any more.

        Args:
            families: All of it; what is not watched is passed over.
            at: When, in seconds, by any clock that runs evenly.
        """
        now: dict[Series, float] = {}
        left = _LABEL_BYTES
        for family in families:
            if family.name not in self._watched or not self._watched[family.name] <= {*family.labels}:
                continue
            for point in family.points:
                left -= sum(map(sys.getsizeof, point.labels))
                if isinstance(point.value, float | int) and len(now) < _SERIES and left >= 0:
                    now[family.name, tuple(zip(family.labels, point.labels, strict=True))] = float(
                        point.value
                    )
        for series, value in now.items():
            if series[0].endswith("_total"):
                self._count(series, value)
        self._now, self._at = now, at
        if not self._marks or at - self._marks[-1][0] >= _MARK_SECONDS:
            self._marks.append((at, array("d", self._grown)))  # where a number takes 8 bytes

    def rows(self, name: str, **labels: str) -> Iterator[Row]:
        """The values of a metric now.

        Args:
            name: Of the metric.
            labels: That a series must have.

        Yields:
            Each series, with all of its labels.
        """
        for (known, pairs), value in self._now.items():
            if known == name and labels.items() <= (found := dict(pairs)).items():
                yield Row(found, value)

    def growth(self, name: str, seconds: float) -> Iterator[Row]:
        """How much the series of a counter grew, of those that are there now; none before the second mark.

        Args:
            name: Of the metric.
            seconds: How far back, as far as it is known.

        Yields:
            Each series, with all of its labels.
        """
        _, before = self._mark(seconds)
        if before is None:
            return
        for series in self._now:
            if series[0] == name and (place := self._places.get(series)) is not None:
                known = before[place] if place < len(before) else 0.0
                yield Row(dict(series[1]), self._grown[place] - known)

    def span(self, seconds: float) -> float:
        """Over how long :meth:`growth` is.

        Args:
            seconds: As there.

        Returns:
            Seconds, at most that many.
        """
        at, before = self._mark(seconds)
        return self._at - at if before is not None else 0.0

    def _mark(self, seconds: float) -> tuple[float, Sequence[float] | None]:
        """The oldest mark that is younger, as Prometheus' windows are open on the left."""
        for at, grown in self._marks:
            if self._at - seconds < at < self._at:
                return at, grown
        return self._at, None

    def _count(self, series: Series, value: float) -> None:
        place = self._places.get(series)
        if place is None:
            self._label_bytes += sum(sys.getsizeof(text) for _, text in series[1])
            if len(self._places) >= _SERIES or self._label_bytes > _LABEL_BYTES:
                return
            place = self._places[series] = len(self._grown)
            self._grown.append(0.0)
        else:
            last = self._last[series]
            if value != last:
                self._grown[place] += value - last if value > last else value
        self._last[series] = value
