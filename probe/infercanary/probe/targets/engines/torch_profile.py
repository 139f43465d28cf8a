"""Profiles repeats with torch's own profiler: operators by what they took, and on a GPU their kernels by device time.

``torch.autograd.profiler`` is what ``torch.profiler`` starts underneath: that one imports 800 modules (73 MiB) first.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from infercanary.command.extras import advice
from infercanary.contract.profile import NO_CUPTI, OK, Profile, normalised
from infercanary.probe.targets.engines.inductor import fused
from infercanary.probe.targets.engines.profiled import (
    Operator,
    ProfiledRepeat,
    Spent,
    assembled,
    shapes_text,
)
from infercanary.probe.targets.libraries import imported

_MARK = "infercanary::repeat"
# The first one makes the profiler's buffers; a short model needs some until its memory is warm again.
_WARM_UPS, _WARM_UP_SECONDS = 10, 0.02
_COMPILED = ("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction")
_COMPILED_ROW = "compiled region"
_ALLOCATED = "[memory]"
# What asks the device for something, and waits for it: the host's side of kernels that have rows of their own.
_RUNTIME = ("cuda", "cu", "hip")


class _Event(NamedTuple):
    """One event of the host, in the order in which they begin."""

    name: str  # as a row has it: of a fused kernel, what it does
    begin: int  # nanoseconds, as the next
    end: int
    shapes: str
    is_operator: bool
    kernels: list[tuple[str, str, int]]  # name, device, nanoseconds
    work: str  # by the profiler's name
    allocated: int  # bytes


def profiled(
    torch: Any, work: Callable[[], float], repeats: int, inferences: int, device: str, trace: Path | None
) -> Profile:
    """Profile some repeats, after one or more that are not counted.

    Args:
        torch: The module.
        work: Makes one repeat, and returns the wall seconds of all of it.
        repeats: How many, 1 or more.
        inferences: In one repeat.
        device: ``cpu``, or ``cuda[:N]``.
        trace: Where the trace is written, for Perfetto; None for nowhere.

    Returns:
        The profile. Only operators of the calling thread are in it: a server's requests go on beside it.
    """
    _silence()
    on_device = device.startswith("cuda")
    profiler = torch.autograd.profiler
    walls: list[float] = []
    taken_at = time.time()
    with recorder(torch, on_device) as profile:
        while not walls or (len(walls) < _WARM_UPS and sum(walls) < _WARM_UP_SECONDS):
            with profiler.record_function(_MARK):
                walls.append(work())
        warm_ups = len(walls)
        for _ in range(repeats):
            with profiler.record_function(_MARK):
                walls.append(work())
    if trace is not None:
        profile.export_chrome_trace(str(trace))
    events = list(profile.kineto_results.events())
    found = list(_repeats(events, walls, inferences, on_device, _Names(torch)))[warm_ups:]
    has_kernels = any(o.device != "cpu" for repeat in found for o in repeat.operators)
    return assembled(found, "torch", taken_at, NO_CUPTI if on_device and not has_kernels else OK)


def imported_torch() -> Any:
    """Import torch; the first import also starts its profiler once, for 1 ms.

    Kineto, its library, prints an error if its first start is not in the thread that loaded torch: probes run repeats
    in another thread. Where a server loaded torch, that line remains.

    Returns:
        The module.

    Raises:
        UsageError: It is not installed.
        Failure: It is, and cannot be loaded.
    """
    is_first = "torch" not in sys.modules
    torch = imported("torch", advice("torch"))
    if is_first:
        _silence()
        with suppress(Exception), recorder(torch, on_device=False):  # a build may have no Kineto
            pass
    return torch


def _silence() -> None:
    # Else Kineto prints a line on standard error each time it starts. A server's own setting stays.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def recorder(torch: Any, on_device: bool) -> Any:
    """Make torch's profiler, not entered yet.

    Args:
        torch: The module.
        on_device: Whether kernels are to be listed.

    Returns:
        A ``torch.autograd.profiler.profile``.
    """
    # By default it asks Kineto for the host's events alone: a GPU's are then host times of launches, and no kernels.
    return torch.autograd.profiler.profile(
        record_shapes=True, profile_memory=True, use_device="cuda" if on_device else None, use_kineto=True
    )


class _Names:
    """What kernels of torch's compiler do, by its own names. Torch's operators are listed only where there are such.

    Args:
        torch: The module.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._known: frozenset[str] = frozenset()
        self._found: dict[str, tuple[str, str] | None] = {}

    def fused(self, name: str) -> tuple[str, str] | None:
        """What a fused kernel does, and its name without numbers; None for any other.

        Args:
            name: Of an event.
        """
        if "_fused_" not in name:
            return None
        if not self._known:
            listed = self._torch._C._dispatch_get_all_op_names()  # 3,500 of them: 1 ms
            self._known = frozenset(each.rpartition("::")[2].partition(".")[0] for each in listed)
        if name not in self._found:
            self._found[name] = fused(name, self._known)
        return self._found[name]


