"""The fingerprint of an output. The judge compares fingerprints to find changed answers after an upgrade."""

from __future__ import annotations

from collections.abc import Sequence

_PLACES = 32


def fingerprint(values: Sequence[float]) -> tuple[float, ...]:
    """Return at most 32 evenly spaced ``values``, rounded to 6 significant digits.

    The fingerprint contains numbers instead of a hash, because another version of torch may change the last digits
    but not the answer.

    Args:
        values: Values of one output.

    Returns:
        Values in their order; empty for an output without values.
    """
    step = max(1, -(-len(values) // _PLACES))
    return tuple(float(f"{value:.6g}") for value in values[::step])
