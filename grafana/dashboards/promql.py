"""PromQL, put together: selectors, rates, and the joins that many panels share.

Of all functions:

Args:
    name: Of the metric.
    matchers: Of labels, such as ``service="search"``; empty ones are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from grafana.dashboards.variables import INSTANCE, JUDGED, SERVICES, UP

CONTAINER = "instance, namespace, service, pod, container"
"""What identifies a container: its name is unique on its host, and `instance` is the host's exporter."""


def replicas(expression: str) -> str:
    """The expression with the label `replica`: pod/container in Kubernetes, else the container and its host.

    Args:
        expression: One with the labels of a container.
    """
    joined = f'label_join({expression}, "replica", "/", "pod", "container", "instance")'
    on_host = f'label_replace({joined}, "replica", "$1 $2", "replica", "/([^/]+)/(.*?)(:[0-9]+)?")'
    return f'label_replace({on_host}, "replica", "$1", "replica", "(.+)/[^/]*")'


def services(expression: str) -> str:
    """The expression with the label `named`: the service, in Kubernetes with its namespace.

    Args:
        expression: One with the labels of a service.
    """
    joined = f'label_join({expression}, "named", "/", "namespace", "service")'
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
    """Of what is said of services, that of services which run on the chosen hosts.

    Args:
        expression: One with the labels of a service.

    Returns:
        An expression.
    """
    return f"{expression} and on (namespace, service) {RUNNING}"


WORST = "instance_service_canary:infercanary_verdict:worst"


def of_judge(selector: str, at: str = "") -> str:
    """What one exporter says of a service, so that its numbers belong together: where several judge it, each for its
    host, the one with the worst verdict.

    Args:
        selector: Of the judge's series.
        at: A modifier, such as ``@ end()``.
    """
    worst = f"{series(WORST, JUDGED)} {at}".rstrip()
    return f"{selector} {at}".rstrip() + f" and on (instance, namespace, service, canary) {worst}"


def rounded(expression: str) -> str:
    """Ratios to a tenth of a percent: Grafana shows no more digits then, and no fraction where there is no room.

    Args:
        expression: Of ratios.

    Returns:
        An expression.
    """
    return f"round({expression}, 0.001)"


def how_many(found: str, known: str) -> str:
    """How many series ``found`` gives: 0 where it gives none, and nothing where ``known`` gives none either.

    Args:
        found: An expression.
        known: One that gives something wherever ``found`` could.
    """
    return f"count({found}) or 0 * count({known})"


def of_range(name: str, *matchers: str) -> str:
    """A gauge over its own mean of the range shown: 1 is as usual, and unlike things have one axis."""
    selected = series(name, *matchers)
    return f"{selected} / avg_over_time({selected}[$__range] @ end())"


def steady_of_range(name: str, *matchers: str) -> str:
    """The same by medians, of each step and of the range: for what has outliers, which would be all that is seen."""
    selected = series(name, *matchers)
    middle = "quantile_over_time(0.5, {}[{}]{})"
    now, usual = (
        middle.format(selected, *over) for over in (("$__rate_interval", ""), ("$__range", " @ end()"))
    )
    return f"{now} / {usual}"


def states(numbers: str, some: str, label: str) -> str:
    """States as numbers, and a series of 0 where there is none in the whole time range: a time line needs one.

    Args:
        numbers: An expression that gives them.
        some: One that gives something at each moment of a time range in which there are any.
        label: What the series of 0 has in place of the names, which is one word.

    Returns:
        An expression.
    """
    none = f'label_replace(vector(0), "{label}", "none", "", "")'
    return f"{numbers} or ({none} unless on () ({some}))"


def ever(selector: str, bound: str = "") -> str:
    """What gives something at each moment of a time range in which the series ever was.

    What came within the last step does not count: no point of the time line may have it yet.

    Args:
        selector: Of series.
        bound: What the highest value has to be, such as ``> 1``; empty for any.

    Returns:
        An expression.
    """
    return f"max_over_time({selector}[$__range] @ end() offset $__interval) {bound}".rstrip()


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


