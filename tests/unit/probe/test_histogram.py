"""What the probe counts."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.report import LADDER, HistogramValue, Metric
from infercanary.probe.histogram import Histogram, Tally

GAUGE = Metric("infercanary_gauge", "gauge", "G.", ("canary",))
COUNTER = Metric("infercanary_counter_total", "counter", "C.", ("canary",))
SECONDS = Metric("infercanary_seconds", "histogram", "H.", ("canary", "phase"))


@given(st.lists(st.one_of(st.sampled_from(LADDER), st.floats(0, 200)), max_size=50))
def test_nothing_is_lost_and_each_lies_in_its_bucket(seconds: list[float]) -> None:
    """An upper bound is inclusive, as Prometheus' ``le`` is."""
    histogram = Histogram()
    for each in seconds:
        histogram.observe(each)
    value = histogram.value()
    histogram.observe(1.0)  # a snapshot does not move
    assert sum(value.counts) == len(seconds)
    assert math.isclose(value.sum, math.fsum(seconds), rel_tol=1e-9, abs_tol=1e-12)
    bounds = [-1.0, *LADDER, math.inf]
    for (low, high), count in zip(pairwise(bounds), value.counts, strict=True):
        assert count == sum(low < each <= high for each in seconds)


def test_tally() -> None:
    tally = Tally()
    for labels, amount in (("a", 0), ("b", 2), ("b", 1)):
        tally.add(COUNTER, amount, labels)
    tally.set(GAUGE, True, "a")
    for canary, phase in (("a", "h2d"), ("a", "compute"), ("b", "compute")):
        tally.observe(SECONDS, 1.0, canary, phase)

    def shown() -> set[tuple[Any, ...]]:
        points = {(family.name, point) for family in tally.families() for point in family.points}
        return {
            (
                name,
                *point.labels,
                "histogram" if isinstance(point.value, HistogramValue) else repr(point.value),
            )
            for name, point in points
        }

    numbers = {(COUNTER.name, "a", "0.0"), (COUNTER.name, "b", "3.0")}
    histograms = {
        (SECONDS.name, *labels, "histogram") for labels in (("a", "h2d"), ("a", "compute"), ("b", "compute"))
    }
    assert shown() == numbers | {(GAUGE.name, "a", "1.0")} | histograms
    for metric, *forgotten in ((SECONDS, "a"), (GAUGE, "a"), (Metric("infercanary_unknown", "gauge", "?"),)):
        tally.forget(metric, *forgotten)
    assert shown() == numbers | {(SECONDS.name, "b", "compute", "histogram")}
