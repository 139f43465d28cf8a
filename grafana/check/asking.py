"""What each panel of a board asks, and what a Prometheus answers: the queries, steps and times are Grafana's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from grafana.prometheus import Prometheus
from grafana.queries import expression, panels
from grafana.situations.worlds import Situation

_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600)
"""Seconds to which Grafana rounds a step (rangeutil.roundInterval)."""
_UNITS = {"s": 1, "m": 60, "h": 3600}
_ALL = ("$__all", ["$__all"])
POINTS = 600
"""Of a panel that is half as wide as the screen: one for each pixel."""


def asked(board: Mapping[str, Any], situation: Situation, prometheus: Prometheus) -> Iterator[dict[str, Any]]:
    """Ask what each panel asks.

    Args:
        board: Its JSON.
        situation: Gives the time, the step of its scrapes, and what is chosen.
        prometheus: Has the situation.

    Yields:
        Panel by panel what the program in this folder takes: ``panel``, ``answers``, ``range`` and ``variables``.
    """
    chosen = _chosen(board, situation)
    for panel in panels(board):
        step = _step(situation, panel.get("interval") or "")
        span = {"__range": f"{situation.end - situation.start:.0f}s", "__interval": f"{step}s"}
        # https://grafana.com/docs/grafana/latest/datasources/prometheus/template-variables/
        values = span | {"__rate_interval": f"{max(step + situation.step, 4 * situation.step):.0f}s"} | chosen
        answers = []
        for target in panel.get("targets") or ():
            query = expression(target["expr"], values)
            if target.get("instant"):
                data = prometheus.data("query", query=query, time=situation.end)
            else:
                start = math.floor(situation.start / step) * step
                data = prometheus.data("query_range", query=query, start=start, end=situation.end, step=step)
            answers.append({"refId": target["refId"], "step": step, "data": data})
        yield {
            "panel": panel,
            "answers": answers,
            "range": {"from": situation.start * 1000, "to": situation.end * 1000},
            "variables": chosen,
        }


def _chosen(board: Mapping[str, Any], situation: Situation) -> dict[str, str]:
    """Variable → value: all where several can be chosen, but the namespace that a link to one service gives."""
    values = {}
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    one = {name for name, variable in variables.items() if not variable.get("multi")}
    for name, variable in variables.items():
        if variable["type"] == "custom":
            value = variable["current"]["value"]
            values[name] = variable.get("allValue") or ".*" if value in _ALL else value
        elif variable["type"] == "query" and (name in one or (name == "namespace" and "service" in one)):
            values[name] = situation.chosen.get(name, "" if name in one else ".*")
    return values


def _step(situation: Situation, least: str) -> int:
    wanted = max(
        situation.seconds / POINTS, situation.step, int(least[:-1]) * _UNITS[least[-1]] if least else 0
    )
    return next((step for step in _STEPS if step >= wanted), _STEPS[-1])
