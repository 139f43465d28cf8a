"""Nested JSON: an object as one row, and the arrays of numbers in a document whose layout is not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from infercanary.command.settings import UsageError
from infercanary.compare.cells import is_number
from infercanary.compare.recording import listed, shown

_DEEPEST = 20  # objects in objects


class FoundArray(NamedTuple):
    """An array in a JSON document."""

    name: str
    entries: list[Any]
    key: str
    """Key of the numbers in an array of objects; "" in an array of numbers."""


def flat(
    entry: Mapping[str, Any], under: str = "", depth: int = 0, *, columns: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of an object; those of nested objects as `outer.inner`.

    Args:
        entry: The object.
        under: What its keys begin with.
        depth: Of the object.
        columns: Whether objects with the keys 0, 1, 2 … are arrays: columns as pandas writes them.
    """
    for key, value in entry.items():
        if columns and isinstance(value, dict) and [*value] == [*map(str, range(len(value)))]:
            value = [*value.values()]
        if isinstance(value, dict) and value and depth < _DEEPEST:
            yield from flat(value, f"{under}{key}.", depth + 1, columns=columns)
        else:
            yield f"{under}{key}", value


def arrays(document: Mapping[str, Any]) -> Iterator[FoundArray]:
    """Yield the arrays of numbers in a document, and the numbers in its arrays of objects."""
    for name, value in flat(document, columns=True):
        if isinstance(value, list) and value:
            if all(x is None or is_number(x) for x in value):
                yield FoundArray(name, value, "")
            elif all(isinstance(x, dict) for x in value):
                yield from (
                    FoundArray(f"{name}.{key}", value, key) for key, x in value[0].items() if is_number(x)
                )


def array_of(place: str, document: Mapping[str, Any], column: str) -> FoundArray | None:
    """Return the array to read from a document of unknown layout; None if it holds none.

    Args:
        place: The file's name, for messages.
        document: One JSON object.
        column: As ``FoundArray.name`` has it; empty if none is picked.

    Raises:
        UsageError: There are several, or not this one.
    """
    found = [*arrays(document)]
    if column:
        picked = [each for each in found if column in (each.name, each.key)]
        if found and not picked:
            names = listed(each.name for each in found)
            raise UsageError(f"{place}: no array `{shown(column)}`; there are: {names}")
        found = picked[:1]
    if len(found) > 1:
        sizes = (f"{each.name} ({len(each.entries):,})" for each in found)
        raise UsageError(f"{place}: several arrays, which one? Give --column one of: {listed(sizes)}")
    return next(iter(found), None)
