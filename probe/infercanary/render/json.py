"""Documents as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from infercanary.contract.text import all_printable
from infercanary.render.document import Document

VERSION = 1
"""Version of the JSON output. A removed field or a changed meaning needs a new version; a new field does not."""

_WORST_FIRST = (1, 3, 0)  # exit codes: regressed, inconclusive, fine


def render_json(documents: Sequence[Document], notes: Sequence[str] = (), **more: Any) -> str:
    """Return the data of the worst document as JSON, with the data of all documents under `canaries`.

    Args:
        documents: Documents of one command; an empty list counts as inconclusive.
        notes: Remarks on all documents.
        more: Further fields, which override fields of the worst document.
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
    """Return ``value`` as one line of JSON in ASCII. All texts become printable, because `jq -r` prints texts raw."""
    return json.dumps(all_printable(value)) + "\n"


def plain_values(value: object) -> Any:
    """Convert structs and collections to plain values; a number that is not finite becomes None."""
    return msgspec.json.decode(msgspec.json.encode(value))
