"""The last raw runs, and the cursor by which each caller takes each of them exactly once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from infercanary.contract.report import Run

PAGE = 512
"""Runs in one answer: a ring with the runs of an earlier probe is six, each well below what an exporter reads."""


class RunBuffer:
    """Keeps the last runs. A cursor is ``<boot id>.<sequence>`` of the last run that a caller has.

    It has no lock: the probe publishes runs together with the numbers that count them, under a lock of its own.

    Args:
        boot_id: Of this probe.
        size: Runs that it holds.
        earlier: Runs of earlier probes of this container, each with its ``boot_id``, the oldest first; they do not
            count for ``size``. A caller that does not know this boot yet gets them first.
    """

    def __init__(self, boot_id: str, size: int, earlier: Sequence[Run] = ()) -> None:
        self._boot_id = boot_id
        self._earlier = tuple(earlier)
        self._runs: deque[Run] = deque(maxlen=size)

    def extend(self, runs: Iterable[Run]) -> None:
        """Add the newest runs, in order; the oldest fall out of a full ring."""
        self._runs.extend(runs)

    def since(self, cursor: str, most: int = PAGE) -> tuple[tuple[Run, ...], str, int]:
        """Find the runs after a cursor.

        Args:
            cursor: From the last answer; any other text begins with the oldest run.
            most: Runs to return at most, the oldest of them; the next cursor goes on from there.

        Returns:
            The runs, the next cursor, and how many runs after ``cursor`` fell out of the ring.
        """
        boot_id, _, text = cursor.rpartition(".")
        sequence = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
        if boot_id == self._boot_id and sequence is not None:
            runs = [run for run in self._runs if run.sequence > sequence]
            lost = runs[0].sequence - sequence - 1 if runs else 0
        else:
            known = [i for i, run in enumerate(self._earlier) if run.boot_id == boot_id]
            newer = [i for i in known if sequence is None or self._earlier[i].sequence > sequence]
            # A caller got the runs in order.
            start = newer[0] if newer else known[-1] + 1 if known else 0
            runs, lost = [*self._earlier[start:], *self._runs], 0
        newest = self._runs[-1].sequence if self._runs else 0
        if len(runs) > most:
            newest, boot_id = runs[most - 1].sequence, runs[most - 1].boot_id
            return tuple(runs[:most]), f"{boot_id or self._boot_id}.{newest}", lost
        return tuple(runs), f"{self._boot_id}.{newest}", lost