def _repeats(
    listed: list[Any], walls: list[float], inferences: int, on_device: bool, names: _Names
) -> Iterator[ProfiledRepeat]:
    """The marked repeats, in order; ``listed`` are the events as the profiler gives them."""
    by_thread: dict[int, list[_Event]] = {}
    marks: list[tuple[int, _Event]] = []
    kernels: dict[int, list[tuple[str, str, int]]] = {}
    alone: list[tuple[str, str, int, int]] = []  # name, device, begin, nanoseconds
    # A graph's kernels are linked to what was going on when it was launched, which may be the mark alone.
    operators = {
        e.correlation_id()
        for e in listed
        if _is_on_host(e) and (_is_operator(e, e.name()) or names.fused(e.name()))
    }
    for event in listed:
        if _is_on_host(event):
            continue
        if _flag(event, "is_user_annotation"):  # the mark itself, as the device saw it
            continue
        named = event.name(), f"cuda:{event.device_index()}"
        begin, end = _span(event)
        if event.linked_correlation_id() in operators:
            kernels.setdefault(event.linked_correlation_id(), []).append((*named, end - begin))
        else:
            alone.append((*named, begin, end - begin))
    for event in listed:
        if not _is_on_host(event):
            continue
        begin, end = _span(event)
        name = event.name()
        kernel = names.fused(name)
        made = _Event(
            kernel[0] if kernel else name,
            begin,
            end,
            shapes_text(event.shapes(), event.dtypes()),
            kernel is not None or _is_operator(event, name),
            kernels.get(event.correlation_id(), []),
            kernel[1] if kernel else name,
            max(0, event.nbytes()) if name == _ALLOCATED else 0,  # below 0 where it was freed
        )
        thread = event.start_thread_id()
        by_thread.setdefault(thread, []).append(made)
        if name == _MARK:
            marks.append((thread, made))
    for each in by_thread.values():
        each.sort(key=lambda e: (e.begin, -e.end))
    for (thread, mark), wall in zip(sorted(marks, key=lambda m: m[1].begin), walls, strict=True):
        within = [
            e for e in by_thread[thread] if mark.begin <= e.begin and e.end <= mark.end and e is not mark
        ]
        found: dict[Operator, Spent] = {}
        _account(within, found, on_device)
        for name, device, begin, took in alone:  # a graph's kernels belong to no operator
            if mark.begin <= begin <= mark.end:
                work = normalised(name)
                of_compiler = names.fused(name)
                operator = Operator(of_compiler[0] if of_compiler else work, device)
                found.setdefault(operator, Spent()).add(took / 1e9, {work: took / 1e9})
        yield ProfiledRepeat(wall, (mark.end - mark.begin) / 1e9, found, inferences)


