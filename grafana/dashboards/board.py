"""A dashboard out of its rows: layout, links to the others, and upgrades on its time axes."""

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
    """A heading, and the panels below it, from left to right and then down."""

    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


class Board(NamedTuple):
    """A dashboard. ``name`` is its file's, and the end of its uid, so that addresses stay."""

    name: str
    title: str
    text: str
    variables: Sequence[Variable]
    annotations: Sequence[Annotation]
    rows: Sequence[Row]
    refresh: str = "1m"

    def build(self) -> dashboard.Dashboard:
        """As Grafana reads it.

        Returns:
            The SDK's dashboard.
        """
        board = (
            builders.Dashboard(f"InferCanary / {self.title}")
            .uid(f"{PREFIX}{self.name}")
            .description(self.text)
            .tags([TAG])
            .timezone("browser")
            .time("now-6h", "now")
            .refresh(self.refresh)
            .readonly()  # what is changed by hand would be gone with the next file
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
        # The SDK would hide both in a menu.
        for hidden in (*(built.links or ()), *((built.annotations and built.annotations.list_val) or ())):
            hidden.placement = None
        return built


def link(name: str, *fields: str, since: str = "", also: str = "") -> str:
    """The address of a dashboard: from a table's row with its fields as that dashboard's variables.

    Args:
        name: The other board's ``name``.
        fields: Names of the row's fields, which are names of variables too; a row without the field gives an empty
            value, which selects series without that label.
        since: Name of the row's field with the start of the time range, in milliseconds; empty for the range shown.
        also: Further parameters, as they are in an address.
    """
    chosen = "".join(f"&var-{field}=${{__data.fields.{field}}}" for field in fields)
    more = f"&{also}" if also else ""
    span = f'from=${{__data.fields["{since}"].numeric}}&to=now' if since else "${__url_time_range}"
    return f"/d/{PREFIX}{name}?${{datasource:queryparam}}{chosen}{more}&{span}"
