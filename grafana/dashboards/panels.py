"""The parts that all panels share: data source, title, texts, unit, and the text of an empty panel."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models import prometheus as prometheus_model

from grafana.dashboards.promql import expanded
from grafana.dashboards.variables import DATASOURCE

NO_DATA, NONE = "No data", "None"
NO_CHANGE, NOTHING_YET = "No change found", "Nothing to compare yet"
"""Texts of empty panels: they say that there is nothing, not why."""

DECIMALS = {
    "percentunit": 1,
    "s": 2,
    "bytes": 1,
    "none": 0,
    "hertz": 2,
    "watt": 0,
    "celsius": 0,
    "runs/min": 1,
    "/min": 1,
}
"""Unit → decimals, the same for all values of a panel or column."""

SERIES = prometheus_model.PromQueryFormat.TIME_SERIES
TABLE = prometheus_model.PromQueryFormat.TABLE


class Query(NamedTuple):
    """An expression, what its series are called, and how they look where that is not left to their names.

    ``colour`` is for all of its series; ``dash`` has the lengths of strokes and gaps in pixels.
    """

    expression: str
    legend: str = ""
    colour: str = ""
    dash: Sequence[int] | None = None


class About(NamedTuple):
    """A panel's title, texts, unit and size: 24 is the whole width.

    ``text`` says how to read it, and ``act`` what to do when it is bad.
    """

    title: str
    text: str
    act: str
    unit: str
    width: int = 12
    height: int = 9
    empty: str = NO_DATA


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


def finished(
    panel: dashboard.Panel,
    about: About,
    queries: Sequence[Query],
    form: prometheus_model.PromQueryFormat = SERIES,
    instant: bool = False,
) -> Panel:
    """Add the parts that all panels have.

    Args:
        panel: As its kind made it.
        about: Its title, texts, unit and size.
        queries: Each with the name of its series.
        form: In which the data source gives the answers.
        instant: Whether only the end of the time range is asked for.

    Returns:
        The whole panel.
    """
    # The title's own number: links to a panel survive panels that are added before it.
    panel.id_val = zlib.crc32(about.title.encode()) % 1_000_000
    panel.title, panel.description = about.title, f"{about.text}\n\n**What to do:** {about.act}"
    panel.datasource = DATASOURCE
    panel.grid_pos = dashboard.GridPos(h=about.height, w=about.width)
    assert panel.field_config is not None
    panel.field_config.defaults.no_value = about.empty
    if form is not TABLE:
        panel.field_config.defaults.unit = about.unit
    panel.targets = [
        _target(query, reference, form, instant)
        for reference, query in zip(references(), queries, strict=False)
    ]
    if not instant and any("$__rate_interval" in query.expression for query in queries):
        # Runs are ten seconds apart, or more; a rate over less than some of them is a comb.
        panel.interval = "1m"
    return Panel(panel)


def references() -> Iterable[str]:
    """Names of a panel's queries, in their order.

    Returns:
        A, B, C and so on.
    """
    return map(chr, range(ord("A"), ord("Z") + 1))


def _target(
    query: Query, reference: str, form: prometheus_model.PromQueryFormat, instant: bool
) -> prometheus_model.Dataquery:
    target = (
        prometheus.Dataquery()
        .ref_id(reference)
        .datasource(DATASOURCE)
        .expr(expanded(query.expression))
        .legend_format(query.legend or "__auto")
        .editor_mode(prometheus_model.QueryEditorMode.CODE)
        .format(form)
    )
    return (target.instant() if instant else target.range()).build()


def option(name: str, value: object) -> dashboard.DynamicConfigValue:
    """One property of an override.

    Args:
        name: As Grafana has it, such as ``custom.width``.
        value: Of the property.

    Returns:
        The property.
    """
    return dashboard.DynamicConfigValue(id_val=name, value=value)


def colour(hue: str) -> dashboard.DynamicConfigValue:
    """One colour, whatever the value.

    Args:
        hue: One of :mod:`grafana.dashboards.colours`.

    Returns:
        The property of an override.
    """
    return option("color", {"mode": "fixed", "fixedColor": hue})


def missing_values(panel: Any, text: str) -> None:
    """Keep the sentence for an empty panel out of what has data: Grafana would write it wherever a value is missing.

    Args:
        panel: A builder.
        text: What it writes there instead.
    """
    panel.override_by_regexp("/.*/", [option("noValue", text)])


def mapping(shown: Mapping[str, tuple[str, str]]) -> dashboard.ValueMap:
    """Words and colours for values.

    Args:
        shown: Value → word and colour; an empty colour leaves it to Grafana.

    Returns:
        The mapping.
    """
    return dashboard.ValueMap(
        options={
            value: dashboard.ValueMappingResult(text=word, color=hue or None, index=i)
            for i, (value, (word, hue)) in enumerate(shown.items())
        }
    )
