"""Variables at the top of the dashboards.

Earlier variables limit the values of later variables. Each variable has the same name everywhere, so that links
between dashboards keep the chosen values.

Arguments of all functions:

Args:
    matchers: Label matchers for the series that provide the values, for example with earlier variables.

Returns:
    A variable for a board.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common, dashboard

from grafana.dashboards import colours

Variable = Builder[dashboard.VariableModel]

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""Data source of every panel, variable and annotation."""

UID = "infercanary-prometheus"
"""Uid of the provisioned data source, the initial value of `${datasource}`."""

INSTANCE = 'instance=~"$instance"'
SERVICES = 'namespace=~"$namespace", service=~"$service"'
CONTAINERS = f'{INSTANCE}, {SERVICES}, container=~"$container"'
JUDGED = f'{SERVICES}, canary=~"$canary"'
"""Matchers for the judge's series. There is no `instance`, because a service may run on several hosts, and any
exporter may judge it.
"""

UP = "instance_service_container:infercanary_up:max"
"""Recorded series for each container."""


def datasource() -> Variable:
    """Return the data source: a Prometheus server."""
    return (
        builders.DatasourceVariable("datasource")
        .label("Data source")
        .description("The Prometheus that scrapes the exporters.")
        .type("prometheus")
        .hide(dashboard.VariableHide.HIDE_VARIABLE)
        .current(dashboard.VariableOption(text="Prometheus", value=UID))
    )


def instance(*matchers: str, multi: bool = True) -> Variable:
    """Return the exporters, one for each host; with matchers, only exporters of hosts with such containers.

    Args:
        multi: True if several values can be chosen.
    """
    selector = _up(UP, *matchers) if matchers else "instance_job:up:max"
    return _labels("instance", "Host", "The exporter of a host, by its name in Prometheus.", selector, multi)


def service(*matchers: str, multi: bool = True) -> Variable:
    """Return the services, whose names stay equal across upgrades.

    Args:
        multi: True if several values can be chosen.
    """
    return _labels(
        "service",
        "Service",
        "The service. Its name stays the same across upgrades.",
        _up(UP, *matchers),
        multi,
    )


def namespace(*matchers: str) -> Variable:
    """Return the Kubernetes namespaces of the services."""
    text = "The namespace in Kubernetes. Outside Kubernetes, keep All."
    return _labels("namespace", "Namespace", text, _up(UP, *matchers), all_value=".*")


def container(*matchers: str) -> Variable:
    """Return the replicas of the services: containers; in Kubernetes, containers in all pods of the service."""
    text = "Replicas of the service, by the name that stays the same across restarts."
    return _labels("container", "Replica", text, _up(UP, *matchers, SERVICES))


def canary(*matchers: str, multi: bool = True) -> Variable:
    """Return the canaries.

    Args:
        multi: True if several values can be chosen.
    """
    text = "The fixed inference, by its name in the probe's settings."
    return _labels("canary", "Canary", text, _up("infercanary_canary_state", *matchers, SERVICES), multi)


def verdict() -> Variable:
    """Return the verdicts; a click on a count selects a verdict."""
    names = [*reversed(colours.VERDICTS)]
    return (
        builders.CustomVariable("verdict")
        .label("Verdict")
        .description("Verdicts shown in the table. A click on a count chooses a verdict.")
        .values(",".join(names))
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
    )


def _up(name: str, *matchers: str) -> str:
    return f"{name}{{{', '.join(matchers)}}}" if matchers else name


def _labels(
    name: str, label: str, text: str, selector: str, multi: bool = True, all_value: str = ".+"
) -> Variable:
    variable = (
        builders.QueryVariable(name)
        .label(label)
        .description(text)
        .datasource(DATASOURCE)
        .query(f"label_values({selector}, {name})")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.NATURAL_ASC)
        .multi(multi)
        .include_all(multi)
    )
    if multi:
        # A pattern for All, because a list of many names would make every query long.
        variable.all_value(all_value).current(
            dashboard.VariableOption(selected=True, text="All", value="$__all")
        )
    return variable
