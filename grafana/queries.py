"""Every query of the written dashboards, ready to be run: of each panel, variable and annotation.

Needs nothing but the files in dashboards/json:

    from grafana.queries import queries
    for query in queries(service="classify", span="30m"):
        ...  # query.expression is PromQL for /api/v1/query, and for /api/v1/query_range where query.over_time
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

JSON = Path(__file__).parent / "dashboards/json"

_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.*), (?P<label>\w+)\)")
_VARIABLE = re.compile(r"\$(?:\{([a-z_]\w*)\}|([a-z_]\w*))")  # $1 is a group of label_replace


class Query(NamedTuple):
    """One query, and where it is."""

    dashboard: str
    place: str
    raw: str
    """As it stands in the dashboard, `$variables` and all."""
    expression: str
    over_time: bool


def dashboards() -> dict[str, Mapping[str, Any]]:
    """File's name without its end → the dashboard.

    Returns:
        Name → its JSON.
    """
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(JSON.glob("*.json"))}


def queries(
    *, span: str = "1h", interval: str = "15s", rate_interval: str = "1m", **chosen: str
) -> list[Query]:
    """All of them, with variables as ``chosen`` by name, or for all that there is.

    Args:
        span: The time range, as PromQL has it.
        interval: The step of a panel, as PromQL has it.
        rate_interval: The window of rates, as PromQL has it.
        chosen: Variable → value, a regular expression; one that is left out matches everything.

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
    """A query as Prometheus takes it; of a variable's, the series that its values are taken from.

    Args:
        raw: As in a dashboard's JSON.
        values: Variable → value; one that is left out becomes what All is.
    """
    if found := _LABEL_VALUES.fullmatch(raw):
        raw = f"count by ({found['label']}) ({found['selector']})"
    every = {"namespace": ".*", "pod": ".*", **values}  # which only Kubernetes has
    return _VARIABLE.sub(lambda name: every.get(name[1] or name[2], ".+"), raw)


def panels(dashboard: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All panels that ask for something, also those in rows that are folded.

    Args:
        dashboard: Its JSON.

    Yields:
        Their JSON, in order.
    """
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
