"""Panels that draw.

Of all functions:

Args:
    about: What the panel says of itself.
    queries: Each with the name of its series.
    named: Series → colour, where it is not the one that its name gives.
    minimum: Of the axis; None for Grafana's own choice.
    maximum: Of the axis; None for Grafana's own choice.

Returns:
    A new panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, heatmap, histogram, statetimeline, timeseries, xychart
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common as model
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import xychart as xychart_model

from grafana.dashboards import colours, names
from grafana.dashboards.panels import (
    HEATMAP,
    TABLE,
    About,
    Panel,
    Query,
    colour,
    finished,
    mapping,
    missing_values,
    option,
    references,
)
from grafana.dashboards.promql import replicas
from grafana.dashboards.tables import Column, looks

_FIXED = builders.FieldColor().mode(dashboard.FieldColorModeId.FIXED)

_DASHES: Sequence[Sequence[int]] = ((), (10, 8), (2, 6), (20, 6, 2, 6), (30, 10))
"""Strokes and gaps of a panel's queries, in their order, in pixels; the first one's lines are solid."""

CALM = {
    "percentunit": 0.01,
    "s": 0.001,
    "short": 1.0,
    "none": 1.0,
    "ops": 0.1,
    "Bps": 1e6,
    "flops": 1e9,
    "bytes": 1 << 20,
    "hertz": 1e9,
    "watt": 100.0,
    "celsius": 50.0,
}
"""Unit → how far an axis goes at least: where all values are 0, Grafana would draw it up to 100 units."""


def lines(
    about: About,
    *queries: Query,
    stacked: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
    calm: float | None = None,
    decimals: int | None = None,
    centred: bool = False,
    named: Mapping[str, str] | None = None,
    known: Sequence[str] = (),
    steps: bool = False,
    band: tuple[str, str] | None = None,
    points: Sequence[str] = (),
    doubling: bool = False,
    wide: float | None = None,
    every: str = "1m",
) -> Panel:
    """Series over time.

    Args:
        stacked: Whether they lie on top of each other.
        calm: How far the axis goes at least, in the unit; None for what the unit says.
        decimals: None for Grafana's own choice.
        centred: Whether values lie on both sides of 0, as shifts do.
        known: Names of series that are too many for a colour each: hue and strokes by their place.
        steps: Whether a value holds until the next one.
        band: From which series to which the room is filled, the lower one first.
        points: Series that are drawn as points alone.
        doubling: Whether twice as much is one step up, so that one series far away does not flatten the others.
        wide: Up to which value the axis is as usual; above, ten times as much is one step up: for what is small, and at
            times a thousand times as much.
        every: The least step of rates.
    """
    panel = (
        timeseries.Panel()
        .color_scheme(_FIXED.fixed_color(colours.NEUTRAL))
        # A stack's lines lie on top of each other where a series is 0, and the last one's colour would be seen.
        .line_width(0 if stacked else 1)
        .fill_opacity(60 if stacked else 0)
        .show_points(model.VisibilityMode.AUTO)
        # A run every ten seconds, or every few minutes: a gap is what is longer.
        .span_nulls(300_000)
        .line_interpolation(model.LineInterpolation.STEP_AFTER if steps else model.LineInterpolation.LINEAR)
        .legend(_legend())
        .tooltip(
            common.VizTooltipOptions().mode(model.TooltipDisplayMode.MULTI).sort(model.SortOrder.DESCENDING)
        )
    )
    if decimals is not None:
        panel.decimals(decimals)
    if stacked:
        panel.stacking(common.StackingConfig().mode(model.StackingMode.NORMAL).group("A"))
    if doubling:
        panel.scale_distribution(common.ScaleDistributionConfig().type(model.ScaleDistribution.LOG).log(2))
    if wide is not None:
        scale = common.ScaleDistributionConfig().type(model.ScaleDistribution.SYMLOG)
        panel.scale_distribution(scale.log(10).linear_threshold(wide))
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    else:
        far = CALM[about.unit] if calm is None else calm
        panel.axis_soft_max(far)
        if centred:
            panel.axis_soft_min(-far)
    _styles(panel, queries, named or {}, dashes=not stacked)
    for name, look in names.each(known):
        panel.override_by_name(name, look)
    for name in points:
        panel.override_by_name(name, [option("custom.drawStyle", "points"), option("custom.pointSize", 7)])
    if band is not None:
        low, high = band
        panel.override_by_name(high, [option("custom.fillBelowTo", low), option("custom.fillOpacity", 20)])
    return finished(panel.build(), about, [_of_replicas(query) for query in queries], every=every)


def heat(about: About, query: Query) -> Panel:
    """A histogram over time.

    Args:
        query: Rates of a histogram's buckets, by ``le``.
    """
    panel = (
        heatmap.Panel()
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_model.HeatmapColorMode.SCHEME)
            .scheme(colours.HEAT)
            .scale(heatmap_model.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
            .min(0)
        )
        .filter_values(heatmap.FilterValueRange().le(1e-4))
        .cell_values(heatmap.CellValues().unit("ops").decimals(2))
        .y_axis(heatmap.YAxisConfig().unit(about.unit))
        .tooltip(
            heatmap.HeatmapTooltip()
            .mode(model.TooltipDisplayMode.SINGLE)
            .y_histogram(True)
            .show_color_scale(True)
        )
        .show_legend()
    )
    return finished(panel.build(), about, [query], HEATMAP)


def timeline(about: About, query: Query, named: Mapping[str, str]) -> Panel:
    """States over time, ten to a page. There is no legend: each stretch says its state.

    Args:
        query: Gives them as numbers from 1 on, and 0 where there is none, which is shown as what the panel says when
            it is empty: Grafana reports an error where such a panel gets no series.
        named: State → colour, in the order of the numbers.
    """
    states = {"0": (about.empty, colours.NEUTRAL)}
    states |= {str(i): item for i, item in enumerate(named.items(), 1)}
    panel = (
        statetimeline.Panel()
        .merge_values(True)
        .show_value(model.VisibilityMode.AUTO)
        .row_height(0.8)
        .per_page(10)
        .fill_opacity(80)
        .line_width(0)
        .color_scheme(_FIXED.fixed_color(colours.NEUTRAL))
        .mappings([mapping(states)])
        .legend(_legend(shown=False))
    )
    missing_values(panel, "–")  # an empty text would be a 0 to Grafana, and gaps the state of that number
    return finished(panel.build(), about, [query])


def spread(about: About, *queries: Query) -> Panel:
    """How often which value was met in the range shown: one distribution a series, on one axis."""
    panel = (
        histogram.Panel()
        .bucket_count(60)
        .combine(False)
        .fill_opacity(50)
        .line_width(1)
        .color_scheme(_FIXED.fixed_color(colours.NEUTRAL))
        .legend(_legend())
    )
    _styles(panel, queries, {}, dashes=False)
    return finished(panel.build(), about, queries)


def against(about: About, labels: Sequence[str], x: Column, y: Column, *queries: Query) -> Panel:
    """One number against another: a point for each set of ``labels``, which are shown beside it.

    Args:
        labels: Names.
        x: The field along the axis.
        y: The field upwards.
    """
    panel = (
        xychart.Panel()
        .show(xychart_model.XYShowMode.POINTS)
        .point_size(xychart.XychartFieldConfigPointSize().fixed(9))
        .color_scheme(_FIXED.fixed_color(colours.BLUE))
        .mapping(xychart_model.SeriesMapping.MANUAL)
        .series(
            [
                xychart.XYSeriesConfig()
                .frame(xychart.XychartXYSeriesConfigFrame().matcher(_matcher("byIndex", 0)))
                .x(xychart.XychartXYSeriesConfigX().matcher(_matcher("byName", x.heading)))
                .y(xychart.XychartXYSeriesConfigY().matcher(_matcher("byName", y.heading)))
            ]
        )
        .legend(_legend(shown=False))
        .tooltip(common.VizTooltipOptions().mode(model.TooltipDisplayMode.SINGLE).sort(model.SortOrder.NONE))
        .with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            dashboard.DataTransformerConfig(
                id_val="filterFieldsByName", options={"include": {"names": [*labels, x.field, y.field]}}
            )
        )
        .with_transformation(
            dashboard.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {},
                    "indexByName": {},
                    "renameByName": {x.field: x.heading, y.field: y.heading},
                },
            )
        )
    )
    for column in (x, y):
        panel.override_by_name(column.heading, [*looks(column), option("custom.axisLabel", column.heading)])
    return finished(panel.build(), about, queries, TABLE, instant=True)


def _legend(shown: bool = True) -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(model.LegendDisplayMode.LIST if shown else model.LegendDisplayMode.HIDDEN)
        .placement(model.LegendPlacement.BOTTOM)
        .show_legend(shown)
    )


def _matcher(kind: str, of: object) -> xychart.MatcherConfig:
    return xychart.MatcherConfig().id(kind).options(of)


def _of_replicas(query: Query) -> Query:
    return query._replace(expression=replicas(query.expression)) if "{{replica}}" in query.legend else query


def _styles(panel: Any, queries: Sequence[Query], named: Mapping[str, str], dashes: bool) -> None:
    """A name gives a hue, a query its dash; names that are not known beforehand give the first query's, too."""

    def by_name(query: Query) -> bool:
        return query is queries[0] and query.dash is None and "{{" in query.legend and not named

    for pattern, (look,) in names.looks():
        if look.id_val == "color":
            needed = any(not query.colour and query.legend not in named for query in queries)
        else:
            needed = dashes and any(by_name(query) for query in queries)
        if needed:
            panel.override_by_regexp(pattern, [look])
    for reference, query, usual in zip(references(), queries, _DASHES, strict=False):
        dash = usual if query.dash is None else query.dash
        style = [option("custom.lineStyle", {"fill": "dash", "dash": [*dash]})] if dash and dashes else []
        if properties := [*([colour(query.colour)] if query.colour else []), *style]:
            panel.override_by_query(reference, properties)
    for name, hue in named.items():
        panel.override_by_name(name, [colour(hue)])
