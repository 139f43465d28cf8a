"""Sends the queries of each panel to Prometheus, with the same steps and times as Grafana."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from grafana.prometheus import Prometheus
from grafana.queries import expression, panels
from grafana.situations.backfill import UNITS
from grafana.situations.worlds import Situation

_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600)
"""Steps in seconds to which Grafana rounds (rangeutil.roundInterval)."""
POINTS = 600
"""Maximum number of points of a line: the width in pixels of a half-screen panel."""
QUERIES, BYTES = 30, 20_000
"""Limits for one refresh of a dashboard: queries of its open panels, and bytes of their PromQL."""


def asked(board: Mapping[str, Any], situation: Situation, prometheus: Prometheus) -> Iterator[dict[str, Any]]:
    """Run the queries of each panel.

    Args:
        board: JSON of the dashboard.
        situation: Situation with the time range, the scrape interval, and the chosen variables.
        prometheus: Server with the data of the situation.

    Yields:
        Input of the program in this folder for each panel: ``panel``, ``answers``, ``range`` and ``variables``; and
        ``sent``, the bytes of PromQL of each query.
    """
    chosen = _chosen(board, situation)
    span = situation.end - situation.start
    for panel in panels(board):
        least = panel.get("interval") or "0s"
        wanted = max(span / POINTS, situation.step, int(least[:-1]) * UNITS[least[-1]])
        step = next((step for step in _STEPS if step >= wanted), _STEPS[-1])
        # https://grafana.com/docs/grafana/latest/datasources/prometheus/template-variables/
        rate = max(step + situation.step, 4 * situation.step)
        own = {"__range": f"{span:.0f}s", "__interval": f"{step}s", "__rate_interval": f"{rate:.0f}s"}
        answers, sent = [], []
        for target in panel["targets"]:
            query = expression(target["expr"], own | chosen)
            if target.get("instant"):
                data = prometheus.data("query", query=query, time=situation.end)
            else:
                start = math.floor(situation.start / step) * step
                data = prometheus.data("query_range", query=query, start=start, end=situation.end, step=step)
            answers.append({"refId": target["refId"], "step": step, "data": data})
            sent.append(len(query.encode()))
        yield {
            "panel": panel,
            "answers": answers,
            "range": {"from": situation.start * 1000, "to": situation.end * 1000},
            "variables": chosen,
            "sent": sent,
        }


def load(board: Mapping[str, Any], questions: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the number of queries at each refresh, and the bytes of their PromQL; collapsed rows do not count."""
    sent = [size for each in questions if each["panel"] in board["panels"] for size in each["sent"]]
    return len(sent), sum(sent)


def _chosen(board: Mapping[str, Any], situation: Situation) -> dict[str, str]:
    """Return the values of the variables by name.

    A multiple-choice variable is All, except for the namespace, which a link to one service sets.
    """
    values = {}
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    one = {name for name, variable in variables.items() if not variable.get("multi")}
    for name, variable in variables.items():
        if variable["type"] == "custom":
            value = variable["current"]["value"]
            values[name] = (variable.get("allValue") or ".*") if "$__all" in value else value
        elif variable["type"] == "query" and (name in one or (name == "namespace" and "service" in one)):
            values[name] = situation.chosen.get(name, "" if name in one else ".*")
    return values
