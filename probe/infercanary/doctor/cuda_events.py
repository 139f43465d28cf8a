"""CUDA by the driver alone: events against the host's clock, streams, and graphs."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from ctypes import c_int, c_ulonglong, c_void_p
from functools import cache
from itertools import pairwise
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

from infercanary.doctor.ability import Ability, Machine, check, limited, ok, refused
from infercanary.probe.device_room import CONTEXT, DeviceRoom
from infercanary.probe.gpu.cuda_driver import Device, Event, cuda_library, has_context
from infercanary.probe.samplers import Unavailable
from infercanary.probe.shortage import readable
from infercanary.probe.targets.controls.cuda import PTX

_PAIRS = 200
_TRIES = 15
_MOST_OVERHEAD = 20e-6
"""Seconds of an empty pair; 1.5 to 6 µs on the GPUs seen. Work is batched to 100 µs, of which this is a fifth."""
_MOST_RESOLUTION = 2e-6
_MOST_DRIFT = 100e-6
"""Of the time: what the crystals of two clocks may differ by. The probe renews its anchor each second."""
_GLOBAL_CAPTURE = 0  # CU_STREAM_CAPTURE_MODE_GLOBAL
_WORDS = 256


class _Opened(NamedTuple):
    device: Device
    took: int | None
    """Bytes of device memory that the context took; None where NVML does not say it."""


@cache
def _opened(ordinal: int) -> _Opened:
    room = DeviceRoom()
    place = f"cuda:{ordinal}"
    has_room = has_context(ordinal) or (left := room.left(place)) is None or left.size >= CONTEXT
    if not has_room:
        raise NoRoom(f"a context takes up to {readable(CONTEXT)}, and GPU {ordinal} has less free")
    before = room.used(place)
    device = Device(ordinal)
    after = room.used(place)
    return _Opened(device, None if before is None or after is None else after - before)


class NoRoom(Exception):
    """A context would take memory that a server there may need: it is not made."""


def context(machine: Machine) -> Device:
    """The GPU on which things are tried, with a context of this process.

    Args:
        machine: Which GPU.

    Returns:
        The same at each call; it is closed when the process ends.

    Raises:
        NoRoom: There is too little device memory for a context.
        Unavailable: There is no driver, or no such GPU.
        CudaError: Anything else failed.
    """
    return _opened(machine.device).device


@check("CUDA", "context", seconds=60.0)
def _context(machine: Machine) -> Ability:
    try:
        device, took = _opened(machine.device)
    except NoRoom as error:
        return refused(
            f"not tried: {error}", "run it again when the server is not there, or free some memory"
        )
    size = "" if took is None else f"; its context took {readable(took)} of device memory"
    return ok(f"GPU {machine.device}: {device.name}, {device.multiprocessors} multiprocessors{size}")


def _pairs(device: Device) -> list[float]:
    """Seconds between two events with nothing between them."""
    start, stop = device.event(), device.event()
    found = []
    for _ in range(_PAIRS):
        start.record(device.stream)
        stop.record(device.stream)
        stop.synchronize()
        found.append(start.elapsed_time(stop) / 1e3)
    return found


@check("CUDA", "events", needs="context")
def _events(machine: Machine) -> Ability:
    device = context(machine)
    with device.current():
        pairs = _pairs(device)
        anchors = [_anchor(device, device.event()) for _ in range(_TRIES)]
    steps = sorted({round(value, 10) for value in pairs})
    differences = [b - a for a, b in pairwise(steps)]
    resolution = min(differences, default=0.0)
    overhead, reading = median(pairs), min(width for _, width in anchors) / 1e9
    found = (
        f"an empty pair takes {overhead * 1e6:.2f} µs, resolution {resolution * 1e6:.3f} µs, and the host knows of an "
        f"event {reading * 1e6:.1f} µs after it was asked for"
    )
    if any(value < 0 for value in pairs):
        return refused("time between two events is negative", "another driver", found)
    if overhead > _MOST_OVERHEAD or resolution > _MOST_RESOLUTION:
        return limited(found, "phases of less than 100 µs are blurred by it; the probe batches short work")
    return ok(found)


def _anchor(device: Device, event: Event) -> tuple[int, int]:
    """Record an event on the idle stream; the host's time in the middle of it, and how wide that is (ns)."""
    before = perf_counter_ns()
    event.record(device.stream)
    event.synchronize()
    width = perf_counter_ns() - before
    return before + width // 2, width


