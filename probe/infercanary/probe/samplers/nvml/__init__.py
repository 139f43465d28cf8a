"""The container's GPUs by NVML: clocks and their limits, temperature, energy, errors, NUMA node.

Expensive calls are avoided: processes are listed once a minute (milliseconds, under a lock of the whole driver), and
``GetPcieThroughput`` is never called (20 ms for each direction). A call may fail on one GPU or driver and work on
another, so each value is read separately: changing values in :mod:`.fast`, constant values once a minute in
:mod:`.slow`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import pynvml

from infercanary.contract.report import Family, Metric
from infercanary.probe.deadline import Worker
from infercanary.probe.samplers import SampleFailed, Sampler, register
from infercanary.probe.samplers.nvml import fast, slow
from infercanary.probe.samplers.nvml.calls import Found, Gpu, Nvml, text
from infercanary.probe.samplers.nvml.faults import STATE, advice, state, state_of
from infercanary.probe.samplers.nvml.gpus import gpus, local_cpus
from infercanary.probe.samplers.nvml.totals import Totals
from infercanary.probe.samplers.nvml.xids import Xids

__all__ = ["STATE", "UP", "NvmlSampler", "local_cpus", "memory_of", "visible_gpus"]

log = logging.getLogger("infercanary.probe")

UP = Metric(
    "infercanary_gpu_up",
    "gauge",
    "1 if NVML answers for the GPU, else 0 (lost, off the bus, no permission).",
    ("gpu",),
    reading="0: `infercanary_nvml_state` raises the alert and shows the fault; the XIDs often show the cause.",
)

_SLOW_SECONDS = 60.0
_ONCE_SECONDS = 2.0

T = TypeVar("T")


@register
class NvmlSampler(Sampler):
    """Initializes NVML at the first sample, and again after a failure, because a driver may be reloaded.

    A missing driver is not a failure; the state metric is then ``no_driver``. If there is a driver but no GPU answers,
    the sample fails. Then its families are the state, the GPUs that are down, and the XIDs, which often show the cause.
    """

    name = "nvml"
    is_slow = True  # an unused GPU may take seconds to wake up
    hanging = (state("hanging"),)

    def __init__(self) -> None:
        self.local_cpus: dict[str, frozenset[int]] = {}
        """GPU → CPUs on its NUMA node, at the last reading."""
        self._nvml = Nvml()
        self._totals = Totals(fast.MOST_PER_SECOND | slow.MOST_PER_SECOND)
        self._xids = Xids()
        self._open = False
        self._is_without_driver = False
        self._complaints: dict[str, str] = {}
        self._values: Found = {}
        self._failures: dict[str, pynvml.NVMLError] = {}
        self._count = 0
        self._common = slow.Versions("", "")
        self._events: dict[int, str] = {}
        self._known: dict[int, list[tuple[Gpu, Found]]] = {}
        self._known_until = 0.0

    def sample(self) -> Iterable[Family]:
        try:
            if not self._open:
                self._nvml.nvmlInit()
                self._open = True
            return self._sample()
        except pynvml.NVMLError as error:
            opening = not self._open
            self.close()
            now, why = state_of(error, opening), advice(error, opening)
            if now == "no_driver":
                if not self._is_without_driver:
                    log.info("sampler nvml: %s", why)
                self._is_without_driver = True
                return [state(now)]
            raise SampleFailed(why, [state(now), *_families(self._xids.counts())]) from None
        except SampleFailed:
            self.close()
            raise

    def close(self) -> None:
        """Shut down NVML. A later sample initializes NVML again."""
        self._xids.close(self._nvml)
        self._known_until = 0.0
        if self._open:
            self._open = False
            with suppress(pynvml.NVMLError):  # shutdown also fails if a GPU is lost
                self._nvml.nvmlShutdown()

    def _sample(self) -> list[Family]:
        self._refresh()
        self._is_without_driver = False
        self._values, self._failures = {UP: {}}, {}
        for index in range(self._count):
            self._read(index)
        self._xids.take(self._nvml)
        values = self._values | self._xids.counts()
        first = next(iter(self._failures.values()), None)
        now = state("ok" if first is None else state_of(first))
        if first is not None and not any(values[UP].values()):
            raise SampleFailed(advice(first), [now, *_families(values)])
        complaints = {label: advice(error) for label, error in self._failures.items()}
        for label, complaint in complaints.items():
            if complaint != self._complaints.get(label):
                log.warning("sampler nvml: GPU %s: %s", label, complaint)
        self._complaints = complaints
        return [now, *_families(values)]

    def _refresh(self) -> None:
        """Once a minute, forget slow values and handles, because MIG devices may appear or disappear."""
        count = self._nvml.nvmlDeviceGetCount()
        if count != self._count or time.monotonic() >= self._known_until:
            self._known, self._count = {}, count
            self._known_until = time.monotonic() + _SLOW_SECONDS
            self._common = slow.versions(self._nvml)
            self._events = fast.event_fields(self._common.driver)

    def _read(self, index: int) -> None:
        """Read one GPU and its MIG devices."""
        fresh = index not in self._known
        known = []
        with self._alone(index, str(index)):
            known = self._look_up(index)
        for gpu, constant in known:
            with self._alone(index, gpu.label):
                current = fast.sample(self._nvml, gpu, self._events)
                if fresh:  # call keep() once for each reading; constant values are read only once a minute
                    self._totals.keep(constant)
                for metric, points in (constant | self._totals.keep(current)).items():
                    self._values.setdefault(metric, {}).update(points)

    @contextmanager
    def _alone(self, index: int, label: str) -> Iterator[None]:
        """Record whether a GPU answers to the calls in this block. A failure does not affect other GPUs."""
        try:
            yield
        except pynvml.NVMLError as error:
            self._known.pop(index, None)  # make a new handle, because the handle of a lost GPU stays invalid
            self._failures[label] = error
        self._values[UP][(label,)] = float(label not in self._failures)

    def _look_up(self, index: int) -> list[tuple[Gpu, Found]]:
        if index not in self._known:
            known = []
            near = {}
            for gpu in gpus(self._nvml, index):
                try:
                    known.append((gpu, slow.sample(self._nvml, gpu, self._common)))
                except pynvml.NVMLError:
                    if not gpu.is_mig:
                        raise
                    continue  # the MIG device belongs to another container
                if not gpu.is_mig:
                    with suppress(pynvml.NVMLError):
                        if cpus := local_cpus(self._nvml, gpu.handle):
                            near[gpu.label] = cpus
                    self._xids.watch(self._nvml, gpu.handle, gpu.label)
            self._known[index] = known
            # replace the mapping instead of changing it, because another thread reads the mapping
            self.local_cpus = {**self.local_cpus, **near}
        return self._known[index]


def _families(values: Found) -> Iterable[Family]:
    return (metric.family(points) for metric, points in values.items() if points)


def visible_gpus() -> list[str]:
    """Return the names of NVML's GPUs, such as ``NVIDIA H100``; empty if there is no driver or no answer in time."""
    return _asked(_names) or []


