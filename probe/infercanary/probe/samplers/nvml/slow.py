"""Values of each GPU that a sample reads once a minute: identity, limits, modes, memory errors, NUMA node."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from infercanary.contract.report import Metric
from infercanary.probe.samplers.nvml import users
from infercanary.probe.samplers.nvml.calls import Found, Gpu, Nvml, read, text, value
from infercanary.probe.samplers.nvml.gpus import numa_node
from infercanary.probe.samplers.nvml.totals import ERRORS_PER_SECOND

_SYSFS, _PROC = Path("/sys"), Path("/proc")
_GPU = ("gpu",)
INFO = Metric(
    "infercanary_gpu_info",
    "gauge",
    "A GPU's identity; always 1.",
    ("gpu", "name", "uuid", "pci_bus_id", "driver_version", "cuda_version", "vbios_version"),
    reading="Join this series to get names and versions. A changed driver, VBIOS or model may change latency as "
    "much as a new "
    "image.",
)
SM_CLOCK_MAX = Metric(
    "infercanary_gpu_sm_clock_max_hertz",
    "gauge",
    "Highest SM clock.",
    _GPU,
    reading="The denominator for `infercanary_gpu_sm_clock_hertz`. A GPU with another maximum is another model.",
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
    reading="With a lower limit than on other GPUs of the model, `sw_power_cap` begins earlier and latency under load "
    "is higher.",
)
ECC_ERRORS = Metric(
    "infercanary_gpu_ecc_errors_total",
    "counter",
    "ECC errors since the driver was loaded.",
    ("gpu", "severity"),
    reading="Any `uncorrected` error is an alert: work on the GPU was lost. Many corrected errors often precede "
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
    "Action that the driver recommends: 0 nothing, 1 reset the GPU, 2 and 7 reboot the node, 4 drain and reset.",
    _GPU,
    reading="A value above 0 is an alert, and names the action to take (3, 5, 6: see NVML's documentation).",
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
"""Running totals of the driver → largest possible increase per second."""

_RECOVERY_ACTION = 230
_SEVERITIES = {
    "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
}


class Versions(NamedTuple):
    """Versions of the driver, which all GPUs share."""

    driver: str
    cuda: str
    """Newest CUDA version that the driver supports, such as ``12.4``; empty if unknown."""


def versions(nvml: Nvml) -> Versions:
    """Return the versions of the driver.

    Raises:
        pynvml.NVMLError: The driver is gone.
    """
    driver = text(nvml.nvmlSystemGetDriverVersion())
    with suppress(pynvml.NVMLError):
        number = nvml.nvmlSystemGetCudaDriverVersion()
        return Versions(driver, f"{number // 1000}.{number % 1000 // 10}")
    return Versions(driver, "")


def sample(nvml: Nvml, gpu: Gpu, common: Versions) -> Found:
    """Return the values of one GPU, in the base units of their metrics.

    Args:
        nvml: An initialised NVML.
        gpu: GPU or MIG device.
        common: Versions of the driver.

    Raises:
        pynvml.NVMLError: The GPU is gone.
    """
    found = read(nvml, gpu, [_MEMORY] if gpu.is_mig else _READINGS)
    name = _text(nvml.nvmlDeviceGetName, gpu)
    uuid = _text(nvml.nvmlDeviceGetUUID, gpu)
    bus_id = _text(lambda handle: nvml.nvmlDeviceGetPciInfo(handle).busId, gpu)
    vbios = _text(nvml.nvmlDeviceGetVbiosVersion, gpu)
    found[INFO] = {(gpu.label, name, uuid, bus_id, common.driver, common.cuda, vbios): 1.0}
    if not gpu.is_split:  # the processes of a GPU in MIG mode run on its MIG devices
        with suppress(pynvml.NVMLError):
            found |= users.sample(nvml, gpu, _PROC)
    if not gpu.is_mig and (node := numa_node(bus_id, _SYSFS)) is not None:
        found[NUMA_NODE] = {(gpu.label,): node}
    return found


def _text(function: Callable[[Any], str | bytes], gpu: Gpu) -> str:
    with suppress(pynvml.NVMLError):
        return text(function(gpu.handle))
    return ""


def _ecc_errors(nvml: Nvml, gpu: Gpu) -> Found:
    counter = pynvml.NVML_VOLATILE_ECC
    return {
        ECC_ERRORS: {
            (gpu.label, severity): nvml.nvmlDeviceGetTotalEccErrors(gpu.handle, kind, counter)
            for severity, kind in _SEVERITIES.items()
        }
    }


def _remapped_rows(nvml: Nvml, gpu: Gpu) -> Found:
    corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(gpu.handle)
    return {
        REMAPPED_ROWS: {(gpu.label, "corrected"): corrected, (gpu.label, "uncorrected"): uncorrected},
        ROW_REMAP: {(gpu.label, "failed"): failed, (gpu.label, "pending"): pending},
    }


def _recovery_action(nvml: Nvml, gpu: Gpu) -> Found:
    action = nvml.field_values(gpu.handle, [_RECOVERY_ACTION]).get(_RECOVERY_ACTION)
    return {} if action is None else {RECOVERY_ACTION: {(gpu.label,): action}}


_MEMORY = value(MEMORY_SIZE, lambda nvml, h: nvml.nvmlDeviceGetMemoryInfo(h).total)
_READINGS = (
    _MEMORY,
    value(SM_CLOCK_MAX, lambda nvml, h: nvml.nvmlDeviceGetMaxClockInfo(h, pynvml.NVML_CLOCK_SM) * 1e6),
    value(POWER_LIMIT, lambda nvml, h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3),
    _ecc_errors,
    _remapped_rows,
    _recovery_action,
)
