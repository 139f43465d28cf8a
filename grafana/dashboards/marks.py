"""What is marked on every time axis: upgrades, by the judge and by Docker, and new versions of components.

Of all functions:

Args:
    matchers: Of the labels of what is marked.

Returns:
    An annotation for a board.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard

from grafana.dashboards import colours
from grafana.dashboards.promql import on_hosts, series
from grafana.dashboards.variables import DATASOURCE, JUDGED, SERVICES

Annotation = Builder[dashboard.AnnotationQuery]

_STEP = "30s"


def upgrades(*, with_canary: bool = True) -> Annotation:
    """When the first container started with the image that is judged, of services that run on the chosen hosts.

    Args:
        with_canary: Whether the board has such a variable.
    """
    at = series(
        "service_canary:infercanary_upgrade_timestamp_seconds:max", JUDGED if with_canary else SERVICES
    )
    return (
        _annotation(
            "Upgrades",
            f"max by (namespace, service, canary) ({on_hosts(at)}) * 1000",
            "{{service}} upgraded",
            "judged by {{canary}}",
        )
        # The sample's value is the moment, in milliseconds: exact, however wide the step.
        .use_value_for_time(True)
        .icon_color(colours.VERMILLION)
    )


def images() -> Annotation:
    """A service that was there already, and runs on the chosen hosts, has an image that it did not have."""
    now, before = _now_and_before(series("service_image:infercanary_container_info:replicas", SERVICES))
    new = f"{now} unless on (namespace, service, image_id) {before}"
    return _annotation(
        "Images",
        f"max by (namespace, service, image) ({on_hosts(f'({new}) and on (namespace, service) {before}')})",
        "{{service}}: new image",
        "{{image}}",
    ).icon_color(colours.ORANGE)


def environment(*matchers: str) -> Annotation:
    """A component of the environment has another version than the container had."""
    now, before = _now_and_before(series("infercanary_environment_info", *matchers))
    new = f"{now} unless on (namespace, service, pod, container, component, version) {before}"
    return _annotation(
        "Environment",
        f"max by (namespace, service, pod, container, component, version) "
        f"(({new}) and on (namespace, service, pod, container, component) {before})",
        "{{component}} {{version}}",
        "{{container}}",
    ).icon_color(colours.PURPLE)


def _now_and_before(selector: str) -> tuple[str, str]:
    """Ten minutes are time enough to pull an image between the old container and the new one."""
    return selector, f"last_over_time({selector}[10m] offset $__interval)"


def _annotation(name: str, expression: str, title: str, text: str) -> builders.AnnotationQuery:
    query = (
        prometheus.Dataquery().ref_id("Anno").expr(expression).interval(_STEP).datasource(DATASOURCE).range()
    )
    return (
        builders.AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(True)
        .expr(expression)  # where Grafana kept it before it had targets
        .step(_STEP)
        .target(query)
        .title_format(title)
        .text_format(text)
    )
