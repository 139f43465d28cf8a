"""When warm-up is over: a test on the latencies, not a fixed count of runs.

At most 43.5 % of benchmark processes reach a steady peak in the way a fixed count assumes (Barrett et al.,
"Virtual Machine Warmup Blows Hot and Cold", OOPSLA 2017), so the data decide, within a limit of count and time.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

WINDOW = 8
TOLERANCE = 0.02


def is_steady(latencies: Sequence[float]) -> bool:
    """Whether the last two windows of 8 agree: medians within 2 %, or within what their own scatter explains.

    The scatter is the median absolute deviation of both windows (each about its own median); the difference of
    two medians of 8 has a standard error of about 0.93 MAD for normal noise (1.4826 · 1.2533 · √(2/8)).
    """
    if len(latencies) < 2 * WINDOW:
        return False
    before, after = latencies[-2 * WINDOW : -WINDOW], latencies[-WINDOW:]
    centre_before, centre_after = median(before), median(after)
    scatter = median([abs(x - centre_before) for x in before] + [abs(x - centre_after) for x in after])
    return abs(centre_after - centre_before) <= max(TOLERANCE * centre_before, 0.93 * scatter)
