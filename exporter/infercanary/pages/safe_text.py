"""Text of other people, such as names and labels, made safe to show."""

from __future__ import annotations

from urllib.parse import urlsplit

from infercanary.contract.text import REPLACEMENT, masked, printable, shortened
from infercanary.render.document import Fact
from infercanary.render.units import quantity, value

_LINK_CHARACTERS = 2000


def shown(text: object, most: int = 4000) -> str:
    """Return one line without passwords and without characters that hide or reorder text; it is not escaped.

    Args:
        text: Anything.
        most: Characters.
    """
    return printable(shortened(masked(str(text)), most), replacement=REPLACEMENT)


def fact_text(fact: Fact) -> str:
    """Return the value of a fact with its unit; empty where it has none.

    Args:
        fact: Of a document.
    """
    if fact.value is None or isinstance(fact.value, str):
        return fact.value or ""
    return value(fact.value, fact.unit) if fact.unit in ("", "s") else quantity(fact.value, fact.unit)


def web_link(address: str) -> str:
    """Return ``address`` if a page may link to it, else nothing: `javascript:` would run in the page.

    Args:
        address: Anything.
    """
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    is_web = parts.scheme in ("http", "https") and parts.netloc and len(address) <= _LINK_CHARACTERS
    return address if is_web and address.isprintable() and " " not in address else ""
