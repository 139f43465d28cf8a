"""JSON Schemas of what ``--json`` prints, made of the structs that are printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

VERSION = 1
"""Of what `--json` prints. It grows by fields; a field that is removed, or means something else, is another version."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def of_answer(
    command: str, results: Sequence[type[msgspec.Struct]], more: Mapping[str, Any]
) -> dict[str, Any]:
    """Make the schema of :func:`~infercanary.compare.options.answer`: the worst canary, and all under ``canaries``.

    Args:
        command: Whose answer it is.
        results: The structs whose fields a canary's result has, together.
        more: Field → schema, of what the command adds for the whole.

    Returns:
        The schema, with a title that has its version.
    """
    _, definitions = msgspec.json.schema_components(results, ref_template="#/$defs/{name}")
    fields: dict[str, Any] = {}
    for result in results:
        fields |= definitions.pop(result.__name__)["properties"]
    canary = {"type": "object", "properties": fields}
    whole = {
        **fields,
        "schema_version": {"const": VERSION},
        "canaries": {"type": "array", "items": {"$ref": "#/$defs/canary"}},
        **more,
    }
    return {
        "$schema": DIALECT,
        "title": f"infercanary {command} --json, version {VERSION}",
        "type": "object",
        "properties": _with_null(whole),
        "required": ["schema_version", "verdict", "notes", "canaries"],
        "$defs": _with_null({**definitions, "canary": canary}),
    }


def of_rows(command: str, row: type[msgspec.Struct]) -> dict[str, Any]:
    """Make the schema of a list of structs.

    Args:
        command: Which prints it.
        row: The struct.

    Returns:
        The schema, with a title that has its version.
    """
    _, definitions = msgspec.json.schema_components([row], ref_template="#/$defs/{name}")
    return {
        "$schema": DIALECT,
        "title": f"infercanary {command} --json, version {VERSION}",
        "type": "array",
        "items": {"$ref": f"#/$defs/{row.__name__}"},
        "$defs": _with_null(definitions),
    }


def _with_null(schema: Any) -> Any:
    """A number that is not finite is null in JSON: so each number may be."""
    if isinstance(schema, dict):
        made = {key: _with_null(value) for key, value in schema.items()}
        return {**made, "type": ["number", "null"]} if made.get("type") == "number" else made
    return [_with_null(each) for each in schema] if isinstance(schema, list) else schema
