"""A dashboard as one picture: its panels where its layout puts them, each with its title and what it shows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from grafana.pictures.answers import Answers, Range
from grafana.pictures.canvas import EDGE, PAPER, Area, Canvas
from grafana.pictures.drawing import KINDS, Content
from grafana.pictures.fields import FADED, INK

WIDTH = 1200
_LINE = 27  # of the layout's heights; Grafana's own is 38, and a picture in a page is shorter
_GAP = 7
_COLUMN = (WIDTH - 16 + _GAP) / 24
_HEAD, _FOOT = 74, 26
_TITLE = 28

_NOTE = "Drawn from the dashboard's own queries; Grafana draws them a little differently."


def sheet(
    dashboard: Mapping[str, Any], answers: Answers, chosen: Mapping[str, str], shown: Range, path: Path
) -> None:
    """Ask for all that the dashboard shows, and write its picture to ``path``.

    Args:
        dashboard: Its JSON.
        answers: What Prometheus answers to it.
        chosen: Variable → value, for the heading.
        shown: The time range.
        path: Of the PNG.
    """
    panels = dashboard["panels"]
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    canvas = Canvas(WIDTH, _HEAD + lines * _LINE + _FOOT)
    marks = answers.marks(dashboard["annotations"]["list"])
    _head(canvas, dashboard, chosen, shown)
    for panel in panels:
        at = panel["gridPos"]
        area = Area(
            8 + at["x"] * _COLUMN, _HEAD + at["y"] * _LINE, at["w"] * _COLUMN - _GAP, at["h"] * _LINE - _GAP
        )
        if panel["type"] == "row":
            canvas.text(area.x + 6, area.y + area.height / 2 + 3, panel["title"], 14, weight="bold")
            continue
        canvas.box(area, PAPER, EDGE, 3)
        title = canvas.fit(panel["title"], area.width - 20, 13, "bold")
        canvas.text(area.x + 10, area.y + 15, title, 13, weight="bold")
        inner = area.inside(top=_TITLE, bottom=4)
        series = [series for series in answers.of(panel) if series.points]
        if series:
            KINDS[panel["type"]](canvas, inner, Content(panel, series, shown, marks))
        else:
            _nothing(canvas, inner, panel["fieldConfig"]["defaults"]["noValue"], answers.why_empty(panel))
    canvas.text(10, canvas.height - 14, _NOTE, 10.5, FADED)
    canvas.save(path)


def _head(canvas: Canvas, dashboard: Mapping[str, Any], chosen: Mapping[str, str], shown: Range) -> None:
    canvas.text(10, 22, dashboard["title"], 19, weight="bold")
    start, end = (datetime.fromtimestamp(at, timezone.utc) for at in shown)
    until = f"{end:%H:%M}" if start.date() == end.date() else f"{end:%Y-%m-%d %H:%M}"
    canvas.text(WIDTH - 14, 22, f"{start:%Y-%m-%d %H:%M} to {until} UTC", 12, FADED, align="right")
    x = 10.0
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "datasource":
            continue
        x += canvas.text(x, 52, variable["label"], 12, FADED) + 6
        value = chosen.get(variable["name"]) or variable["current"]["text"]
        x += canvas.text(x, 52, value, 12, INK, "bold") + 20
    x = WIDTH - 14.0
    for annotation in reversed(dashboard["annotations"]["list"]):
        canvas.text(x, 52, annotation["name"], 12, FADED, align="right")
        x -= canvas.length(annotation["name"], 12) + 7
        canvas.line(x, 45, x, 59, annotation["iconColor"], 2)
        x -= 14


def _nothing(canvas: Canvas, area: Area, words: str, why: str) -> None:
    """What the panel says of itself when it is empty, and why it is so here."""
    lines = [(line, 13.0, INK) for line in canvas.wrap(words, area.width - 40, 13)]
    if why:
        lines.append((f"({why})", 11.0, FADED))
    y = area.y + area.height / 2 - 9 * (len(lines) - 1) - 4
    for i, (line, size, colour) in enumerate(lines):
        canvas.text(area.x + area.width / 2, y + 18 * i, line, size, colour, align="center")
