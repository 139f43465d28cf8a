"""What is read of each GPU at each sample: clocks and what holds them back, heat, energy, use, the PCIe link."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pynvml

from infercanary.contract.report import Metric
from infercanary.probe.samplers.nvml.calls import Found, Nvml, read
from infercanary.probe.samplers.nvml.gpus import Gpu
from infercanary.probe.samplers.nvml.totals import ERRORS_PER_SECOND

_GPU = ("gpu",)
EVENT_SECONDS = Metric(
    "infercanary_gpu_clock_event_seconds_total",
    "counter",
    "Time in which the reason held the clocks back, by the driver's count.",
    ("gpu", "reason"),
    reading="`rate(…[5m])` is the share of the time, 0 to 1. `sw_power_cap` is common under full load. `hw_thermal`, "
    "`hw_power_brake` and `sw_thermal` mean a problem with cooling or power supply. If it grew during a run, the run "
    "has the tag `gpu_clock_limited`, with the reason.",
)
REASONS = Metric(
    "infercanary_gpu_clock_event_active",
    "gauge",
    "1 if the reason holds the clocks back now, else 0.",
    ("gpu", "reason"),
    reading="`idle`, `applications_clocks_setting` and `display_clock_setting` are not faults. The value shows one "
    "moment. Events between two samples are in `infercanary_gpu_clock_event_seconds_total`.",
)
PCIE_BYTES = Metric(
    "infercanary_gpu_pcie_bytes_total",
    "counter",
    "Bytes over the GPU's PCIe link, by the driver's count: tx from the GPU, rx to it.",
    ("gpu", "direction"),
    reading="Compare `rate(…[5m])` with the capacity of the link (a lane of generation 4 carries about 2 GB/s, each "
    "generation twice as much as the one before). Near the capacity, `h2d` and `d2h` of the canary wait for the "
    "copies of others.",
)
ENERGY = Metric(
    "infercanary_gpu_energy_joules_total",
    "counter",
    "Energy used since the driver was loaded.",
    _GPU,
    reading="`rate(infercanary_gpu_energy_joules_total[5m])` is the mean power in watts. Near "
    "`infercanary_gpu_power_limit_watts`, the driver holds the clocks back.",
)
SM_CLOCK = Metric(
    "infercanary_gpu_sm_clock_hertz",
    "gauge",
    "Current SM clock.",
    _GPU,
    reading="Divided by `infercanary_gpu_sm_clock_max_hertz`, it is the share of the top speed. If this share is "
    "below 0.75 right after a run, the run is tagged `gpu_clock_limited`. An idle GPU lowers it. If it is low under "
    "load, `infercanary_gpu_clock_event_active` shows why.",
)
MEMORY_CLOCK = Metric(
    "infercanary_gpu_memory_clock_hertz",
    "gauge",
    "Current memory clock.",
    _GPU,
    reading="If it is below `infercanary_gpu_memory_clock_max_hertz` under load, all work that memory limits is "
    "slower in proportion. An idle GPU may lower it.",
)
PERFORMANCE_STATE = Metric(
    "infercanary_gpu_performance_state",
    "gauge",
    "Current performance state: 0 (P0, the fastest) to 15.",
    _GPU,
    reading="It is 0 (on some models 2) under load, and higher when idle. If it stays high while the canary runs, "
    "power, heat or settings hold the GPU there.",
)
TEMPERATURE = Metric(
    "infercanary_gpu_temperature_celsius",
    "gauge",
    "Temperature of the GPU's die.",
    _GPU,
    reading="Compare the same GPU at the same load over weeks: a steady rise means dust, a bad fan or a warm room. "
    '`infercanary_gpu_clock_event_seconds_total{reason=~".*thermal"}` shows whether heat costs speed.',
)
MEMORY_TEMPERATURE = Metric(
    "infercanary_gpu_memory_temperature_celsius",
    "gauge",
    "Temperature of the GPU's memory.",
    _GPU,
    reading="Memory can be too hot while the die is not. Hot memory slows the clocks as well. Missing if there is no "
    "sensor.",
)
UTILIZATION = Metric(
    "infercanary_gpu_utilization_ratio",
    "gauge",
    "Share of the driver's last window (1/6 to 1 s) in which a kernel ran; missing in MIG mode.",
    _GPU,
    reading="It is the time with a kernel. It does not show how full the GPU was. If it is above 0.1 right before a "
    "run, the GPU was already in use, and the run is tagged `gpu_busy`.",
)
MEMORY_USED = Metric(
    "infercanary_gpu_memory_used_bytes",
    "gauge",
    "Device memory in use, by all processes.",
    _GPU,
    reading="Divide it by `infercanary_gpu_memory_size_bytes`. Near 1, the next allocation fails, or an engine frees "
    "its cache and becomes slow. If it grows at constant load, there is a leak, possibly in another container.",
)
LINK_GENERATION = Metric(
    "infercanary_gpu_pcie_link_generation",
    "gauge",
    "Generation at which the PCIe link runs now; an idle GPU lowers it.",
    _GPU,
    reading="Look at it under load. If it is then below `infercanary_gpu_pcie_link_generation_max`, `h2d` and `d2h` "
    "take twice as long for each step: check the slot, the riser and the BIOS.",
)
LINK_LANES = Metric(
    "infercanary_gpu_pcie_link_lanes",
    "gauge",
    "Lanes that the PCIe link uses now.",
    _GPU,
    reading="If it is below `infercanary_gpu_pcie_link_lanes_max` under load, the link uses fewer lanes than it "
    "could: check the seat, the riser and the slot. Copies take longer in proportion.",
)
REPLAYS = Metric(
    "infercanary_gpu_pcie_replays_total",
    "counter",
    "Packets that the PCIe link had to send again.",
    _GPU,
    reading="Healthy is no increase. A rare replay is noise. A steady `rate` means a bad signal (riser, slot, "
    "cable), and costs bandwidth.",
)

MOST_PER_SECOND = {
    EVENT_SECONDS: 1.0,  # a reason cannot hold back for longer than the time that passed
    PCIE_BYTES: 512e9,  # twice 16 lanes of generation 7
    ENERGY: 10e3,  # several times the largest GPU's power
    REPLAYS: ERRORS_PER_SECOND,
}
"""The driver's running totals, and the most that each can grow by in a second."""