def memory_of(bus_id: str) -> tuple[int, int] | None:
    """Return the used and total memory of a GPU, or of its only visible MIG part, in bytes.

    The result is None if there is no driver, no answer in time, or more than one visible part.

    Args:
        bus_id: PCI address of the GPU.
    """
    return _asked(lambda: _memory(bus_id))


def _asked(function: Callable[[], T]) -> T | None:
    """Call NVML in a separate thread, because ``nvmlInit`` can hang. Return None if the call fails."""

    def ask() -> T:
        pynvml.nvmlInit()
        try:
            return function()
        finally:
            pynvml.nvmlShutdown()

    try:
        return Worker("infercanary-nvml-once").call(ask, _ONCE_SECONDS)
    except Exception:
        return None


def _names() -> list[str]:
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    return [text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]


def _memory(bus_id: str) -> tuple[int, int] | None:
    place = bus_id.lower().lstrip("0")  # NVML writes the domain with 8 digits, CUDA with 4
    for index in range(pynvml.nvmlDeviceGetCount()):
        whole, *parts = gpus(Nvml(), index)
        if text(pynvml.nvmlDeviceGetPciInfo(whole.handle).busId).lower().lstrip("0") != place:
            continue
        devices = parts if whole.is_split else [whole]
        if len(devices) == 1:
            found = pynvml.nvmlDeviceGetMemoryInfo(devices[0].handle)
            return int(found.used), int(found.total)
    return None
