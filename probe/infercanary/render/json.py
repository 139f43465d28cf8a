"""Documents as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from infercanary.contract.text import all_printable
from infercanary.render.document import Document

VERSION = 1
"""Version of the output. New fields keep it; a field that is removed or changes its meaning raises it."""

_WORST_FIRST = (1, 3, 0)  # exit codes: regressed, inconclusive, fine


def render_json(documents: Sequence[Document], notes: Sequence[str] = (), **more: Any) -> str:
    """Return the worst document's data as JSON, with the data of all documents under `canaries`.

    Args:
        documents: No document is inconclusive.
        notes: Remarks on all of them.
        more: Further fields, which replace those of the worst document.
    """
    worst = min(documents, key=lambda document: _WORST_FIRST.index(document.exit_code), default=Document())
    return json_line(
        {
            "schema_version": VERSION,
            "verdict": "inconclusive",
            **worst.data,
            **more,
            "notes": [*worst.data.get("notes", worst.notes), *notes],
            "canaries": [document.data for document in documents if document.data],
        }
    )


def json_line(value: object) -> str:
    """Return ``value`` as one line of JSON in ASCII. Its texts are printable, since `jq -r` prints them raw."""
    return json.dumps(all_printable(value)) + "\n"


def plain_values(value: object) -> Any:
    """Convert structs and collections to plain values; a number that is not finite is None."""
    return msgspec.json.decode(msgspec.json.encode(value))
