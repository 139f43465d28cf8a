"""Documents as Markdown for a comment on a change request: the sentence and its tables. Other content is folded.

Names and labels are untrusted. Escaped, they cannot make links, mention users or end a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from infercanary.pages.html import environment
from infercanary.pages.safe_text import shown
from infercanary.render.document import Document

_CELL_CHARACTERS = 2000
# An underscore inside a word, as in cgroup_throttled, needs no escape.
_SPECIAL = re.compile(r"[\\`*\[\]<>|&~]|(?<![^\W_])_|_(?![^\W_])")
_LINKS = re.compile(r"(?<!\w)@(?=\w)|:(?=//)|(?<![^\W_])www(?=\.)", re.IGNORECASE)


def render_markdown(documents: Iterable[Document], notes: Iterable[str] = ()) -> str:
    """Return documents and notes as one Markdown text.

    Args:
        documents: In order of output.
        notes: Lines about all documents.
    """
    markdown = environment().overlay(autoescape=False, finalize=_escaped)
    return markdown.get_template("comment.md").render(documents=documents, notes=notes)


def _escaped(words: Any) -> str:
    """Return one line of text, escaped for Markdown."""
    plain = _SPECIAL.sub(r"\\\g<0>", shown(str(words), _CELL_CHARACTERS).strip())
    return _LINKS.sub("\\g<0>\N{ZERO WIDTH SPACE}", plain)
