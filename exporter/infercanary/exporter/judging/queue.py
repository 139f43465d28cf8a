"""Queue of probes' reports that the worker has not stored yet: bounded, filled from any thread."""

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
_START_BYTES, _RUN_BYTES = 2_000, 600  # bytes of an object, without its contents
_EXPANDED = 3.5  # bytes in memory for each encoded byte of numbers; more than for texts


@dataclass(eq=False)
class StartReport:
    """Report of a start of a container: the start, and its new runs; no runs if the start ended."""

    generation: Generation
    runs: Sequence[Run]
    is_found: bool = False
    """True if the runs come from the journal of a start that this exporter did not see: only the store may know its
    image.
    """

    @property
    def container(self) -> tuple[ServiceKey, str]:
        """Key of service and container."""
        return self.generation.key, self.generation.container

    @cached_property
    def size(self) -> int:
        """Estimated bytes in memory."""
        start = self.generation
        encoded = _encoder.encode((start.outputs, start.cold_start, self.runs))
        return _START_BYTES + _RUN_BYTES * len(self.runs) + int(_EXPANDED * len(encoded))


class ReportQueue:
    """Reports by container. Beyond ``most_bytes``, the oldest of the container with the most bytes are dropped."""

    def __init__(self, most_bytes: int) -> None:
        self.dropped = 0
        """Runs that were dropped."""
        self.most_bytes = most_bytes
        self._reports: defaultdict[tuple[ServiceKey, str], deque[StartReport]] = defaultdict(deque)
        self._sizes: Counter[tuple[ServiceKey, str]] = Counter()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def is_half_full(self) -> bool:
        """True if it should be emptied before anything that takes long."""
        return self._bytes > self.most_bytes // 2

    def put(self, report: StartReport) -> None:
        """Add ``report``, without waiting."""
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
        """Return all reports, those of one container in order; they stay until :meth:`done`."""
        with self._lock:
            return [*chain.from_iterable(self._reports.values())]

    def done(self, reports: Iterable[StartReport]) -> None:
        """Remove reports of :meth:`waiting`; :meth:`put` may have dropped some meanwhile."""
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
