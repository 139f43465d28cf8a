"""Makes a dashboard from its rows: layout, links to other dashboards, and marks of upgrades on the time axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard

from grafana.dashboards.marks import Annotation
from grafana.dashboards.panels import Panel
from grafana.dashboards.variables import Variable

TAG = "infercanary"
PREFIX = "infercanary-"


class Row(NamedTuple):
    """A heading, and the panels below it in reading order."""

    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


class Board(NamedTuple):
    """A dashboard. ``name`` is the file's name and ends the uid. Links contain ``name``, so it must not change."""

    name: str
    title: str
    text: str
    variables: Sequence[Variable]
    annotations: Sequence[Annotation]
    rows: Sequence[Row]
    refresh: str = "1m"

    def build(self) -> dashboard.Dashboard:
        """Return the dashboard for Grafana, as the SDK's object."""
        board = (
            builders.Dashboard(f"InferCanary / {self.title}")
            .uid(f"{PREFIX}{self.name}")
            .description(self.text)
            .tags([TAG])
            .timezone("browser")
            .time("now-6h", "now")
            .refresh(self.refresh)
            .readonly()  # the next generated file would overwrite manual changes
            .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
            .variables([*self.variables])
            .annotations([*self.annotations])
            .link(
                builders.DashboardLink("InferCanary")
                .type(dashboard.DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .as_dropdown(True)
                .include_vars(True)
                .keep_time(True)
                .tooltip("The other dashboards, with the values chosen here")
            )
        )
        for number, row in enumerate(self.rows, 1):
            heading = builders.Row(row.title).id(1_000_000 + number)
            for panel in row.panels if row.collapsed else ():
                heading.with_panel(panel)
            board.with_row(heading)
            for panel in () if row.collapsed else row.panels:
                board.with_panel(panel)
        built = board.build()
        # Otherwise, the SDK would hide links and annotations in a menu.
        for hidden in (*(built.links or ()), *((built.annotations and built.annotations.list_val) or ())):
            hidden.placement = None
        return built


def link(name: str, *fields: str, since: str = "", also: str = "") -> str:
    """Return the address of a dashboard. In a table, the row's fields become values of that dashboard's variables.

    Args:
        name: ``name`` of the other board.
        fields: Fields of the row, named like the variables. A row without a field gives an empty value, which selects
            series without that label.
        since: Field of the row with the start of the time range in milliseconds; empty for the current range.
        also: Additional URL parameters.
    """
    chosen = "".join(f"&var-{field}=${{__data.fields.{field}}}" for field in fields)
    more = f"&{also}" if also else ""
    span = f'from=${{__data.fields["{since}"].numeric}}&to=now' if since else "${__url_time_range}"
    return f"/d/{PREFIX}{name}?${{datasource:queryparam}}{chosen}{more}&{span}"
