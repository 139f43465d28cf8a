"""What panels would show, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ROWS = 12
"""Of a table or a legend; what is beyond is counted."""


def board(title: str, panels: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """A board as Markdown: its panels in a block of text.

    Args:
        title: The board's.
        panels: Title of each panel, and what it shows as :func:`.node.shown` gives it.

    Returns:
        A heading and a fenced block.
    """
    blocks = ["\n".join([name, "-" * len(name), *lines(shows)]) for name, shows in panels]
    return f"### {title}\n\n```text\n" + "\n\n".join(blocks) + "\n```\n"


def lines(shows: Mapping[str, Any]) -> Iterator[str]:
    """One panel.

    Args:
        shows: As :func:`.node.shown` gives it.

    Yields:
        Lines.
    """
    if "message" in shows:
        yield f"({shows['message']})"
    elif "columns" in shows:
        texts = [[cell["text"] for cell in row] for row in shows["rows"]]
        yield from _table([column["name"] for column in shows["columns"]], texts)
    elif "values" in shows:
        yield from _table([], [[value["name"], value["text"]] for value in shows["values"]])
    elif "states" in shows:
        yield from _table([], [[row["name"], f"now {row['last']}"] for row in shows["rows_"]])
        yield "states: " + ", ".join(state["name"] for state in shows["states"])
    elif "scale" in shows:
        yield f"{shows['buckets']} buckets up to {shows['bounds'][-2 if shows['bounds'][-1] == '+Inf' else -1]}"
        yield "colours from " + " to ".join(shows["scale"])
    elif "points" in shows:
        names = [field["name"] for field in shows["fields"]]
        yield from _table(
            names, [list(row) for row in zip(*(f["texts"] for f in shows["fields"]), strict=True)]
        )
    elif "series" in shows:
        for axis in shows.get("axes", ()):
            yield "axis from " + " to ".join(axis["shown"])
        if "ends" in shows:
            yield f"{shows['buckets']} buckets from " + " to ".join(shows["ends"])
        seen = [one for one in shows["series"] if not one.get("hidden")]
        yield from _table([], [[one["name"], one["last"]] for one in seen])
    else:
        yield shows.get("content", "")


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    shown = [*([heading] if heading else []), *rows[:ROWS]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
    if len(rows) > ROWS:
        yield f"… and {len(rows) - ROWS} more"
