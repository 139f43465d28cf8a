"""Recorded runs in the form that the judge needs: the starts of each canary, for any kind of file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from infercanary.command.settings import UsageError
from infercanary.contract.text import printable, shortened
from infercanary.judge.identity import Digests
from infercanary.judge.model import Start

Floats: TypeAlias = NDArray[np.float64]


class Attempts(msgspec.Struct, frozen=True):
    """Numbers of begun and of failed runs, without skipped runs (outcome "busy")."""

    begun: int
    failed: int


class RecordedRuns(NamedTuple):
    """Runs of one canary, or of one or more files of numbers."""

    points: Sequence[Floats]
    """Medians of the counted runs in order of time, for each start (from a journal, in seconds)."""
    starts: Sequence[Start] = ()
    """The starts of ``points`` with all fields of their runs; empty for numbers."""
    environments: Sequence[Sequence[tuple[int, str]]] = ()
    """For each start: index of the first run and id of each environment; empty for numbers."""
    left_out: Mapping[str, int] = {}
    """Number of excluded runs, by reason."""
    attempts: Attempts | None = None
    """All runs, including excluded runs; None for numbers without information on failures."""
    failure: str = ""
    """Reason of the last failed run."""
    in_seconds: bool = False
    """True if the unit of a table is known; the values are then in seconds."""

    @property
    def runs(self) -> int:
        return sum(start.size for start in self.points)

    @property
    def every(self) -> Floats:
        """Points of all starts as one series."""
        return np.concatenate(self.points) if self.points else np.empty(0)


class Recording(NamedTuple):
    """The files of one side. Numbers are stored as a canary with an empty name."""

    places: Sequence[str]
    journal: bool
    canaries: Mapping[str, RecordedRuns]
    components: Mapping[str, Mapping[str, str]] = {}
    """Components of each environment, by environment id."""
    notes: Sequence[str] = ()


class RecordedSide(NamedTuple):
    """Counted starts of one canary in one image, to be recorded; an unknown text is empty."""

    starts: Sequence[Start]
    image: str = ""
    digests: Digests = Digests()
    host: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Common fields of the answers of ``compare``, ``scan`` and ``ab``. In JSON, a non-finite number is null."""

    canary: str | None
    """Name of the canary; None for files of numbers."""
    exit_code: int
    sentence: str
    shift: float | None
    """Shift of the latency, as a ratio: 0.05 is 5 % slower; None if there are too few runs."""
    runs: int
    starts: int
    unit: Literal["s"] | None
    notes: Sequence[str] = ()


def shown(text: str, limit: int = 60) -> str:
    """Return ``text`` from a file, made safe for a terminal and cut to ``limit`` characters.

    Args:
        limit: Maximum number of characters; a cut text ends with ``…``.
    """
    return shortened(printable(text), limit)


def at_most(most: int, number: int, place: str, what: str) -> None:
    """Refuse a file that exceeds a limit.

    Args:
        place: Place in the file, for the message.
        what: Plural noun for the message, such as "lines".

    Raises:
        UsageError: ``number`` is above the limit.
    """
    if number > most:
        raise UsageError(f"{place}: more than {most:,} {what}; give a part of the file")


def listed(names: Iterable[str], most: int = 12) -> str:
    """Return names as text, such as ``a, b and 3 more``.

    Args:
        names: Names in order of output.
        most: Maximum number of names in the list; the rest is counted.
    """
    each = [shown(name) for name in names]
    more = f" and {len(each) - most} more" if len(each) > most else ""
    return ", ".join(each[:most]) + more
