"""Resolution: how far a coarse clock, or values written with few digits, may hide a shift. Pure.

Rounding averages out where values scatter over several steps. Where they do not, each value may be off by up to a step
in the same direction, and more runs show nothing new (Widrow and Kollar, "Quantization Noise", 2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

_EQUAL = 1e-9  # two logarithms that differ by less are one: a conversion from ms to s changes the last bits


class Resolution(NamedTuple):
    """Least reach of a shift's interval below and above the shift (logarithms)."""

    down: float = 0.0
    up: float = 0.0
    only: float | None = None
    """The value that all are; None where there are several."""


FINE = Resolution()
"""Values that scatter over several steps."""


def resolution(
    baseline: Sequence[Floats], candidate: Sequence[Floats], series: Floats | None = None
) -> Resolution:
    """Resolution of the values of two sides.

    The middle half of continuous values has several values. A start whose middle half is one value scatters by less
    than a step: the smallest difference between two values, or, where all are the same, the last digit written. No
    step is larger than the smallest latency.

    Args:
        baseline: Of each start its values, as logarithms and from the smallest on; at least one start with a value.
        candidate: The same of the other side.
        series: More values of the same clock, in any order.

    Returns:
        A step of both sides in the direction that is less favourable, whether values were rounded, cut off or rounded
        up: (candidate ± step) over baseline, and candidate over (baseline ± step).
    """
    if not (_is_still(baseline) or _is_still(candidate)):
        return FINE
    values = np.unique(np.concatenate((*baseline, *candidate, *([] if series is None else [series]))))
    gaps = np.diff(values) > _EQUAL
    values = np.exp(values)
    old, new = (
        math.exp(float(np.median([np.median(start) for start in side]))) for side in (baseline, candidate)
    )
    if not gaps.any():
        step = _last_digit(old)
        return Resolution(*_reach(step / old, step / old), float(f"{old:.12g}"))
    step = min(float(np.diff(values)[gaps].min()), float(values[0]))
    return Resolution(*_reach(step / old, step / new))


def typical(several: Sequence[Resolution]) -> Resolution:
    """The resolution of a shift that is taken of several, each with its own.

    Args:
        several: At least one.
    """
    values = {each.only for each in several}
    return Resolution(
        float(np.median([each.down for each in several])),
        float(np.median([each.up for each in several])),
        values.pop() if len(values) == 1 else None,
    )


def _is_still(starts: Sequence[Floats]) -> bool:
    """Whether the middle half of most starts is one value."""
    still = 0
    for ordered in starts:
        outer = -(-(ordered.size - 1) // 4)
        still += bool(ordered[-1 - outer] - ordered[outer] <= _EQUAL)
    return 2 * still > len(starts)


def _reach(of_old: float, of_new: float) -> tuple[float, float]:
    """Reach of a step down and up, as a share of either side."""
    return max(math.log1p(of_old), _fallen(of_new)), max(math.log1p(of_new), _fallen(of_old))


def _fallen(share: float) -> float:
    return -math.log1p(-share) if share < 1 - _EQUAL else math.inf


def _last_digit(value: float) -> float:
    """The place of the last digit of a value, 1 at most: 12.0 may have been written as 12."""
    digits = f"{value:.11e}"  # more than 12 digits are the noise of a conversion
    mantissa, _, exponent = digits.partition("e")
    decimals = len(mantissa.partition(".")[2].rstrip("0"))
    return 10.0 ** min(int(exponent) - decimals, 0)