_EVENT_FIELDS = {74: "sw_power_cap", 76: "sync_boost"}
_SLOWDOWN_FIELDS = {269: "sw_thermal", 270: "hw_thermal", 271: "hw_power_brake"}
_SLOWDOWN_FIELDS_575 = {251: "sw_thermal", 252: "hw_thermal", 253: "hw_power_brake"}
_THERMAL_POLICY = 75
_MEMORY_TEMPERATURE = 82
_PCIE_FIELDS = {197: "tx", 198: "rx"}

_REASON_BITS = {
    "idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clock_setting": 0x100,
    "board_limit": 0x200,
    "reliability": 0x400,
}


def event_fields(driver: str) -> dict[int, str]:
    """The field ids of the clock-event counters (ns) in this driver → reason.

    By number: the constants of pynvml are those of its own release, and three ids moved. Drivers 575 to 580.65 have
    the slowdowns at 251 to 253, later ones at 269 to 271, where those had power smoothing
    (https://docs.nvidia.com/deploy/nvml-api/change-log.html, "between v575 and v580"). Earlier ones have none, but
    the counter of the thermal policy, which is the nearest to the software slowdown.

    Args:
        driver: Its version, such as ``550.54.15``.

    Returns:
        Field id → the reason that it counts.
    """
    version = tuple(int(part) for part in driver.split(".") if part.isdecimal())
    if (575,) <= version < (580, 82):
        return _EVENT_FIELDS | _SLOWDOWN_FIELDS_575
    if version < (575,):
        return _EVENT_FIELDS | {_THERMAL_POLICY: "sw_thermal"} | _SLOWDOWN_FIELDS
    return _EVENT_FIELDS | _SLOWDOWN_FIELDS


