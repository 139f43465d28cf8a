"""Finds the arrays of numbers in a JSON document whose layout is not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from infercanary.command.settings import UsageError
from infercanary.compare.recording import listed, shown

_DEEPEST = 20  # objects in objects


class FoundArray(NamedTuple):
    """An array in a JSON document."""

    name: str
    entries: list[Any]
    key: str
    """Key of the numbers in an array of objects; "" in an array of numbers."""


def arrays(document: Mapping[str, Any], under: str = "", depth: int = 0) -> Iterator[FoundArray]:
    """Yield the arrays of numbers in a document, and the numbers in its arrays of objects."""
    for key, value in document.items():
        if isinstance(value, dict) and [*value] == [*map(str, range(len(value)))]:
            value = [*value.values()]  # a column as pandas writes it
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from arrays(value, f"{under}{key}.", depth + 1)
        elif isinstance(value, list) and value:
            if all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in value if x is not None):
                yield FoundArray(f"{under}{key}", value, "")
            elif all(isinstance(x, dict) for x in value):
                for name, x in value[0].items():
                    if isinstance(x, (int, float)) and not isinstance(x, bool):
                        yield FoundArray(f"{under}{key}.{name}", value, name)


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
            raise UsageError(
                f"{place}: no array `{shown(column)}`; there are: {listed(each.name for each in found)}"
            )
        return picked[0] if picked else None
    if len(found) > 1:
        sizes = (f"{each.name} ({len(each.entries):,})" for each in found)
        raise UsageError(f"{place}: several arrays, which one? Give --column one of: {listed(sizes)}")
    return found[0] if found else None