def _account(events: list[_Event], found: dict[Operator, Spent], on_device: bool) -> None:
    """Add to ``found`` each outermost operator among ``events``, which are in order, with all that is within it."""
    i = 0
    while i < len(events):
        event = events[i]
        after = i + 1
        while after < len(events) and events[after].begin < event.end:
            after += 1
        inner = events[i + 1 : after]
        if event.is_operator:
            _add_operator(event, inner, found, on_device)
        else:
            if event.name.startswith(_COMPILED):
                # Fused loops of the CPU are no operators; what is called between them is.
                own = event.end - event.begin - _covered(inner)
                if own > 0 and not on_device:
                    spent = found.setdefault(Operator(_COMPILED_ROW, "cpu"), Spent())
                    spent.add(own / 1e9, {_COMPILED_ROW: own / 1e9}, 0.0 if _is_nested(inner) else 1.0)
            _account(inner, found, on_device)
        i = after


def _add_operator(event: _Event, inner: list[_Event], found: dict[Operator, Spent], on_device: bool) -> None:
    allocated = sum(each.allocated for each in inner)
    launched = [*event.kernels, *(kernel for each in inner for kernel in each.kernels)]
    if launched:
        # The host's time overlaps the device's: it is the kernels that take the time.
        for device in dict.fromkeys(device for _, device, _ in launched):
            own = [(name, took / 1e9) for name, of, took in launched if of == device]
            within: dict[str, float] = {}
            for name, seconds in own:
                kernel = normalised(name)
                within[kernel] = within.get(kernel, 0.0) + seconds
            operator = Operator(event.name, device, event.shapes)
            found.setdefault(operator, Spent()).add(sum(s for _, s in own), within, len(own), allocated)
            allocated = 0  # counted once
        return
    own_times: dict[str, float] = {}
    stack: list[list[Any]] = []  # name, end, nanoseconds of its own
    for each in (event, *(e for e in inner if e.work != _ALLOCATED)):
        while stack and stack[-1][1] <= each.begin:
            _pop(stack, own_times)
        took = each.end - each.begin
        if stack:
            stack[-1][2] -= took
        stack.append([each.work, each.end, took])
    while stack:
        _pop(stack, own_times)
    operator = Operator(event.name, "cpu", event.shapes)
    found.setdefault(operator, Spent()).add((event.end - event.begin) / 1e9, own_times, allocated=allocated)


def _pop(stack: list[list[Any]], own_times: dict[str, float]) -> None:
    name, _, own = stack.pop()
    own_times[name] = own_times.get(name, 0.0) + max(0, own) / 1e9


def _covered(events: list[_Event]) -> int:
    """Nanoseconds of those that lie within no other one of them."""
    total, until = 0, 0
    for event in events:
        if event.begin >= until:
            total += event.end - event.begin
            until = event.end
    return total


def _is_nested(inner: list[_Event]) -> bool:
    return any(event.name.startswith(_COMPILED) for event in inner)


def _is_operator(event: Any, name: str) -> bool:
    if name == _MARK or _flag(event, "is_user_annotation") or _flag(event, "is_python_function"):
        return False
    return "::" in name and not name.startswith((*_RUNTIME, *_COMPILED))


def _is_on_host(event: Any) -> bool:
    # What is allocated on a device is an event of that device, at the host's moment and in its thread.
    return str(event.device_type()).rpartition(".")[2] == "CPU" or event.name() == _ALLOCATED


def _flag(event: Any, name: str) -> bool:
    """What older versions of torch do not say."""
    ask = getattr(event, name, None)
    return bool(ask()) if ask is not None else False


def _span(event: Any) -> tuple[int, int]:
    """When it began and ended, in nanoseconds; torch before 2.4 has microseconds."""
    if hasattr(event, "start_ns"):
        begin = int(event.start_ns())
        return begin, begin + int(event.duration_ns())
    begin = 1000 * int(event.start_us())
    return begin, begin + 1000 * int(event.duration_us())
