"""SVG charts with a scale: points in order of time, and distributions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from jinja2 import Environment, pass_environment
from markupsafe import Markup

from infercanary.render.document import Chart

_POINTS = 1500
"""Maximum number of points of a series. To keep pages below 1 MB, a longer series is drawn as medians of parts."""
_BINS = 60
_WIDTH = 600  # width of the drawing's coordinates; a page scales the drawing to fit
_GRID = 1000  # number of vertical steps; writing integers is much faster than writing floats
_SPAN = 1.1  # ratio of the scale's range to the values' range
# Minimum half range of the scale, as a share of the middle. On a smaller scale, noise would look like a change.
_LEAST = 0.05


class _Scale(NamedTuple):
    """Range of values that a chart shows; values beyond it are drawn at the edge."""

    low: float
    high: float

    def places(self, numbers: Sequence[float]) -> list[float]:
        """Return each number's position on the scale, from 0 (lower end or below) to 1 (upper end or above)."""
        low = self.low / 2  # halved, because a difference of huge numbers would overflow
        span = self.high / 2 - low
        shares = [(number / 2 - low) / span for number in numbers]
        return [0.0 if share < 0 else 1.0 if share > 1 else share for share in shares]

    def heights(self, numbers: Sequence[float]) -> list[float]:
        """Return the height of each bin of a histogram; the highest bin has height 1."""
        counts = Counter(min(_BINS - 1, int(_BINS * place)) for place in self.places(numbers))
        most = max(counts.values())
        return [counts[place] / most for place in range(_BINS)]


@pass_environment
def draw(environment: Environment, chart: Chart, height: int = 100) -> str:
    """Return a figure: the drawing with scale and key. The figure is empty if no series has a finite value.

    Args:
        environment: Environment of the template that calls this filter.
        chart: Series in order of time, or as distributions.
        height: CSS pixels; for distributions, the height of each series.
    """
    sides = [_finite(series.values) for series in chart.series]
    if not any(sides):
        return ""
    scale = _scale([*sides, [level for *_, level in chart.levels]])
    length = max(len(series.values) for series in chart.series)
    size = math.ceil(length / _POINTS)
    misses = {(miss // size + 0.5) * size for miss in chart.misses}
    beyond = sum(not scale.low <= number <= scale.high for side in sides for number in side)

    def points(values: Sequence[float | None], separator: str) -> str:
        """Return an SVG path through the medians of the series' parts. Parts without a finite value are left out."""
        parts = values
        if size > 1:
            each = (_finite(values[first : first + size]) for first in range(0, length, size))
            parts = [median(numbers) if numbers else None for numbers in each]
        known = {
            part: number for part, number in enumerate(parts) if number is not None and math.isfinite(number)
        }
        places = zip(known, scale.places([*known.values()]), strict=True)
        dots = [f"{2 * part + 1} {int(_GRID * place)}" for part, place in places]
        return f"M{separator.join(dots)}h0" if dots else ""

    names = {"median": median, "bins": _BINS, "width": _WIDTH, "grid": _GRID}
    figure = environment.get_template("chart.html").render(locals(), **names)
    return Markup(figure)  # noqa: S704 - the template escaped it


def _finite(values: Sequence[float | None]) -> list[float]:
    return [number for number in values if number is not None and math.isfinite(number)]


def _scale(series: Sequence[Sequence[float]]) -> _Scale:
    """Return the scale of all series; outliers are excluded."""
    ends = []
    for values in filter(None, series):
        numbers = sorted(values)
        # From 10 values on, the outermost value at each end may be an outlier.
        outer = (len(numbers) + 40) // 50
        low, high = numbers[outer], numbers[-1 - outer]
        ends += [max(numbers[0], 2 * low - high), min(numbers[-1], 2 * high - low)]
    low, high = min(ends), max(ends)
    middle = low / 2 + high / 2
    half = max(_SPAN * (high / 2 - low / 2), _LEAST * abs(middle)) or 1.0
    return _Scale(max(min(0.0, low), middle - half), middle + half)
