"""Documents as Markdown, for a comment on a change request: the sentence, its tables, and the rest folded.

Names and labels of other people can neither link, mention anybody nor end a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from infercanary.pages.html import environment
from infercanary.pages.safe_text import shown
from infercanary.render.document import Document

_CELL_CHARACTERS = 2000
_SPECIAL = re.compile(r"[\\`*\[\]<>|&~]|(?<![^\W_])_|_(?![^\W_])")  # cgroup_throttled needs none
_LINKS = re.compile(r"(?<!\w)@(?=\w)|:(?=//)|(?<![^\W_])www(?=\.)", re.IGNORECASE)


def render_markdown(documents: Iterable[Document], notes: Iterable[str] = ()) -> str:
    """Return the documents and the notes on all of them as one text.

    Args:
        documents: In their order.
        notes: Lines.
    """
    markdown = environment().overlay(autoescape=False, finalize=_escaped)
    return markdown.get_template("comment.md").render(documents=documents, notes=notes)


def _escaped(words: Any) -> str:
    """One line of text that Markdown shows as it is."""
    plain = _SPECIAL.sub(r"\\\g<0>", shown(str(words), _CELL_CHARACTERS).strip())
    return _LINKS.sub("\\g<0>\N{ZERO WIDTH SPACE}", plain)
