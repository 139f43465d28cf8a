"""The variables at the top of the dashboards. Each is narrowed by those before it, and has one name everywhere, so that
links between dashboards keep what was chosen.

Of all functions:

Args:
    matchers: Of the labels of the series that the values are taken from, such as those with earlier variables.

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
"""What every panel, variable and annotation asks."""

UID = "infercanary-prometheus"
"""The provisioned data source: what `${datasource}` is at first."""

INSTANCE = 'instance=~"$instance"'
SERVICES = 'namespace=~"$namespace", service=~"$service"'
CONTAINERS = f'{INSTANCE}, {SERVICES}, container=~"$container"'
JUDGED = f'{SERVICES}, canary=~"$canary"'
"""Selects the judge's series: a service runs on any number of hosts, whichever exporter judges it."""

UP = "instance_service_container:infercanary_up:max"
"""Each container, as the rules record it."""


def datasource() -> Variable:
    """Which Prometheus."""
    return (
        builders.DatasourceVariable("datasource")
        .label("Data source")
        .description("The Prometheus that scrapes the exporters.")
        .type("prometheus")
        .hide(dashboard.VariableHide.HIDE_VARIABLE)
        .current(dashboard.VariableOption(text="Prometheus", value=UID))
    )


def instance(*matchers: str, multi: bool = True) -> Variable:
    """Exporters: there is one on each host; with matchers, those that know such containers.

    Args:
        multi: Whether several can be chosen.
    """
    selector = _up(UP, *matchers) if matchers else "instance_job:up:max"
    return _labels("instance", "Host", "The exporter of a host, as Prometheus names it.", selector, multi)


def service(*matchers: str, multi: bool = True) -> Variable:
    """What stays the same across upgrades.

    Args:
        multi: Whether several can be chosen.
    """
    return _labels("service", "Service", "What stays the same across upgrades.", _up(UP, *matchers), multi)


def namespace(*matchers: str) -> Variable:
    """Namespaces of the services, in Kubernetes."""
    text = "The namespace in Kubernetes. Elsewhere there is none: keep All."
    return _labels("namespace", "Namespace", text, _up(UP, *matchers), all_value=".*")


def container(*matchers: str) -> Variable:
    """Replicas of the services: containers, in Kubernetes of all pods of the service."""
    text = "Replicas of the service, by the name that a restart keeps."
    return _labels("container", "Replica", text, _up(UP, *matchers, SERVICES))


def canary(*matchers: str, multi: bool = True) -> Variable:
    """The canaries.

    Args:
        multi: Whether several can be chosen.
    """
    text = "The fixed inference, as the probe's settings name it."
    return _labels("canary", "Canary", text, _up("infercanary_canary_state", *matchers, SERVICES), multi)


def verdict() -> Variable:
    """Verdicts: what a click on a count chooses."""
    names = [*reversed(colours.VERDICTS)]
    return (
        builders.CustomVariable("verdict")
        .label("Verdict")
        .description("Which services the table shows. A click on a count chooses one.")
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
        # Every query of many names would be as long as the list of them.
        variable.all_value(all_value).current(
            dashboard.VariableOption(selected=True, text="All", value="$__all")
        )
    return variable
