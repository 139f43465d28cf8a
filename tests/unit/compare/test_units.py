from __future__ import annotations

import pytest

from infercanary.compare.units import measured, short, size


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (size(999.9e6), "1 GB"),
        (size(999.4e6), "999 MB"),
        (size(1.5e12), "1,500 GB"),
        (measured(999.7, "joules"), "1 kJ"),
        (measured(999.7, "samples/s"), "1,000 samples/s"),
        (measured(12_345.6, "samples/s"), "12,346 samples/s"),
        (measured(99.97, ""), "9,997 %"),
        (short(1_234_567.0, 3), "1,230,000"),
        (short(0.00009271, 3), "0.0000927"),
        (short(0.00009, 3), "0.00009"),
    ],
)
def test_a_number_for_people_has_no_exponent(shown: str, expected: str) -> None:
    """A host memory of 999.9 MB was `1e+03 MB`."""
    assert shown == expected
