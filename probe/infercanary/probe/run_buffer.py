"""Buffer of the last raw runs, with a cursor by which each caller receives each run exactly once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from infercanary.contract.report import Run

PAGE = 512
"""Runs in one answer. A full buffer with an earlier probe's runs needs six answers, each well below the exporter's
size limit.
"""


class RunBuffer:
    """Keeps the last runs. A cursor is ``<boot id>.<sequence>`` of the last run that a caller has received.

    The buffer has no lock, because the probe publishes runs and their numbers together under its own lock.

    Args:
        boot_id: Identity of this start of the probe.
        size: Maximum number of runs of this probe.
        earlier: Runs of earlier probes of this container, each with its ``boot_id``, oldest first. These runs do not
            count towards ``size``. A caller that does not know this boot id receives these runs first.
    """

    def __init__(self, boot_id: str, size: int, earlier: Sequence[Run] = ()) -> None:
        self._boot_id = boot_id
        self._earlier = tuple(earlier)
        self._runs: deque[Run] = deque(maxlen=size)

    def extend(self, runs: Iterable[Run]) -> None:
        """Add the newest runs, in order. A full buffer drops its oldest runs."""
        self._runs.extend(runs)

    def since(self, cursor: str) -> tuple[tuple[Run, ...], str, int]:
        """Find the runs after a cursor.

        Args:
            cursor: Cursor of the last answer; any other text begins with the oldest run.

        Returns:
            The runs, the next cursor, and the number of runs after ``cursor`` that were dropped.
        """
        boot_id, _, text = cursor.rpartition(".")
        sequence = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
        if boot_id == self._boot_id and sequence is not None:
            runs = [run for run in self._runs if run.sequence > sequence]
            lost = runs[0].sequence - sequence - 1 if runs else 0
        else:
            known = [i for i, run in enumerate(self._earlier) if run.boot_id == boot_id]
            newer = [i for i in known if sequence is None or self._earlier[i].sequence > sequence]
            # Runs are sent in order, so all runs up to the known ones were received.
            start = newer[0] if newer else known[-1] + 1 if known else 0
            runs, lost = [*self._earlier[start:], *self._runs], 0
        newest = self._runs[-1].sequence if self._runs else 0
        if len(runs) > PAGE:
            newest, boot_id = runs[PAGE - 1].sequence, runs[PAGE - 1].boot_id
            return tuple(runs[:PAGE]), f"{boot_id or self._boot_id}.{newest}", lost
        return tuple(runs), f"{self._boot_id}.{newest}", lost
