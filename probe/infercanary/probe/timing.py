"""The two clocks: the host's clock, and the GPU's clock by CUDA events. Both time one repeat of a target by phase.

GPU time and host time are separate. With a device, ``h2d``, ``compute`` and ``d2h`` are device time.
``launch`` is the host's time to enqueue these phases, and ``queue`` is the wait before and between them. A slow
launch with a normal GPU time is a real and common fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

_BATCH_SECONDS = 100e-6
_BATCH_TRIES = 5
_MAX_BATCH = 1000

Phase = Callable[[str], AbstractContextManager[None]]
"""Phase marker that a target's ``run`` receives: ``with phase("compute"): …`` encloses each part of its work."""


class Timing(NamedTuple):
    """Seconds per inference of one repeat: ``wall`` by the host's monotonic clock, and the seconds of each phase."""

    wall: float
    phases: dict[str, float]


class Clock(Protocol):
    """Times one repeat of a target."""

    def measure(self, run: Callable[[Phase], T]) -> tuple[Timing, T]:
        """Call ``run`` with a phase marker, and return its timing and result. Exceptions of ``run`` pass through.

        Args:
            run: Function that makes the inferences of one repeat, with each phase inside ``with phase(name):``.

        Returns:
            Seconds per inference, in total and by phase; and the result of ``run``.
        """
        ...


def inferences(clock: Clock) -> int:
    """Return the number of inferences in a repeat; 1 for a clock without ``batch``. The clock divides times by this
    number.
    """
    return int(getattr(clock, "batch", 1))


def inferences_of_100_us(clock: Clock, run: Callable[[Phase], Any]) -> int:
    """Return the number of inferences that compute for 100 µs in total, because events have a resolution of about 0.5
    µs.

    Args:
        clock: Clock with the phase ``compute``, which times ``run`` several times.
        run: Function that makes one inference.

    Returns:
        A number from 1 to 1000.
    """
    compute = min(clock.measure(run)[0].phases["compute"] for _ in range(_BATCH_TRIES))
    return max(1, min(_MAX_BATCH, math.ceil(_BATCH_SECONDS / max(compute, 1e-7))))


class HostClock:
    """Clock for work that is complete when the call returns (CPU, HTTP). Times of a repeated phase are summed."""

    batch = 1

    def measure(self, run: Callable[[Phase], T]) -> tuple[Timing, T]:
        """See :class:`Clock`."""
        spans = []

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

    def __exit__(self, *_: object) -> None:
        self.end = perf_counter_ns()


class _DeviceSpan(_HostSpan):
    """A phase on the device: an event at each end, and the host's time to enqueue the work."""

    __slots__ = ("start", "stop", "stream")

    def __init__(self, name: str, stream: Any, start: Any, stop: Any) -> None:
        super().__init__(name)
        self.stream, self.start, self.stop = stream, start, stop

    def __enter__(self) -> None:
        super().__enter__()
        self.start.record(self.stream)

    def __exit__(self, *_: object) -> None:
        self.stop.record(self.stream)
        super().__exit__()


class CudaClock:
    """Clock by CUDA events, on a separate stream of the lowest priority (0 in PyTorch; negative is higher).

    PyTorch hands out 32 streams of a priority in turn, so a server that makes 32 side streams may share this
    stream.

    Events are made once and reused. The host waits only for the last event, never for the whole device, because other
    streams keep the device busy. An anchor puts the start of the work on the host's timeline. An anchor is an event
    that is recorded and awaited while the stream is idle, with the host's clock read before and after. The anchor is
    renewed each second, because ``elapsed_time`` is milliseconds in single precision, with an error of 2 µs after 16
    s.
    """

    batch = 1
    _ANCHOR_TRIES = 5
    _ANCHOR_LIFE_NS = 1_000_000_000

    def __init__(self, cuda: Any, device: Any) -> None:
        """Make the stream and its events.

        Args:
            cuda: ``torch.cuda``, or an object with the same names. This module does not import torch.
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
        """Drop the anchor and make a new one. Return its host time: the middle between two clock readings, from the
        most exact try.
        """
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
    """Divide the times of a repeat by its ``batch`` inferences."""
    if batch == 1:
        return Timing(wall, phases)
    return Timing(wall / batch, {name: seconds / batch for name, seconds in phases.items()})
