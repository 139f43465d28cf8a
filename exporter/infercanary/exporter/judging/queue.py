"""What probes reported and the thread has not stored yet: bounded, and put there from any thread."""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import chain, count
from typing import NamedTuple

from infercanary.contract.report import Family, Run
from infercanary.contract.vocabulary import COLD_START, COLD_START_METRIC
from infercanary.judge.model import Generation, ServiceKey


class StartReport(NamedTuple):
    """What a start of a container reported: itself, and the runs that are new."""

    generation: Generation
    runs: Sequence[Run]
    is_found: bool = False
    """The runs come out of the journal of a start that this exporter did not see: only the store may know its image."""


class _Queued(NamedTuple):
    number: int
    report: StartReport
    size: int


class ReportQueue:
    """Drops the oldest reports of the container that has most in it, where it would hold more than ``most_bytes``.

    Args:
        most_bytes: Of all reports, as :func:`size_of` counts them.
    """

    def __init__(self, most_bytes: int) -> None:
        self.dropped = 0
        """Runs that were."""
        self.most_bytes = most_bytes
        self._reports: dict[tuple[ServiceKey, str], deque[_Queued]] = {}
        self._sizes: Counter[tuple[ServiceKey, str]] = Counter()
        self._bytes = 0
        self._numbers = count()
        self._lock = threading.Lock()

    @property
    def is_half_full(self) -> bool:
        """Whether it should be emptied before anything that takes long."""
        return self._bytes > self.most_bytes // 2

    def put(self, report: StartReport) -> None:
        """Add ``report``, without waiting.

        Args:
            report: The runs of one start that one answer of its probe had.
        """
        size = size_of(report)
        key = report.generation.key, report.generation.container
        with self._lock:
            self._reports.setdefault(key, deque()).append(_Queued(next(self._numbers), report, size))
            self._sizes[key] += size
            self._bytes += size
            while self._bytes > self.most_bytes:
                most = max(self._sizes, key=self._sizes.__getitem__)
                self.dropped += len(self._remove_first(most).runs)

    def waiting(self) -> list[StartReport]:
        """All that it holds, the oldest first; it stays until :meth:`done`.

        Returns:
            Reports; the list is the caller's own.
        """
        with self._lock:
            return [queued.report for queued in sorted(chain.from_iterable(self._reports.values()))]

    def done(self, reports: Iterable[StartReport]) -> None:
        """Remove these, of which :meth:`put` may have dropped some meanwhile.

        Args:
            reports: The first ones that :meth:`waiting` returned, in that order.
        """
        with self._lock:
            for report in reports:
                key = report.generation.key, report.generation.container
                if key in self._reports and self._reports[key][0].report is report:
                    self._remove_first(key)

    def _remove_first(self, key: tuple[ServiceKey, str]) -> StartReport:
        queued = self._reports[key].popleft()
        self._bytes -= queued.size
        self._sizes[key] -= queued.size
        if not self._reports[key]:
            del self._reports[key], self._sizes[key]
        return queued.report


def size_of(report: StartReport) -> int:
    """About how much memory a report takes: 32 bytes for a number, 600 for what each run has, and texts as they are.

    Args:
        report: A checked one.

    Returns:
        Bytes.
    """
    start = report.generation
    numbers = sum(map(len, start.outputs.values())) + sum(map(len, start.cold_start.values()))
    return 2_000 + 32 * numbers + sum(map(_size_of_run, report.runs))


def _size_of_run(run: Run) -> int:
    named = (run.phases, run.controls, run.off_cpu, run.measures, run.tags)
    rows = run.profile.rows if run.profile is not None else ()
    texts = chain(*named, *((row.kind, row.name, row.device, row.shapes) for row in rows))
    return (
        600
        + 32 * (len(run.latencies) + sum(len(row.seconds) for row in rows))
        + 72 * (sum(map(len, named)) + 3 * len(rows))
        + sum(map(sys.getsizeof, texts), sys.getsizeof(run.detail) + sys.getsizeof(run.clock_reason))
    )


def cold_starts(families: Iterable[Family]) -> dict[str, dict[str, float]]:
    """Canary → step → seconds, out of a report's families.

    Args:
        families: Accepted ones.

    Returns:
        Only what is above zero; a canary without such a step is missing.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for family in families:
        if family.name == COLD_START_METRIC and family.labels == ("canary", "step"):
            for point in family.points:
                canary, step = point.labels
                if (
                    step in COLD_START and isinstance(point.value, float) and point.value > 0
                ):  # a divisor later
                    found[canary][step] = point.value
    return dict(found)
