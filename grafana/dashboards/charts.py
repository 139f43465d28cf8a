"""Panels that draw.

Of all functions:

Args:
    about: The panel's title, texts, unit and size.
    queries: Each with the name of its series.

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
"""Strokes and gaps of a panel's queries, in their order, in pixels; the first one's lines are solid."""

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
"""Unit → how far an axis goes at least, otherwise 1: where all values are 0, Grafana would draw it up to 100 units."""


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
    """Series over time, with the last value and the highest of each in the legend.

    Args:
        stacked: Whether they lie on top of each other.
        minimum: Of the axis; None for Grafana's own choice.
        maximum: Of the axis; None for Grafana's own choice.
        calm: How far the axis goes at least, in the unit; None for what the unit says.
        centred: Whether values lie on both sides of 0, as changes do.
        named: Series → colour, where it is not the one that its name gives.
        steps: Whether a value holds until the next one.
        right: Whether the legend is beside the lines: for many short names.
        words: Value → word and colour, where numbers stand for states.
    """
    panel = (
        timeseries.Panel()
        .color_scheme(
            builders.FieldColor().mode(dashboard.FieldColorModeId.FIXED).fixed_color(colours.NEUTRAL)
        )
        # A stack's lines lie on top of each other where a series is 0, and the last one's colour would be seen.
        .line_width(0 if stacked else 2)
        .fill_opacity(60 if stacked else 0)
        .show_points(model.VisibilityMode.AUTO)
        # A run every ten seconds, or every few minutes: a gap is what is longer.
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
    """States over time, as steps on an axis of their words; the legend has the present one.

    Args:
        query: Gives them as numbers from 1 on.
        named: State → colour, in the order of the numbers.
    """
    words = {str(i): (colours.word(state), hue) for i, (state, hue) in enumerate(named.items(), 1)}
    return lines(about, query, minimum=1, maximum=len(named), steps=True, words=words)


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
        panel.override_by_regexp(f"/^{name}( |$)/", [colour(hue)])  # a namespace may follow


def on_right(panel: Panel, reference: str, unit: str) -> Panel:
    """Move one query's series to an axis of their own, on the right.

    Args:
        panel: Of :func:`lines`.
        reference: Of the query, such as ``B``.
        unit: Of its values.
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
"""An expression, its legend, and perhaps a colour."""


def plot(
    title: str, text: str, act: str, unit: str, *queries: _Line, empty: str = NO_DATA, **looks: Any
) -> Panel:
    """Draw lines with their legend beside them: :func:`lines` as one declaration.

    Args:
        title: As `text`, `act`, `unit` and `empty` of :class:`About`.
        queries: One for each line, or for several.
        looks: As of :func:`lines`.
    """
    about = About(title, text, act, unit, empty=empty)
    return lines(about, *(Query(*query) for query in queries), right=True, **looks)
