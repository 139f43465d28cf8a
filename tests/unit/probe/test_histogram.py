"""Storage of the probe's metrics."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.report import LADDER, HistogramValue, Metric
from infercanary.probe.histogram import Tally


@given(st.lists(st.one_of(st.sampled_from(LADDER), st.floats(0, 200)), max_size=50))
def test_nothing_is_lost_and_each_lies_in_its_bucket(seconds):
    """A bucket's upper bound is inclusive, like ``le`` in Prometheus."""
    tally, metric = Tally(), Metric("infercanary_seconds", "histogram", "H.")
    for each in seconds:
        tally.observe(metric, each)
    found = [point.value for family in tally.families() for point in family.points]
    tally.observe(metric, 1.0)
    value = found[0] if seconds else HistogramValue((0,) * (len(LADDER) + 1), 0.0)
    assert isinstance(value, HistogramValue)
    assert sum(value.counts) == len(seconds)
    assert math.isclose(value.sum, math.fsum(seconds), rel_tol=1e-9, abs_tol=1e-12)
    bounds = [-1.0, *LADDER, math.inf]
    for (low, high), count in zip(pairwise(bounds), value.counts, strict=True):
        assert count == sum(low < each <= high for each in seconds)
