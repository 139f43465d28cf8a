"""What the probe counts: the values of its metrics since it started.

Not ``prometheus_client``: a server that sets ``PROMETHEUS_MULTIPROC_DIR`` (vLLM does) switches that library to
shared files for the whole process, and the probe's values would leak into the server's own metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from infercanary.contract.report import LADDER, Family, HistogramValue, Metric


class Histogram:
    """Counts observations (seconds) per rung of :data:`~infercanary.contract.report.LADDER` since it was made."""

    def __init__(self) -> None:
        self._counts = [0] * (len(LADDER) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Add one observation; an upper bound is inclusive, as Prometheus' ``le`` is.

        Args:
            seconds: What was measured.
        """
        self._counts[bisect_left(LADDER, seconds)] += 1
        self._sum += seconds

    def value(self) -> HistogramValue:
        """A snapshot.

        Returns:
            Counts of each rung (not cumulative; the last one is of what is above the ladder), and the sum in seconds.
        """
        return HistogramValue(tuple(self._counts), self._sum)


class Tally:
    """The labelled values of some metrics; one thread writes, and takes the snapshots."""

    def __init__(self) -> None:
        self._values: dict[Metric, dict[tuple[str, ...], float | Histogram]] = {}

    def add(self, metric: Metric, amount: float, *labels: str) -> None:
        """Add ``amount`` (0 makes the series exist, so that its first increase is seen).

        Args:
            metric: A counter; or a gauge that counts.
            amount: In the metric's unit.
            labels: Values of its labels, in the order in which it declares them.
        """
        points = self._values.setdefault(metric, {})
        value = points.get(labels, 0.0)
        assert not isinstance(value, Histogram)
        points[labels] = value + amount

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge.

        Args:
            metric: A gauge, or a counter whose total is known.
            value: In the metric's unit.
            labels: Values of its labels, in the order in which it declares them.
        """
        self._values.setdefault(metric, {})[labels] = float(value)

    def observe(self, metric: Metric, seconds: float, *labels: str) -> None:
        """Add one observation to a histogram.

        Args:
            metric: A histogram.
            seconds: What was measured.
            labels: Values of its labels, in the order in which it declares them.
        """
        histogram = self._values.setdefault(metric, {}).setdefault(labels, Histogram())
        assert isinstance(histogram, Histogram)
        histogram.observe(seconds)

    def forget(self, metric: Metric, *labels: str) -> None:
        """Remove the points whose labels begin so: what is no longer known is missing, and not zero.

        Args:
            metric: It need not have points.
            labels: The first of its labels' values; none for all points.
        """
        points = self._values.get(metric, {})
        for known in [known for known in points if known[: len(labels)] == labels]:
            del points[known]

    def families(self) -> Iterable[Family]:
        """A snapshot of everything.

        Yields:
            A family for each metric that has, or had, a point.
        """
        for metric, points in self._values.items():
            yield metric.family(
                {labels: v.value() if isinstance(v, Histogram) else v for labels, v in points.items()}
            )
