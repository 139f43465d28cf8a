"""What is read of each GPU once a minute: identity, limits, modes, errors of its memory, its place in the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pynvml

from infercanary.contract.report import Metric
from infercanary.probe.samplers.nvml import users
from infercanary.probe.samplers.nvml.calls import GPU_GONE, Found, Nvml, read, text
from infercanary.probe.samplers.nvml.gpus import Gpu, local_cpus, numa_node
from infercanary.probe.samplers.nvml.totals import ERRORS_PER_SECOND

T = TypeVar("T")

_GPU = ("gpu",)
INFO = Metric(
    "infercanary_gpu_info",
    "gauge",
    "A GPU's identity; always 1.",
    ("gpu", "name", "uuid", "pci_bus_id", "driver_version", "cuda_version", "vbios_version"),
    reading="Join it for names and versions. Another driver, VBIOS or model is as much a change as another "
    "image.",
)
SM_CLOCK_MAX = Metric(
    "infercanary_gpu_sm_clock_max_hertz",
    "gauge",
    "Highest SM clock.",
    _GPU,
    reading="The denominator for `infercanary_gpu_sm_clock_hertz`. GPUs that differ in it are different "
    "models.",
)
MEMORY_SIZE = Metric(
    "infercanary_gpu_memory_size_bytes",
    "gauge",
    "Device memory of the GPU or MIG device.",
    _GPU,
    reading="The denominator for `infercanary_gpu_memory_used_bytes`.",
)
POWER_LIMIT = Metric(
    "infercanary_gpu_power_limit_watts",
    "gauge",
    "Power limit that the driver enforces for the GPU now.",
    _GPU,
    reading="If it is lower than on other GPUs of the model, `sw_power_cap` comes earlier and latency under "
    "load is higher.",
)
ECC_ERRORS = Metric(
    "infercanary_gpu_ecc_errors_total",
    "counter",
    "ECC errors since the driver was loaded.",
    ("gpu", "severity"),
    reading="Any `uncorrected` error is an alert: work on the GPU was lost. Many corrected ones announce "
    "row remapping.",
)
REMAPPED_ROWS = Metric(
    "infercanary_gpu_remapped_rows_total",
    "counter",
    "Rows of memory replaced over the GPU's lifetime, by the severity of their errors.",
    ("gpu", "severity"),
    reading="A small, steady number is ageing. If `uncorrected` increases, see `infercanary_gpu_row_remap`.",
)
RECOVERY_ACTION = Metric(
    "infercanary_gpu_recovery_action",
    "gauge",
    "Action that the driver asks for: 0 nothing, 1 reset the GPU, 2 reboot the node, 4 drain and reset.",
    _GPU,
    reading="Above 0 is an alert, and the number is the action to take (3, 5 to 7: see NVML's "
    "documentation).",
)
NUMA_NODE = Metric(
    "infercanary_gpu_numa_node",
    "gauge",
    "NUMA node that the GPU is attached to; may be missing if the host has one node.",
    _GPU,
    reading="Threads on another node launch and copy more slowly: see `infercanary_off_node_threads`.",
)

ROW_REMAP = Metric(
    "infercanary_gpu_row_remap",
    "gauge",
    "1 if a row of memory waits for a reset (`pending`) or no spare row is left (`failed`), else 0.",
    ("gpu", "state"),
    reading="`pending`: drain and reset the GPU. `failed` is an alert: take the GPU out of service.",
)

MOST_PER_SECOND = dict.fromkeys((ECC_ERRORS, REMAPPED_ROWS), ERRORS_PER_SECOND)
"""The driver's running totals, and the most that each can grow by in a second."""

_RECOVERY_ACTION = 230
_SEVERITIES = {
    "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
}


class Versions(NamedTuple):
    """What all GPUs have in common."""

    driver: str
    cuda: str
    """The highest that the driver can do."""


class Slow(NamedTuple):
    """What was read of one GPU."""

    found: Found
    local_cpus: frozenset[int]
    """Empty where that is not known."""


def versions(nvml: Nvml) -> Versions:
    """The versions of the driver.

    Args:
        nvml: An initialised NVML.

    Returns:
        The driver's own, and the newest CUDA that it runs, such as ``12.4`` (empty where it does not say).

    Raises:
        pynvml.NVMLError: There is no driver any more.
    """
    driver = text(nvml.nvmlSystemGetDriverVersion())
    try:
        number: int = nvml.nvmlSystemGetCudaDriverVersion()
    except pynvml.NVMLError:
        return Versions(driver, "")
    return Versions(driver, f"{number // 1000}.{number % 1000 // 10}")


