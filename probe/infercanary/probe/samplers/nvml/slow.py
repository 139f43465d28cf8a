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
    reading="Join it for names and versions: `infercanary_gpu_up * on (service, container, gpu) group_left (name, "
    "driver_version) infercanary_gpu_info`. Another driver, VBIOS or model is as much a change as another image.",
)
SM_CLOCK_MAX = Metric(
    "infercanary_gpu_sm_clock_max_hertz",
    "gauge",
    "Highest SM clock.",
    _GPU,
    reading="The denominator for `infercanary_gpu_sm_clock_hertz`. If it differs between two GPUs, they are two "
    "models, and their latencies are not comparable.",
)
SM_CLOCK_DEFAULT = Metric(
    "infercanary_gpu_sm_clock_default_hertz",
    "gauge",
    "Default SM clock for applications.",
    _GPU,
    reading="On some models, the factory sets the default below the maximum. If `applications_clocks_setting` is "
    "active, the driver holds the clock at the setting. The setting is this value unless someone changed it. Missing "
    "on drivers that no longer offer it.",
)
MEMORY_CLOCK_MAX = Metric(
    "infercanary_gpu_memory_clock_max_hertz",
    "gauge",
    "Highest memory clock.",
    _GPU,
    reading="The denominator for `infercanary_gpu_memory_clock_hertz`.",
)
MEMORY_SIZE = Metric(
    "infercanary_gpu_memory_size_bytes",
    "gauge",
    "Device memory of the GPU or MIG device.",
    _GPU,
    reading="The denominator for `infercanary_gpu_memory_used_bytes`. For a MIG device, it is the size of its slice.",
)
POWER_LIMIT = Metric(
    "infercanary_gpu_power_limit_watts",
    "gauge",
    "Power limit that the driver enforces for the GPU now.",
    _GPU,
    reading="If it is below `infercanary_gpu_power_limit_default_watts`, someone, or the platform, lowered it. "
    "`sw_power_cap` then comes earlier, and latency under load is higher than on other hosts.",
)
POWER_LIMIT_DEFAULT = Metric(
    "infercanary_gpu_power_limit_default_watts",
    "gauge",
    "Power limit of the GPU if no other limit was set.",
    _GPU,
    reading="`infercanary_gpu_power_limit_watts` should have this value unless another limit was set on purpose.",
)
LINK_GENERATION_MAX = Metric(
    "infercanary_gpu_pcie_link_generation_max",
    "gauge",
    "Highest generation of PCIe that both the GPU and the slot support.",
    _GPU,
    reading="`infercanary_gpu_pcie_link_generation` should reach it under load. If it is lower than on other hosts, "
    "the slot or a BIOS setting differs.",
)
LINK_LANES_MAX = Metric(
    "infercanary_gpu_pcie_link_lanes_max",
    "gauge",
    "Most PCIe lanes that both the GPU and the slot support.",
    _GPU,
    reading="`infercanary_gpu_pcie_link_lanes` should reach it under load.",
)
PERSISTENCE = Metric(
    "infercanary_gpu_persistence_enabled",
    "gauge",
    "1 if the GPU is in persistence mode, else 0.",
    _GPU,
    reading="With 0, the driver releases a GPU that no process uses, and the next start takes seconds longer "
    "(`infercanary_load_seconds`). `nvidia-persistenced` on the host fixes that.",
)
ECC = Metric(
    "infercanary_gpu_ecc_enabled",
    "gauge",
    "1 if ECC protects the memory, else 0.",
    _GPU,
    reading="GPUs with and without ECC differ in usable memory and, on some models, in memory bandwidth. Compare "
    "only GPUs with the same setting.",
)
MIG = Metric(
    "infercanary_gpu_mig_enabled",
    "gauge",
    "1 if the GPU is in MIG mode, else 0.",
    _GPU,
    reading='With 1, its devices are `gpu="0:0"`, `gpu="0:1"`, …. Clocks and heat are known only for the whole GPU: '
    "a neighbour on another slice shares them.",
)
COMPUTE_MODE = Metric(
    "infercanary_gpu_compute_mode",
    "gauge",
    "1 for the GPU's current compute mode, else 0.",
    ("gpu", "mode"),
    reading="`default` allows several processes. With `exclusive_process`, a probe next to the server cannot open "
    "the GPU. `prohibited` allows no process.",
)
ECC_ERRORS = Metric(
    "infercanary_gpu_ecc_errors_total",
    "counter",
    "ECC errors since the driver was loaded.",
    ("gpu", "severity"),
    reading='`increase(infercanary_gpu_ecc_errors_total{severity="uncorrected"}[1h]) > 0` is an alert: work on that '
    "GPU was lost. A corrected error loses no result. Many corrected errors announce row remapping.",
)
ECC_LIFETIME_ERRORS = Metric(
    "infercanary_gpu_ecc_lifetime_errors_total",
    "counter",
    "ECC errors over the GPU's lifetime.",
    ("gpu", "severity"),
    reading="This is the GPU's history, across reboots and owners. If the values are high on a new host, watch this "
    "GPU.",
)
REMAPPED_ROWS = Metric(
    "infercanary_gpu_remapped_rows_total",
    "counter",
    "Rows of memory that were replaced over the GPU's lifetime, by the severity of the errors in them.",
    ("gpu", "severity"),
    reading="A small and steady number is normal ageing. If `uncorrected` increases, see "
    "`infercanary_gpu_row_remap_pending`, and reset the GPU after its work has moved elsewhere.",
)
REMAP_PENDING = Metric(
    "infercanary_gpu_row_remap_pending",
    "gauge",
    "1 if a row waits for a reset of the GPU, which replaces it, else 0.",
    _GPU,
    reading="If it is 1, drain the GPU and reset it. Until then the bad row stays in use.",
)
REMAP_FAILED = Metric(
    "infercanary_gpu_row_remap_failed",
    "gauge",
    "1 if a row could not be replaced (exchange the GPU), else 0.",
    _GPU,
    reading="1 is an alert: the GPU has no spare rows left. Take it out of service.",
)
RECOVERY_ACTION = Metric(
    "infercanary_gpu_recovery_action",
    "gauge",
    "Action that the driver asks for: 0 nothing, 1 reset the GPU, 2 reboot the node, 3 drain peer-to-peer, 4 drain "
    "and reset, 5 recover the IMEX domain, 6 reset the bus, 7 reboot the system.",
    _GPU,
    reading="`infercanary_gpu_recovery_action > 0` is an alert; the number is the action to take. Missing on older "
    "drivers.",
)
NUMA_NODE = Metric(
    "infercanary_gpu_numa_node",
    "gauge",
    "NUMA node that the GPU is attached to.",
    _GPU,
    reading="It may be missing if the host has one node. If threads run on another node, copies and launches take "
    "longer: see `infercanary_process_off_node_threads`.",
)
LOCAL_CPUS = Metric(
    "infercanary_gpu_local_cpus",
    "gauge",
    "CPUs of the host that are near the GPU.",
    _GPU,
    reading="If it is the number of all CPUs of the host, there is one node and nothing to fix. Otherwise, a cpuset "
    "of these CPUs keeps the server near its GPU.",
)

