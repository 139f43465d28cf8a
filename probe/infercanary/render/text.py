"""Documents as text for a terminal, without charts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from infercanary.contract.text import printable, shortened
from infercanary.render.document import Document, Table

_LABEL, _MOST_CELL = 11, 28  # columns of a table: minimum width of a label, maximum width of a cell
_TEXT = 2000  # maximum number of characters of one text
_ASCII = str.maketrans(
    {"→": "->", "×": "x", "∞": "inf", "µ": "u", "μ": "u", "…": "...", "–": "-", "±": "+/-", "·": "-"}
)
_UNBROKEN = re.compile(r"(?<=\d) (?=(?:µs|ms|s|[kMG]?B|J)\b|%)|(?<=,) (?=[^][ ]+])| (?=\[[^][ ]+, [^][ ]+])")


def render_texts(documents: Sequence[Document], notes: Sequence[str] = (), width: int = 80) -> str:
    """Return the documents as text, separated by blank lines, and then the notes."""
    last = [Document(notes=notes)] if notes else []
    return "\n".join(render_text(document, width) for document in [*documents, *last])


def render_text(document: Document, width: int = 80) -> str:
    """Return a document as printable lines of up to ``width`` columns. Only a long word or a table may be wider."""
    head = ": ".join(filter(None, (document.name, document.sentence)))
    facts = [(fact.label, f"{fact.text} {fact.link}".strip()) for fact in document.facts]
    advice = [*(("next", text) for text in document.actions), *(("note", text) for text in document.notes)]
    blocks = [
        wrapped(head, width),
        _labelled(facts, width),
        *(_table(table, width) for table in document.tables),
        _labelled(advice, width),
    ]
    texts = ["\n".join(printable(line.rstrip()) for line in block) for block in blocks]
    return "\n\n".join(filter(None, texts)) + "\n"


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Wrap a text, but keep a number on one line with its unit or its interval.

    Args:
        text: The text to wrap.
        width: Maximum length of a line.
        first: Beginning of the first line.
        rest: Beginning of the other lines.
    """
    joined = _UNBROKEN.sub("\xa0", shortened(text, _TEXT))
    lines = textwrap.wrap(joined, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines] or [first]


def plain(text: str) -> str:
    """Replace non-ASCII characters by similar ASCII characters, for a terminal without UTF-8."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def _labelled(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    return _aligned([(f"{label:<{_LABEL}}", text) for label, text in rows if text], width)


def _table(table: Table, width: int) -> list[str]:
    title = wrapped(table.title, width, "  ", "  ") if table.title else []
    return [*title, *_aligned([table.columns, *table.rows], width)] if table.rows else []


def _aligned(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return cells in aligned columns. Only the last column is wrapped."""
    sizes = [min(_MOST_CELL, max(map(len, column))) for column in zip(*rows, strict=True)]
    lines = []
    for *cells, last in rows:
        head = "  "
        for cell, size in zip(cells, sizes, strict=False):
            head += f"{shortened(cell, size):<{size}}  "
        lines += wrapped(last, max(width, len(head) + _LABEL), head, " " * len(head))
    return lines
