"""Builds PromQL: selectors, rates, levels, and joins that many panels share.

Arguments of all functions:

Args:
    name: Name of the metric.
    matchers: Label matchers, such as ``service="search"``; empty matchers are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from grafana.dashboards.variables import CONTAINERS, INSTANCE, JUDGED, SERVICES, UP

CONTAINER = "instance, namespace, service, pod, container"
"""Labels that identify a container. A container's name is unique on a host; `instance` is the host's exporter."""

BY = "namespace, service, canary"
"""Labels of a verdict. A service name in two namespaces means two services."""


_SHORT = {
    "CANARY": JUDGED,
    "SERVICE": SERVICES,
    "BY": BY,
    "CONTAINER": CONTAINER,
    # If several exporters judge a service, each for its own host, use only values of the exporter with the
    # worst verdict.
    "OF_JUDGE": f"and on (instance, {BY}) instance_service_canary:infercanary_verdict:worst{{{JUDGED}}}",
    # Image name without registry and digest; `$2` is an id in brackets.
    "IMAGE_NAME": "(?:.*/)?([^/@ ]+)(?:@[^ ]*)?( .*)?",
}
"""Abbreviations in panels' expressions: matchers, labels, a join, and a pattern for the last part of an image's name.
"""


def expanded(expression: str) -> str:
    """Return the expression without abbreviations, as Prometheus needs it."""
    return re.sub(rf"\b({'|'.join(_SHORT)})\b", lambda short: _SHORT[short[0]], expression)


def replicas(expression: str) -> str:
    """Add the label `replica`: pod/container in Kubernetes, otherwise the container and its host."""
    joined = f'label_join({expression}, "replica", "/", "pod", "container", "instance")'
    on_host = f'label_replace({joined}, "replica", "$1 $2", "replica", "/([^/]+)/(.*?)(:[0-9]+)?")'
    return f'label_replace({on_host}, "replica", "$1", "replica", "(.+)/[^/]*")'


def services(expression: str, name: str = "service") -> str:
    """Add the label `named`: the service, in Kubernetes with its namespace.

    Args:
        expression: Expression with the labels of a service.
        name: Label that follows the namespace.
    """
    joined = f'label_join({expression}, "named", "/", "namespace", "{name}")'
    return f'label_replace({joined}, "named", "$1", "named", "/(.*)")'


def series(name: str, *matchers: str) -> str:
    return f"{name}{{{', '.join(filter(None, matchers))}}}"


def rate(name: str, *matchers: str) -> str:
    """Return the rate of a counter, over the window that Grafana selects for the step."""
    return f"rate({series(name, *matchers)}[$__rate_interval])"


def increase(name: str, *matchers: str, window: str = "$__rate_interval") -> str:
    """Return the increase of a counter.

    Args:
        window: A range, such as ``5m``.
    """
    return f"increase({series(name, *matchers)}[{window}])"


SCRAPED = 'instance_job:up:max{job="infercanary", instance=~"$instance"}'
"""1 if Prometheus reaches an exporter, else 0. An exporter out of reach has no other series."""

RUNNING = series(UP, INSTANCE, SERVICES)
"""Containers on the chosen hosts."""


def level(*matchers: str) -> str:
    """Return the judge's level of latency before the last upgrade; without an upgrade, the level of the only image.

    Between an upgrade and the judge's first look, this is the last level of the old image.

    Returns:
        An expression with the labels of :data:`BY`.
    """
    old, new = (
        series(f"service_canary:infercanary_{side}_seconds:max", *matchers)
        for side in ("baseline", "current")
    )
    return f"({old} or last_over_time({new}[30m]))"


def change(expression: str, before: str, by: str = BY) -> str:
    """Return the relative change: 0 means equal to the level before.

    Args:
        expression: Expression with at least the labels in ``by``.
        before: The level before, with the labels in ``by``.
        by: Labels, separated by commas.
    """
    return f"{expression} / on ({by}) group_left () {before} - 1"


def reference_work(by: str, *matchers: str, host: str = "") -> str:
    """Return the median change of reference work (controls) from its level before the last upgrade, by these
    labels.

    Args:
        by: Labels, separated by commas; must include the namespace, the service and `control`.
        matchers: Matchers of containers.
        host: Matcher of the preferred exporter for the level before, because hosts have different hardware.
    """
    now = f"quantile by ({by}) (0.5, {series('infercanary_control_seconds', *matchers)})"
    at = "namespace, service, control"
    places = ([host, SERVICES], [SERVICES]) if host else ([SERVICES],)
    levels = [
        f"max by ({at}) (last_over_time({series('infercanary_control_baseline_seconds', *place)}[30m]))"
        for place in places
    ]
    return change(now, f"({' or '.join(levels)})", at)


def text(number: str, label: str, by: str = BY, unit: str = "") -> str:
    """Return a number as a label with one decimal, for a table whose rows have different units.

    Args:
        number: An expression.
        label: Label for the text.
        by: Labels that identify a series, separated by commas.
        unit: Appended to the number.
    """
    counted = f'count_values by ({by}) ("{label}", round({number}, 0.1))'
    padded = f'label_replace({counted}, "{label}", "$1.0", "{label}", "(-?[0-9]+)")'
    return f'label_replace({padded}, "{label}", "$1{unit}", "{label}", "(.+)")' if unit else padded


def signed(ratio: str, label: str, by: str = BY, unit: str = " %") -> str:
    """Return a ratio as a label with a sign, such as `+34.6 %`, because no unit in Grafana has a sign.

    Args:
        ratio: An expression.
        label: Label for the text.
        by: Labels that identify a series, separated by commas.
        unit: Appended to the number.
    """
    number = text(f"100 * ({ratio})", label, by, unit)
    return f'label_replace({number}, "{label}", "+$1", "{label}", "([0-9].*)")'


def how_many(found: str, known: str) -> str:
    """Return the number of series in ``found``: 0 if it is empty, but no value if ``known`` is empty as well.

    Args:
        found: An expression.
        known: An expression that has a value whenever ``found`` could have a value.
    """
    return f"count({found}) or 0 * count({known})"


def numbered(name: str, label: str, values: Iterable[str], by: str, *matchers: str) -> str:
    """Return a state set as a number by these labels: the position of the current state, from 1 on.

    Args:
        label: Label with the state.
        values: States, in the order of the numbers.
        by: Labels, separated by commas.
    """
    holds = [series(name, *matchers, f'{label}="{value}"') for value in values]
    return f"max by ({by}) ({' or '.join(f'({selector} == 1) * {i}' for i, selector in enumerate(holds, 1))})"


TOP = 20
"""Maximum number of lines in a panel for many hosts. More lines are not readable, and their names need too much
space.
"""


def worst_gauges(name: str, *matchers: str) -> str:
    """Return the highest series of a gauge at each moment."""
    return f"topk({TOP}, {series(name, *matchers)})"


def worst_rates(name: str, *matchers: str) -> str:
    """Return the highest rates of a counter at each moment."""
    return f"topk({TOP}, {rate(name, *matchers)})"


def newest(name: str, *matchers: str, by: str = CONTAINER) -> str:
    """Return an info metric with the value 1, once for each container: of several series, the newest.

    A container has several series if its labels changed, because Prometheus looks back five minutes for
    series whose end it has not seen. A join with several series would fail.

    Args:
        by: Labels; the newest series is kept for each combination of their values.
    """
    return f"topk by ({by}) (1, timestamp({series(name, *matchers)})) ^ 0"


_SHORT |= {"HOST": INSTANCE, "CONTAINERS": CONTAINERS, "RUNNING": RUNNING, "SCRAPED": SCRAPED}
_SHORT["HERE"] = f"and on (namespace, service) {RUNNING}"
