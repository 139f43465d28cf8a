"""Marks of upgrades on every time axis."""

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
    """Mark the start of the first container with the judged image.

    Args:
        at: Selector for series of :data:`UPGRADE`.
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
        # The sample's value is the time in milliseconds, which is exact for any step.
        .use_value_for_time(True)
        .icon_color(colours.VERMILLION)
    )
