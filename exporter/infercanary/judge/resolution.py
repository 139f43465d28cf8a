"""Resolution: largest error of a shift due to a coarse clock or to values with few digits. Pure functions.

Rounding errors average out if values scatter over several steps. Otherwise all values may have an error of up to one
step in the same direction, and more runs do not reduce this error (Widrow and Kollar, "Quantization Noise", 2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

_EQUAL = 1e-9  # logarithms that differ by less are equal: converting ms to s changes the last bits


class Resolution(NamedTuple):
    """Smallest distances of an interval's lower and upper end from the shift (logarithms)."""

    down: float = 0.0
    up: float = 0.0
    only: float | None = None
    """The common value of all runs; None if the values differ."""

    def around(self, log: float, half: float) -> tuple[float, float]:
        """Return the ends of an interval around ``log`` with half-width ``half``, widened to the resolution."""
        return log - max(half, self.down), log + max(half, self.up)


FINE = Resolution()
"""Resolution of values that scatter over several steps, which widens no interval."""


def resolution(baseline: Sequence[Floats], candidate: Sequence[Floats], *more: Floats) -> Resolution:
    """Return the resolution of the values of two sides.

    The clock is coarse if the middle half of a start's values, in ascending order, is a single value. Then the clock's
    step is the smallest difference between two values. If all values are equal, the step is one unit of the last
    written digit. A step is at most the smallest latency.

    Args:
        baseline: Values of each start, as ascending logarithms; at least one start with a value.
        candidate: Values of each start of the other side, in the same form.
        more: Other values of the same clock.

    Returns:
        The shift's largest error if the values of one side are wrong by one step up or down. This covers values that
        were rounded, rounded up or truncated.
    """
    if min(np.median([*map(_middle_half, side)]) for side in (baseline, candidate)) > _EQUAL:
        return FINE
    sides = [np.concatenate(side) for side in (baseline, candidate)]
    old, new = (float(np.exp(np.median(side))) for side in sides)
    logs = np.unique(np.concatenate((*sides, *more)))
    values = np.exp(logs)
    steps = np.diff(values)[np.diff(logs) > _EQUAL]
    written = Decimal(f"{old:.12g}")  # further digits are conversion errors
    last_digit = 10.0 ** min(int(written.as_tuple().exponent), 0)
    step = float(min(min(steps, default=last_digit), values[0]))
    return Resolution(_reach(step, old, new), _reach(step, new, old), None if steps.size else float(written))


def _middle_half(ordered: Floats) -> float:
    quarter = (ordered.size + 2) // 4
    return float(ordered[-1 - quarter] - ordered[quarter])


def _reach(step: float, side: float, other: float) -> float:
    """Return the larger of two shifts (logarithms): with ``side`` a step higher, or with ``other`` a step lower."""
    fallen = -math.log1p(-step / other) if step < other * (1 - _EQUAL) else math.inf
    return max(math.log1p(step / side), fallen)
