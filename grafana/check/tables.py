"""Content of panels as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ROWS = 20
"""Maximum number of printed rows of a table or legend; the rest is counted."""


def fault(found: Mapping[str, Any]) -> str:
    where = f" at {found['page']} pixels" if "page" in found else ""
    return f"{found['line']}{where} [{found['rule']}]"


def on_phone(board: Mapping[str, Any]) -> list[str]:
    """Return the titles of the open panels, in Grafana's order on a phone."""
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    panels.sort(key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
    return [panel["title"] for panel in panels]


def lines(shows: Mapping[str, Any]) -> Iterator[str]:
    """Yield the content of one panel, from :func:`.node.shown`."""
    if "message" in shows:
        yield f"({shows['message']})"
    elif "columns" in shows:
        names = [column["name"] for column in shows["columns"]]
        yield from _table([names, *([cell["text"] for cell in row] for row in shows["rows"])])
    elif "values" in shows:
        yield from _table([[value["name"], value["text"]] for value in shows["values"]])
    elif "states" in shows:
        yield from _table([[row["name"], f"now {row['last']}"] for row in shows["rows_"]])
        yield "states: " + ", ".join(state["name"] for state in shows["states"])
    elif "series" in shows:
        yield from ("axis from " + " to ".join(axis["shown"]) for axis in shows["axes"])
        yield from _table([[one["name"], one["last"]] for one in shows["series"] if not one["hidden"]])


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows[:ROWS], strict=True)]
    for row in rows[:ROWS]:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    if len(rows) > ROWS:
        yield f"… and {len(rows) - ROWS} more"
