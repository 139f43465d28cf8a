"""Storage of the probe's metrics."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.report import LADDER, HistogramValue, Metric
from infercanary.probe.histogram import Tally
from tests.targets import points

GAUGE = Metric("infercanary_gauge", "gauge", "G.", ("canary",))
COUNTER = Metric("infercanary_counter_total", "counter", "C.", ("canary",))
SECONDS = Metric("infercanary_seconds", "histogram", "H.", ("canary", "phase"))


@given(st.lists(st.one_of(st.sampled_from(LADDER), st.floats(0, 200)), max_size=50))
def test_nothing_is_lost_and_each_lies_in_its_bucket(seconds):
    """An upper bound is inclusive, like Prometheus' ``le``."""
    tally, metric = Tally(), Metric("infercanary_seconds", "histogram", "H.")
    for each in seconds:
        tally.observe(metric, each)
    found = [point.value for family in tally.families() for point in family.points]
    tally.observe(metric, 1.0)  # a snapshot does not change
    value = found[0] if seconds else HistogramValue((0,) * (len(LADDER) + 1), 0.0)
    assert isinstance(value, HistogramValue)
    assert sum(value.counts) == len(seconds)
    assert math.isclose(value.sum, math.fsum(seconds), rel_tol=1e-9, abs_tol=1e-12)
    bounds = [-1.0, *LADDER, math.inf]
    for (low, high), count in zip(pairwise(bounds), value.counts, strict=True):
        assert count == sum(low < each <= high for each in seconds)


def test_tally():
    tally = Tally()
    for labels, amount in (("a", 0), ("b", 2), ("b", 1)):
        tally.add(COUNTER, amount, labels)
    tally.set(GAUGE, True, "a")
    for canary, phase in (("a", "h2d"), ("a", "compute"), ("b", "compute")):
        tally.observe(SECONDS, 1.0, canary, phase)

    def phases():
        return [p.labels for family in tally.families() if family.name == SECONDS.name for p in family.points]

    assert points(tally, COUNTER) == {("a",): 0.0, ("b",): 3.0}
    assert repr(points(tally, GAUGE)) == "{('a',): 1.0}"
    assert len(phases()) == 3
    for metric, *forgotten in ((SECONDS, "a"), (GAUGE, "a"), (Metric("infercanary_unknown", "gauge", "?"),)):
        tally.forget(metric, *forgotten)
    assert points(tally, GAUGE) == {}
    assert phases() == [("b", "compute")]
