"""Makes untrusted text (such as names and labels) safe to display."""

from __future__ import annotations

import re

from infercanary.contract.text import REPLACEMENT, masked, printable, shortened

_WEB_ADDRESS = re.compile(r"https?://[!-~]{1,2000}")


def shown(text: str, most: int = 4000) -> str:
    """Return one line without passwords and without characters that hide or reorder text. The line is not escaped.

    Args:
        most: Maximum number of characters.
    """
    return printable(shortened(masked(text), most), replacement=REPLACEMENT)


def web_link(address: str) -> str:
    """Return ``address`` if a page may link to it, otherwise "". A `javascript:` address would run code in the page."""
    return address if _WEB_ADDRESS.fullmatch(address) else ""
