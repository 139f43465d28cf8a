"""PromQL, put together: selectors, rates, levels, and the joins that many panels share.

Of all functions:

Args:
    name: Of the metric.
    matchers: Of labels, such as ``service="search"``; empty ones are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from grafana.dashboards.variables import CONTAINERS, INSTANCE, JUDGED, SERVICES, UP

CONTAINER = "instance, namespace, service, pod, container"
"""Labels that identify a container: its name is unique on its host, and `instance` is the host's exporter."""

BY = "namespace, service, canary"
"""Labels of a verdict: a service with one name in two namespaces is two services."""


_SHORT = {
    "CANARY": JUDGED,
    "SERVICE": SERVICES,
    "BY": BY,
    "CONTAINER": CONTAINER,
    # Where several exporters judge a service, each for its host, values of the worst verdict: they belong together.
    "OF_JUDGE": f"and on (instance, {BY}) instance_service_canary:infercanary_verdict:worst{{{JUDGED}}}",
    # Without registry and digest; `$2` is an id in brackets.
    "IMAGE_NAME": "(?:.*/)?([^/@ ]+)(?:@[^ ]*)?( .*)?",
}
"""Abbreviations in the expressions of panels: matchers, labels, a join, and a pattern of an image's last part."""


def expanded(expression: str) -> str:
    """An expression as Prometheus takes it.

    Args:
        expression: One with abbreviations.
    """
    return re.sub(rf"\b({'|'.join(_SHORT)})\b", lambda short: _SHORT[short[0]], expression)


def replicas(expression: str) -> str:
    """The expression with the label `replica`: pod/container in Kubernetes, else the container and its host.

    Args:
        expression: One with the labels of a container.
    """
    joined = f'label_join({expression}, "replica", "/", "pod", "container", "instance")'
    on_host = f'label_replace({joined}, "replica", "$1 $2", "replica", "/([^/]+)/(.*?)(:[0-9]+)?")'
    return f'label_replace({on_host}, "replica", "$1", "replica", "(.+)/[^/]*")'


def services(expression: str, name: str = "service") -> str:
    """The expression with the label `named`: the service, in Kubernetes with its namespace.

    Args:
        expression: One with the labels of a service.
        name: Label that has the namespace in front of it.
    """
    joined = f'label_join({expression}, "named", "/", "namespace", "{name}")'
    return f'label_replace({joined}, "named", "$1", "named", "/(.*)")'


def series(name: str, *matchers: str) -> str:
    """A selector."""
    return f"{name}{{{', '.join(filter(None, matchers))}}}"


def rate(name: str, *matchers: str) -> str:
    """A counter's rate, over the time that Grafana chooses for the step."""
    return f"rate({series(name, *matchers)}[$__rate_interval])"


def increase(name: str, *matchers: str, window: str = "$__rate_interval") -> str:
    """A counter's growth.

    Args:
        window: A range, such as ``5m``.
    """
    return f"increase({series(name, *matchers)}[{window}])"


SCRAPED = 'instance_job:up:max{job="infercanary", instance=~"$instance"}'
"""Whether Prometheus reaches the exporters, the only thing known of those that it does not reach."""

RUNNING = series(UP, INSTANCE, SERVICES)
"""The containers on the chosen hosts."""


def on_hosts(expression: str) -> str:
    """Limit values of services to services that run on the chosen hosts.

    Args:
        expression: One with the labels of a service.

    Returns:
        An expression.
    """
    return f"{expression} and on (namespace, service) {RUNNING}"


def level(*matchers: str) -> str:
    """Latency before the last upgrade, as the judge has it; without an upgrade, of the only image.

    From an upgrade to the judge's first look, it is the last level of the image before.

    Returns:
        An expression with the labels of :data:`BY`.
    """
    old, new = (
        series(f"service_canary:infercanary_{side}_seconds:max", *matchers)
        for side in ("baseline", "current")
    )
    return f"({old} or last_over_time({new}[30m]))"


def change(expression: str, before: str, by: str = BY) -> str:
    """Relative change: 0 is the level before.

    Args:
        expression: One with the labels in ``by``, and perhaps others.
        before: The level, one for each ``by``.
        by: Labels, with commas between them.
    """
    return f"{expression} / on ({by}) group_left () {before} - 1"


def reference_work(by: str, *matchers: str, host: str = "") -> str:
    """Change of the reference work (controls) since before the last upgrade: the median of each ``by``.

    Args:
        by: Labels with commas between them, among them the namespace, the service and `control`.
        matchers: Of containers.
        host: Matcher of the exporter whose level counts first; hosts have different hardware.
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
    """A number as a text with one decimal, for a table whose rows have different units.

    Args:
        number: An expression.
        label: Gets the text.
        by: Labels that identify a series, with commas between them.
        unit: Follows the number.
    """
    counted = f'count_values by ({by}) ("{label}", round({number}, 0.1))'
    padded = f'label_replace({counted}, "{label}", "$1.0", "{label}", "(-?[0-9]+)")'
    return f'label_replace({padded}, "{label}", "$1{unit}", "{label}", "(.+)")' if unit else padded


def signed(ratio: str, label: str, by: str = BY, unit: str = " %") -> str:
    """A ratio as a text with a sign, such as `+34.6 %`: Grafana has no unit with one.

    Args:
        ratio: An expression.
        label: Gets the text.
        by: Labels that identify a series, with commas between them.
        unit: Follows the number.
    """
    number = text(f"100 * ({ratio})", label, by, unit)
    return f'label_replace({number}, "{label}", "+$1", "{label}", "([0-9].*)")'


def how_many(found: str, known: str) -> str:
    """How many series ``found`` gives: 0 where it gives none, and nothing where ``known`` gives none either.

    Args:
        found: An expression.
        known: One that gives something wherever ``found`` could.
    """
    return f"count({found}) or 0 * count({known})"


def numbered(name: str, label: str, values: Iterable[str], by: str, *matchers: str) -> str:
    """A state set as one number for each ``by``: the place, from 1 on, of the state that holds.

    Args:
        label: Of the state set.
        values: Of that label, in the order of the numbers.
        by: Labels, with commas between them.
    """
    holds = [series(name, *matchers, f'{label}="{value}"') for value in values]
    return f"max by ({by}) ({' or '.join(f'({selector} == 1) * {i}' for i, selector in enumerate(holds, 1))})"


TOP = 20
"""How many lines a panel of a fleet has: more are a carpet, and their names need more room than the lines."""


def worst_gauges(name: str, *matchers: str) -> str:
    """The highest series of a gauge at each moment."""
    return f"topk({TOP}, {series(name, *matchers)})"


def worst_rates(name: str, *matchers: str) -> str:
    """The highest rates of a counter at each moment."""
    return f"topk({TOP}, {rate(name, *matchers)})"


def newest(name: str, *matchers: str, by: str = CONTAINER) -> str:
    """An info metric as 1, once for each container: where its labels changed and the old series lingers, the new one.

    Prometheus looks back five minutes where it has not seen a series end, and a join with both would fail.

    Args:
        by: Labels of which one series is left.
    """
    return f"topk by ({by}) (1, timestamp({series(name, *matchers)})) ^ 0"


_SHORT |= {"HOST": INSTANCE, "CONTAINERS": CONTAINERS, "RUNNING": RUNNING, "SCRAPED": SCRAPED}
_SHORT["HERE"] = f"and on (namespace, service) {RUNNING}"
