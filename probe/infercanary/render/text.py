"""Documents as text for a terminal."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from infercanary.contract.text import printable, shortened
from infercanary.render.document import Chart, Document, Table
from infercanary.render.units import finite, value

_LABEL, _MOST_LABEL, _MOST_CELL = 13, 24, 28  # columns, besides the indentation
_MEDIAN = 14  # columns of a median beside its mark, and of the indentation
_TEXT = 2000  # characters of one text
_LEAST = 0.05  # a scale spans at least this share of its end, so that noise does not look like a change
_NUMBER = re.compile(r"[-+×]?\d")
_BARS = " ▁▂▃▄▅▆▇█"
_ASCII = str.maketrans(
    {
        **dict(zip(_BARS[1:], ".:-=+*%#", strict=True)),
        "▲": "^", "→": "->", "×": "x", "∞": "inf", "µ": "u", "μ": "u", "…": "...", "–": "-", "±": "+/-", "·": "-",
    }
)  # fmt: skip
_UNBROKEN = re.compile(r"(?<=\d) (?=(?:µs|ms|s|MB|GB|J)\b|%)|(?<=,) (?=[^][ ]+])| (?=\[[^][ ]+, [^][ ]+])")


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
        wrapped(head, width) if head else [],
        _rows(facts, width),
        *(_table(table, width) for table in document.tables if table.rows),
        *(_chart(chart, width - _LABEL - _MEDIAN) for chart in document.charts),
        _rows(advice, width),
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


def _rows(facts: Iterable[tuple[str, str]], width: int) -> list[str]:
    known = [(shortened(label, _MOST_LABEL), text) for label, text in facts if text]
    size = max([_LABEL, *(len(label) + 2 for label, _ in known)])
    return [
        line for label, text in known for line in wrapped(text, width, f"  {label:<{size}}", " " * (size + 2))
    ]


def _table(table: Table, width: int) -> list[str]:
    """Columns under their names: numbers to the right, the last column wrapped."""
    *columns, last = zip(table.columns, *table.rows, strict=True)
    aligned = []
    for column in columns:
        size = min(max(_MOST_CELL, width // len(columns)), max(map(len, column)))
        sign = ">" if all(_NUMBER.match(cell) for cell in column[1:] if cell) else "<"
        aligned.append([f"{shortened(cell, size):{sign}{size}}" for cell in column])
    lines = wrapped(table.title, width, "  ", "  ") if table.title else []
    for text, *cells in zip(last, *aligned, strict=True):
        head = "  ".join(["", *cells, ""])
        lines += wrapped(text, max(width, len(head) + _LABEL), head, " " * len(head))
    return lines


def _chart(chart: Chart, width: int) -> Iterator[str]:
    """Bars of each series on one scale, with its median, or with the marks on the axis of time."""
    sides = [sorted(_finite(series.values)) for series in chart.series]
    ends = [end for side in sides if side for end in (side[len(side) // 100], side[-1 - len(side) // 100])]
    if not ends:
        return
    low, high = min(ends), max(ends)
    least = max(0.0, _LEAST * abs(high) - (high - low)) / 2 or high == low
    low, high = low - least, high + least
    step = max(-(-len(series.values) // width) for series in chart.series)

    def place(number: float, places: int) -> int:
        return min(places - 1, max(0, int((number - low) / (high - low) * places)))

    for series, side in zip(chart.series, sides, strict=True):
        label = f"  {shortened(series.label, _LABEL - 1):<{_LABEL}}"
        if chart.kind == "points":
            parts = [_finite(series.values[at : at + step]) for at in range(0, len(series.values), step)]
            yield label + "".join(_BARS[place(median(part), 8) + 1 if part else 0] for part in parts)
        elif side:
            counts = Counter(place(number, width) for number in side)
            most = max(counts.values())
            yield label + "".join(_BARS[-(-8 * counts[column] // most)] for column in range(width))
            yield f"{'▲':>{_LABEL + 3 + place(median(side), width)}} {value(median(side), chart.unit)}"
    if marks := {mark // step for mark in chart.marks}:
        yield " " * (_LABEL + 2) + "".join("▲" if column in marks else " " for column in range(width))
    title = shortened(chart.title, _MOST_LABEL)
    yield " " * (_LABEL + 2) + f"{title} from {value(low, chart.unit)} to {value(high, chart.unit)}"


def _finite(values: Sequence[float | None]) -> list[float]:
    return [number for number in values if number is not None and finite(number) is not None]
