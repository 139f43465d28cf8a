"""The last raw runs, and the cursor by which each caller takes each of them exactly once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from infercanary.contract.report import Run

PAGE = 512
"""Runs in one answer: a ring with the runs of an earlier probe is six, each well below what an exporter reads."""


class Ring:
    """Keeps the last ``size`` runs. A cursor is ``<boot id>.<sequence>`` of the last run that a caller has.

    ``found`` are runs that earlier probes of this container left in its journal (each with its ``boot_id``), oldest
    first: a caller that does not know this boot yet gets them first.

    It has no lock: the probe publishes runs together with the numbers that count them, under a lock of its own.

    Args:
        boot_id: Of this probe.
        size: Runs that it holds.
        found: Runs of earlier probes, each with its ``boot_id``, the oldest first; they do not count for ``size``.
    """

    def __init__(self, boot_id: str, size: int, found: Sequence[Run] = ()) -> None:
        self._boot_id = boot_id
        self._found = tuple(found)
        self._runs: deque[Run] = deque(maxlen=size)

    def extend(self, runs: Iterable[Run]) -> None:
        """Add the newest runs, in order; the oldest fall out of a full ring.

        Args:
            runs: Their sequences go on from the last one that the ring has.
        """
        self._runs.extend(runs)

    def since(self, cursor: str, most: int = PAGE) -> tuple[tuple[Run, ...], str, int]:
        """Find the runs after a cursor.

        Args:
            cursor: From the last answer; one of another boot, or any other text, begins with the oldest run.
            most: Runs to return at most, the oldest of them; the next cursor goes on from there.

        Returns:
            The runs, the next cursor, and how many runs after ``cursor`` fell out of the ring.
        """
        boot_id, _, text = cursor.rpartition(".")
        sequence = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
        known = sequence if boot_id == self._boot_id else None
        runs = tuple(run for run in self._runs if known is None or run.sequence > known)
        newest = self._runs[-1].sequence if self._runs else 0
        lost = runs[0].sequence - known - 1 if runs and known is not None else 0
        if known is None:
            runs = (*self._found[self._known(boot_id, -1 if sequence is None else sequence) :], *runs)
        if len(runs) > most:
            runs = runs[:most]
            return runs, f"{runs[-1].boot_id or self._boot_id}.{runs[-1].sequence}", lost
        return runs, f"{self._boot_id}.{newest}", lost

    def _known(self, boot_id: str, sequence: int) -> int:
        """How many of the earlier runs a caller with this cursor has; it got them in order."""
        of_boot = [i for i, run in enumerate(self._found) if run.boot_id == boot_id]
        after = of_boot[-1] + 1 if of_boot else 0
        return next((i for i in of_boot if self._found[i].sequence > sequence), after)
