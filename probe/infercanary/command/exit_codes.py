"""Exit codes of all commands. A code has the same meaning in every command, because pipelines decide by exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of a command. For a command ended by a signal, see :func:`of_signal`."""

    FINE = 0
    REGRESSED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    FAULT = 70
    """EX_SOFTWARE of sysexits(3). Python exits with 1 after an exception, but here 1 means "regressed"."""
    INTERRUPTED = 130
    """128 + SIGINT: exit code for Ctrl-C, before the command has its own signal handlers."""


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.FINE: "fine",
    ExitCode.REGRESSED: "regressed",
    ExitCode.USAGE: "usage or input error",
    ExitCode.INCONCLUSIVE: "inconclusive",
    ExitCode.FAULT: "a fault of infercanary itself",
}

COMPARED: Mapping[ExitCode, str] = {
    ExitCode.FINE: "equivalent or improved",
    ExitCode.REGRESSED: "regressed",
    ExitCode.INCONCLUSIVE: "inconclusive",
}
"""Meaning of the codes when two sides are compared."""

CLAIMED = "With --expect: 0 the claim holds, 1 the claim is refuted, 3 unknown."
"""Meaning of the codes when a claim is checked."""

OF_VERDICT: Mapping[str, ExitCode] = {
    # compare and ab
    "equivalent": ExitCode.FINE,
    "improved": ExitCode.FINE,
    "regressed": ExitCode.REGRESSED,
    "unconfirmed": ExitCode.INCONCLUSIVE,
    "inconclusive": ExitCode.INCONCLUSIVE,
    # scan
    "steady": ExitCode.FINE,
    "faster": ExitCode.FINE,
    "changed": ExitCode.FINE,
    "slower": ExitCode.REGRESSED,
}
"""Exit code by verdict."""

SEVERAL = "With several canaries, code 1 outweighs 3, and 3 outweighs 0."

_WORST_FIRST = (ExitCode.REGRESSED, ExitCode.INCONCLUSIVE, ExitCode.FINE)


def worst(codes: Iterable[int]) -> ExitCode:
    """Return one exit code for several answers. "Regressed" outweighs "inconclusive", and both outweigh "fine".

    Args:
        codes: Exit code of each answer: 0, 1 or 3.

    Raises:
        ValueError: ``codes`` is empty, or contains another code.
    """
    return min(map(ExitCode, codes), key=_WORST_FIRST.index)


def of_signal(number: int) -> int:
    """Return the exit code for a command that a signal ended, as in shells: 128 plus the number of the signal."""
    return 128 + number


def epilog(meanings: Mapping[ExitCode, str] | None = None, *notes: str) -> str:
    """Return a paragraph on exit codes for a command's help.

    Args:
        meanings: Meanings in this command, such as "too short a series" for INCONCLUSIVE; None for the general
            meanings.
        notes: Sentences at the end of the paragraph.
    """
    named = dict(MEANINGS) if meanings is None else {ExitCode.USAGE: MEANINGS[ExitCode.USAGE], **meanings}
    codes = ", ".join(f"{code:d} {meaning}" for code, meaning in sorted(named.items()))
    return " ".join([f"Exit codes: {codes}.", *notes])
