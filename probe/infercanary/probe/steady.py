"""End of warm-up, decided by a test of the latencies instead of a fixed number of runs.

A fixed number suits only processes that reach a steady peak, which were at most 43.5 % in benchmarks (Barrett et al.,
"Virtual Machine Warmup Blows Hot and Cold", OOPSLA 2017). So the data decides, within limits of number and time.
benchmarks/steady.py measures the quality of this test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

WINDOW = 8
WIDEST = 24
TOLERANCE = 0.02
_SECONDS = 0.5


def is_steady(latencies: Sequence[float]) -> bool:
    """True if the last two windows agree: their medians differ by at most 2 %, or by no more than their scatter.

    A window contains half a second of repeats, but at least 8 and at most 24 repeats. Wider windows mistake a slow
    warm-up for a steady state far less often, and cost little if a repeat is short.

    The scatter is the median absolute deviation (MAD) of both windows, each from its own median. The difference of
    two medians of n values has a standard error of about 2.63 MAD / √n for normal noise (1.4826 · 1.2533 · √2).

    Args:
        latencies: Seconds, oldest first; fewer than two windows are not steady.
    """
    if len(latencies) < 2 * WINDOW:
        return False
    repeat = median(latencies[-2 * WINDOW :])
    window = max(WINDOW, int(_SECONDS / max(repeat, _SECONDS / WIDEST)))
    if len(latencies) < 2 * window:
        return False
    before, after = latencies[-2 * window : -window], latencies[-window:]
    centre_before, centre_after = median(before), median(after)
    scatter = median([abs(x - centre_before) for x in before] + [abs(x - centre_after) for x in after])
    return abs(centre_after - centre_before) <= max(
        TOLERANCE * centre_before, 2.63 * scatter / math.sqrt(window)
    )
