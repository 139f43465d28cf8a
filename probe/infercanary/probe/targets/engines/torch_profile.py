"""Profiles repeats with torch's own profiler: the time of each operator, and on a GPU the device time of its kernels.

``torch.autograd.profiler`` is the core of ``torch.profiler``, which would first import 800 modules (73 MiB).
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from infercanary.command.extras import advice
from infercanary.contract.profile import NO_CUPTI, OK, Profile, normalised
from infercanary.probe.targets.engines.profiled import Operator, OperatorTimes, shapes_text
from infercanary.probe.targets.engines.torch_work import work_of
from infercanary.probe.targets.libraries import imported
from infercanary.probe.timing import Clock, Phase, inferences

_MARK = "infercanary::repeat"
# The first repeat allocates the profiler's buffers; a short model needs more repeats until its memory is in the
# caches again.
_WARM_UPS, _WARM_UP_SECONDS = 10, 0.02
_COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction")
_COMPILED_ROW = "compiled region"
# Prefixes of driver and runtime calls that launch the kernels. Only the kernels get rows.
_RUNTIME = ("cuda", "cu", "hip")
# Names of kernels from torch's compiler, such as triton_poi_fused_add_relu_3
_FUSED = re.compile(r"triton_[a-z]+_fused_(\w+?)(?:_\d+)?")


class _Kernel(NamedTuple):
    name: str
    device: str
    begin: int  # nanoseconds
    took: int


class _Span(NamedTuple):
    """One event of a host thread. Times are in nanoseconds."""

    name: str
    begin: int
    end: int
    is_operator: bool
    shapes: str
    kernels: list[_Kernel]
    inner: list[_Span]
    """Events inside this event, in the order outermost first."""
    event: Any

    @property
    def own_seconds(self) -> float:
        """Return the event's time outside its inner events."""
        own = self.end - self.begin - sum(span.end - span.begin for span in self.inner)
        return max(0, own) / 1e9

    def parts(self) -> Iterator[_Span]:
        """Yield this event and all events inside it."""
        yield self
        for span in self.inner:
            yield from span.parts()


def profile_repeats(
    torch: Any, clock: Clock, run: Callable[[Phase], Any], repeats: int, device: str, trace: Path | None
) -> Profile:
    """Profile repeats in the calling thread, after uncounted warm-up repeats.

    Args:
        torch: The module.
        clock: Times a repeat.
        run: Makes the inferences of one repeat.
        repeats: At least 1.
        device: ``cpu`` or ``cuda[:N]``.
        trace: File for the trace, which Perfetto can open.
    """
    _silence()
    on_device, batch = device.startswith("cuda"), inferences(clock)
    walls = []
    taken_at = time.time()
    warm_ups = None
    with make_profiler(torch, on_device) as profile:
        while warm_ups is None or len(walls) < warm_ups + repeats:
            with torch.autograd.profiler.record_function(_MARK):
                walls.append(clock.measure(run)[0].wall * batch)
            if warm_ups is None and (len(walls) >= _WARM_UPS or sum(walls) >= _WARM_UP_SECONDS):
                warm_ups = len(walls)
    if trace is not None:
        profile.export_chrome_trace(str(trace))
    times = OperatorTimes(repeats, batch)
    numbers = range(repeats - len(walls), repeats)
    has_kernels = _read(profile.kineto_results.events(), numbers, times, on_device)
    state = NO_CUPTI if on_device and not has_kernels else OK
    return times.profile(walls[-repeats:], "torch", taken_at, state)


def import_torch() -> Any:
    """Import torch. The first import also starts torch's profiler once, for 1 ms.

    Kineto, the profiler's library, prints an error unless its first start is in the thread that loaded torch, and
    probes run repeats in another thread. If the server itself loaded torch, the error is still printed.

    Raises:
        UsageError: torch is not installed.
        Failure: torch is installed and cannot be loaded.
    """
    is_first = "torch" not in sys.modules
    torch = imported("torch", advice("torch"))
    if is_first:
        _silence()
        # some builds of torch have no Kineto
        with suppress(Exception), make_profiler(torch, on_device=False):
            pass
    return torch


def _silence() -> None:
    # By default, Kineto prints a line to standard error at each start. Keep the server's own setting, if any.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def make_profiler(torch: Any, on_device: bool) -> Any:
    """Make torch's profiler, but do not start it. With ``on_device``, the profiler also lists the device's kernels."""
    return torch.autograd.profiler.profile(
        record_shapes=True, with_flops=True, use_device="cuda" if on_device else None, use_kineto=True
    )


