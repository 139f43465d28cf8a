"""Text of other people's code, for a label, a log or a terminal."""

from __future__ import annotations

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(text: str, most: int | None = None, replacement: str = "?") -> str:
    """Replace every character that a terminal, a log or a browser might act on: line ends, escapes, bidi controls.

    Args:
        text: Anything.
        most: Characters to keep; None for all.
        replacement: One character, that stands for each such character.

    Returns:
        One line of printable text, of the same length unless it was cut.
    """
    return "".join(c if c.isprintable() else replacement for c in text[:most])


def shortened(text: str, most: int) -> str:
    """``text``, or where it is longer than ``most`` characters its beginning with ``…`` as its last character.

    Args:
        text: Anything.
        most: Characters; 1 or more.
    """
    return text if len(text) <= most else text[: most - 1] + "…"
