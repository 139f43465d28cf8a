from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.store.reading import StartSize, ends, first_that_fits


@pytest.mark.parametrize(
    ("starts", "total", "expected"),
    [
        ([], 100, 0),
        ([StartSize(10, "a", 50)], 100, 0),
        ([StartSize(10, "a", 50), StartSize(10, "b", 50)], 119, 1),
        ([StartSize(10, "a", 50), StartSize(10, "b", 50)], 120, 0),
        ([StartSize(10, "a", 50), StartSize(10, "a", 50)], 70, 0),  # they share it
        ([StartSize(1, "a", 1), StartSize(900, "b", 1)], 100, 1),  # the last one in any case
        ([StartSize(1, "a", 1), StartSize(900, "b", 1), StartSize(1, "c", 1)], 100, 2),
    ],
)
def test_the_newest_starts_that_fit(starts: list[StartSize], total: int, expected: int) -> None:
    assert first_that_fits(starts, total) == expected


@given(st.integers(1, 10_000), st.integers(1, 10_000_000), st.integers(0, 10_000_000))
def test_the_runs_of_a_start_that_fit_are_its_first_and_last(count: int, size: int, share: int) -> None:
    first, last = ends(count, size, share)
    assert 0 <= last - first <= 1
    assert first + last <= count
    assert (first + last) * size <= max(share, size) * count
    assert size > share or first + last == count
