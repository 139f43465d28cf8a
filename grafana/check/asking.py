"""What each panel of a board asks, and what a Prometheus answers: the queries, steps and times are Grafana's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from grafana.prometheus import Prometheus
from grafana.queries import expression, panels
from grafana.situations.backfill import UNITS
from grafana.situations.worlds import Situation

_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600)
"""Seconds to which Grafana rounds a step (rangeutil.roundInterval)."""
POINTS = 600
"""Points of a line: one for each pixel of a panel that is half as wide as the screen."""
QUERIES, BYTES = 30, 20_000
"""Limits of what a board sends at each refresh: queries of open panels, and their PromQL."""


def asked(board: Mapping[str, Any], situation: Situation, prometheus: Prometheus) -> Iterator[dict[str, Any]]:
    """Ask what each panel asks.

    Args:
        board: Its JSON.
        situation: Gives the time, the step of its scrapes, and what is chosen.
        prometheus: Has the situation.

    Yields:
        Panel by panel what the program in this folder takes: ``panel``, ``answers``, ``range`` and ``variables``; and
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
    """Queries that the board sends at each refresh, of panels that are not folded, and the bytes of their PromQL."""
    sent = [size for each in questions if each["panel"] in board["panels"] for size in each["sent"]]
    return len(sent), sum(sent)


def _chosen(board: Mapping[str, Any], situation: Situation) -> dict[str, str]:
    """Variable → value: all where several can be chosen, but the namespace that a link to one service gives."""
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