def _read(events: Iterable[Any], numbers: range, times: OperatorTimes, on_device: bool) -> bool:
    """Add the marked repeats. Return True if the profiler listed kernels of a device.

    Args:
        events: Events of the profiler.
        numbers: Numbers of the repeats; negative numbers are warm-ups, which are not counted.
        times: Object to which operator times are added.
        on_device: True if the model runs on a GPU.
    """
    threads: dict[int, list[_Span]] = {}
    operators = {}
    marks = []
    on_device_events = []
    for event in events:
        if str(event.device_type()).rpartition(".")[2] != "CPU":
            if not _flag(event, "is_user_annotation"):
                on_device_events.append(event)
            continue
        shapes = shapes_text(event.shapes(), event.dtypes())
        span = _Span(event.name(), *_span(event), _is_operator(event), shapes, [], [], event)
        threads.setdefault(event.start_thread_id(), []).append(span)
        if span.is_operator:
            operators[event.correlation_id()] = span
        elif span.name == _MARK:
            marks.append(span)
    graph_kernels: list[_Kernel] = []
    for event in on_device_events:
        begin, end = _span(event)
        kernel = _Kernel(event.name(), f"cuda:{event.device_index()}", begin, end - begin)
        # Kernels of a CUDA graph are linked to the mark or to nothing (0), but not to an operator.
        operator = operators.get(event.linked_correlation_id())
        (graph_kernels if operator is None else operator.kernels).append(kernel)
    for spans in threads.values():
        _nest(spans)
    marks.sort(key=lambda span: span.begin)
    for repeat, mark in zip(numbers, marks, strict=True):
        if repeat < 0:
            continue
        _add_operators(mark.inner, times, repeat, on_device)
        for kernel in graph_kernels:
            if mark.begin <= kernel.begin <= mark.end:
                name = normalised(kernel.name)
                times.add(repeat, Operator(_kind(name), kernel.device), name, kernel.took / 1e9)
    return bool(on_device_events)


def _nest(spans: list[_Span]) -> None:
    """Put each event of a thread into the event that contains it."""
    outer: list[_Span] = []
    for span in sorted(spans, key=lambda span: (span.begin, -span.end)):
        while outer and outer[-1].end <= span.begin:
            outer.pop()
        if outer:
            outer[-1].inner.append(span)
        outer.append(span)


def _add_operators(spans: list[_Span], times: OperatorTimes, repeat: int, on_device: bool) -> None:
    """Add each outermost operator together with all operators that it called."""
    for span in spans:
        if span.is_operator:
            _add_operator(span, times, repeat)
            continue
        if span.name.startswith(_COMPILED) and not on_device:
            # On the CPU, the profiler lists no fused loops, only the operators called between them. A compiled region
            # around another region is not a separate call.
            regions = sum(part.name.startswith(_COMPILED) for part in span.parts())
            region = Operator(_COMPILED_ROW, "cpu")
            times.add(repeat, region, _COMPILED_ROW, span.own_seconds, calls=float(regions == 1))
        _add_operators(span.inner, times, repeat, on_device)


def _add_operator(span: _Span, times: OperatorTimes, repeat: int) -> None:
    """Add an operator with the time of its kernels; without kernels, with the host's time.

    Adding both would count time twice, because kernels run while the host continues.
    """
    kernels = [kernel for part in span.parts() for kernel in part.kernels]
    operator = Operator(_kind(span.name), kernels[0].device if kernels else "cpu", span.shapes)
    for kernel in kernels:
        times.add(repeat, operator._replace(device=kernel.device), normalised(kernel.name), kernel.took / 1e9)
    for part in () if kernels else span.parts():
        times.add(repeat, operator, normalised(part.name), part.own_seconds, calls=float(part is span))
    launches = len(kernels) or sum(part.is_operator for part in span.parts())
    times.add_work(operator, *work_of(span), launches)


def _kind(name: str) -> str:
    """Return an operator's name; for a kernel of torch's compiler, the names of the fused operators."""
    fused = _FUSED.fullmatch(name)
    return f"fused {fused[1]}" if fused else name


def _is_operator(event: Any) -> bool:
    name = event.name()
    if name == _MARK or _flag(event, "is_user_annotation") or _flag(event, "is_python_function"):
        return False
    return "::" in name and not name.startswith((*_RUNTIME, *_COMPILED))


def _flag(event: Any, name: str) -> bool:
    """Return a flag of an event; False if this version of torch lacks the flag."""
    return bool(getattr(event, name, bool)())


def _span(event: Any) -> tuple[int, int]:
    """Return the begin and end of an event in nanoseconds."""
    begin = int(event.start_ns())
    return begin, begin + int(event.duration_ns())
