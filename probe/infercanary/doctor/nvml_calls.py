"""Checks of NVML: each function that the probe calls, on every visible GPU."""

from __future__ import annotations

from functools import cache, partial
from time import perf_counter
from typing import Any

import pynvml

from infercanary.contract.cpus import MAX_CPUS
from infercanary.doctor.ability import Ability, Machine, Refusal, check, limited, ok, refused
from infercanary.probe.samplers import Unavailable
from infercanary.probe.samplers.nvml.calls import Gpu, Nvml
from infercanary.probe.samplers.nvml.faults import advice, state_of
from infercanary.probe.samplers.nvml.gpus import gpus

_NOT_OFFERED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

CALLS = {
    "nvmlDeviceGetName": "the GPU's name",
    "nvmlDeviceGetUUID": "the GPU's UUID",
    "nvmlDeviceGetPciInfo": "the GPU's PCI address, to find CUDA's number of the GPU",
    "nvmlDeviceGetVbiosVersion": "the VBIOS version",
    "nvmlDeviceGetMinorNumber": "number of the device file, to find the container's own processes",
    "nvmlDeviceGetMemoryInfo": "memory in use and free",
    "nvmlDeviceGetClockInfo": "SM and memory clock",
    "nvmlDeviceGetMaxClockInfo": "maximum SM clock",
    "nvmlDeviceGetFieldValues": "seconds of each throttle reason, PCIe bytes, memory temperature",
    "nvmlDeviceGetTemperature": "temperature; newer drivers also have nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetTotalEnergyConsumption": "energy, to compare images",
    "nvmlDeviceGetEnforcedPowerLimit": "the power limit",
    "nvmlDeviceGetUtilizationRates": "use of the GPU, for the tag `gpu_busy`",
    "nvmlDeviceGetCurrPcieLinkGeneration": "the PCIe link's generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "number of PCIe lanes",
    "nvmlDeviceGetMaxPcieLinkGeneration": "highest generation of the PCIe link",
    "nvmlDeviceGetMaxPcieLinkWidth": "maximum number of PCIe lanes",
    "nvmlDeviceGetPcieReplayCounter": "resent PCIe packets",
    "nvmlDeviceGetCpuAffinity": "the CPUs near the GPU",
    "nvmlDeviceGetTotalEccErrors": "ECC errors",
    "nvmlDeviceGetRemappedRows": "remapped rows of memory",
    "nvmlDeviceGetMigMode": "state of MIG (is the GPU split?)",
    "nvmlDeviceRegisterEvents": "XID errors",
}
"""Purpose in the probe, by NVML function. Functions for MIG devices and processes are in :mod:`.gpu_modes`."""

_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "nvmlDeviceGetClockInfo": (pynvml.NVML_CLOCK_SM,),
    "nvmlDeviceGetMaxClockInfo": (pynvml.NVML_CLOCK_SM,),
    "nvmlDeviceGetFieldValues": ([74, 76, 82, 197, 198],),
    "nvmlDeviceGetTemperature": (pynvml.NVML_TEMPERATURE_GPU,),
    "nvmlDeviceGetCpuAffinity": (MAX_CPUS // 64,),
    "nvmlDeviceGetTotalEccErrors": (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
}


@cache
def opened() -> tuple[Nvml, tuple[Gpu, ...]]:
    """Initialize NVML; return NVML and its GPUs, without MIG devices. All callers share the same objects.

    Raises:
        Unavailable: There is no driver.
        Refusal: NVML does not start, or shows no GPU.
    """
    nvml = Nvml()
    try:
        nvml.nvmlInit()
        found = tuple(next(gpus(nvml, index)) for index in range(nvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as error:
        why = advice(error, opening=True)
        raise (Unavailable if state_of(error, opening=True) == "no_driver" else Refusal)(why) from None
    if not found:
        raise Refusal("NVML shows no GPU", "start the container with a GPU (--gpus device=0)")
    return nvml, found


@check("NVML", "nvmlInit", seconds=20.0)
def _init(machine: Machine) -> Ability:
    _, found = opened()
    return ok(f"GPU {', '.join(gpu.label for gpu in found)}")


def _call(nvml: Nvml, name: str, handle: Any) -> None:
    if name != "nvmlDeviceRegisterEvents":
        getattr(nvml, name)(handle, *_ARGUMENTS.get(name, ()))
        return
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    nvml.nvmlEventSetFree(events)


def _tried(name: str, machine: Machine) -> Ability:
    """Call one NVML function on every GPU, and return the answer of the check."""
    nvml, found = opened()
    gives = CALLS[name]
    begin = perf_counter()
    for gpu in found:
        try:
            _call(nvml, name, gpu.handle)
        except pynvml.NVMLError as error:
            if error.value in _NOT_OFFERED:
                return limited(
                    gives,
                    f"GPU {gpu.label}: {error}: this GPU or driver does not support the call, so its "
                    "metrics are missing",
                )
            return refused(f"GPU {gpu.label}: {advice(error)}", found=gives)
    seconds = (perf_counter() - begin) / len(found)
    return ok(f"{gives}; {seconds * 1e3:.2f} ms")


for _name in CALLS:
    check("NVML", _name, needs="nvmlInit")(partial(_tried, _name))
