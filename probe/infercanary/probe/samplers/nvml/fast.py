"""Values of each GPU that every sample reads: clocks and their limits, temperature, energy, use, the PCIe link."""

from __future__ import annotations

from functools import partial

import pynvml

from infercanary.contract.report import Metric
from infercanary.probe.samplers.nvml.calls import Found, Gpu, Nvml, read, value
from infercanary.probe.samplers.nvml.totals import ERRORS_PER_SECOND

_GPU = ("gpu",)
EVENT_SECONDS = Metric(
    "infercanary_gpu_clock_event_seconds_total",
    "counter",
    "Time in which this reason limited the clocks, as counted by the driver.",
    ("gpu", "reason"),
    reading="`rate(…[5m])` is a share of the time. `sw_power_cap` is common under load; `hw_…` and "
    "`sw_thermal` point to cooling or power.",
)
PCIE_BYTES = Metric(
    "infercanary_gpu_pcie_bytes_total",
    "counter",
    "Bytes over the GPU's PCIe link: tx from the GPU, rx to the GPU.",
    ("gpu", "direction"),
    reading="Near the link's capacity, `h2d` and `d2h` of the canary wait for copies of other processes.",
)
ENERGY = Metric(
    "infercanary_gpu_energy_joules_total",
    "counter",
    "Energy used since the driver was loaded.",
    _GPU,
    reading="`rate(…[5m])` is the mean power in watts; near `infercanary_gpu_power_limit_watts`, the "
    "driver lowers the clocks.",
)
SM_CLOCK = Metric(
    "infercanary_gpu_sm_clock_hertz",
    "gauge",
    "Current SM clock.",
    _GPU,
    reading="Divide by `infercanary_gpu_sm_clock_max_hertz`. If the ratio is low under load, see "
    "`infercanary_gpu_clock_event_seconds_total`.",
)
MEMORY_CLOCK = Metric(
    "infercanary_gpu_memory_clock_hertz",
    "gauge",
    "Current memory clock.",
    _GPU,
    reading="With a lower clock than on other hosts under load, memory-bound work is slower in proportion.",
)
TEMPERATURE = Metric(
    "infercanary_gpu_temperature_celsius",
    "gauge",
    "Temperature of the GPU's die (`gpu`) and of its memory (`memory`; missing without a sensor).",
    ("gpu", "sensor"),
    reading="A steady rise at the same load means dust, a bad fan or a warm room.",
)
UTILIZATION = Metric(
    "infercanary_gpu_utilization_ratio",
    "gauge",
    "Share of time with a running kernel, in the driver's last window (1/6 to 1 s); missing in MIG mode.",
    _GPU,
    reading="Above 0.1 before a run, another process uses the GPU: the run is tagged `gpu_busy`.",
)
MEMORY_USED = Metric(
    "infercanary_gpu_memory_used_bytes",
    "gauge",
    "Device memory in use on the GPU or MIG device, by all processes.",
    _GPU,
    reading="Divide by `infercanary_gpu_memory_size_bytes`. Near 1, the next allocation fails.",
)
REPLAYS = Metric(
    "infercanary_gpu_pcie_replays_total",
    "counter",
    "Packets that the PCIe link had to send again.",
    _GPU,
    reading="Healthy is no increase. A steady rate means a bad riser, slot or cable, and costs bandwidth.",
)

LINK = Metric(
    "infercanary_gpu_pcie_link_ratio",
    "gauge",
    "Current bandwidth of the PCIe link, divided by the highest bandwidth that GPU and slot support.",
    _GPU,
    reading="An idle GPU lowers this ratio. Below 1 under load, `h2d` and `d2h` are slower: check the slot, "
    "riser or BIOS.",
)

MOST_PER_SECOND = {
    EVENT_SECONDS: 1.0,  # a counter of seconds cannot grow faster than time
    PCIE_BYTES: 512e9,  # twice the rate of 16 lanes of PCIe generation 7
    ENERGY: 10e3,  # several times the power of the largest GPU
    REPLAYS: ERRORS_PER_SECOND,
}
"""Running totals of the driver → largest possible increase per second."""

_EVENT_FIELDS = {74: "sw_power_cap", 76: "sync_boost"}
_SLOWDOWN_FIELDS = {269: "sw_thermal", 270: "hw_thermal", 271: "hw_power_brake"}
_SLOWDOWN_FIELDS_575 = {251: "sw_thermal", 252: "hw_thermal", 253: "hw_power_brake"}
_THERMAL_POLICY = 75
_MEMORY_TEMPERATURE = 82
_PCIE_FIELDS = {197: "tx", 198: "rx"}


