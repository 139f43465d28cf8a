"""Controls of the CPU and of each device, measured after each run of a canary on that device."""

from __future__ import annotations

import statistics
from collections import deque
from contextlib import ExitStack
from functools import partial
from time import perf_counter

from infercanary.contract.report import Metric
from infercanary.probe.complaint import Complaint
from infercanary.probe.deadline import Interrupted, StillBusy, Worker, close_all, one_line
from infercanary.probe.histogram import Tally
from infercanary.probe.targets.controls import Control, Seconds, available_controls

SECONDS = Metric(
    "infercanary_control_seconds",
    "gauge",
    "Median time of a control after the last run: tiny work that is the same in every image.",
    ("device", "control"),
    reading="If a control and the canary are slower together, the host changed. If a control is missing, the probe's "
    "log says why.",
)

_REPEATS = 3
_WARM_UP_REPEATS = 5
_COSTS = 5  # number of recent measurements; their median is the cost of the controls
_DEADLINE_SECONDS = 5.0
_REOPEN_SECONDS = 300.0


class Controls:
    """Opens and measures the controls of the CPU and of each device, each device in a separate thread.

    If a GPU hangs, the CPU's controls still show the state of the host.

    Args:
        tally: Storage of the controls' metrics.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._workers: dict[str, Worker] = {}
        self._complaints: dict[str, Complaint] = {}
        self._available: dict[str, dict[str, _Opened]] = {}
        self._costs: dict[str, deque[float]] = {}
        self._interrupted = False
        self.made_of = ""
        """Versions of Python and libc if machine code is refused; empty for machine code."""
        self.took = 0.0
        """Seconds of the last measurement; 0 for a device's first measurement, which is warm-up."""

    def cost(self, device: str) -> float:
        """Return the median seconds of the last measurements for a canary on ``device``; 0 without a measurement.

        Args:
            device: ``cpu`` or ``cuda[:N]``, as :attr:`Canary.device`.
        """
        return statistics.median(self._costs.get(device) or (0.0,))

    def measure(self, device: str) -> dict[str, float]:
        """Measure the controls of the CPU and of the device. Never raises.

        Args:
            device: ``cpu``, ``cuda`` or ``cuda:N``: the device of the canary that has just run.

        Returns:
            Name → median seconds of a repeat; controls without a measurement are missing.
        """
        begin = perf_counter()
        medians: dict[str, float] = {}
        for measured in dict.fromkeys(("cpu", device)):
            medians |= self._measure_in_thread(measured)
        if (costs := self._costs.get(device)) is None:
            self._costs[device], self.took = deque(maxlen=_COSTS), 0.0
        else:
            self.took = perf_counter() - begin
            costs.append(self.took)
        return medians

    def interrupt(self) -> None:
        """End the present wait for a measurement, and all later waits. Callable from any thread."""
        self._interrupted = True
        for worker in list(self._workers.values()):
            worker.interrupt()

    def close(self, seconds: float) -> bool:
        """Close all controls; see :func:`~infercanary.probe.deadline.close_all`."""
        closers = [
            partial(worker.stop, last=partial(self._close_all, device))
            for device, worker in self._workers.items()
        ]
        return close_all(closers, seconds)

    def _measure_in_thread(self, device: str) -> dict[str, float]:
        if self._interrupted:
            return {}
        worker = self._workers.setdefault(device, Worker(f"infercanary-controls-{device}"))
        complaint = self._complaints.setdefault(device, Complaint(f"controls on {device}"))
        medians = {}
        try:
            medians = worker.call(lambda: self._measure(device), _DEADLINE_SECONDS)
            complaint.set("")
        except (Interrupted, StillBusy):
            pass
        except BaseException as error:
            complaint.set(one_line(error))
        self._tally.forget(SECONDS, device)
        for name, seconds in medians.items():
            self._tally.set(SECONDS, seconds, device, name)
        return medians

    # The device's thread calls the methods below.

    def _measure(self, device: str) -> dict[str, float]:
        if device not in self._available:
            controls, self.made_of = available_controls(device)
            self._available[device] = {
                name: _Opened(name, device, control) for name, control in controls.items()
            }
        medians = {name: control.measure() for name, control in self._available[device].items()}
        return {name: seconds for name, seconds in medians.items() if seconds is not None}

    def _close_all(self, device: str) -> None:
        for control in self._available.get(device, {}).values():
            control.close()


class _Opened:
    """A control. Its first measurement opens the control; after a failure, a later measurement opens it again."""

    def __init__(self, name: str, device: str, control: Control) -> None:
        self._control = control
        self._complaint = Complaint(f"control {name} on {device}")
        self._retry_at = 0.0
        self._resources = ExitStack()
        self._seconds: Seconds | None = None

    def measure(self) -> float | None:
        """Return the median seconds of a repeat; None if the control failed, and until its next attempt."""
        if perf_counter() < self._retry_at:
            return None
        try:
            if self._seconds is None:
                self._seconds = self._resources.enter_context(self._control())
                for _ in range(_WARM_UP_REPEATS):
                    self._seconds()
            median = statistics.median(self._seconds() for _ in range(_REPEATS))
            self._complaint.set("")
            return median
        except Exception as error:
            self._complaint.set(one_line(error))
            self._retry_at = perf_counter() + _REOPEN_SECONDS
            self.close()
            return None

    def close(self) -> None:
        self._seconds = None
        try:
            self._resources.close()
        except Exception as error:
            self._complaint.set(f"closing failed: {one_line(error)}")
