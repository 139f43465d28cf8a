"""Common parts of all panels: data source, title, texts, unit, and the text of an empty panel."""

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
"""Texts of empty panels, which give no reason for the missing data."""

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
"""Number of decimals by unit, the same for all values of a panel or column."""

SERIES = prometheus_model.PromQueryFormat.TIME_SERIES
TABLE = prometheus_model.PromQueryFormat.TABLE


class Query(NamedTuple):
    """An expression, with the name and the fixed look of its series.

    ``colour`` is for all series of the query; ``dash`` has the lengths of strokes and gaps in pixels.
    """

    expression: str
    legend: str = ""
    colour: str = ""
    dash: Sequence[int] | None = None


class About(NamedTuple):
    """Title, texts, unit and size of a panel. The full width is 24.

    ``text`` explains the panel; ``act`` is the action for bad values.
    """

    title: str
    text: str
    act: str
    unit: str
    width: int = 12
    height: int = 9
    empty: str = NO_DATA


class Panel(Builder[dashboard.Panel]):
    """A panel that is already built.

    Args:
        built: The SDK's complete panel.
    """

    def __init__(self, built: dashboard.Panel) -> None:
        self._built = built

    def build(self) -> dashboard.Panel:
        return self._built


def finished(
    panel: dashboard.Panel,
    about: About,
    queries: Sequence[Query],
    form: prometheus_model.PromQueryFormat = SERIES,
    instant: bool = False,
) -> Panel:
    """Add the common parts of all panels.

    Args:
        panel: Panel with the parts of its kind.
        about: Title, texts, unit and size.
        queries: Queries with the names of their series.
        form: Format of the data source's answers.
        instant: True to query only the end of the time range.
    """
    # An id from the title, so that links to a panel still work when other panels are added.
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
        # Runs are ten seconds apart or more. A rate over a shorter window would jump between zero and high values.
        panel.interval = "1m"
    return Panel(panel)


def references() -> Iterable[str]:
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
    return dashboard.DynamicConfigValue(id_val=name, value=value)


def colour(hue: str) -> dashboard.DynamicConfigValue:
    """Return the override property for a colour that does not depend on the value.

    Args:
        hue: A colour of :mod:`grafana.dashboards.colours`.
    """
    return option("color", {"mode": "fixed", "fixedColor": hue})


def missing_values(panel: Any, text: str) -> None:
    """Set the text of a cell without a value. Otherwise Grafana shows the text of an empty panel there.

    Args:
        panel: A panel builder.
        text: Text for a missing value.
    """
    panel.override_by_regexp("/.*/", [option("noValue", text)])


def mapping(shown: Mapping[str, tuple[str, str]]) -> dashboard.ValueMap:
    """Return a mapping of values to words and colours.

    Args:
        shown: Word and colour by value; for an empty colour, Grafana chooses one.
    """
    return dashboard.ValueMap(
        options={
            value: dashboard.ValueMappingResult(text=word, color=hue or None, index=i)
            for i, (value, (word, hue)) in enumerate(shown.items())
        }
    )