def sample(nvml: Nvml, gpu: Gpu, common: Versions, sysfs: Path, proc: Path) -> Slow:
    """One GPU's values.

    Args:
        nvml: An initialised NVML.
        gpu: The GPU or MIG device.
        common: The driver's versions.
        sysfs: Usually ``/sys``.
        proc: Usually ``/proc``.

    Returns:
        Values in the base units of their metrics, and the CPUs on its node; of a MIG device none.

    Raises:
        pynvml.NVMLError: The GPU is gone.
    """
    found = read(_readings(nvml, gpu))
    name, uuid, bus_id, vbios = (
        text(_offered(string, gpu.handle, ""))
        for string in (
            nvml.nvmlDeviceGetName,
            nvml.nvmlDeviceGetUUID,
            lambda handle: nvml.nvmlDeviceGetPciInfo(handle).busId,
            nvml.nvmlDeviceGetVbiosVersion,
        )
    )
    found[INFO] = {(gpu.label, name, uuid, bus_id, common.driver, common.cuda, vbios): 1.0}
    if not gpu.is_split:  # what runs on a GPU in MIG mode runs on its MIG devices
        nothing: Found = {}
        found |= _offered(lambda _: users.sample(nvml, gpu, proc), gpu.handle, nothing)
    if gpu.is_mig:
        return Slow(found, frozenset())
    if (node := numa_node(bus_id, sysfs)) is not None:
        found[NUMA_NODE] = {(gpu.label,): node}
    return Slow(found, _offered(partial(local_cpus, nvml), gpu.handle, frozenset[int]()))


def _offered(value: Callable[[Any], T], handle: Any, otherwise: T) -> T:
    try:
        return value(handle)
    except pynvml.NVMLError as error:
        if error.value in GPU_GONE:
            raise
        return otherwise


def _readings(nvml: Nvml, gpu: Gpu) -> Iterator[Callable[[], Found]]:
    label, handle = gpu.label, gpu.handle
    yield lambda: {MEMORY_SIZE: {(label,): nvml.nvmlDeviceGetMemoryInfo(handle).total}}
    if gpu.is_mig:
        return
    for metric, value in _SIMPLE.items():
        yield partial(_one, nvml, gpu, metric, value)
    yield partial(_ecc_errors, nvml, gpu)
    yield lambda: _remapped_rows(label, nvml.nvmlDeviceGetRemappedRows(handle))
    yield partial(_recovery_action, nvml, gpu)


def _one(nvml: Nvml, gpu: Gpu, metric: Metric, value: Callable[[Nvml, Any], float]) -> Found:
    return {metric: {(gpu.label,): value(nvml, gpu.handle)}}


def _ecc_errors(nvml: Nvml, gpu: Gpu) -> Found:
    counter = pynvml.NVML_VOLATILE_ECC
    return {
        ECC_ERRORS: {
            (gpu.label, severity): nvml.nvmlDeviceGetTotalEccErrors(gpu.handle, kind, counter)
            for severity, kind in _SEVERITIES.items()
        }
    }


def _remapped_rows(label: str, rows: tuple[int, int, int, int]) -> Found:
    corrected, uncorrected, pending, failed = rows
    return {
        REMAPPED_ROWS: {(label, "corrected"): corrected, (label, "uncorrected"): uncorrected},
        ROW_REMAP: {(label, "failed"): failed, (label, "pending"): pending},
    }


def _recovery_action(nvml: Nvml, gpu: Gpu) -> Found:
    action = nvml.field_values(gpu.handle, [_RECOVERY_ACTION]).get(_RECOVERY_ACTION)
    return {} if action is None else {RECOVERY_ACTION: {(gpu.label,): action}}


_SIMPLE: dict[Metric, Callable[[Nvml, Any], float]] = {
    SM_CLOCK_MAX: lambda nvml, h: nvml.nvmlDeviceGetMaxClockInfo(h, pynvml.NVML_CLOCK_SM) * 1e6,
    POWER_LIMIT: lambda nvml, h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3,
}
