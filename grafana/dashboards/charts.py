"""Panels with charts.

Arguments of all functions:

Args:
    about: Title, texts, unit and size of the panel.
    queries: Queries with the names of their series.

Returns:
    A new panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common as model
from grafana_foundation_sdk.models import dashboard

from grafana.dashboards import colours, names
from grafana.dashboards.panels import (
    DECIMALS,
    NO_DATA,
    About,
    Panel,
    Query,
    colour,
    finished,
    mapping,
    option,
    references,
)
from grafana.dashboards.promql import replicas

_DASHES: Sequence[Sequence[int]] = ((), (10, 8), (2, 6), (20, 6, 2, 6), (30, 10))
"""Strokes and gaps in pixels for a panel's queries, in order; lines of the first query are solid."""

CALM = {
    "percentunit": 0.01,
    "s": 0.001,
    "Bps": 1e6,
    "flops": 1e9,
    "bytes": 1 << 20,
    "hertz": 1e9,
    "watt": 100.0,
    "celsius": 50.0,
}
"""Smallest upper end of an axis by unit; for other units, 1. With only zeros, Grafana would end the axis at 100."""


def lines(
    about: About,
    *queries: Query,
    stacked: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
    calm: float | None = None,
    centred: bool = False,
    named: Mapping[str, str] | None = None,
    steps: bool = False,
    right: bool = False,
    words: Mapping[str, tuple[str, str]] | None = None,
) -> Panel:
    """Return a chart of series over time; the legend has the last and the highest value of each series.

    Args:
        stacked: True to stack the series.
        minimum: Lower end of the axis; None for Grafana's choice.
        maximum: Upper end of the axis; None for Grafana's choice.
        calm: Smallest upper end of the axis, in the unit; None for the unit's default.
        centred: True for values on both sides of 0, such as changes.
        named: Colours by series, for colours that do not depend on the name.
        steps: True if a value holds until the next value.
        right: True for a legend on the right, for many short names.
        words: Word and colour by value, for numbers that stand for states.
    """
    panel = (
        timeseries.Panel()
        .color_scheme(
            builders.FieldColor().mode(dashboard.FieldColorModeId.FIXED).fixed_color(colours.NEUTRAL)
        )
        # No lines in a stack: series with the value 0 lie on top of each other, and only the last colour
        # would be visible.
        .line_width(0 if stacked else 2)
        .fill_opacity(60 if stacked else 0)
        .show_points(model.VisibilityMode.AUTO)
        # Runs are ten seconds to a few minutes apart; only a longer pause appears as a gap.
        .span_nulls(300_000)
        .line_interpolation(model.LineInterpolation.STEP_AFTER if steps else model.LineInterpolation.LINEAR)
        .legend(
            common.VizLegendOptions()
            .display_mode(model.LegendDisplayMode.TABLE)
            .placement(model.LegendPlacement.RIGHT if right else model.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
            .sort_by("Last *")
            .sort_desc(True)
        )
        .tooltip(
            common.VizTooltipOptions().mode(model.TooltipDisplayMode.MULTI).sort(model.SortOrder.DESCENDING)
        )
    )
    if about.unit in DECIMALS:
        panel.decimals(DECIMALS[about.unit])
    if stacked:
        panel.stacking(common.StackingConfig().mode(model.StackingMode.NORMAL).group("A"))
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    else:
        far = CALM.get(about.unit, 1.0) if calm is None else calm
        panel.axis_soft_max(far)
        if centred:
            panel.axis_soft_min(-far)
    if words:
        panel.mappings([mapping(words)])
    _styles(panel, queries, named or {}, dashes=not stacked)
    return finished(panel.build(), about, [_of_replicas(query) for query in queries])


def timeline(about: About, query: Query, named: Mapping[str, str]) -> Panel:
    """Return states over time as steps; the axis has the states' names, and the legend has the current state.

    Args:
        query: Query of the state's number, from 1 on.
        named: Colours by state, in the order of the numbers.
    """
    words = {str(i): (colours.word(state), hue) for i, (state, hue) in enumerate(named.items(), 1)}
    return lines(about, query, minimum=1, maximum=len(named), steps=True, words=words)


def _of_replicas(query: Query) -> Query:
    return query._replace(expression=replicas(query.expression)) if "{{replica}}" in query.legend else query


def _styles(panel: Any, queries: Sequence[Query], named: Mapping[str, str], dashes: bool) -> None:
    """Set hues by name, and dashes by query. For unknown names, the dashes of the first query also depend on the
    name.
    """

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
        panel.override_by_regexp(f"/^{name}( |$)/", [colour(hue)])  # a namespace may follow the name


def on_right(panel: Panel, reference: str, unit: str) -> Panel:
    """Move the series of one query to an axis on the right.

    Args:
        panel: Panel from :func:`lines`.
        reference: Name of the query, such as ``B``.
        unit: Unit of the query's values.
    """
    built = panel.build()
    looks = [
        option("unit", unit),
        option("decimals", DECIMALS.get(unit, 0)),
        option("custom.axisPlacement", "right"),
        option("custom.axisSoftMax", CALM.get(unit, 1.0)),
    ]
    matcher = dashboard.MatcherConfig(id_val="byFrameRefID", options=reference)
    assert built.field_config is not None
    built.field_config.overrides.append(
        dashboard.DashboardFieldConfigSourceOverrides(matcher=matcher, properties=looks)
    )
    return Panel(built)


_Line = tuple[str, str] | tuple[str, str, str]
"""(expression, legend) or (expression, legend, colour)."""


def plot(
    title: str, text: str, act: str, unit: str, *queries: _Line, empty: str = NO_DATA, **looks: Any
) -> Panel:
    """Return a chart with the legend on the right: :func:`lines` without :class:`About` and :class:`Query` objects.

    Args:
        title: See :class:`About`.
        text: See :class:`About`.
        act: See :class:`About`.
        unit: See :class:`About`.
        empty: See :class:`About`.
        queries: Expression, legend and optional colour, for each line or group of lines.
        looks: Further keyword arguments of :func:`lines`.
    """
    about = About(title, text, act, unit, empty=empty)
    return lines(about, *(Query(*query) for query in queries), right=True, **looks)
