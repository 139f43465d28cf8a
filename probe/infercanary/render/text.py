"""Documents as text for a terminal."""

from __future__ import annotations

import re
import textwrap
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median

from infercanary.contract.text import printable, shortened
from infercanary.render.document import Chart, Document, Table
from infercanary.render.units import finite, value

_LABEL = 13  # columns, besides the indentation
_CELL, _LEAST, _LAST = (
    40,
    8,
    16,
)  # columns of a table's cell: at most, when there is no room, and of the last one
_TEXT = 2000  # characters of one text
_FLAT = 0.025  # half of a scale spans at least this share of its middle, so that noise does not look like a change
_NUMBER = re.compile(r"[-+×]?\d")
_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII = str.maketrans(
    {
        **dict(zip(_LEVELS, ".:-=+*%#", strict=True)),
        "▲": "^", "→": "->", "×": "x", "∞": "inf", "µ": "u", "μ": "u", "…": "...", "–": "-", "±": "+/-", "·": "-",
    }
)  # fmt: skip
_UNBROKEN = re.compile(
    r"(?<=[\d∞]) (?=(?:%|µs|ms|s|MB|GB|J)(?!\w))|(?<=[%\d]) (?=\[[^][ ]+, [^][ ]+])|(?<=\[)([^][ ]+,) (?=[^][ ]+])"
)


def render_texts(documents: Iterable[Document], notes: Sequence[str] = (), width: int = 80) -> str:
    """Return documents, a blank line between them, and the notes on all of them."""
    last = "".join(f"{line}\n" for note in notes for line in _row("note", note, width))
    return "\n".join(filter(None, [*(render_text(document, width) for document in documents), last]))


def render_text(document: Document, width: int = 80) -> str:
    """Return a document as printable lines of ``width`` columns; only a word may be longer."""
    facts = [(fact.label, f"{fact.text} {fact.link}".strip()) for fact in document.facts]
    advice = [
        *(("next", action) for action in document.actions),
        *(("note", note) for note in document.notes),
    ]
    blocks = [
        wrapped(": ".join(filter(None, (document.name, document.sentence))), width),
        _rows(facts, width),
        *(_table(table, width) for table in document.tables),
        *(list(_chart(chart, width - _LABEL - 2)) for chart in document.charts),
        _rows(advice, width),
    ]
    return (
        "\n\n".join("\n".join(printable(line.rstrip()) for line in block) for block in blocks if block) + "\n"
    )


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Return the lines of a text; a number, its unit and its interval stay in one line.

    Args:
        text: However long.
        width: Columns.
        first: What the first line begins with.
        rest: What the others begin with.
    """
    joined = _UNBROKEN.sub(lambda match: f"{match[1] or ''}\xa0", shortened(text, _TEXT))
    lines = textwrap.wrap(joined, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines] or [first]


def plain(text: str) -> str:
    """Return the nearest ASCII of ``text``, for a terminal that shows nothing else."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def _rows(facts: Iterable[tuple[str, str]], width: int) -> list[str]:
    return [line for label, text in facts if text for line in _row(label, text, width)]


def _row(label: str, text: str, width: int) -> list[str]:
    return wrapped(text, width, f"  {label:<{_LABEL - 1}} ", " " * (_LABEL + 2))


def _table(table: Table, width: int) -> list[str]:
    """A title, and columns: numbers to the right, the last column wrapped."""
    cells = [[printable(shortened(cell, _CELL)) for cell in row[:-1]] for row in (table.columns, *table.rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    while widths and sum(widths) + 2 * len(widths) + _LAST > width and max(widths) > _LEAST:
        widths[widths.index(max(widths))] -= 1
    signs = [">" if all(_NUMBER.match(cell) for cell in column[1:] if cell) else "<" for column in columns]
    lines = [f"  {table.title}"] if table.title else []
    for row, last in zip(cells, [row[-1] for row in (table.columns, *table.rows)], strict=True):
        places = zip(row, signs, widths, strict=True)
        head = "".join(f"  {shortened(cell, size):{sign}{size}}" for cell, sign, size in places) + "  "
        lines += wrapped(last, width, head, " " * len(head))
    return lines


def _chart(chart: Chart, width: int) -> Iterator[str]:
    """Bars of each series on one scale, with its median or the marks on the axis of time."""
    sides = [sorted(_finite(series.values)) for series in chart.series]
    ends = [end for side in sides if side for end in (side[len(side) // 100], side[-1 - len(side) // 100])]
    if not ends:
        return
    low, high = min(ends), max(ends)
    size = max(len(series.values) for series in chart.series)
    edges = [size * part // min(size, width) for part in range(min(size, width) + 1)]
    half = max((high - low) / 2, _FLAT * abs(low + high) / 2) or 1.0
    low, high = (low + high) / 2 - half, (low + high) / 2 + half

    def place(number: float, places: int) -> int:
        return min(places - 1, max(0, int((number - low) / (high - low) * places)))

    for series, side in zip(chart.series, sides, strict=True):
        label = f"  {series.label:<{_LABEL - 1}} "
        if chart.kind == "points":
            parts = (_finite(series.values[first:last]) for first, last in pairwise(edges))
            yield label + "".join(_LEVELS[place(median(part), 8)] if part else " " for part in parts)
        elif side:
            counts = [0] * (width + 4)
            for number in side:
                for shift, weight in enumerate((1, 2, 3, 2, 1)):
                    counts[place(number, width) + shift] += weight
            most = max(counts)
            yield label + "".join(_LEVELS[round(7 * n / most)] if n else " " for n in counts[2:-2])
            text, middle = value(median(side), chart.unit), place(median(side), width)
            mark = f"{text} ▲".rjust(middle + 1) if middle > width / 2 else f"{'':{middle}}▲ {text}"
            yield " " * (_LABEL + 2) + mark
    if chart.marks:
        marks = {bisect(edges, mark) for mark in chart.marks}
        yield " " * (_LABEL + 2) + "".join("▲" if place in marks else " " for place in range(1, len(edges)))
    yield f"{'':{_LABEL + 2}}from {value(low, chart.unit)} to {value(high, chart.unit)}"


def _finite(values: Sequence[float | None]) -> list[float]:
    return [number for number in values if number is not None and finite(number) is not None]
