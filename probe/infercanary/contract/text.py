"""Makes untrusted text, such as other programs' messages, safe for a label, a log or a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_HIDDEN = "***"
# `scheme://user:password@`; in a URL at the beginning of the text, the password may contain a space.
_IN_TEXT = re.compile(r"(://[^\s/?#@:]{0,200}:)\S{0,1000}@")
_IN_URL = re.compile(r"(\A[\w+.-]+://[^/?#@:]*:)(?!\d+\b).*@", re.DOTALL)
# `password=secret` in a query or in libpq's key=value form, with or without quotes; `password_file=` is not secret.
_ASSIGNED = re.compile(
    r"((?:password|passwd|pwd|secret|token|api[_-]?key)\s*=\s*)('(?:[^'\\]|\\.)*'?|[^\s&]+)", re.IGNORECASE
)


def printable(text: str, most: int | None = None, replacement: str = "?") -> str:
    """Replace every character that is not printable, such as line ends, escapes and bidi controls.

    Args:
        text: Any text.
        most: Maximum number of characters of the result; None for no limit.
        replacement: One character to use instead.

    Returns:
        One printable line, of the same length unless it was cut.
    """
    text = text[:most]
    return text if text.isprintable() else "".join(c if c.isprintable() else replacement for c in text)


def all_printable(value: Any) -> Any:
    """Make all texts in a JSON value :func:`printable`, because `jq -r` prints texts unchanged."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {all_printable(key): all_printable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [all_printable(each) for each in value]
    return value


def shortened(text: str, most: int) -> str:
    """Cut a text to ``most`` characters (at least 1); a cut text ends with ``…``."""
    return text if len(text) <= most else text[: most - 1] + "…"


def masked(text: str) -> str:
    """Replace passwords in URLs and in libpq's ``key=value`` form with ``***``."""
    if "://" in text:
        for pattern in (_IN_URL, _IN_TEXT):
            text = pattern.sub(rf"\1{_HIDDEN}@", text)
    return _ASSIGNED.sub(rf"\1{_HIDDEN}", text) if "=" in text else text
