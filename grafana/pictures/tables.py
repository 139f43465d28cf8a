"""The tables of Grafana: rows of several queries merged, columns chosen, or one label against another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from grafana.pictures.answers import Series
from grafana.pictures.fields import Fields, words
from grafana.pictures.units import written

Row = dict[str, "str | float"]


class Cell(NamedTuple):
    """What stands in it, and the colour that fills it."""

    text: str = ""
    fill: str = ""
    number: bool = False


class Table(NamedTuple):
    """Headings, and rows of as many cells."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def table(panel: Mapping[str, Any], series: Sequence[Series], now: float) -> Table:
    """A table panel's, as its transformations make it.

    Args:
        panel: Its JSON.
        series: What its queries gave; the last point of each counts.
        now: Unix seconds, for columns that say how long ago something was.

    Returns:
        Headings, and rows with a cell for each.
    """
    steps = {step["id"]: step["options"] for step in panel.get("transformations") or ()}
    several = len(panel["targets"]) > 1
    frames: dict[str, list[Row]] = {}
    for each in series:
        field = f"Value #{each.reference}" if several else "Value"
        frames.setdefault(each.reference, []).append({**each.labels, field: each.points[-1][1]})
    if "groupingToMatrix" in steps:
        return _matrix(panel, steps["groupingToMatrix"], frames, now)
    order: Mapping[str, int] = steps["organize"]["indexByName"]
    headings: Mapping[str, str] = steps["organize"]["renameByName"]
    merged = _merged(frames.values())
    # Grafana has no column for what no query gave.
    names = [
        name for name in sorted(order, key=lambda name: order[name]) if any(name in row for row in merged)
    ]
    for sort in (panel.get("options") or {}).get("sortBy") or ():
        for name in names:
            if headings[name] == sort["displayName"]:
                # What is missing is the least.
                merged.sort(key=lambda row: (name in row, row.get(name)), reverse=bool(sort.get("desc")))
    rows = [[_cell(panel, headings[name], row.get(name), now) for name in names] for row in merged]
    return Table([headings[name] for name in names], rows)


def _merged(frames: Iterable[Sequence[Row]]) -> list[Row]:
    """One row for those that agree in the fields that all frames have, and do not differ in others."""
    held = [rows for rows in frames if rows]
    common = set.intersection(*({field for row in rows for field in row} for rows in held)) if held else set()
    made: list[Row] = []
    for rows in held:
        for row in rows:
            for other in made:
                alike = all(row.get(field) == other.get(field) for field in common)
                if alike and all(other.get(field, value) == value for field, value in row.items()):
                    other.update(row)
                    break
            else:
                made.append({**row})
    return made


def _matrix(
    panel: Mapping[str, Any], options: Mapping[str, str], frames: Mapping[str, list[Row]], now: float
) -> Table:
    down, across = options["rowField"], options["columnField"]
    found = [row for rows in frames.values() for row in rows]
    columns = [*dict.fromkeys(str(row.get(across, "")) for row in found)]
    lines = [*dict.fromkeys(str(row.get(down, "")) for row in found)]
    values = {(str(row.get(down, "")), str(row.get(across, ""))): row[options["valueField"]] for row in found}
    return Table(
        [f"{down}\\{across}", *columns],
        [
            [Cell(line), *(_cell(panel, column, values.get((line, column)), now) for column in columns)]
            for line in lines
        ],
    )


def _cell(panel: Mapping[str, Any], heading: str, value: str | float | None, now: float) -> Cell:
    if value is None:
        return Cell()
    look = Fields(panel).look(heading)
    if isinstance(value, float):
        return Cell(written(value, look["unit"], look.get("decimals"), now), number=True)
    word = words(look).get(value)
    return Cell(word.text, word.colour) if word else Cell(value)
