"""Recorded runs as the judge takes them: the starts of each canary, whatever kind of file they came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from infercanary.command.settings import UsageError
from infercanary.contract.text import printable, shortened
from infercanary.judge.model import Start

Floats: TypeAlias = NDArray[np.float64]


class Attempts(msgspec.Struct, frozen=True):
    """Counts of runs that began, and of those that failed. A run that was skipped as busy is not counted."""

    begun: int
    failed: int


class RecordedRuns(NamedTuple):
    """The runs of one canary, or one or more files of numbers."""

    points: Sequence[Floats]
    """For each start, the medians of the runs that count, in order of time (seconds, of a journal)."""
    starts: Sequence[Start] = ()
    """Of a journal: the same starts, with every field of their runs."""
    environments: Sequence[Sequence[tuple[int, str]]] = ()
    """Of a journal: for each start, (index of the first run, id) of each environment."""
    left_out: Mapping[str, int] = {}
    """Reason → the number of runs that do not count for it."""
    attempts: Attempts | None = None
    """All runs, also those that do not count; None of numbers that do not say how runs ended."""
    failure: str = ""
    """Reason of the last failed run."""
    in_seconds: bool = False
    """True if the unit of a table is known."""

    @property
    def runs(self) -> int:
        return sum(start.size for start in self.points)

    @property
    def every(self) -> Floats:
        """The points of all starts, concatenated."""
        return np.concatenate(self.points) if self.points else np.empty(0)


class Recording(NamedTuple):
    """The files of one side. Numbers are stored as a canary with an empty name."""

    places: Sequence[str]
    journal: bool
    canaries: Mapping[str, RecordedRuns]
    components: Mapping[str, Mapping[str, str]] = {}
    """Environment id → its components."""
    notes: Sequence[str] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. In JSON a number that is not finite is null."""

    canary: str | None
    """None of numbers."""
    exit_code: int
    sentence: str
    shift: float | None
    """Shift of the latency, as a ratio: 0.05 is 5 % slower; None if there are too few runs."""
    runs: int
    starts: int
    unit: Literal["s"] | None
    notes: Sequence[str] = ()


def shown(text: str, limit: int = 60) -> str:
    """Return ``text`` from a file, safe for a terminal and at most ``limit`` characters long.

    Args:
        text: Of any length, with any characters.
        limit: Characters; a longer text ends with ``…``.
    """
    return shortened(printable(text), limit)


def at_most(most: int, number: int, place: str, what: str) -> None:
    """Refuse what is more than a file may have.

    Args:
        most: The most.
        number: That there are.
        place: For the message.
        what: Things are counted, in the plural.

    Raises:
        UsageError: There are more.
    """
    if number > most:
        raise UsageError(f"{place}: more than {most:,} {what}; give a part of the file")


def listed(names: Iterable[str], most: int = 12) -> str:
    """The names as a list to choose from, such as ``a, b and 3 more``.

    Args:
        names: In the order in which they are shown.
        most: How many are shown.
    """
    each = [shown(name) for name in names]
    more = f" and {len(each) - most} more" if len(each) > most else ""
    return ", ".join(each[:most]) + more
