"""Charts as SVG with their scale: points in order of time, and distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np
from jinja2 import Environment, pass_environment
from markupsafe import Markup

from infercanary.render.document import Chart

_POINTS = 1500
"""Points of a series; a longer series is drawn as medians of parts, and a page stays below a megabyte."""
_BINS = 150
_FEW, _OUTER = 10, 50
"""One in 50 values at each end, of ten or more, is an outlier if it lies apart from the rest."""
_ROOM = 1.1  # a smoothed distribution ends within the scale
_LEAST = 0.05
"""Half of the scale spans at least this share of its middle, so that noise does not look like a change."""


@pass_environment
def draw(environment: Environment, chart: Chart, width: int = 600, height: int = 100) -> str:
    """Return a figure: the drawing, its scale and a key; empty where no series has a finite value.

    Args:
        environment: Of the template that calls this filter.
        chart: Series in order of time, or as distributions.
        width: Of the drawing's coordinates; on a page the drawing is as wide as its place.
        height: CSS pixels; of a distribution for each series.
    """
    sides = [_finite(series.values) for series in chart.series]
    if not any(sides):
        return ""
    low, high = _scale([*sides, [level for *_, level in chart.levels]])

    def share(number: float) -> float:
        return round((min(high, max(low, number)) - low) / (high - low), 4)

    length = max(len(series.values) for series in chart.series)
    size = math.ceil(length / _POINTS)

    def points(values: Sequence[float | None], separator: str) -> str:
        if size > 1:
            parts = (_finite(values[first : first + size]) for first in range(0, len(values), size))
            values = [median(part) if part else None for part in parts]
        numbers = np.array(values, float)
        shares = ((numbers.clip(low, high) - low) / (high - low)).round(4).tolist()
        places = np.flatnonzero(np.isfinite(numbers)).tolist()
        dots = [f"{(place + 0.5) * size} {shares[place]}" for place in places]
        return f"M{separator.join(dots)}h0" if dots else ""

    def bars(values: Sequence[float]) -> str:
        shares = [share(number) for number in values if low <= number <= high]
        counts = np.convolve(np.histogram(shares, _BINS, (0, 1))[0], (1, 2, 3, 2, 1), "same")
        return "".join(f"V{number:.3g}h1" for number in counts / max(1, counts.max()))

    misses = {(miss // size + 0.5) * size for miss in chart.misses}
    beyond = sum(not low <= number <= high for side in sides for number in side)
    figure = environment.get_template("chart.html").render(locals(), median=median, bins=_BINS)
    return Markup(figure)  # noqa: S704 - the template escaped it


def _finite(values: Sequence[float | None]) -> list[float]:
    return [number for number in values if number is not None and math.isfinite(number)]


def _scale(sides: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Lowest and highest value that are drawn in their place: without outliers, and wide enough for noise."""
    ends = []
    for side in filter(None, sides):
        ordered = sorted(side)
        outer = math.ceil(len(side) / _OUTER) if len(side) >= _FEW else 0
        low, high = ordered[outer], ordered[-1 - outer]
        ends += [max(ordered[0], 2 * low - high), min(ordered[-1], 2 * high - low)]
    low, high = min(ends), max(ends)
    middle = low / 2 + high / 2
    half = max(_ROOM * (high / 2 - low / 2), _LEAST * abs(middle)) or 1.0
    return max(min(0.0, low), middle - half), middle + half
