"""Components that an engine reports of itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress


def reported(components: Mapping[str, object]) -> dict[str, str]:
    """Return components as texts, without those that are None or empty, or whose function raises.

    Older versions of an engine lack some functions. torch also refuses some switches where the host mixed their old
    and new names.
    """
    texts = {}
    for component, value in components.items():
        with suppress(Exception):
            value = value() if callable(value) else value
            text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            if text:
                texts[component] = text
    return texts