MOST_PER_SECOND = dict.fromkeys((ECC_ERRORS, ECC_LIFETIME_ERRORS, REMAPPED_ROWS), ERRORS_PER_SECOND)
"""The driver's running totals, and the most that each can grow by in a second."""

_RECOVERY_ACTION = 230
_SEVERITIES = {
    "corrected": pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    "uncorrected": pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
}
_COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")


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
    if cpus := _offered(partial(local_cpus, nvml), gpu.handle, frozenset[int]()):
        found[LOCAL_CPUS] = {(gpu.label,): len(cpus)}
    return Slow(found, cpus)


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
    for metric, counter in {
        ECC_ERRORS: pynvml.NVML_VOLATILE_ECC,
        ECC_LIFETIME_ERRORS: pynvml.NVML_AGGREGATE_ECC,
    }.items():
        yield partial(_ecc_errors, nvml, gpu, metric, counter)
    yield lambda: _remapped_rows(label, nvml.nvmlDeviceGetRemappedRows(handle))
    yield lambda: {COMPUTE_MODE: _compute_mode(label, nvml.nvmlDeviceGetComputeMode(handle))}
    yield partial(_recovery_action, nvml, gpu)


def _one(nvml: Nvml, gpu: Gpu, metric: Metric, value: Callable[[Nvml, Any], float]) -> Found:
    return {metric: {(gpu.label,): value(nvml, gpu.handle)}}


def _ecc_errors(nvml: Nvml, gpu: Gpu, metric: Metric, counter: int) -> Found:
    return {
        metric: {
            (gpu.label, severity): nvml.nvmlDeviceGetTotalEccErrors(gpu.handle, kind, counter)
            for severity, kind in _SEVERITIES.items()
        }
    }


def _remapped_rows(label: str, rows: tuple[int, int, int, int]) -> Found:
    corrected, uncorrected, pending, failed = rows
    return {
        REMAPPED_ROWS: {(label, "corrected"): corrected, (label, "uncorrected"): uncorrected},
        REMAP_PENDING: {(label,): pending},
        REMAP_FAILED: {(label,): failed},
    }


def _compute_mode(label: str, now: int) -> dict[tuple[str, ...], float]:
    return {(label, mode): float(number == now) for number, mode in enumerate(_COMPUTE_MODES)}


def _recovery_action(nvml: Nvml, gpu: Gpu) -> Found:
    action = nvml.field_values(gpu.handle, [_RECOVERY_ACTION]).get(_RECOVERY_ACTION)
    return {} if action is None else {RECOVERY_ACTION: {(gpu.label,): action}}


_SIMPLE: dict[Metric, Callable[[Nvml, Any], float]] = {
    SM_CLOCK_MAX: lambda nvml, h: nvml.nvmlDeviceGetMaxClockInfo(h, pynvml.NVML_CLOCK_SM) * 1e6,
    SM_CLOCK_DEFAULT: lambda nvml, h: (
        nvml.nvmlDeviceGetDefaultApplicationsClock(h, pynvml.NVML_CLOCK_SM) * 1e6
    ),
    MEMORY_CLOCK_MAX: lambda nvml, h: nvml.nvmlDeviceGetMaxClockInfo(h, pynvml.NVML_CLOCK_MEM) * 1e6,
    POWER_LIMIT: lambda nvml, h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3,
    POWER_LIMIT_DEFAULT: lambda nvml, h: nvml.nvmlDeviceGetPowerManagementDefaultLimit(h) / 1e3,
    LINK_GENERATION_MAX: lambda nvml, h: nvml.nvmlDeviceGetMaxPcieLinkGeneration(h),
    LINK_LANES_MAX: lambda nvml, h: nvml.nvmlDeviceGetMaxPcieLinkWidth(h),
    PERSISTENCE: lambda nvml, h: nvml.nvmlDeviceGetPersistenceMode(h),
    ECC: lambda nvml, h: nvml.nvmlDeviceGetEccMode(h)[0],
    MIG: lambda nvml, h: nvml.nvmlDeviceGetMigMode(h)[0],
}
