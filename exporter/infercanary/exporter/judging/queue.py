"""Bounded queue of reports that the worker has not stored yet. Any thread may add reports."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import msgspec

from infercanary.contract.report import Run
from infercanary.judge.model import Generation, ServiceKey

_encoder = msgspec.msgpack.Encoder()
_START_BYTES, _RUN_BYTES = 2_000, 600  # bytes in memory of a start and of a run, without numbers and texts
_EXPANDED = 3.5  # bytes in memory for each encoded byte of numbers; texts need less


@dataclass(eq=False)
class StartReport:
    """Report about a start of a container, with its new runs. A report about the end of a start has no runs."""

    generation: Generation
    runs: Sequence[Run]
    is_found: bool = False
    """True if the runs are from the journal of a start that this exporter did not see. Perhaps the store knows the
    image of such a start.
    """

    @property
    def container(self) -> tuple[ServiceKey, str]:
        return self.generation.key, self.generation.container

    @cached_property
    def size(self) -> int:
        """Estimated bytes in memory."""
        start = self.generation
        encoded = _encoder.encode((start.outputs, start.cold_start, self.runs))
        return _START_BYTES + _RUN_BYTES * len(self.runs) + int(_EXPANDED * len(encoded))


class ReportQueue:
    """Reports by container.

    Args:
        most_bytes: Memory limit. Beyond this limit, the container whose reports take the most memory loses its oldest
            reports.
    """

    def __init__(self, most_bytes: int) -> None:
        self.dropped = 0
        """Number of dropped runs."""
        self.most_bytes = most_bytes
        self._reports: defaultdict[tuple[ServiceKey, str], deque[StartReport]] = defaultdict(deque)
        self._sizes: Counter[tuple[ServiceKey, str]] = Counter()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def is_half_full(self) -> bool:
        """True if the queue should be stored before a long judgement."""
        return self._bytes > self.most_bytes // 2

    def put(self, report: StartReport) -> None:
        """Add a report. Never waits for the store."""
        with self._lock:
            self._reports[report.container].append(report)
            self._sizes[report.container] += report.size
            self._bytes += report.size
            while self._bytes > self.most_bytes:
                largest = max(self._sizes, key=self._sizes.__getitem__)
                oldest = self._reports[largest][0]
                self.dropped += len(oldest.runs)
                self._remove(oldest)

    def waiting(self) -> list[StartReport]:
        """Return all reports, in order for each container. Reports stay in the queue until :meth:`done`."""
        with self._lock:
            return [*chain.from_iterable(self._reports.values())]

    def done(self, reports: Iterable[StartReport]) -> None:
        """Remove reports that :meth:`waiting` returned. Some of these reports may already be dropped by :meth:`put`."""
        with self._lock:
            for report in reports:
                if report in self._reports.get(report.container, ()):
                    self._remove(report)

    def _remove(self, report: StartReport) -> None:
        waiting = self._reports[report.container]
        waiting.remove(report)
        self._bytes -= report.size
        self._sizes[report.container] -= report.size
        if not waiting:
            del self._reports[report.container], self._sizes[report.container]
