"""The output check: fast and wrong is no improvement."""

from __future__ import annotations

import math
from collections.abc import Sequence

TOLERANCE = 0.01
"""Relative error from which on an output counts as another one: far above what another library's rounding does to
float32 (about 1e-6) or bfloat16 (about 4e-3) results, far below what other weights or inputs do."""

_PLACES = 32


def relative_error(values: Sequence[float], reference: Sequence[float]) -> float:
    """‖values - reference‖₂ / ‖reference‖₂; 1 where they differ in length, or where nothing can be said of them.

    At most 1: beyond that the outputs have nothing in common, and how little does not matter.
    """
    if len(values) != len(reference):
        return 1.0
    scale = math.sqrt(math.fsum(r * r for r in reference)) if all(map(math.isfinite, reference)) else math.nan
    apart = math.sqrt(math.fsum((v - r) ** 2 for v, r in zip(values, reference, strict=True)))
    if apart == 0.0:
        return 0.0
    error = apart / scale if scale > 0 else math.inf
    return min(1.0, error) if math.isfinite(error) else 1.0


def fingerprint(values: Sequence[float]) -> tuple[float, ...]:
    """At most 32 evenly spread ``values``, to 6 significant digits: enough to see that an upgrade changed the answers.

    Numbers and not a hash: another torch rounds the last digits differently, which is no change of the answer.
    """
    step = max(1, -(-len(values) // _PLACES))
    return tuple(float(f"{value:.6g}") for value in values[::step])
