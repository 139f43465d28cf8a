"""The last raw runs, and the cursor by which each caller takes each of them exactly once."""

from __future__ import annotations

import threading
from collections import deque

from infercanary.probe.report import Run


class Ring:
    """Keeps the last ``size`` runs. A cursor is ``<boot id>.<sequence>`` of the last run that a caller has."""

    def __init__(self, boot_id: str, size: int) -> None:
        self._boot_id = boot_id
        self._runs: deque[Run] = deque(maxlen=size)
        self._lock = threading.Lock()

    def append(self, run: Run) -> None:
        """Add the newest run; the oldest falls out of a full ring."""
        with self._lock:
            self._runs.append(run)

    def since(self, cursor: str) -> tuple[tuple[Run, ...], str, int]:
        """The runs after ``cursor``, the next cursor, and how many runs in between are lost.

        A cursor of another boot, or one that is not ours, gets everything that is still here.
        """
        boot_id, _, sequence = cursor.rpartition(".")
        known = int(sequence) if boot_id == self._boot_id and sequence.isdecimal() else None
        with self._lock:
            runs = tuple(run for run in self._runs if known is None or run.sequence > known)
            newest = self._runs[-1].sequence if self._runs else 0
        lost = runs[0].sequence - known - 1 if runs and known is not None else 0
        return runs, f"{self._boot_id}.{newest}", lost
