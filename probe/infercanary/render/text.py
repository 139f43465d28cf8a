"""Documents as text for a terminal."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from statistics import median

from infercanary.contract.text import printable, shortened
from infercanary.render.document import Chart, Document, Table
from infercanary.render.scale import chart_scale, finite_values
from infercanary.render.units import value

_LABEL, _MOST_CELL = 11, 28  # columns of a label at least, and of a cell at most
_BESIDE_BARS = 43  # columns: indentation, label, median
_TEXT = 2000  # characters of one text
_BARS = " ▁▂▃▄▅▆▇█"
_ASCII = str.maketrans(
    {
        **dict(zip(_BARS[1:], ".:-=+*%#", strict=True)),
        "▲": "^", "→": "->", "×": "x", "∞": "inf", "µ": "u", "μ": "u", "…": "...", "–": "-", "±": "+/-", "·": "-",
    }
)  # fmt: skip
_UNBROKEN = re.compile(r"(?<=\d) (?=(?:µs|ms|s|[kMG]?B|J)\b|%)|(?<=,) (?=[^][ ]+])| (?=\[[^][ ]+, [^][ ]+])")


def render_texts(documents: Sequence[Document], notes: Sequence[str] = (), width: int = 80) -> str:
    """Return documents, a blank line between them, and the notes on all of them."""
    last = [Document(notes=notes)] if notes else []
    return "\n".join(render_text(document, width) for document in [*documents, *last])


def render_text(document: Document, width: int = 80) -> str:
    """Return a document as printable lines of ``width`` columns; only a word or a table may be wider."""
    head = ": ".join(filter(None, (document.name, document.sentence)))
    facts = [(fact.label, f"{fact.text} {fact.link}".strip()) for fact in document.facts]
    advice = [*(("next", text) for text in document.actions), *(("note", text) for text in document.notes)]
    blocks = [
        wrapped(head, width),
        _labelled(facts, width),
        *(_table(table, width) for table in document.tables),
        *(_table(_drawn(chart, width - _BESIDE_BARS), width) for chart in document.charts),
        _labelled(advice, width),
    ]
    texts = ["\n".join(printable(line.rstrip()) for line in block) for block in blocks]
    return "\n\n".join(filter(None, texts)) + "\n"


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Return the lines of a text; a number, its unit and its interval stay in one line.

    Args:
        text: However long.
        width: Columns.
        first: What the first line begins with.
        rest: What the others begin with.
    """
    joined = _UNBROKEN.sub("\xa0", shortened(text, _TEXT))
    lines = textwrap.wrap(joined, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines] or [first]


def plain(text: str) -> str:
    """Return the nearest ASCII of ``text``, for a terminal that shows nothing else."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def _labelled(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    return _aligned([(f"{label:<{_LABEL}}", text) for label, text in rows if text], width)


def _table(table: Table, width: int) -> list[str]:
    title = wrapped(table.title, width, "  ", "  ") if table.title else []
    return [*title, *_aligned([table.columns, *table.rows], width)] if table.rows else []


def _aligned(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return cells in columns; the last column is wrapped."""
    sizes = [min(_MOST_CELL, max(map(len, column))) for column in zip(*rows, strict=True)]
    lines = []
    for *cells, last in rows:
        head = "  "
        for cell, size in zip(cells, sizes, strict=False):
            head += f"{shortened(cell, size):<{size}}  "
        lines += wrapped(last, max(width, len(head) + _LABEL), head, " " * len(head))
    return lines


def _drawn(chart: Chart, width: int) -> Table:
    """Return a chart as a table: each series with its median, as bars of a histogram or of its points in time."""
    scale, rows = chart_scale(chart), []
    if scale is None:
        return Table("", (), ())
    size = max(math.ceil(len(series.values) / width) for series in chart.series)
    for series in chart.series:
        numbers = finite_values(series.values)
        if chart.kind == "points":
            heights = [0.0] * math.ceil(len(series.values) / size)
            for part, place in scale.points(series.values, size).items():
                heights[part] = max(0.1, place)
        else:
            heights = scale.heights(numbers, width)
        bars = "".join(_BARS[math.ceil(8 * height)] for height in heights)
        rows.append((series.label, value(median(numbers), chart.unit) if numbers else "", bars))
    if marks := {mark // size for mark in chart.marks}:
        rows.append(("", "", "".join("▲" if part in marks else " " for part in range(max(marks) + 1))))
    ends = f"{value(scale.low, chart.unit)} to {value(scale.high, chart.unit)}"
    return Table("", (chart.title, "median", ends), rows)
