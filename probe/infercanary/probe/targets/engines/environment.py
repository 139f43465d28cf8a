"""Components that an engine reports of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress


def reported(components: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """Ask an engine for each component; without those that are None, empty, or raise.

    Older versions of an engine lack some functions. torch also refuses some switches where the host mixed their old
    and new names.
    """
    texts = {}
    for component, ask in components.items():
        with suppress(Exception):
            value = ask()
            text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            if text:
                texts[component] = text
    return texts
