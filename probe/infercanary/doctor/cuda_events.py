"""Checks of CUDA that use only the driver: events compared with the host's clock, streams, and graphs."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from ctypes import c_int, c_uint64, c_ulonglong, c_void_p
from functools import cache
from statistics import median
from time import perf_counter_ns

from infercanary.doctor.ability import Ability, Machine, Refusal, check, limited, ok, refused
from infercanary.probe.gpu.cuda_driver import Device, Event
from infercanary.probe.memory import CONTEXT, device_memory, left_on_device, readable
from infercanary.probe.targets.controls.cuda import PTX

_PAIRS = 200
_TRIES = 15
_MOST_OVERHEAD = 20e-6
"""Maximum seconds between two events without work between them: a fifth of a batch of 100 µs. Tested GPUs took 1.5 to
6 µs.
"""
_DRIFT_SECONDS = 2.0
"""Time between the two anchors. Each anchor is exact to about 10 µs, so the drift is exact to about 5 ppm."""
_MOST_DRIFT = 100e-6
"""Largest plausible drift between two crystal clocks. The probe renews its anchor each second."""
_GLOBAL_CAPTURE = 0  # CU_STREAM_CAPTURE_MODE_GLOBAL
_WORDS = 256


@cache
def device(ordinal: int) -> Device:
    """Return the GPU with a context of this process. All calls share one context, which exists until the process
    ends.

    Raises:
        Refusal: A context would take memory that a server on this GPU may need.
        Unavailable: There is no driver, or no such GPU.
        CudaError: Another call of CUDA failed.
    """
    left = left_on_device(f"cuda:{ordinal}")
    if left is not None and left.size < CONTEXT:
        raise Refusal(
            f"not tried: a context takes up to {readable(CONTEXT)}, and GPU {ordinal} has less free memory",
            "repeat this check without the server, or free memory",
        )
    return Device(ordinal)


@check("CUDA", "context", seconds=60.0)
def _context(machine: Machine) -> Ability:
    before = device_memory(machine.device)
    gpu = device(machine.device)
    after = device_memory(machine.device)
    found = f"GPU {machine.device}: {gpu.name}"
    if before is None or after is None:
        return ok(found)
    return ok(f"{found}; its context took {readable(after[0] - before[0])} of device memory")


@check("CUDA", "events", needs="context")
def _events(machine: Machine) -> Ability:
    gpu = device(machine.device)
    seconds = []
    with gpu.current():
        start, stop = gpu.event(), gpu.event()
        for _ in range(_PAIRS):
            start.record(gpu.stream)
            stop.record(gpu.stream)
            stop.synchronize()
            seconds.append(start.elapsed_time(stop) / 1e3)
    overhead = median(seconds)
    found = f"a pair of events without work takes {overhead * 1e6:.2f} µs"
    if overhead > _MOST_OVERHEAD:
        return limited(found, "phases of less than 100 µs are imprecise; the probe batches short work")
    return ok(found)


def _anchor(gpu: Device) -> tuple[int, int, Event]:
    """Record events on the idle stream, and keep the event with the most exact host time.

    Returns:
        Length and middle of the host's time interval that contains the event, in nanoseconds; then the event.
    """
    anchors = []
    with gpu.current():
        for _ in range(_TRIES):
            event = gpu.event()
            before = perf_counter_ns()
            event.record(gpu.stream)
            event.synchronize()
            width = perf_counter_ns() - before
            anchors.append((width, before + width // 2, event))
    return min(anchors)


@check("CUDA", "events against the wall clock", seconds=20.0, needs="context")
def _drift(machine: Machine) -> Ability:
    gpu = device(machine.device)
    first_width, first, start = _anchor(gpu)
    time.sleep(_DRIFT_SECONDS)
    last_width, last, stop = _anchor(gpu)
    with gpu.current():
        on_device = start.elapsed_time(stop) / 1e3
    on_host = (last - first) / 1e9
    drift = on_device / on_host - 1
    unsure = (first_width + last_width) / 2e9 / on_host
    found = f"in {on_host:.1f} s, the device's clock drifted {drift * 1e6:+.2f} ± {unsure * 1e6:.2f} ppm from the host"
    if abs(drift) - unsure > _MOST_DRIFT:
        return limited(
            found, "larger than the drift of two crystal clocks: times of device and host disagree"
        )
    return ok(found)


@check("CUDA", "stream priority", needs="context")
def _priority(machine: Machine) -> Ability:
    gpu = device(machine.device)
    least, greatest = c_int(), c_int()
    with gpu.current():
        gpu.driver.call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    if least.value == greatest.value:
        return limited("only one", "the probe's work has the same priority as the server's")
    return ok(f"{least.value} (the probe's, the lowest) to {greatest.value}")


def kernel(gpu: Device) -> tuple[Callable[[], None], c_uint64]:
    """Make a kernel in which each thread writes its number. Call this function inside ``with gpu.current()``.

    Returns:
        A function that launches the kernel, and the device memory for its ``_WORDS`` numbers of 4 bytes.
    """
    function = gpu.kernels(PTX)("fill")
    memory = gpu.allocate(4 * _WORDS)
    parameters = (c_void_p * 1)(ctypes.addressof(memory))
    shape = (1, 1, 1, _WORDS, 1, 1, 0)

    def launch() -> None:
        gpu.driver.call("cuLaunchKernel", function, *shape, gpu.stream, parameters, None)

    return launch, memory


@check("CUDA", "graph capture", needs="context")
def _graph(machine: Machine) -> Ability:
    """Capture a kernel, launch the graph, and read the kernel's result."""
    gpu = device(machine.device)
    call = gpu.driver.call
    graph, executable = c_void_p(), c_void_p()
    with gpu.current():
        launch, memory = kernel(gpu)
        call("cuStreamBeginCapture_v2", gpu.stream, c_int(_GLOBAL_CAPTURE))
        launch()
        call("cuStreamEndCapture", gpu.stream, ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, c_ulonglong(0))
        call("cuGraphLaunch", executable, gpu.stream)
        written = gpu.read(memory.value, 4 * _WORDS)
    if [*memoryview(written).cast("I")] != [*range(_WORDS)]:
        return refused(
            "a captured kernel wrote wrong results", "use another driver, or canaries with mode: eager"
        )
    return ok("a captured kernel wrote correct results")
