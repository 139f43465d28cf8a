"""The kinds of panels. What all panels share is said once, here: the data source, a title, a text that says how to read
it, a unit, what is said where there is nothing to show, and colours that everybody can distinguish.

Of all functions:

Args:
    about: What the panel says of itself.
    queries: Each with the name of its series.
    named: Series → colour, where it is not the usual one.
    minimum: Of the axis; None for Grafana's own choice.
    maximum: Of the axis; None for Grafana's own choice.

Returns:
    A new panel.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    heatmap,
    histogram,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
    xychart,
)
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as model
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import prometheus as prometheus_model
from grafana_foundation_sdk.models import xychart as xychart_model

from grafana.dashboards import colours
from grafana.dashboards.variables import DATASOURCE

NOTHING = "Nothing in this time range"


class Query(NamedTuple):
    """An expression, and what its series are called."""

    expression: str
    legend: str = ""


class About(NamedTuple):
    """What each panel says of itself, and how large it is: 24 is the whole width."""

    title: str
    text: str
    unit: str
    width: int = 12
    height: int = 8
    empty: str = NOTHING


class Panel(Builder[dashboard.Panel]):
    """A panel that is built.

    Args:
        built: The SDK's panel, with all that it shows.
    """

    def __init__(self, built: dashboard.Panel) -> None:
        self._built = built

    def build(self) -> dashboard.Panel:
        """The panel.

        Returns:
            The SDK's panel.
        """
        return self._built


def lines(
    about: About,
    *queries: Query,
    stacked: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
    named: Mapping[str, str] | None = None,
    endings: Mapping[str, str] | None = None,
    steps: bool = False,
    band: tuple[str, str] | None = None,
    doubling: bool = False,
    every: str = "1m",
) -> Panel:
    """Series over time.

    Args:
        stacked: Whether they lie on top of each other.
        endings: Last word of a series → hue, of which it has a shade.
        steps: Whether a value holds until the next one.
        band: From which series to which the room is filled, the lower one first.
        doubling: Whether twice as much is one step up, so that one series far away does not flatten the others.
        every: The least step of rates.
    """
    panel = (
        timeseries.Panel()
        # A stack's lines lie on top of each other where a series is 0, and the last one's colour would be seen.
        .line_width(0 if stacked else 1)
        .fill_opacity(60 if stacked else 0)
        .show_points(model.VisibilityMode.AUTO)
        # A run every ten seconds, or every few minutes: a gap is what is longer.
        .span_nulls(300_000)
        .line_interpolation(model.LineInterpolation.STEP_AFTER if steps else model.LineInterpolation.LINEAR)
        .legend(
            common.VizLegendOptions()
            .display_mode(model.LegendDisplayMode.LIST)
            .placement(model.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(
            common.VizTooltipOptions().mode(model.TooltipDisplayMode.MULTI).sort(model.SortOrder.DESCENDING)
        )
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(model.StackingMode.NORMAL).group("A"))
    if doubling:
        panel.scale_distribution(common.ScaleDistributionConfig().type(model.ScaleDistribution.LOG).log(2))
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    _hues(panel, queries)
    _colour_by_name(panel, named or {})
    for ending, hue in (endings or {}).items():
        panel.override_by_regexp(f"/ {ending}$/", [_colour(hue, "shades")])
    if band is not None:
        low, high = band
        panel.override_by_name(
            high,
            [
                dashboard.DynamicConfigValue(id_val="custom.fillBelowTo", value=low),
                dashboard.DynamicConfigValue(id_val="custom.fillOpacity", value=20),
            ],
        )
    return _finished(panel.build(), about, queries, every=every)


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
        )
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .cell_values(heatmap.CellValues().unit("ops"))
        .y_axis(heatmap.YAxisConfig().unit(about.unit))
        .tooltip(
            heatmap.HeatmapTooltip()
            .mode(model.TooltipDisplayMode.SINGLE)
            .y_histogram(True)
            .show_color_scale(True)
        )
        .show_legend()
    )
    return _finished(panel.build(), about, [query], prometheus_model.PromQueryFormat.HEATMAP)


def tiles(
    about: About,
    *queries: Query,
    named: Mapping[str, str] | None = None,
    bad_from: float | None = None,
    decimals: int | None = None,
    text: model.BigValueTextMode | None = None,
) -> Panel:
    """Numbers as they are now.

    Args:
        bad_from: Vermillion from there on; None for no such bound.
        decimals: None for Grafana's own choice.
        text: What is shown of name and value; None for both where there are several queries.
    """
    if text is None:
        # Grafana's own choice hides the name where there is one number, which may be any of several queries'.
        several = len(queries) > 1
        text = model.BigValueTextMode.VALUE_AND_NAME if several else model.BigValueTextMode.AUTO
    panel = (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_mode(model.BigValueColorMode.VALUE)
        .graph_mode(model.BigValueGraphMode.NONE)
        .text_mode(text)
        .justify_mode(model.BigValueJustifyMode.AUTO)
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .thresholds(_thresholds(bad_from))
    )
    if decimals is not None:
        panel.decimals(decimals)
    _colour_by_name(panel, named or {})
    return _finished(panel.build(), about, queries, instant=True)


class Column(NamedTuple):
    """A column of a table: the field that it is, its heading, and how its values look."""

    field: str
    heading: str
    unit: str = ""
    named: Mapping[str, str] = {}
    link: str = ""
    width: int = 0
    decimals: int | None = None


def rows(about: About, columns: Sequence[Column], *queries: Query, sort: str = "") -> Panel:
    """A table. Its queries' rows are merged where their labels agree; fields without a column are left out.

    Args:
        columns: From left to right.
        sort: The heading of a column, with ``-`` in front for the largest first; empty for the queries' order.
    """
    headings = {column.field: column.heading for column in columns}
    panel = (
        table.Panel()
        .show_header(True)
        .cell_height(model.TableCellHeight.SM)
        .with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            dashboard.DataTransformerConfig(
                id_val="filterFieldsByName",
                options={"include": {"names": [column.field for column in columns]}},
            )
        )
        .with_transformation(
            dashboard.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {},
                    "indexByName": {column.field: i for i, column in enumerate(columns)},
                    "renameByName": headings,
                },
            )
        )
    )
    if sort:
        panel.sort_by(
            [common.TableSortByFieldState().display_name(sort.lstrip("-")).desc(sort.startswith("-"))]
        )
    for column in columns:
        if properties := [*_looks(column)]:
            panel.override_by_name(column.heading, properties)
    return _finished(panel.build(), about, queries, prometheus_model.PromQueryFormat.TABLE, instant=True)


def matrix(about: About, row: str, column: str, query: Query) -> Panel:
    """A table with a row for each value of one label, and a column for each of another.

    Args:
        row: The label whose values are rows.
        column: The label whose values are columns.
        query: One value for each pair.
    """
    panel = (
        table.Panel()
        .show_header(True)
        .cell_height(model.TableCellHeight.SM)
        .with_transformation(
            dashboard.DataTransformerConfig(
                id_val="groupingToMatrix",
                options={"rowField": row, "columnField": column, "valueField": "Value"},
            )
        )
    )
    return _finished(panel.build(), about, [query], prometheus_model.PromQueryFormat.TABLE, instant=True)


def timeline(about: About, query: Query, named: Mapping[str, str]) -> Panel:
    """States over time.

    Args:
        query: Gives them as numbers from 1 on.
        named: State → colour, in the order of the numbers.
    """
    panel = (
        statetimeline.Panel()
        .merge_values(True)
        .show_value(model.VisibilityMode.AUTO)
        .row_height(0.8)
        .fill_opacity(80)
        .line_width(0)
        .color_scheme(
            builders.FieldColor().mode(dashboard.FieldColorModeId.FIXED).fixed_color(colours.NEUTRAL)
        )
        .mappings([_mapping({str(i): item for i, item in enumerate(named.items(), 1)})])
        .legend(
            common.VizLegendOptions()
            .display_mode(model.LegendDisplayMode.LIST)
            .placement(model.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    return _finished(panel.build(), about, [query])


def spread(about: About, *queries: Query) -> Panel:
    """How often which value was met in the range shown: one distribution a series, on one axis."""
    panel = (
        histogram.Panel()
        .bucket_count(60)
        .combine(False)
        .fill_opacity(50)
        .line_width(1)
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.CONTINUOUS_BL_PU))
        .legend(
            common.VizLegendOptions()
            .display_mode(model.LegendDisplayMode.LIST)
            .placement(model.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )
    _hues(panel, queries)
    return _finished(panel.build(), about, queries)


def bars(about: About, *queries: Query, minimum: float | None = None, maximum: float | None = None) -> Panel:
    """Numbers as they are now, side by side."""
    panel = (
        bargauge.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .orientation(model.VizOrientation.HORIZONTAL)
        .display_mode(model.BarGaugeDisplayMode.BASIC)
        .value_mode(model.BarGaugeValueMode.TEXT)
        .show_unfilled(False)
    )
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    _hues(panel, queries)
    return _finished(panel.build(), about, queries, instant=True)


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
        .color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.FIXED).fixed_color(colours.BLUE))
        .mapping(xychart_model.SeriesMapping.MANUAL)
        .series(
            [
                xychart.XYSeriesConfig()
                .frame(xychart.XychartXYSeriesConfigFrame().matcher(_matcher("byIndex", 0)))
                .x(xychart.XychartXYSeriesConfigX().matcher(_matcher("byName", x.heading)))
                .y(xychart.XychartXYSeriesConfigY().matcher(_matcher("byName", y.heading)))
            ]
        )
        .legend(
            common.VizLegendOptions()
            .display_mode(model.LegendDisplayMode.HIDDEN)
            .placement(model.LegendPlacement.BOTTOM)
            .show_legend(False)
        )
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
        label = dashboard.DynamicConfigValue(id_val="custom.axisLabel", value=column.heading)
        panel.override_by_name(column.heading, [*_looks(column), label])
    return _finished(panel.build(), about, queries, prometheus_model.PromQueryFormat.TABLE, instant=True)


def _matcher(kind: str, of: object) -> xychart.MatcherConfig:
    return xychart.MatcherConfig().id(kind).options(of)


def _finished(
    panel: dashboard.Panel,
    about: About,
    queries: Sequence[Query],
    form: prometheus_model.PromQueryFormat = prometheus_model.PromQueryFormat.TIME_SERIES,
    instant: bool = False,
    every: str = "1m",
) -> Panel:
    # The title's own number: links to a panel survive panels that are added before it.
    panel.id_val = zlib.crc32(about.title.encode()) % 1_000_000
    panel.title, panel.description = about.title, about.text
    panel.datasource = DATASOURCE
    panel.grid_pos = dashboard.GridPos(h=about.height, w=about.width)
    assert panel.field_config is not None
    defaults = panel.field_config.defaults
    defaults.unit, defaults.no_value = about.unit, about.empty
    panel.targets = [
        _target(query, reference, form, instant)
        for reference, query in zip(_references(), queries, strict=False)
    ]
    if not instant and any("$__rate_interval" in query.expression for query in queries):
        # Runs are ten seconds apart, or more; a rate over less than some of them is a comb.
        panel.interval = every
    return Panel(panel)


def _references() -> Iterable[str]:
    return map(chr, range(ord("A"), ord("Z") + 1))


def _target(
    query: Query, reference: str, form: prometheus_model.PromQueryFormat, instant: bool
) -> prometheus_model.Dataquery:
    target = (
        prometheus.Dataquery()
        .ref_id(reference)
        .datasource(DATASOURCE)
        .expr(query.expression)
        .legend_format(query.legend or "__auto")
        .editor_mode(prometheus_model.QueryEditorMode.CODE)
        .format(form)
    )
    return (target.instant() if instant else target.range()).build()


def _hues(panel: Any, queries: Sequence[Query]) -> None:
    """A hue for each query, and shades of it for its series."""
    for reference, hue, _ in zip(_references(), colours.HUES, queries, strict=False):
        mode = "fixed" if len(queries) > 4 else "shades"
        panel.override_by_query(reference, [_colour(hue, mode)])


def _colour_by_name(panel: Any, named: Mapping[str, str]) -> None:
    for name, colour in named.items():
        panel.override_by_name(name, [_colour(colour)])


def _colour(colour: str, mode: str = "fixed") -> dashboard.DynamicConfigValue:
    return dashboard.DynamicConfigValue(id_val="color", value={"mode": mode, "fixedColor": colour})


def _thresholds(bad_from: float | None) -> builders.ThresholdsConfig:
    steps = [dashboard.Threshold(value=None, color=colours.WELL)]
    if bad_from is not None:
        steps.append(dashboard.Threshold(value=bad_from, color=colours.TROUBLE))
    return builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def _mapping(shown: Mapping[str, tuple[str, str]]) -> dashboard.ValueMap:
    """Value → word and colour."""
    return dashboard.ValueMap(
        options={
            value: dashboard.ValueMappingResult(text=word.replace("_", " "), color=colour or None, index=i)
            for i, (value, (word, colour)) in enumerate(shown.items())
        }
    )


def _looks(column: Column) -> Iterable[dashboard.DynamicConfigValue]:
    if column.unit:
        yield dashboard.DynamicConfigValue(id_val="unit", value=column.unit)
    if column.decimals is not None:
        yield dashboard.DynamicConfigValue(id_val="decimals", value=column.decimals)
    if column.width:
        yield dashboard.DynamicConfigValue(id_val="custom.width", value=column.width)
    if column.link:
        link = {"title": "Open", "url": column.link}
        yield dashboard.DynamicConfigValue(id_val="links", value=[link])
    if column.named:
        shown = {value: (value, colour) for value, colour in column.named.items()}
        yield dashboard.DynamicConfigValue(id_val="mappings", value=[_mapping(shown)])
        cell = {"type": "color-background", "mode": "basic"}
        yield dashboard.DynamicConfigValue(id_val="custom.cellOptions", value=cell)
