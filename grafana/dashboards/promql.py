"""PromQL, put together: selectors, rates, and the joins that many panels share.

Of all functions:

Args:
    name: Of the metric.
    matchers: Of labels, such as ``service="search"``; empty ones are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

CONTAINER = "instance, service, container"
"""What identifies a container: its name is unique on its host, and `instance` is the host's exporter."""


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


SCRAPED = 'up{job="infercanary", instance=~"$instance"}'
"""Whether Prometheus reaches the exporters, the only thing known of those that it does not reach."""


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


def states(name: str, label: str, values: Iterable[str], by: str, *matchers: str) -> str:
    """A state set as one number for each ``by``: the place, from 1 on, of the state that holds.

    Args:
        label: Of the state set.
        values: Of that label, in the order of the numbers.
        by: Labels, with commas between them.
    """
    holds = [series(name, *matchers, f'{label}="{value}"') for value in values]
    numbered = " or ".join(f"({selector} == 1) * {i}" for i, selector in enumerate(holds, 1))
    return f"max by ({by}) ({numbered})"


def newest(name: str, *matchers: str) -> str:
    """An info metric as 1, once for each container: where its labels changed and the old series lingers, the new one.

    Prometheus looks back five minutes where it has not seen a series end, and a join with both would fail.
    """
    return f"topk by ({CONTAINER}) (1, timestamp({series(name, *matchers)})) ^ 0"


def by_image(expression: str, *matchers: str) -> str:
    """The expression with the labels `image` and `image_id` (its first twelve digits) of the container at that moment.

    Args:
        expression: One with the labels of a container.
    """
    info = _short_id(newest("infercanary_container_info", *matchers))
    return f"({expression}) * on ({CONTAINER}) group_left (image, image_id) {info}"


def current_image(*matchers: str) -> str:
    """The images that run at the end of the time range, with the same labels."""
    return _short_id(f"{series('infercanary_container_info', *matchers)} @ end()")


def _short_id(info: str) -> str:
    return f'label_replace({info}, "image_id", "$1", "image_id", "(?:sha256:)?(.{{12}}).*")'


def of_each_image(expression: str, by: str, *matchers: str, how: str = "avg") -> str:
    """One value an image, out of the range shown: also of an image that is gone by now.

    Args:
        expression: One with the labels of a container.
        by: Further labels, with commas between them; empty for none.
        how: How values are joined, over time and over containers: ``avg``, ``min`` or ``max``.
    """
    return (
        f"{how} by (image, image_id{', ' + by if by else ''}) "
        f"({how}_over_time(({by_image(expression, *matchers)})[$__range:$__interval]))"
    )
