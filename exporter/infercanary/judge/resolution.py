"""Resolution: how far a coarse clock, or values with few digits, may hide a shift. Pure.

Rounding averages out if values scatter over several steps. Otherwise each value may be off by up to a step in the
same direction, and more runs add nothing (Widrow and Kollar, "Quantization Noise", 2008).
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
    """Smallest reach of a shift's interval below and above the shift (logarithms)."""

    down: float = 0.0
    up: float = 0.0
    only: float | None = None
    """The value of all runs; None if they differ."""

    def around(self, log: float, half: float) -> tuple[float, float]:
        """Return the ends of an interval around ``log`` with half-width ``half``, at least as wide as the reach."""
        return log - max(half, self.down), log + max(half, self.up)


FINE = Resolution()
"""Values that scatter over several steps."""


def resolution(baseline: Sequence[Floats], candidate: Sequence[Floats], *more: Floats) -> Resolution:
    """Return the resolution of the values of two sides.

    The middle half of continuous values has several values. A start whose middle half is one value scatters by less
    than a step: the smallest difference between two values or, if all are the same, the last digit written. No step
    exceeds the smallest latency.

    Args:
        baseline: Values of each start, as ascending logarithms; at least one start with a value.
        candidate: The same for the other side.
        more: Other values of the same clock.

    Returns:
        A step of both sides in the less favourable direction, whether values were rounded, cut off or rounded up:
        (candidate ± step) over baseline, and candidate over (baseline ± step).
    """
    if min(np.median([*map(_middle_half, side)]) for side in (baseline, candidate)) > _EQUAL:
        return FINE
    sides = [np.concatenate(side) for side in (baseline, candidate)]
    old, new = (float(np.exp(np.median(side))) for side in sides)
    logs = np.unique(np.concatenate((*sides, *more)))
    values = np.exp(logs)
    steps = np.diff(values)[np.diff(logs) > _EQUAL]
    written = Decimal(f"{old:.12g}")  # more digits are conversion noise
    last_digit = 10.0 ** min(int(written.as_tuple().exponent), 0)
    step = float(min(min(steps, default=last_digit), values[0]))
    return Resolution(_reach(step, old, new), _reach(step, new, old), None if steps.size else float(written))


def _middle_half(ordered: Floats) -> float:
    quarter = (ordered.size + 2) // 4
    return float(ordered[-1 - quarter] - ordered[quarter])


def _reach(step: float, side: float, other: float) -> float:
    """Larger of two changes (a logarithm): a step up on one side, or a step down on the other."""
    fallen = -math.log1p(-step / other) if step < other * (1 - _EQUAL) else math.inf
    return max(math.log1p(step / side), fallen)
