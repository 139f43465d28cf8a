"""The two clocks: the host's, and the GPU's by CUDA events. Both time one repeat of a target, phase by phase.

GPU time and host time are never mixed: ``h2d``, ``compute`` and ``d2h`` are the device's where there is one;
``launch`` is the host time it took to enqueue them, and ``queue`` the time the work waited before and between.
A slow launch with a clean GPU is a real and common fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter_ns
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

_BATCH_SECONDS = 100e-6
_BATCH_TRIES = 5
_MAX_BATCH = 1000

Phase = Callable[[str], AbstractContextManager[None]]
"""Given to a target's ``run``: ``with phase("compute"): …`` around each part of its work."""


class Timing(NamedTuple):
    """Seconds of one repeat: ``wall`` by the host's monotonic clock, and each phase."""

    wall: float
    phases: dict[str, float]


class Clock(Protocol):
    """Times one repeat."""

    def measure(self, run: Callable[[Phase], T]) -> tuple[Timing, T]:
        """Call ``run`` with a phase marker; its timing and its result. Whatever ``run`` raises passes through.

        Args:
            run: Makes the inferences of one repeat, each phase within ``with phase(name):``.

        Returns:
            Seconds of an inference, as a whole and by phase; and what ``run`` returned.
        """
        ...


def inferences(clock: Clock) -> int:
    """Return the inferences of a repeat by this clock, which divides times by them; 1 where it has no ``batch``."""
    return int(getattr(clock, "batch", 1))


def inferences_of_100_us(clock: Clock, run: Callable[[Phase], Any]) -> int:
    """Return how many inferences compute for 100 µs on the device: events resolve about 0.5 µs.

    Args:
        clock: Its phase ``compute`` is read, a few times.
        run: Makes one inference.

    Returns:
        A number from 1 on, bounded.
    """
    compute = min(clock.measure(run)[0].phases["compute"] for _ in range(_BATCH_TRIES))
    return max(1, min(_MAX_BATCH, math.ceil(_BATCH_SECONDS / max(compute, 1e-7))))


class HostClock:
    """For work that is done when the call returns (CPU, HTTP). A phase entered twice counts both times."""

    batch = 1

    def measure(self, run: Callable[[Phase], T]) -> tuple[Timing, T]:
        """See :class:`Clock`."""
        spans: list[_HostSpan] = []

        def phase(name: str) -> _HostSpan:
            spans.append(span := _HostSpan(name))
            return span

        begin = perf_counter_ns()
        result = run(phase)
        wall = perf_counter_ns() - begin
        phases: dict[str, float] = {}
        for span in spans:
            phases[span.name] = phases.get(span.name, 0.0) + (span.end - span.begin) / 1e9
        return _timing(wall / 1e9, phases, self.batch), result


class _HostSpan:
    __slots__ = ("begin", "end", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.begin = self.end = 0

    def __enter__(self) -> None:
        self.begin = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end = perf_counter_ns()


class _DeviceSpan(_HostSpan):
    """A phase on the device: events on the stream at both ends, and the host's time to enqueue what is between."""

    __slots__ = ("start", "stop", "stream")

    def __init__(self, name: str, stream: Any, start: Any, stop: Any) -> None:
        super().__init__(name)
        self.stream, self.start, self.stop = stream, start, stop

    def __enter__(self) -> None:
        super().__enter__()
        self.start.record(self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop.record(self.stream)
        super().__exit__(kind, error, trace)


class CudaClock:
    """CUDA events on a stream of the probe's own, of the lowest priority (PyTorch: 0; negative is higher).

    PyTorch hands out 32 streams of a priority in turn: a host that makes as many side streams may get this one again.

    Events are made once and reused. The host waits for the last event only, never for the device, which other
    streams keep busy. An anchor (an event recorded and awaited while the stream is idle, with the host's time
    around it) puts the start of the work on the host's timeline; it is renewed each second, because
    ``elapsed_time`` is milliseconds in single precision, and 16 s already cost it 2 µs.
    """

    batch = 1
    _ANCHOR_TRIES = 5
    _ANCHOR_LIFE_NS = 1_000_000_000

    def __init__(self, cuda: Any, device: Any) -> None:
        """Make the stream and its events.

        Args:
            cuda: ``torch.cuda``, or what has the same names; passed in, since nothing here imports torch.
            device: A ``torch.device``.
        """
        self._cuda = cuda
        self.stream = cuda.Stream(device=device, priority=0)
        self._pairs: list[tuple[Any, Any]] = []
        self._end = cuda.Event(enable_timing=True)
        self._anchor = cuda.Event(enable_timing=True)
        self._spare = cuda.Event(enable_timing=True)
        self._anchor_ns: int | None = None

    def measure(self, run: Callable[[Phase], T]) -> tuple[Timing, T]:
        """See :class:`Clock`."""
        spans: list[_DeviceSpan] = []

        def phase(name: str) -> _DeviceSpan:
            if len(spans) == len(self._pairs):
                event = self._cuda.Event
                self._pairs.append((event(enable_timing=True), event(enable_timing=True)))
            spans.append(span := _DeviceSpan(name, self.stream, *self._pairs[len(spans)]))
            return span

        with self._cuda.stream(self.stream):
            if self._anchor_ns is None or perf_counter_ns() - self._anchor_ns > self._ANCHOR_LIFE_NS:
                self._anchor_ns = self._drop_anchor()
            begin = perf_counter_ns()
            result = run(phase)
            self._end.record(self.stream)
            self._end.synchronize()
            wall = perf_counter_ns() - begin
            return _timing(wall / 1e9, self._phases(spans), self.batch), result

    def _drop_anchor(self) -> int:
        """The host's time at the anchor. Of a few tries keep the tightest: the event lies between two readings."""
        narrowest = at = 0
        self._end.record(self.stream)
        self._end.synchronize()
        for attempt in range(self._ANCHOR_TRIES):
            before = perf_counter_ns()
            self._spare.record(self.stream)
            self._spare.synchronize()
            width = perf_counter_ns() - before
            if attempt == 0 or width < narrowest:
                narrowest, at = width, before + width // 2
                self._anchor, self._spare = self._spare, self._anchor
        return at

    def _phases(self, spans: list[_DeviceSpan]) -> dict[str, float]:
        if not spans or self._anchor_ns is None:
            return {}
        phases: dict[str, float] = {}
        launch = on_device = 0.0
        for span in spans:
            seconds = span.start.elapsed_time(span.stop) / 1e3
            phases[span.name] = phases.get(span.name, 0.0) + seconds
            on_device += seconds
            launch += (span.end - span.begin) / 1e9
        first = spans[0]
        started_at = self._anchor_ns / 1e9 + self._anchor.elapsed_time(first.start) / 1e3
        before = started_at - first.begin / 1e9
        between = first.start.elapsed_time(spans[-1].stop) / 1e3 - on_device
        return {**phases, "launch": launch, "queue": max(0.0, before) + max(0.0, between)}


def _timing(wall: float, phases: dict[str, float], batch: int) -> Timing:
    """A repeat of ``batch`` inferences, as one inference."""
    if batch == 1:
        return Timing(wall, phases)
    return Timing(wall / batch, {name: seconds / batch for name, seconds in phases.items()})