def _tightest(device: Device) -> tuple[Event, int, int]:
    tries = [(event := device.event(), *_anchor(device, event)) for _ in range(_TRIES)]
    return min(tries, key=lambda each: each[2])


@check("CUDA", "events against the wall clock", seconds=75.0, needs="context")
def _drift(machine: Machine) -> Ability:
    if not machine.drift_seconds:
        return limited("", "not measured: --drift-seconds 0")
    device = context(machine)
    with device.current():
        first, first_ns, first_width = _tightest(device)
    time.sleep(machine.drift_seconds)
    with device.current():
        last, last_ns, last_width = _tightest(device)
        on_device = first.elapsed_time(last) / 1e3
    on_host = (last_ns - first_ns) / 1e9
    drift = on_device / on_host - 1
    unsure = (first_width + last_width) / 2e9 / on_host
    found = f"over {on_host:.1f} s the device's clock is {drift * 1e6:+.2f} ± {unsure * 1e6:.2f} ppm off the host's"
    if abs(drift) - unsure > _MOST_DRIFT:
        return limited(
            found, "more than two crystals differ by: times of the device and of the host disagree by so much"
        )
    return ok(found)


@check("CUDA", "stream priority", needs="context")
def _priority(machine: Machine) -> Ability:
    device = context(machine)
    least, greatest = c_int(), c_int()
    with device.current():
        device.driver.call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    if least.value == greatest.value:
        return limited("one", "the probe's work has the same priority as the server's")
    return ok(f"{least.value} (the probe's, the lowest) to {greatest.value}")


@check("CUDA", "graph capture", needs="context")
def _graph(machine: Machine) -> Ability:
    """A kernel is captured, the graph is launched, and what it wrote is read."""
    device = context(machine)
    with device.current():
        kernel = device.kernels(PTX)("fill")
        memory = device.allocate(4 * _WORDS)
        parameters = (c_void_p * 1)(ctypes.addressof(memory))
        graph, executable = c_void_p(), c_void_p()
        _call(device, "cuStreamBeginCapture_v2", device.stream, c_int(_GLOBAL_CAPTURE))
        try:
            shape = (1, 1, 1, _WORDS, 1, 1, 0)
            device.driver.call("cuLaunchKernel", kernel, *shape, device.stream, parameters, None)
        finally:
            _call(device, "cuStreamEndCapture", device.stream, ctypes.byref(graph))
        _call(device, "cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, c_ulonglong(0))
        seconds = []
        for _ in range(_TRIES):
            begin = perf_counter_ns()
            _call(device, "cuGraphLaunch", executable, device.stream)
            seconds.append((perf_counter_ns() - begin) / 1e9)
        written = device.read(memory.value, 4 * _WORDS)
        _call(device, "cuGraphExecDestroy", executable)
        _call(device, "cuGraphDestroy", graph)
    if written != b"".join(word.to_bytes(4, "little") for word in range(_WORDS)):
        return refused(
            "a captured kernel did not write what it should", "another driver; canaries with mode: eager"
        )
    return ok(
        f"a captured kernel computes right; a launch of its graph takes the host {median(seconds) * 1e6:.1f} µs"
    )


def _call(device: Device, function: str, *arguments: object) -> None:
    library = cuda_library()
    if not hasattr(library, function):
        raise Unavailable(f"this driver has no {function}: it is too old for CUDA graphs, use mode: eager")
    called: Callable[..., int] = getattr(library, function)
    device.driver.check(function, called(*arguments))
