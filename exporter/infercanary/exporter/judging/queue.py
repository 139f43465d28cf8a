"""Reports of probes that the worker has not stored yet: bounded, and put there from any thread."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from infercanary.contract.report import Run
from infercanary.judge.model import Generation, ServiceKey

_encoder = msgspec.msgpack.Encoder()
_START_BYTES, _RUN_BYTES = 2_000, 600  # of objects, beside what they hold
_EXPANDED = 3.5  # bytes of numbers in memory for each that is encoded; of texts that is too many


class StartReport(NamedTuple):
    """Report of a start of a container: the start, and its new runs."""

    generation: Generation
    runs: Sequence[Run]
    is_found: bool = False
    """The runs come out of the journal of a start that this exporter did not see: only the store may know its image."""


class ReportQueue:
    """Reports by container. Beyond ``most_bytes``, the oldest of the container with the most bytes are dropped."""

    def __init__(self, most_bytes: int) -> None:
        self.dropped = 0
        """Runs that were dropped."""
        self.most_bytes = most_bytes
        self._reports: dict[tuple[ServiceKey, str], deque[tuple[StartReport, int]]] = {}
        self._sizes: Counter[tuple[ServiceKey, str]] = Counter()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def is_half_full(self) -> bool:
        """True if it should be emptied before anything that takes long."""
        return self._bytes > self.most_bytes // 2

    def put(self, report: StartReport) -> None:
        """Add ``report``, without waiting."""
        size = size_of(report)
        key = report.generation.key, report.generation.container
        with self._lock:
            self._reports.setdefault(key, deque()).append((report, size))
            self._sizes[key] += size
            self._bytes += size
            while self._bytes > self.most_bytes:
                most = max(self._sizes, key=self._sizes.__getitem__)
                self.dropped += len(self._remove_first(most).runs)

    def waiting(self) -> list[StartReport]:
        """All reports, those of one container in order; they stay until :meth:`done`."""
        with self._lock:
            return [report for report, _ in chain.from_iterable(self._reports.values())]

    def done(self, reports: Iterable[StartReport]) -> None:
        """Remove these reports of :meth:`waiting`; :meth:`put` may have dropped some meanwhile."""
        with self._lock:
            for report in reports:
                key = report.generation.key, report.generation.container
                if key in self._reports and self._reports[key][0][0] is report:
                    self._remove_first(key)

    def _remove_first(self, key: tuple[ServiceKey, str]) -> StartReport:
        report, size = self._reports[key].popleft()
        self._bytes -= size
        self._sizes[key] -= size
        if not self._reports[key]:
            del self._reports[key], self._sizes[key]
        return report


def size_of(report: StartReport) -> int:
    """Estimated bytes of a report in memory."""
    start = report.generation
    encoded = _encoder.encode((start.outputs, start.cold_start, report.runs))
    return _START_BYTES + _RUN_BYTES * len(report.runs) + int(_EXPANDED * len(encoded))
