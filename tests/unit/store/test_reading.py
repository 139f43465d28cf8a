from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.store.reading import ends, newest_that_fit


@pytest.mark.parametrize(
    ("sizes", "total", "expected"),
    [
        ([60], 100, 1),
        ([60, 60], 119, 1),
        ([60, 60], 120, 2),
        ([2, 901], 100, 1),  # the last one in any case
        ([2, 901, 2], 100, 1),
    ],
)
def test_the_newest_starts_that_fit(sizes: list[int], total: int, expected: int) -> None:
    assert newest_that_fit(sizes, total) == expected


@given(st.integers(1, 10_000), st.integers(1, 10_000_000), st.integers(0, 10_000_000))
def test_the_runs_of_a_start_that_fit_are_its_first_and_last(count: int, size: int, share: int) -> None:
    first, last = ends(count, size, share)
    assert 0 <= last - first <= 1
    assert first + last <= count
    assert (first + last) * size <= max(share, size) * count
    assert size > share or first + last == count
