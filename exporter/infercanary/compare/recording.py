"""What was recorded, as the judge takes it: the starts of each canary, whatever file they came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from infercanary.contract.text import printable, shortened
from infercanary.judge.causes import Start

Floats: TypeAlias = NDArray[np.float64]


class Attempts(msgspec.Struct, frozen=True):
    """Runs that were begun, and those of them that failed. One skipped because something was busy is neither."""

    begun: int
    failed: int


class RecordedRuns(NamedTuple):
    """One canary. ``points`` holds, for each start, the medians of the runs that count, in order of time.

    Of a journal, ``starts`` has the same starts with all that is known of each run, and ``environments`` their
    environments: from which run on, and the id. ``attempts`` counts all its runs, those that do not count too. Numbers
    come without.
    """

    points: Sequence[Floats]
    starts: Sequence[Start] = ()
    environments: Sequence[Sequence[tuple[int, str]]] = ()
    left_out: Mapping[str, int] = {}
    attempts: Attempts | None = None

    @property
    def runs(self) -> int:
        return sum(start.size for start in self.points)

    @property
    def every(self) -> Floats:
        """The points of all starts, one after the other."""
        return np.concatenate(self.points) if self.points else np.empty(0)


class Recording(NamedTuple):
    """The files of one side. Numbers are a canary without a name."""

    places: Sequence[str]
    journal: bool
    canaries: Mapping[str, RecordedRuns]
    components: Mapping[str, Mapping[str, str]] = {}
    """Environment id → its components."""
    notes: Sequence[str] = ()


def shown(text: str, limit: int = 60) -> str:
    """A name out of someone's file, safe for a terminal and not too long for a line."""
    return shortened(printable(text), limit)


def listed(names: Iterable[str], most: int = 12) -> str:
    """Names for a person who has to pick one."""
    each = [shown(name) for name in names]
    more = f" and {len(each) - most} more" if len(each) > most else ""
    return ", ".join(each[:most]) + more
