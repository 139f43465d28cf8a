"""Charts as SVG with their scale: points in order of time, and distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from jinja2 import Environment, pass_environment
from markupsafe import Markup

from infercanary.render.document import Chart
from infercanary.render.scale import chart_scale, finite_values

_POINTS = 1500
"""Points of a series; a longer series is drawn as medians of parts, and a page stays below a megabyte."""
_BINS = 60
_GRID = 1000  # steps of a place: whole numbers are written much faster than others
_WIDTH = 600  # of the drawing's coordinates; on a page the drawing is as wide as its place


@pass_environment
def draw(environment: Environment, chart: Chart, height: int = 100) -> str:
    """Return a figure: the drawing, its scale and a key; empty where no series has a finite value.

    Args:
        environment: Of the template that calls this filter.
        chart: Series in order of time, or as distributions.
        height: CSS pixels; of a distribution for each series.
    """
    scale = chart_scale(chart)
    if scale is None:
        return ""
    sides = [finite_values(series.values) for series in chart.series]
    length = max(len(series.values) for series in chart.series)
    size = math.ceil(length / _POINTS)
    misses = {(miss // size + 0.5) * size for miss in chart.misses}
    beyond = sum(not scale.low <= number <= scale.high for side in sides for number in side)

    def points(values: Sequence[float | None], separator: str) -> str:
        dots = [f"{2 * part + 1} {int(_GRID * place)}" for part, place in scale.points(values, size).items()]
        return f"M{separator.join(dots)}h0" if dots else ""

    figure = environment.get_template("chart.html").render(
        locals(), median=median, bins=_BINS, width=_WIDTH, grid=_GRID
    )
    return Markup(figure)  # noqa: S704 - the template escaped it
