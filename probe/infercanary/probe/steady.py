"""When warm-up is over: a test on the latencies, not a fixed count of runs.

At most 43.5 % of benchmark processes reach a steady peak in the way a fixed count assumes (Barrett et al.,
"Virtual Machine Warmup Blows Hot and Cold", OOPSLA 2017), so the data decide, within a limit of count and time.
benchmarks/steady.py scores how well.
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
    """Whether the last two windows agree: medians within 2 %, or within what their own scatter explains.

    A window is half a second of repeats, but 8 of them at least and 24 at most: wider ones mistake a slow warm-up for
    its end far less often, and where a repeat is short they cost nothing.

    The scatter is the median absolute deviation of both windows (each about its own median); the difference of two
    medians of n has a standard error of about 2.63 MAD / √n for normal noise (1.4826 · 1.2533 · √2).

    Args:
        latencies: Seconds, in order of time; fewer than two windows are not steady.
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
