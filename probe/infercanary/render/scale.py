"""Scale of a chart: text and SVG draw the same values in the same places."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from infercanary.render.document import Chart

_SPAN = 1.1  # the scale is wider than its values
_LEAST = 0.05  # half of the scale spans at least this share of its middle, so that noise does not look like a change


class Scale(NamedTuple):
    """Lowest and highest value that are drawn in their place."""

    low: float
    high: float

    def places(self, numbers: Iterable[float]) -> list[float]:
        """Return the place of each number: 0 at the lower end or below, 1 at the upper end or above."""
        low = self.low / 2  # halves do not overflow
        span = self.high / 2 - low
        shares = [(number / 2 - low) / span for number in numbers]
        return [0.0 if share < 0 else 1.0 if share > 1 else share for share in shares]

    def points(self, values: Sequence[float | None], size: int) -> dict[int, float]:
        """Return the place of the median of each part of ``size`` values, without parts that have no finite value."""
        parts = dict(enumerate(values))
        if size > 1:
            starts = range(0, len(values), size)
            middles = (finite_values(values[start : start + size]) for start in starts)
            parts = {part: median(numbers) if numbers else None for part, numbers in enumerate(middles)}
        known = {
            part: number for part, number in parts.items() if number is not None and math.isfinite(number)
        }
        return dict(zip(known, self.places(known.values()), strict=True))

    def heights(self, numbers: Iterable[float], bins: int) -> list[float]:
        """Return the height of each bin of a histogram; the highest bin has 1."""
        counts = Counter(min(bins - 1, int(bins * place)) for place in self.places(numbers))
        most = max(counts.values(), default=1)
        return [counts[place] / most for place in range(bins)]


def chart_scale(chart: Chart) -> Scale | None:
    """Return the scale of all series and levels, without outliers; None without a finite value."""
    ends = []
    for values in (*(series.values for series in chart.series), [level for *_, level in chart.levels]):
        if numbers := sorted(finite_values(values)):
            outer = (len(numbers) + 40) // 50  # of 10 values one at each end is an outlier if it lies apart
            low, high = numbers[outer], numbers[-1 - outer]
            ends += [max(numbers[0], 2 * low - high), min(numbers[-1], 2 * high - low)]
    if not ends:
        return None
    low, high = min(ends), max(ends)
    middle = low / 2 + high / 2
    half = max(_SPAN * (high / 2 - low / 2), _LEAST * abs(middle)) or 1.0
    return Scale(max(min(0.0, low), middle - half), middle + half)


def finite_values(values: Sequence[float | None]) -> list[float]:
    """Return the values without those that are missing or not finite."""
    return [number for number in values if number is not None and math.isfinite(number)]
