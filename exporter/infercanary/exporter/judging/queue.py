"""What probes reported and the thread has not stored yet: bounded, and put there from any thread."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from infercanary.contract.report import Family, Run
from infercanary.contract.vocabulary import COLD_START_METRICS
from infercanary.judge.model import Generation

MAX_RUNS = 100_000


class StartReport(NamedTuple):
    """What a start of a container reported: itself, and the runs that are new."""

    generation: Generation
    runs: Sequence[Run]
    is_found: bool = False
    """The runs come out of the journal of a start that this exporter did not see: only the store may know its image."""


class ReportQueue:
    """Drops the oldest reports where it would hold more than ``MAX_RUNS`` runs."""

    def __init__(self) -> None:
        self.dropped = 0
        """Runs that were."""
        self._reports: deque[StartReport] = deque()
        self._runs = 0
        self._lock = threading.Lock()

    @property
    def is_half_full(self) -> bool:
        """Whether it should be emptied before anything that takes long."""
        return self._runs > MAX_RUNS // 2

    def put(self, report: StartReport) -> None:
        """Add ``report``, without waiting.

        Args:
            report: The runs of one start that one answer of its probe had.
        """
        with self._lock:
            self._reports.append(report)
            self._runs += len(report.runs)
            while self._runs > MAX_RUNS:
                self.dropped += self._remove_first()

    def waiting(self) -> list[StartReport]:
        """All that it holds, the oldest first; it stays until :meth:`done`.

        Returns:
            Reports; the list is the caller's own.
        """
        with self._lock:
            return [*self._reports]

    def done(self, reports: Iterable[StartReport]) -> None:
        """Remove these, of which :meth:`put` may have dropped some meanwhile.

        Args:
            reports: The first ones that :meth:`waiting` returned, in that order.
        """
        with self._lock:
            for report in reports:
                if self._reports and self._reports[0] is report:
                    self._remove_first()

    def _remove_first(self) -> int:
        runs = len(self._reports.popleft().runs)
        self._runs -= runs
        return runs


def cold_starts(families: Iterable[Family]) -> dict[str, dict[str, float]]:
    """Canary → step → seconds, out of a report's families.

    Args:
        families: Accepted ones.

    Returns:
        Only what is above zero; a canary without such a step is missing.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for family in families:
        step = COLD_START_METRICS.get(family.name)
        if step is not None and family.labels == ("canary",):
            for point in family.points:
                if isinstance(point.value, float) and point.value > 0:  # it is a divisor later
                    found[point.labels[0]][step] = point.value
    return dict(found)
