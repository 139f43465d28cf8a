"""The exit codes of every command. A pipeline decides on them, so one code has one meaning everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum


class ExitCode(IntEnum):
    """What a command ends with; of a command that a signal ends, see :func:`of_signal`."""

    FINE = 0
    REGRESSED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    FAULT = 70
    """EX_SOFTWARE of sysexits(3). Python's own code for an exception is 1, which means "regressed" here."""
    INTERRUPTED = 130
    """128 + SIGINT, before a command handles signals itself."""


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
"""What the codes mean where two sides are compared."""

CLAIMED = "With --expect: 0 the claim holds, 1 it is refuted, 3 that is not known."
"""What the codes of an answer mean where a claim is checked."""

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
"""Verdict → the exit code of a command whose answer it is."""

SEVERAL = "Of several canaries, 1 outweighs 3, and 3 outweighs 0."

_WORST_FIRST = (ExitCode.REGRESSED, ExitCode.INCONCLUSIVE, ExitCode.FINE)


def worst(codes: Iterable[int]) -> ExitCode:
    """Return the exit code of several answers: a regression outweighs an unknown, and both outweigh "fine".

    Args:
        codes: Values of ``ExitCode`` that an answer may have: 0, 1 or 3.

    Returns:
        The code for all of them.

    Raises:
        ValueError: There are no answers, or a code is none of an answer.
    """
    return min(map(ExitCode, codes), key=_WORST_FIRST.index)


def of_signal(number: int) -> int:
    """The exit code of a command that signal ``number`` ended, as shells report it: 128 more.

    Args:
        number: Of the signal, such as 15 for SIGTERM.
    """
    return 128 + number


def epilog(meanings: Mapping[ExitCode, str] | None = None, *notes: str) -> str:
    """Return the lines on exit codes for a command's help.

    Args:
        meanings: What a code says of this command in particular, such as "too short a series" for INCONCLUSIVE.
            Without it, the general meaning of every code is listed.
        notes: Sentences that follow.

    Returns:
        One paragraph; its codes are in order.
    """
    named = dict(MEANINGS) if meanings is None else {ExitCode.USAGE: MEANINGS[ExitCode.USAGE], **meanings}
    codes = ", ".join(f"{code:d} {meaning}" for code, meaning in sorted(named.items()))
    return " ".join([f"Exit codes: {codes}.", *notes])
