"""A dashboard out of its rows: layout, links to the others, and what is marked on its time axes."""

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
    since: str = "now-6h"

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
            .time(self.since, "now")
            .refresh("30s")
            .readonly()  # what is changed by hand would be gone with the next file
            .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
            .variables([*self.variables])
            .annotations([*self.annotations])
            .link(
                builders.DashboardLink("InferCanary")
                .type(dashboard.DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .include_vars(True)
                .keep_time(True)
                .tooltip("The other dashboards, for what is chosen here")
            )
        )
        for number, row in enumerate(self.rows, 1):
            heading = builders.Row(row.title).id(1_000_000 + number)
            if row.collapsed:
                for panel in row.panels:
                    heading.with_panel(panel)
            board.with_row(heading)
            if not row.collapsed:
                for panel in row.panels:
                    board.with_panel(panel)
        built = board.build()
        # The SDK would hide both in a menu.
        for hidden in (*(built.links or ()), *((built.annotations and built.annotations.list_val) or ())):
            hidden.placement = None
        return built


def link(name: str, *fields: str, also: str = "") -> str:
    """The address of another dashboard: from a table's row with its fields as that dashboard's variables.

    Args:
        name: The other board's ``name``.
        fields: Names of the row's fields, which are names of variables too.
        also: Further parameters, as they are in an address.
    """
    # Those of a row without a namespace would be no value at all: what is chosen here is chosen there.
    chosen = "".join(f"&var-{field}=${{__data.fields.{field}}}" for field in fields)
    more = f"&{also}" if also else ""
    return f"/d/{PREFIX}{name}?${{datasource:queryparam}}&${{namespace:queryparam}}{chosen}{more}&${{__url_time_range}}"
