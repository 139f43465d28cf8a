"""All queries of the generated dashboards (panels, variables and annotations), ready to run.

The module needs only the files in dashboards/json:

    from grafana.queries import queries

    for query in queries(service="classify", span="30m"):
        ...  # query.expression is PromQL for /api/v1/query; for /api/v1/query_range if query.over_time
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

JSON = Path(__file__).parent / "dashboards/json"

_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.*), (?P<label>\w+)\)")
# A name starts with a letter, because $1 is a group of label_replace.
_VARIABLE = re.compile(r"\$(?:\{([a-z_]\w*)\}|([a-z_]\w*))")


class Query(NamedTuple):
    dashboard: str
    place: str
    raw: str
    """Query as in the dashboard, with `$variables`."""
    expression: str
    over_time: bool


def dashboards() -> dict[str, Mapping[str, Any]]:
    """Return the JSON of each dashboard, by the name of its file without the extension."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(JSON.glob("*.json"))}


def queries(
    *, span: str = "1h", interval: str = "15s", rate_interval: str = "1m", **chosen: str
) -> list[Query]:
    """Return all queries; variables get their values from ``chosen``, and match everything by default.

    Args:
        span: Time range, as in PromQL.
        interval: Step of a panel, as in PromQL.
        rate_interval: Window of rates, as in PromQL.
        chosen: Values of variables, by variable; a value is a regular expression.

    Returns:
        One entry for each query of a panel, variable or annotation.
    """
    values = {"__range": span, "__interval": interval, "__rate_interval": rate_interval, **chosen}
    return [
        Query(name, place, raw, expression(raw, values), over_time)
        for name, dashboard in dashboards().items()
        for place, raw, over_time in _places(dashboard)
    ]


def expression(raw: str, values: Mapping[str, str]) -> str:
    """Return a query without variables. ``label_values(…)`` becomes PromQL with one series for each value.

    Args:
        raw: Query as in a dashboard's JSON.
        values: Values by variable; a missing variable gets the value of All.
    """
    if found := _LABEL_VALUES.fullmatch(raw):
        raw = f"count by ({found['label']}) ({found['selector']})"
    # These two values may be empty, because the labels exist only in Kubernetes.
    every = {"namespace": ".*", "pod": ".*", **values}
    return _VARIABLE.sub(lambda name: every.get(name[1] or name[2], ".+"), raw)


def panels(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON of all panels with queries, in order, with the panels in collapsed rows."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panels({"panels": panel.get("panels") or ()})
        else:
            yield panel


def _places(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"], False
    for annotation in dashboard["annotations"]["list"]:
        yield f"annotation {annotation['name']}", annotation["target"]["expr"], True
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield f"panel {panel['title']} {target['refId']}", target["expr"], not target.get("instant")
