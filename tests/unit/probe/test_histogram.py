"""What the probe counts."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.report import LADDER, HistogramValue, Metric, Point
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
    tally.add(COUNTER, 0, "a")
    tally.add(COUNTER, 2, "b")
    tally.add(COUNTER, 1, "b")
    tally.set(GAUGE, True, "a")
    tally.observe(SECONDS, 1.0, "a", "h2d")
    tally.observe(SECONDS, 1.0, "a", "compute")
    tally.observe(SECONDS, 1.0, "b", "compute")
    families = {family.name: family for family in tally.families()}
    assert families[COUNTER.name].points == (Point(("a",), 0.0), Point(("b",), 3.0))
    assert families[GAUGE.name].points == (Point(("a",), 1.0),)
    assert type(families[GAUGE.name].points[0].value) is float
    assert all(isinstance(point.value, HistogramValue) for point in families[SECONDS.name].points)

    tally.forget(SECONDS, "a")
    tally.forget(GAUGE, "a")
    tally.forget(Metric("infercanary_unknown", "gauge", "?"))
    families = {family.name: family for family in tally.families()}
    assert [point.labels for point in families[SECONDS.name].points] == [("b", "compute")]
    assert families[GAUGE.name].points == ()
