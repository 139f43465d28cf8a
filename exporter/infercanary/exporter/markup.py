"""Text for the page: all that probes say is hostile until escaped."""

from __future__ import annotations

import html

from infercanary.contract.text import REPLACEMENT, masked, printable, shortened


def duration(seconds: float) -> str:
    """A time in the largest unit of which there are two.

    Args:
        seconds: 0 or more.

    Returns:
        Such as ``3 h``.
    """
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def escaped(value: str, most: int = 200) -> str:
    """``value`` for HTML, without what could reorder or hide text, and without passwords.

    Args:
        value: From anybody.
        most: Characters to which it is cut.
    """
    return html.escape(printable(shortened(masked(value), most), replacement=REPLACEMENT))
