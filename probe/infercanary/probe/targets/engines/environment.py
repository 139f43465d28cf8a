"""Components of the environment that an engine reports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress


def reported(components: Mapping[str, object]) -> dict[str, str]:
    """Return components as texts. Empty values and functions that raise are left out.

    Older versions of an engine lack some functions. torch also raises for some settings if the server set them through
    both old and new names.
    """
    texts = {}
    for component, value in components.items():
        with suppress(Exception):
            value = value() if callable(value) else value
            text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            if text:
                texts[component] = text
    return texts
