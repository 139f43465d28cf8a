"""Hodges and Lehmann's shift of two samples, and its interval by inverting the rank test. Pure.

The shift is the median of all differences, and its interval ends at two of them (Lehmann, "Nonparametrics", 1975,
sections 2.5 and 2.6). Samples are sorted, from the smallest on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from infercanary.judge.resolution import Floats

_PAIRS = 1 << 16  # up to here all differences are formed; beyond, each is found by bisection


def shift(a: Floats, b: Floats) -> float:
    """How much larger ``b`` is than ``a``: the median of all differences.

    Args:
        a: At least one point.
        b: At least one, in the same unit.
    """
    lower, upper = _differences(a, b, _middle(a, b))
    return (lower + upper) / 2


def inverted(a: tuple[Floats, Floats], b: tuple[Floats, Floats], off: float) -> tuple[float, float]:
    """The shift, and how far its interval reaches.

    The larger of both directions: where two modes weigh about alike, the shift may jump from one to the other, and the
    interval reaches across on one side only.

    Args:
        a: The points, and the same with ties spread (one array where there is none).
        b: The other side's.
        off: How far from the middle the interval ends, as a share of all differences (up to 0.5).

    Returns:
        The shift, and half a width; both as the points are.
    """
    pairs = a[0].size * b[0].size
    below = max(0, math.floor(pairs * (0.5 - off)) - 1)
    ends = below, pairs - 1 - below
    middle = _middle(a[0], b[0])
    if a[0] is a[1] and b[0] is b[1]:
        lower, upper, low, high = _differences(a[0], b[0], (*middle, *ends))
    else:
        lower, upper = _differences(a[0], b[0], middle)
        low, high = _differences(a[1], b[1], ends)
    between = (lower + upper) / 2
    return between, max(high - between, between - low, 0.0)


def _middle(a: Floats, b: Floats) -> tuple[int, int]:
    pairs = a.size * b.size
    return (pairs - 1) // 2, pairs // 2


def _differences(a: Floats, b: Floats, ranks: Sequence[int]) -> list[float]:
    """The differences of one of ``b`` and one of ``a`` that have these ranks, from 0 on; both are sorted."""
    if a.size * b.size <= _PAIRS:
        gaps = np.subtract.outer(b, a).ravel()
        gaps.partition(sorted(set(ranks)))
        return [float(gaps[rank]) for rank in ranks]
    return [_by_bisection(a, b, rank) for rank in ranks]


def _by_bisection(a: Floats, b: Floats, rank: int) -> float:
    low, high = float(b[0] - a[-1]), float(b[-1] - a[0])
    for _ in range(48):
        middle = (low + high) / 2
        # Of the differences, those of at least ``middle``.
        if int(np.searchsorted(a, b - middle, "right").sum()) >= a.size * b.size - rank:
            low = middle
        else:
            high = middle
    return (low + high) / 2
