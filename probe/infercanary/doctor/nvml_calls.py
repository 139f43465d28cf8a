"""NVML: each function that the probe calls, one by one, on every GPU that is visible."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from time import perf_counter
from typing import Any, NamedTuple

import pynvml

from infercanary.doctor.ability import Ability, Machine, absent, check, limited, ok, refused
from infercanary.probe.samplers.nvml.calls import Gpu, Nvml, text
from infercanary.probe.samplers.nvml.faults import advice, state_of
from infercanary.probe.samplers.nvml.gpus import gpus, local_cpus

_NOT_OFFERED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
_SLOW_SECONDS = 0.05
"""A call of that length waits for another process's: the probe makes some 20 of them around each run."""


class NvmlCall(NamedTuple):
    """A function of NVML, and what the probe has of it."""

    name: str
    gives: str
    call: Callable[[Nvml, Any], object]


def _simple(name: str, gives: str, *arguments: object) -> NvmlCall:
    return NvmlCall(name, gives, lambda nvml, handle: getattr(nvml, name)(handle, *arguments))


def _temperature(nvml: Nvml, handle: Any) -> object:
    try:
        return nvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU)
    except pynvml.NVMLError_FunctionNotFound:
        return nvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)


def _events(nvml: Nvml, handle: Any) -> None:
    events = nvml.nvmlEventSetCreate()
    try:
        nvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        with suppress(pynvml.NVMLError_Timeout):  # none has happened
            nvml.nvmlEventSetWait_v2(events, 0)
    finally:
        nvml.nvmlEventSetFree(events)


CALLS: tuple[NvmlCall, ...] = (
    _simple("nvmlDeviceGetName", "the GPU's name"),
    _simple("nvmlDeviceGetUUID", "its UUID"),
    _simple("nvmlDeviceGetPciInfo", "its address, by which CUDA's number is found"),
    _simple("nvmlDeviceGetVbiosVersion", "the VBIOS, as a component"),
    _simple("nvmlDeviceGetMinorNumber", "its device file, for the container's own processes"),
    _simple("nvmlDeviceGetMemoryInfo", "memory in use and free"),
    _simple("nvmlDeviceGetClockInfo", "SM and memory clock", pynvml.NVML_CLOCK_SM),
    _simple("nvmlDeviceGetMaxClockInfo", "their maximum", pynvml.NVML_CLOCK_SM),
    NvmlCall(
        "nvmlDeviceGetFieldValues",
        "seconds of each throttle reason, PCIe bytes, memory temperature",
        lambda nvml, handle: nvml.field_values(handle, (74, 76, 82, 197, 198)),
    ),
    NvmlCall(
        "nvmlDeviceGetTemperatureV",
        "temperature; by its older name, nvmlDeviceGetTemperature, where that is all there is",
        _temperature,
    ),
    _simple("nvmlDeviceGetTotalEnergyConsumption", "energy, by which images are compared"),
    _simple("nvmlDeviceGetEnforcedPowerLimit", "the power limit"),
    _simple("nvmlDeviceGetUtilizationRates", "use of the GPU, by which runs are tagged `gpu_busy`"),
    _simple("nvmlDeviceGetCurrPcieLinkGeneration", "the PCIe link's generation"),
    _simple("nvmlDeviceGetCurrPcieLinkWidth", "its lanes"),
    _simple("nvmlDeviceGetMaxPcieLinkGeneration", "its highest generation"),
    _simple("nvmlDeviceGetMaxPcieLinkWidth", "its most lanes"),
    _simple("nvmlDeviceGetPcieReplayCounter", "packets sent again"),
    NvmlCall("nvmlDeviceGetCpuAffinity", "the CPUs near the GPU", local_cpus),
    _simple(
        "nvmlDeviceGetTotalEccErrors",
        "ECC errors",
        pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    ),
    _simple("nvmlDeviceGetRemappedRows", "remapped rows of memory"),
    _simple("nvmlDeviceGetMigMode", "whether it is split (MIG)"),
    NvmlCall(
        "nvmlDeviceRegisterEvents",
        "XID errors, with nvmlEventSetCreate, …Wait and …Free",
        _events,
    ),
)
"""In the order in which they are tried. What MIG devices, and processes, are asked is in :mod:`.gpu_modes`."""


@cache
def opened() -> tuple[Nvml, tuple[Gpu, ...]]:
    """NVML, initialised, and the GPUs that it shows, without their MIG devices.

    Returns:
        Both; the same at each call.

    Raises:
        pynvml.NVMLError: It does not start, or does not list GPUs.
    """
    nvml = Nvml()
    nvml.nvmlInit()
    return nvml, tuple(next(gpus(nvml, index)) for index in range(nvml.nvmlDeviceGetCount()))


@check("NVML", "nvmlInit", seconds=20.0)
def _init(machine: Machine) -> Ability:
    try:
        nvml, found = opened()
    except pynvml.NVMLError as error:
        if state_of(error, opening=True) == "no_driver":
            return absent(advice(error, opening=True))
        return refused(advice(error, opening=True))
    if not found:
        return limited(
            "", "it starts, and shows no GPU", "name a GPU when the container is started (--gpus device=0)"
        )
    names = ", ".join(f"{gpu.label}: {text(nvml.nvmlDeviceGetName(gpu.handle))}" for gpu in found)
    return ok(f"{len(found)} GPU{'s' * (len(found) > 1)} ({names})")


def _tried(call: NvmlCall, machine: Machine) -> Ability:
    """One function on every GPU."""
    nvml, found = opened()
    failures: dict[str, pynvml.NVMLError] = {}
    slowest = 0.0
    for gpu in found:
        begin = perf_counter()
        try:
            call.call(nvml, gpu.handle)
        except pynvml.NVMLError as error:
            failures[gpu.label] = error
        slowest = max(slowest, perf_counter() - begin)
    took = f"{call.gives}; {slowest * 1e3:.2f} ms"
    if not failures:
        if slowest > _SLOW_SECONDS:
            return limited(
                took,
                "so long that it waits for another process's calls",
                "let other exporters ask less often",
            )
        return ok(took)
    where = "" if len(failures) == len(found) else f"GPU {', '.join(failures)}: "
    first = next(iter(failures.values()))
    if all(error.value in _NOT_OFFERED for error in failures.values()):
        return limited(
            call.gives, f"{where}{first}: this GPU or driver does not offer it, and its metrics are missing"
        )
    return refused(f"{where}{advice(first)}", found=call.gives)


for _call in CALLS:
    check("NVML", _call.name, needs="nvmlInit")(partial(_tried, _call))