def event_fields(driver: str) -> dict[int, str]:
    """Return the field ids of this driver's clock-event counters (ns), with the reason of each counter.

    The ids are numbers here, because pynvml's constants belong to one release, and three ids moved. Drivers 575 to
    580.65 have the slowdowns at 251 to 253; later drivers have them at 269 to 271, which meant power smoothing before
    (https://docs.nvidia.com/deploy/nvml-api/change-log.html, "between v575 and v580"). Earlier drivers have only the
    counter of the thermal policy, which is most similar to the software slowdown.

    Args:
        driver: Version of the driver, such as ``550.54.15``.
    """
    version = tuple(int(part) for part in driver.split(".") if part.isdecimal())
    if version < (575,):
        return _EVENT_FIELDS | {_THERMAL_POLICY: "sw_thermal"} | _SLOWDOWN_FIELDS
    return _EVENT_FIELDS | (_SLOWDOWN_FIELDS_575 if version < (580, 82) else _SLOWDOWN_FIELDS)


def _fields(nvml: Nvml, gpu: Gpu, *, events: dict[int, str]) -> Found:
    """Read all fields in one call. The counters are cumulative, so no event between samples is lost."""
    values = nvml.field_values(gpu.handle, [*events, *_PCIE_FIELDS, _MEMORY_TEMPERATURE])
    found: Found = {
        # If a driver has two counters for one reason, the later counter in ``events`` wins.
        EVENT_SECONDS: {(gpu.label, reason): values[i] / 1e9 for i, reason in events.items() if i in values},
        PCIE_BYTES: {(gpu.label, way): values[i] for i, way in _PCIE_FIELDS.items() if i in values},
        # Some drivers report 0 °C for a memory without a sensor.
        TEMPERATURE: {(gpu.label, "memory"): celsius} if (celsius := values.get(_MEMORY_TEMPERATURE)) else {},
    }
    return {metric: points for metric, points in found.items() if points}


def _link(nvml: Nvml, gpu: Gpu) -> Found:
    lanes = nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu.handle)
    most_lanes = nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu.handle)
    generation = nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu.handle)
    highest = nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu.handle)
    if not most_lanes:  # a virtual GPU
        return {}
    # Each PCIe generation doubles the rate of a lane.
    return {LINK: {(gpu.label,): lanes / most_lanes * 2.0 ** (generation - highest)}}


def _temperature(nvml: Nvml, gpu: Gpu) -> Found:
    """Read the temperature.

    The deprecated function is the fallback, because some drivers and pynvml versions lack the new function.
    """
    try:
        celsius = nvml.nvmlDeviceGetTemperatureV(gpu.handle, pynvml.NVML_TEMPERATURE_GPU)
    except pynvml.NVMLError_FunctionNotFound:
        celsius = nvml.nvmlDeviceGetTemperature(gpu.handle, pynvml.NVML_TEMPERATURE_GPU)
    return {TEMPERATURE: {(gpu.label, "gpu"): celsius}}


_MEMORY = value(MEMORY_USED, lambda nvml, h: nvml.nvmlDeviceGetMemoryInfo(h).used)
_READINGS = (
    _temperature,
    _link,
    value(SM_CLOCK, lambda nvml, h: nvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM) * 1e6),
    value(MEMORY_CLOCK, lambda nvml, h: nvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM) * 1e6),
    value(ENERGY, lambda nvml, h: nvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3),
    value(UTILIZATION, lambda nvml, h: nvml.nvmlDeviceGetUtilizationRates(h).gpu / 100),
    value(REPLAYS, lambda nvml, h: nvml.nvmlDeviceGetPcieReplayCounter(h)),
)


def sample(nvml: Nvml, gpu: Gpu, events: dict[int, str]) -> Found:
    """Return the values of one GPU, in the base units of their metrics.

    Args:
        nvml: An initialised NVML.
        gpu: GPU or MIG device.
        events: The driver's :func:`event_fields`.

    Raises:
        pynvml.NVMLError: The GPU is gone.
    """
    # For a MIG device, the driver reports only memory. Other values belong to the whole GPU.
    whole = () if gpu.is_mig else (partial(_fields, events=events), *_READINGS)
    return read(nvml, gpu, (_MEMORY, *whole))
