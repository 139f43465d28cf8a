"""Controls of the CPU and of each device, measured after each run of a canary on that device."""

from __future__ import annotations

import logging
import statistics
from collections import deque
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter

from infercanary.contract.report import Metric
from infercanary.probe.deadline import Interrupted, StillBusy, Worker, close_all, one_line
from infercanary.probe.histogram import Tally
from infercanary.probe.targets.controls import Control, Seconds, available_controls

log = logging.getLogger("infercanary.probe")

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
_COSTS = 5  # number of recent measurements; their median is the cost
_DEADLINE_SECONDS = 5.0
_REOPEN_SECONDS = 300.0


class Controls:
    """Opens and measures the controls of the CPU and of each device, in separate threads that end afterwards.

    If a GPU hangs, the CPU's controls still show the state of the host.

    Args:
        tally: Storage of the controls' metrics.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._workers: dict[str, Worker] = {}
        self._available: dict[str, dict[str, Control]] = {}
        self._open: dict[tuple[str, str], tuple[AbstractContextManager[Seconds], Seconds]] = {}
        self._retry_at: dict[tuple[str, str], float] = {}
        self._complaints: dict[tuple[str, str], str] = {}
        self._costs: dict[str, deque[float]] = {}
        self._interrupted = False
        self.made_of = ""
        """Versions of Python and libc if machine code is refused; empty for machine code."""
        self.took = 0.0
        """Seconds of the last measurement; 0 for a device's first measurement, which is warm-up."""

    def cost(self, device: str) -> float:
        """Median seconds of the last measurements for a canary on ``device``; 0 if there was none.

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
        """End the present wait for a measurement, and every later wait. Callable from any thread."""
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
        medians = {}
        try:
            medians = worker.call(lambda: self._measure(device), _DEADLINE_SECONDS)
            self._complaints.pop((device, "controls"), None)
        except (Interrupted, StillBusy):
            pass
        except BaseException as error:
            self._complain((device, "controls"), one_line(error))
        worker.rest()
        self._tally.forget(SECONDS, device)
        for name, seconds in medians.items():
            self._tally.set(SECONDS, seconds, device, name)
        return medians

    def _complain(self, which: tuple[str, str], complaint: str) -> None:
        if complaint != self._complaints.get(which):  # log once per change, not once per run
            device, name = which
            log.warning("control %s on %s: %s", name, device, complaint)
        self._complaints[which] = complaint

    # The methods below run in the device's thread.

    def _measure(self, device: str) -> dict[str, float]:
        if device not in self._available:
            self._available[device], self.made_of = available_controls(device)
        medians = {}
        for name, control in self._available[device].items():
            which = device, name
            try:
                if which not in self._open:
                    if perf_counter() < self._retry_at.get(which, 0.0):
                        continue
                    opening = control()
                    self._open[which] = opening, opening.__enter__()
                    self._repeat(which, _WARM_UP_REPEATS)
                medians[name] = self._repeat(which, _REPEATS)
                self._complaints.pop(which, None)
            except Exception as error:
                self._complain(which, one_line(error))
                self._retry_at[which] = perf_counter() + _REOPEN_SECONDS
                if which in self._open:
                    self._close(which)
        return medians

    def _repeat(self, which: tuple[str, str], repeats: int) -> float:
        _, seconds = self._open[which]
        return statistics.median(seconds() for _ in range(repeats))

    def _close_all(self, device: str) -> None:
        for which in [which for which in self._open if which[0] == device]:
            self._close(which)

    def _close(self, which: tuple[str, str]) -> None:
        try:
            opening, _ = self._open.pop(which)
            opening.__exit__(None, None, None)
        except Exception as error:
            device, name = which
            log.warning("control %s on %s: closing failed: %s", name, device, one_line(error))
