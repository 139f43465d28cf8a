"""Upgrades, marked on every time axis."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from grafana.dashboards import colours
from grafana.dashboards.promql import expanded
from grafana.dashboards.variables import DATASOURCE

Annotation = Builder[dashboard.AnnotationQuery]

UPGRADE = "service_canary:infercanary_upgrade_timestamp_seconds:max"


def upgrades(at: str) -> Annotation:
    """Mark when the first container started with the image that is judged.

    Args:
        at: Selects series of :data:`UPGRADE`.

    Returns:
        An annotation for a board.
    """
    expression = expanded(f"max by (namespace, service) ({at}) * 1000")
    query = (
        prometheus.Dataquery().ref_id("Anno").expr(expression).interval("30s").datasource(DATASOURCE).range()
    )
    return (
        builders.AnnotationQuery()
        .name("Upgrades")
        .datasource(DATASOURCE)
        .enable(True)
        .target(query)
        .title_format("{{service}} upgraded")
        .text_format("{{namespace}}")
        # The sample's value is the moment, in milliseconds: exact, however wide the step.
        .use_value_for_time(True)
        .icon_color(colours.VERMILLION)
    )
