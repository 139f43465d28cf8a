"""How a container asks to be polled: by a label or an annotation, in which people write mistakes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from infercanary.contract.text import printable

_OFF = ("", "false", "no", "off", "0")
_ENABLE = "enable"
_MOST_NOTES, _LONGEST = 8, 64  # whoever writes names must not take our time by how many they are, or how long


def label_text(text: str) -> str:
    """``text`` as a label's value: printable and bounded.

    Args:
        text: Anything.
    """
    return printable(text, 256)


def is_off(value: str) -> bool:
    """Whether a value says that no probe is here.

    Args:
        value: As somebody wrote it; empty where nobody did.
    """
    return value.lower() in _OFF


def mistake(kind: str, name: str, value: str | None) -> str:
    """What is wrong with a request that is not off, or an empty text.

    Args:
        kind: ``label`` or ``annotation``.
        name: Of the one that asks.
        value: As given; None where it is missing beside others of ours.
    """
    if value is None:
        return (
            f"{kind} {name} is missing, so the probe is not polled; write true, or false if no probe is meant"
        )
    if value.lower() == "true":
        return ""
    return f"{kind} {name}: {label_text(value)!r} is neither true nor false; write true"


def is_meant(given: Iterable[str], enable: str, known: Sequence[str]) -> bool:
    """Whether somebody meant to ask, and did not: a name that we know is there, or a typo of the one that asks.

    Args:
        given: Names of any labels, without the one that asks.
        enable: The name that asks.
        known: Names that are of no use without it.
    """
    prefix = enable.removesuffix(_ENABLE)
    ours = [name for name in given if name.startswith(prefix)]
    return any(name in known for name in ours) or any(
        get_close_matches(name.removeprefix(prefix)[:_LONGEST], [_ENABLE], 1) for name in ours[:_LONGEST]
    )


def unknown(kind: str, prefix: str, given: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """A note for each name with our prefix that means nothing, with the one that may be meant.

    Args:
        kind: ``label`` or ``annotation``.
        prefix: Of all names of ours.
        given: Names of any labels.
        known: Those that mean something.

    Returns:
        The first few, in order of the names.
    """
    notes = []
    for name in sorted(each for each in given if each.startswith(prefix) and each not in known)[:_MOST_NOTES]:
        bare = name.removeprefix(prefix)[:_LONGEST]
        near = get_close_matches(bare, [each.removeprefix(prefix) for each in known], 1)
        remedy = f"did you mean {prefix}{near[0]}?" if near else f"the {kind}s are {', '.join(known)}"
        notes.append(f"{kind} {label_text(name)}: not known; {remedy}")
    return tuple(notes)
