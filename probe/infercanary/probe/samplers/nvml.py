"""The GPUs that the container sees, by NVML: clocks, heat, power, throttling.

Only calls that are cheap and read-only; never a process list or ``GetPcieThroughput`` (20 ms a direction). A
call may fail on one GPU or one driver and work on the next: each metric stands for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pynvml

from infercanary.probe.report import Family, Metric
from infercanary.probe.samplers import Unavailable

log = logging.getLogger("infercanary.probe")

_GPU = ("gpu",)
DEVICES = Metric("infercanary_gpu_devices", "gauge", "GPUs that NVML shows to the container.")
UP = Metric(
    "infercanary_gpu_up",
    "gauge",
    "1 if NVML answers for the GPU, else 0 (lost, off the bus, no permission).",
    _GPU,
)
INFO = Metric(
    "infercanary_gpu_info", "gauge", "A GPU's identity; always 1.", ("gpu", "name", "uuid", "driver_version")
)
SM_CLOCK = Metric("infercanary_gpu_sm_clock_hertz", "gauge", "Current SM clock.", _GPU)
SM_CLOCK_MAX = Metric("infercanary_gpu_sm_clock_max_hertz", "gauge", "Highest SM clock.", _GPU)
MEMORY_CLOCK = Metric("infercanary_gpu_memory_clock_hertz", "gauge", "Current memory clock.", _GPU)
TEMPERATURE = Metric("infercanary_gpu_temperature_celsius", "gauge", "Temperature of the GPU's die.", _GPU)
ENERGY = Metric(
    "infercanary_gpu_energy_joules_total", "counter", "Energy used since the driver was loaded.", _GPU
)
UTILIZATION = Metric(
    "infercanary_gpu_utilization_ratio",
    "gauge",
    "Share of the driver's last window (1/6 to 1 s) with a kernel running.",
    _GPU,
)
MEMORY_USED = Metric("infercanary_gpu_memory_used_bytes", "gauge", "Device memory in use, by anyone.", _GPU)
REASONS = Metric(
    "infercanary_gpu_clock_event_active",
    "gauge",
    "1 if the reason holds the clocks back now, else 0.",
    ("gpu", "reason"),
)

_Values = dict[Metric, dict[tuple[str, ...], float]]

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
}

# What says that this GPU or driver does not offer the value; anything else is a failure of the sample.
_NOT_OFFERED = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_FunctionNotFound,
)


class NvmlSampler:
    """Initialises NVML at the first sample, and again after a failure (a driver may be reloaded)."""

    name = "nvml"

    def __init__(self) -> None:
        self._open = False
        self._failures: dict[int, str] = {}

    def sample(self) -> Iterable[Family]:
        """See :class:`~infercanary.probe.samplers.Sampler`."""
        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
            return self._families()
        except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
            self._close()
            raise Unavailable(f"no NVIDIA driver here ({error})") from None
        except pynvml.NVMLError:
            self._close()
            raise

    def _close(self) -> None:
        if self._open:
            self._open = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _families(self) -> list[Family]:
        count = pynvml.nvmlDeviceGetCount()
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        values: _Values = {}
        failures = {}
        for index in range(count):
            try:
                found = _one(index, driver)
            except pynvml.NVMLError as error:  # it stands for itself: the other GPUs are still well
                failures[index] = error
                found = {UP: {(str(index),): 0}}
            for metric, points in found.items():
                values.setdefault(metric, {}).update(points)
        if failures and len(failures) == count:
            raise next(iter(failures.values()))
        self._tell({index: str(error) for index, error in failures.items()})
        return [DEVICES.family(count), *(metric.family(points) for metric, points in values.items())]

    def _tell(self, failures: dict[int, str]) -> None:
        for index in failures.keys() | self._failures.keys():
            if (now := failures.get(index)) != self._failures.get(index):
                log.warning("sampler nvml: GPU %d: %s", index, now or "answers again")
        self._failures = failures


def _one(index: int, driver: str) -> _Values:
    """What one GPU tells. Raises :class:`pynvml.NVMLError` where it does not answer."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpu = str(index)
    name, uuid = _text(pynvml.nvmlDeviceGetName(handle)), _text(pynvml.nvmlDeviceGetUUID(handle))
    found: _Values = {UP: {(gpu,): 1}, INFO: {(gpu, name, uuid, driver): 1}}
    for metric, read in _READINGS.items():
        with suppress(*_NOT_OFFERED):
            found[metric] = {(gpu,): read(handle)}
    with suppress(*_NOT_OFFERED):
        active = _clock_event_reasons(handle)
        found[REASONS] = {(gpu, reason): float(bool(active & bit)) for reason, bit in _REASON_BITS.items()}
    return found


def _clock_event_reasons(handle: Any) -> int:
    """The name changed with driver 535; old drivers know only the old one."""
    try:
        reasons: int = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError_FunctionNotFound:
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return reasons


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_READINGS: dict[Metric, Callable[[Any], float]] = {
    SM_CLOCK: lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM) * 1e6,
    SM_CLOCK_MAX: lambda h: pynvml.nvmlDeviceGetMaxClockInfo(h, pynvml.NVML_CLOCK_SM) * 1e6,
    MEMORY_CLOCK: lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM) * 1e6,
    TEMPERATURE: lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU),
    ENERGY: lambda h: pynvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3,
    UTILIZATION: lambda h: pynvml.nvmlDeviceGetUtilizationRates(h).gpu / 100,
    MEMORY_USED: lambda h: pynvml.nvmlDeviceGetMemoryInfo(h).used,
}
