"""Buffer of the last raw runs. By its cursor, each caller receives each run exactly once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from infercanary.contract.report import Run

PAGE = 512
"""Runs in one answer. A full buffer with an earlier probe's runs needs six answers, each well below the exporter's
size limit.
"""


class RunBuffer:
    """Keeps the last runs. A cursor is ``<boot id>.<sequence>`` of the last run that the caller received.

    The buffer needs no lock, because the probe publishes runs and numbers together under its own lock.

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
        """Return the runs after a cursor.

        Args:
            cursor: Cursor of the last answer; any other text begins with the oldest run.

        Returns:
            The runs, the next cursor, and the number of dropped runs after ``cursor``.
        """
        boot_id, _, text = cursor.rpartition(".")
        sequence = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        is_own = boot_id == self._boot_id and sequence >= 0
        known = [i for i, run in enumerate(self._earlier) if run.boot_id == boot_id]
        # Runs are sent in order, so the caller already has the runs of all probes before the cursor's probe.
        start = len(self._earlier) if is_own else min(known, default=0)
        runs = [
            run
            for run in [*self._earlier, *self._runs][start:]
            if (run.boot_id or self._boot_id) != boot_id or run.sequence > sequence
        ]
        lost = runs[0].sequence - sequence - 1 if is_own and runs else 0
        last = runs[PAGE - 1] if len(runs) > PAGE else next(reversed(self._runs), None)
        newest = "0" if last is None else last.sequence
        return tuple(runs[:PAGE]), f"{(last and last.boot_id) or self._boot_id}.{newest}", lost
