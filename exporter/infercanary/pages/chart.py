"""Charts as SVG with their scale: points in order of time, and distributions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from markupsafe import Markup

from infercanary.pages.safe_text import shown
from infercanary.render.document import Chart, Series
from infercanary.render.units import count, value

_POINTS = 1500
"""Points of a series; a longer series is drawn as medians of parts, and a page stays below a megabyte."""
_BINS = 150
_OUTER = 50
"""One in so many values at each end is an outlier if the scale would be twice as wide with it."""
_LEAST = 0.05
"""Half of the scale spans at least this share of its middle, so that noise does not look like a change."""


def draw(chart: Chart, width: int = 600, height: int = 100) -> Markup:
    """Return a figure: the drawing, its scale, and a key; empty where no series has a finite value.

    Args:
        chart: Series in order of time, or as distributions.
        width: Of the drawing's coordinates; on the page the drawing is as wide as its place.
        height: CSS pixels, of a distribution for each series.
    """
    sides = [_finite(series.values) for series in chart.series]
    if not any(sides):
        return Markup("")
    low, high = _scale([side for side in sides if side], [level for *_, level in chart.levels])
    beyond = sum(not low <= number <= high for side in sides for number in side)
    ends = [value(end, chart.unit) for end in (low, high)]
    draw_kind = _points if chart.kind == "points" else _distributions
    note = Markup("<span>{}</span>").format(f"{count(beyond, 'value')} beyond the scale") if beyond else ""
    drawing = draw_kind(chart, (low, high), width, height, ends, Markup(note))
    return Markup('<figure class="{}">{}</figure>').format(chart.kind, drawing)


def _points(
    chart: Chart, scale: tuple[float, float], width: int, height: int, ends: Sequence[str], note: Markup
) -> Markup:
    """Dots, or a line where one series has no levels, with levels, marks and misses over them."""
    step = width / max(len(series.values) for series in chart.series)
    paths = {"edge": f"M0 0H{width}M0 {height}H{width}"}
    is_line = len(chart.series) == 1 and not chart.levels
    for series in chart.series:
        dots = [f"{x * step:.1f} {_y(number, scale, height)}" for x, number in _condensed(series.values)]
        path = f"M{' '.join(dots)}h0" if is_line else "".join(f"M{dot}h0" for dot in dots)
        style = f"{'line' if is_line else 'dots'} {series.style}"
        paths[style] = paths.get(style, "") + (path if dots else "")
    paths["level"] = "".join(
        f"M{first * step:.1f} {_y(level, scale, height)}h{places * step:.1f}"
        for first, places, level in chart.levels
    )
    paths["mark"] = "".join(f"M{place * step:.1f} 0V{height}" for place in chart.marks)
    misses = dict.fromkeys(f"{(place + 0.5) * step:.1f}" for place in chart.misses)
    paths["miss"] = "".join(f"M{x} {height - 6}v6" for x in misses)
    keys = [_key(series) for series in chart.series if not is_line and len(chart.series) > 1]
    caption = Markup("").join([*keys, note])
    return Markup('{}<span class="scale"><span>{}</span><span>{}</span></span>{}').format(
        _svg(chart.title, paths, width, height), *reversed(ends), _caption(caption)
    )


def _distributions(
    chart: Chart, scale: tuple[float, float], width: int, height: int, ends: Sequence[str], note: Markup
) -> Markup:
    """For each series its key with the median, and its histogram, smoothed since few values would leave gaps."""
    drawn = []
    for series in chart.series:
        values = _finite(series.values)
        if not values:
            continue
        counts = np.histogram(values, bins=_BINS, range=scale)[0]
        smooth = [float(number) for number in np.convolve(counts, (1, 2, 3, 2, 1), "same")]
        step, most = width / _BINS, max(smooth) or 1.0
        bars = "".join(
            f"M{place * step:.1f} {height}v{-height * number / most:.1f}h{step:.1f}V{height}z"
            for place, number in enumerate(smooth)
            if number
        )
        middle = width - float(_y(median(values), scale, width))
        paths = {
            "edge": f"M0 {height}H{width}",
            f"fill {series.style}": bars,
            "middle": f"M{middle:.1f} 0V{height}",
        }
        label = f"{series.label}, median {value(median(values), chart.unit)}"
        drawn += [_key(series, label), _svg(f"{chart.title}: {label}", paths, width, height)]
    caption = Markup("<span>{}</span>{}<span>{}</span>").format(ends[0], note, ends[1])
    return Markup("").join([*drawn, _caption(caption)])


def _finite(values: Sequence[float | None]) -> list[float]:
    return [number for number in values if number is not None and math.isfinite(number)]


def _scale(sides: Sequence[Sequence[float]], levels: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest value that are drawn in their place: without outliers, and wide enough for noise."""
    ends = [*levels]
    for side in sides:
        ordered = sorted(side)
        outer = max(len(ordered) // _OUTER, len(ordered) >= 10)
        low, high = ordered[outer], ordered[-1 - outer]
        ends.append(ordered[0] if high - ordered[0] <= 2 * (high - low) else low)
        ends.append(ordered[-1] if ordered[-1] - low <= 2 * (high - low) else high)
    low, high = min(ends), max(ends)
    middle = low / 2 + high / 2
    half = max(high / 2 - low / 2, _LEAST * abs(middle)) or 1.0
    return middle - half, middle + half


def _condensed(values: Sequence[float | None]) -> list[tuple[float, float]]:
    """Places on the axis of time and the medians of the values there; empty places are left out."""
    size = max(1, math.ceil(len(values) / _POINTS))
    points = []
    for first in range(0, len(values), size):
        part = values[first : first + size]
        if numbers := _finite(part):
            points.append((first + len(part) / 2, median(numbers)))
    return points


def _y(number: float, scale: tuple[float, float], height: int) -> str:
    """The height of a number, from the top; beyond the scale it is drawn at the edge."""
    low, high = scale
    share = (min(high, max(low, number)) - low) / (high - low)
    return f"{height * (1 - share):.1f}"


def _key(series: Series, label: str = "") -> Markup:
    return Markup('<span class="key {}">{}</span>').format(series.style, shown(label or series.label))


def _caption(inside: Markup) -> Markup:
    return Markup("<figcaption>{}</figcaption>").format(inside) if inside else Markup("")


def _svg(label: str, paths: Mapping[str, str], width: int, height: int) -> Markup:
    drawn = Markup("").join(
        Markup('<path class="{}" d="{}"/>').format(style, path) for style, path in paths.items() if path
    )
    return Markup(
        '<svg viewBox="0 0 {0} {1}" height="{1}" preserveAspectRatio="none" role="img" aria-label="{2}">{3}</svg>'
    ).format(width, height, shown(label), drawn)