def worst(expression: str, by: str, rank: str) -> str:
    """The series of an expression that are first by a number of the whole time range: the same ones at each moment.

    Args:
        expression: Of many series.
        by: Labels that identify one, with commas between them.
        rank: What is highest for the worst: one number for each, which no step of the time range changes.
    """
    return f"({expression}) and on ({by}) topk({TOP}, {rank})"


def worst_gauges(name: str, *matchers: str) -> str:
    """The series of a gauge with the highest peaks in the time range."""
    selected = series(name, *matchers)
    return f"{selected} and topk({TOP}, max_over_time({selected}[$__range] @ end()))"


def worst_rates(name: str, *matchers: str) -> str:
    """Rates of a counter, of the series that grew most in the time range.

    Returns:
        An expression.
    """
    most = f"topk({TOP}, increase({series(name, *matchers)}[$__range] @ end()))"
    return f"{rate(name, *matchers)} and {most}"


def newest(name: str, *matchers: str, by: str = CONTAINER) -> str:
    """An info metric as 1, once for each container: where its labels changed and the old series lingers, the new one.

    Prometheus looks back five minutes where it has not seen a series end, and a join with both would fail.

    Args:
        by: What has one series, where that is not a container.
    """
    return f"topk by ({by}) (1, timestamp({series(name, *matchers)})) ^ 0"


def by_image(expression: str, *matchers: str) -> str:
    """The expression with the labels `image` and `image_id` (its first twelve digits) of the container at that moment.

    Args:
        expression: One with the labels of a container.
    """
    info = _short_id(newest("infercanary_container_info", *matchers))
    return f"({expression}) * on ({CONTAINER}) group_left (image, image_id) {info}"


def _short_id(info: str) -> str:
    return f'label_replace({info}, "image_id", "$1", "image_id", "(?:sha256:)?(.{{12}}).*")'


_UPGRADE = series("service_canary:infercanary_upgrade_timestamp_seconds:max", JUDGED)
_UPGRADED = f"max by (namespace, service) ({_UPGRADE} @ end())"


def _compared(which: str) -> str:
    """Ids of the images that the judge compares at the end of the time range: it writes `name (id)`, or the id."""
    said = of_judge(series("infercanary_upgrade_info", JUDGED), "@ end()")
    images = f"max by (namespace, service, {which}) ({said})"
    return f'label_replace({images}, "image_id", "$1", "{which}", "(?:.*[(])?([^()]*)[)]?")'


def of_new(expression: str, *matchers: str) -> str:
    """The expression since the last upgrade, of containers with the new image. It gets the labels of `by_image`.

    An image may have run before, and is new again after a rollback; where only the model was exchanged, it is the same.

    Args:
        expression: One with the labels of a container.
    """
    on = "on (namespace, service, image_id)"
    return f"({by_image(expression, *matchers)}) and {on} {_compared('candidate_image')} and {_SINCE}"


_SINCE = f"on (namespace, service) ({_UPGRADED} <= time())"


def of_old(expression: str, *matchers: str) -> str:
    """The expression with the image before the last upgrade, the one that the judge compares with. As `of_new`.

    Args:
        expression: One with the labels of a container.
    """
    on = "on (namespace, service, image_id)"
    new = f"({_compared('candidate_image')} and {_SINCE})"
    return f"({by_image(expression, *matchers)}) and {on} {_compared('baseline_image')} unless {on} {new}"


OLD_AND_NEW = {"old": of_old, "new": of_new}


def over_range(expression: str, by: str) -> str:
    """Its mean over the time range, also of containers that are gone by now.

    Args:
        expression: One that `of_old` or `of_new` gives.
        by: Labels that are left, with commas between them; empty for none.
    """
    return f"avg by ({by}) (avg_over_time(({expression})[$__range:$__interval]))"
