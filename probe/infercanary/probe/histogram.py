"""Storage of the probe's metrics: their values since the probe's start.

``prometheus_client`` is not used: a server that sets ``PROMETHEUS_MULTIPROC_DIR`` (as vLLM does) switches that library
to shared files for the whole process, and the probe's values would leak into the server's own metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from infercanary.contract.report import LADDER, Family, HistogramValue, Metric

_EMPTY = HistogramValue((0,) * (len(LADDER) + 1), 0.0)


class Tally:
    """Labelled values of metrics. A single thread writes the values and takes snapshots."""

    def __init__(self) -> None:
        self._values: dict[Metric, dict[tuple[str, ...], float | HistogramValue]] = {}

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Add ``amount``. An amount of 0 creates the series, so that its first increase is visible.

        Args:
            metric: A counter, or a gauge that counts.
            amount: In the metric's unit.
            labels: Label values, in the order of the metric's declaration.
        """
        points = self._values.setdefault(metric, {})
        value = points.get(labels, 0.0)
        assert not isinstance(value, HistogramValue)
        points[labels] = value + amount

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a value.

        Args:
            metric: A gauge, or a counter whose total is known.
            value: In the metric's unit.
            labels: Label values, in the order of the metric's declaration.
        """
        self._values.setdefault(metric, {})[labels] = float(value)

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        """Add one observation to a histogram.

        Args:
            metric: A histogram.
            seconds: The observation.
            labels: Label values, in the order of the metric's declaration.
        """
        points = self._values.setdefault(metric, {})
        value = points.get(labels, _EMPTY)
        assert isinstance(value, HistogramValue)
        counts = list(value.counts)
        counts[bisect_left(LADDER, seconds)] += 1  # upper bounds are inclusive, as in Prometheus' `le`
        points[labels] = HistogramValue(tuple(counts), value.sum + seconds)

    def forget(self, metric: Metric, *labels: str) -> None:
        """Remove all points whose labels begin with ``labels``, because an unknown value must be missing, not zero.

        Args:
            metric: A metric with or without points.
            labels: The first label values; none for all points.
        """
        points = self._values.get(metric, {})
        for known in [known for known in points if known[: len(labels)] == labels]:
            del points[known]

    def families(self) -> Iterable[Family]:
        """Yield a snapshot of each metric.

        Yields:
            A family for each metric that has, or had, a point.
        """
        for metric, points in self._values.items():
            yield metric.family(points)
