"""XIDs: the driver's reports of GPU errors, received as NVML events (docs.nvidia.com/deploy/xid-errors)."""

from __future__ import annotations

import ctypes
from collections import Counter
from contextlib import suppress
from typing import Any

import pynvml

from infercanary.contract.report import Metric
from infercanary.probe.samplers.nvml.calls import Found, Nvml

XIDS = Metric(
    "infercanary_gpu_xid_errors_total",
    "counter",
    "XIDs (GPU errors) that the driver reported since the probe started, by number.",
    ("gpu", "xid"),
    reading="13, 31, 43: the application. 48, 63, 64, 94, 95: memory. 74: NVLink. 79: off the bus "
    "([all](https://docs.nvidia.com/deploy/xid-errors/)).",
)
EVENTS = Metric(
    "infercanary_gpu_xid_events_total",
    "counter",
    "XIDs of any number since the probe started; missing if the driver reports no XIDs here.",
    ("gpu",),
    reading="Any increase is an alert; `infercanary_gpu_xid_errors_total` has the number.",
)

# maximum number of events in a sample, so that an error storm does not delay the sample; the next sample reads the rest
_MOST_EVENTS = 100
_NUMBERS = 1000  # each label value is a time series, so numbers far above any known XID share one value


class Xids:
    """Counts the XIDs of GPUs. The counts continue after a loss of NVML."""

    def __init__(self) -> None:
        self._set: Any = None
        self._labels: dict[int, str] = {}
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._events: Counter[tuple[str, ...]] = Counter()

    def watch(self, nvml: Nvml, handle: Any, label: str) -> None:
        """Begin to count the XIDs of another GPU, if permission, MIG mode and driver allow it.

        Args:
            label: The GPU's index in metrics.
        """
        if _address(handle) in self._labels:
            return
        with suppress(pynvml.NVMLError):
            if self._set is None:
                self._set = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
            self._labels[_address(handle)] = label
            self._events[(label,)] += 0  # publish zero, because a missing series means "unknown"

    def take(self, nvml: Nvml) -> None:
        """Count the XIDs since the last call. Never waits."""
        if self._set is None:
            return
        # A time-out means that no event is left. Other readings detect a lost GPU.
        with suppress(pynvml.NVMLError):
            for _ in range(_MOST_EVENTS):
                event = nvml.nvmlEventSetWait_v2(self._set, 0)
                if (label := self._labels.get(_address(event.device))) is not None:
                    xid = str(event.eventData) if event.eventData < _NUMBERS else "other"
                    self._counts[label, xid] += 1
                    self._events[(label,)] += 1

    def counts(self) -> Found:
        """Return the number of XIDs by GPU, and by GPU and XID. A watched GPU without XIDs counts 0."""
        return {EVENTS: {**self._events}, XIDS: {**self._counts}}

    def close(self, nvml: Nvml) -> None:
        """Release the events. Call this method before NVML is shut down."""
        with suppress(pynvml.NVMLError):
            if self._set is not None:
                nvml.nvmlEventSetFree(self._set)
        self._set = None
        self._labels = {}


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
