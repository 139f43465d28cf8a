"""Documents as Markdown, for a comment on a change request: the sentence, its tables, and the rest folded.

Names and labels of other people can neither link, mention anybody nor end a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from infercanary.contract.text import printable, shortened
from infercanary.pages.safe_text import fact_text
from infercanary.render.document import Document

_CELL_CHARACTERS = 2000
_SPECIAL = re.compile(r"[\\`*\[\]<>|&~]|(?<![^\W_])_|_(?![^\W_])")  # cgroup_throttled needs none
_MENTION = re.compile(r"(?<!\w)@(?=\w)")
_ADDRESS = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)")


def render_markdown(
    documents: Iterable[Document],
    notes: Iterable[str] = (),
    sides: tuple[str, str] = ("baseline", "candidate"),
) -> str:
    """Return the documents and the notes on all of them as one text.

    Args:
        documents: In their order.
        notes: Lines.
        sides: Names of the columns `before` and `after`.
    """
    names = dict(zip(("before", "after"), sides, strict=True))
    blocks = []
    for document in documents:
        title = f"{document.name}: {document.sentence}" if document.name else document.sentence
        blocks.append(f"**{_escaped(title)}**")
        for table in document.tables:
            heading = [f"{_escaped(table.title)}:\n"] if table.title else []
            columns = [names.get(column, column) for column in table.columns]
            blocks.append("\n".join([*heading, *_table(columns, table.rows)]))
        folded = [
            *((fact.label, text) for fact in document.facts if (text := fact_text(fact))),
            *(("next", action) for action in document.actions),
            *(("note", note) for note in document.notes),
        ]
        if folded:
            evidence = "\n".join(_table(["evidence", ""], folded))
            blocks.append(f"<details><summary>Evidence</summary>\n\n{evidence}\n\n</details>")
    return "\n\n".join([*blocks, *(f"Note: {_escaped(note)}" for note in notes)]) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    head, *others = (f"| {' | '.join(map(_escaped, cells))} |" for cells in [columns, *rows])
    return [head, "|---" * len(columns) + "|", *others]


def _escaped(words: str) -> str:
    """One line of text that Markdown shows as it is."""
    plain = _SPECIAL.sub(lambda sign: f"\\{sign[0]}", printable(shortened(words, _CELL_CHARACTERS)))
    return _ADDRESS.sub("\N{ZERO WIDTH SPACE}", _MENTION.sub("@\N{ZERO WIDTH SPACE}", plain))
