"""Pictures for a terminal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.compare import picture

points = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200).map(np.array)


@given(points, points, st.integers(1, 100))
def test_both_sides_fit_on_the_scale(one, other, width):
    low, high = picture.scale((one, other))
    assert low < high
    for side in (one, other):
        bars = picture.bars(picture.densities(side, low, high, width))
        assert len(bars) >= min(width, 5)
        assert 0 <= picture.place(float(np.median(side)), low, high, width) < width
        picture.plain(bars).encode("ascii")


@given(points, st.integers(1, 80))
def test_a_line_has_a_place_for_each_point(series, width):
    line, low, high = picture.sparkline(series, width)
    assert len(line) == min(width, series.size)
    assert low < high
    columns = [picture.column(i, series.size, width) for i in range(series.size)]
    assert columns == sorted(columns) and columns[0] == 0 and columns[-1] == len(line) - 1
    parts = np.array_split(np.arange(series.size), min(width, series.size))
    assert all({columns[i] for i in part} == {at} for at, part in enumerate(parts))


def test_the_lowest_and_the_highest_are_seen():
    assert picture.bars([0, 1, 50, 100]) == " ▁▅█"
    assert picture.bars([0, 0]) == "  "
    assert picture.sparkline(np.array([1.0, 2.0, 1.5]), 10)[0] == "▁█▅"
    assert picture.sparkline(np.array([1.0, 1.001]), 10)[0] in ("▄▅", "▅▅")
    assert picture.plain("▁█ ▲ 3 µs → ×2 ±1 …") == ".# ^ 3 us -> x2 +/-1 ..."


def test_an_axis_of_a_report_begins_at_0_and_counts_what_is_beyond():
    points = np.array([1.0] * 995 + [50.0] * 5)
    assert picture.axis((points, np.array([]))) == (pytest.approx(1.0, abs=0.3), 5)
    assert picture.axis((np.zeros(3),)) == (1.0, 0)