def sample(nvml: Nvml, gpu: Gpu, events: dict[int, str]) -> Found:
    """One GPU's values.

    Args:
        nvml: An initialised NVML.
        gpu: The GPU or MIG device.
        events: Its driver's :func:`event_fields`.

    Returns:
        Values in the base units of their metrics.

    Raises:
        pynvml.NVMLError: The GPU is gone.
    """
    return read(_readings(nvml, gpu, events))


def _readings(nvml: Nvml, gpu: Gpu, events: dict[int, str]) -> Iterator[Callable[[], Found]]:
    label, handle = gpu.label, gpu.handle
    # The driver offers no more of a MIG device than this; the rest is its GPU's.
    yield lambda: {MEMORY_USED: {(label,): nvml.nvmlDeviceGetMemoryInfo(handle).used}}
    if gpu.is_mig:
        return
    yield partial(_fields, nvml, gpu, events)
    yield lambda: {REASONS: _reasons(label, _active_reasons(nvml, handle))}
    yield lambda: _state(label, nvml.nvmlDeviceGetPerformanceState(handle))
    for metric, value in _SIMPLE.items():
        if metric is not UTILIZATION or not gpu.is_split:
            yield partial(_one, nvml, gpu, metric, value)


def _one(nvml: Nvml, gpu: Gpu, metric: Metric, value: Callable[[Nvml, Any], float]) -> Found:
    return {metric: {(gpu.label,): value(nvml, gpu.handle)}}


def _fields(nvml: Nvml, gpu: Gpu, events: dict[int, str]) -> Found:
    """One call for all fields: cumulative counters, so that nothing is lost between samples."""
    values = nvml.field_values(gpu.handle, [*events, *_PCIE_FIELDS, _MEMORY_TEMPERATURE])
    found: Found = {
        # Where a driver has both counters of a reason, the later one in the table counts.
        EVENT_SECONDS: {(gpu.label, reason): values[i] / 1e9 for i, reason in events.items() if i in values},
        PCIE_BYTES: {(gpu.label, way): values[i] for i, way in _PCIE_FIELDS.items() if i in values},
        # Memory without a sensor is 0 °C with some drivers.
        MEMORY_TEMPERATURE: {(gpu.label,): celsius} if (celsius := values.get(_MEMORY_TEMPERATURE)) else {},
    }
    return {metric: points for metric, points in found.items() if points}


def _active_reasons(nvml: Nvml, handle: Any) -> int:
    """The name changed with driver 535; old drivers know only the old one."""
    try:
        reasons: int = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError_FunctionNotFound:
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return reasons


def _reasons(label: str, active: int) -> dict[tuple[str, ...], float]:
    return {(label, reason): float(bool(active & bit)) for reason, bit in _REASON_BITS.items()}


def _state(label: str, state: int) -> Found:
    return {} if state == pynvml.NVML_PSTATE_UNKNOWN else {PERFORMANCE_STATE: {(label,): state}}


def _temperature(nvml: Nvml, handle: Any) -> float:
    """The old function is deprecated, and the new one is not in every driver (nor in every pynvml)."""
    try:
        celsius: float = nvml.nvmlDeviceGetTemperatureV(handle, pynvml.NVML_TEMPERATURE_GPU)
    except pynvml.NVMLError_FunctionNotFound:
        celsius = nvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    return celsius


_SIMPLE: dict[Metric, Callable[[Nvml, Any], float]] = {
    SM_CLOCK: lambda nvml, h: nvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM) * 1e6,
    MEMORY_CLOCK: lambda nvml, h: nvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM) * 1e6,
    TEMPERATURE: _temperature,
    ENERGY: lambda nvml, h: nvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3,
    UTILIZATION: lambda nvml, h: nvml.nvmlDeviceGetUtilizationRates(h).gpu / 100,
    LINK_GENERATION: lambda nvml, h: nvml.nvmlDeviceGetCurrPcieLinkGeneration(h),
    LINK_LANES: lambda nvml, h: nvml.nvmlDeviceGetCurrPcieLinkWidth(h),
    REPLAYS: lambda nvml, h: nvml.nvmlDeviceGetPcieReplayCounter(h),
}
