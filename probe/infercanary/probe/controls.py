"""The controls beside the canaries: one set per device, measured after each run of a canary there."""

from __future__ import annotations

import logging
import statistics
from time import perf_counter

from infercanary.probe.deadline import DeadlineExceeded, Interrupted, StillBusy, Worker, one_line
from infercanary.probe.histogram import Tally
from infercanary.probe.report import Metric
from infercanary.probe.samplers import Unavailable
from infercanary.probe.targets.controls import Control, available_controls, working_seconds

log = logging.getLogger("infercanary.probe")

_LABELS = ("control", "device")
SECONDS = Metric(
    "infercanary_control_seconds",
    "gauge",
    "Median time of a control's repeats after the last run: the same tiny work in every image, so what moves it is the "
    "host.",
    _LABELS,
    reading="Canary and control slower together: the host (clock, heat, a neighbour); the canary alone: what "
    "is in the image. `device` is the canary's that it follows: one on `cuda` is followed by the CPU's "
    "controls too. A name in `_python` is Python's own work, and not to be compared with the one without.",
)
FLOPS = Metric(
    "infercanary_control_flops_per_second",
    "gauge",
    "Floating-point operations a second in that time.",
    _LABELS,
    reading="`gpu_fma` falls in step with `infercanary_gpu_sm_clock_hertz`, `cpu_spin` with the clock of the "
    "core that it ran on. If the clock stands and this falls, something else computes there.",
)
BYTES = Metric(
    "infercanary_control_bytes_per_second",
    "gauge",
    "Bytes read and written a second in that time.",
    _LABELS,
    reading="`memory_copy` is the CPU's cache and memory, `gpu_copy` the GPU's memory, `gpu_transfer` the PCIe "
    "link in both directions (compare `infercanary_gpu_pcie_link_lanes`), `page_io` the kernel. A fall is a "
    "neighbour on the same memory or bus.",
)
UP = Metric(
    "infercanary_control_up",
    "gauge",
    "1 if the control was measured after the last run, else 0.",
    _LABELS,
    reading="0: it failed (it is tried again after 5 minutes) or hangs; the probe's log says why. While it is "
    "0, a slower canary cannot be told from a slower host.",
)

_REPEATS = 3
_WARM_UP_REPEATS = 5
_DEADLINE_SECONDS = 5.0
_REOPEN_SECONDS = 300.0


class Controls:
    """Opens and measures the controls of one device, in a thread that ends after each time."""

    def __init__(self, device: str, tally: Tally) -> None:
        self.cost = 0.0
        """Seconds that the last measurement took."""
        self._device = device
        self._tally = tally
        self._worker = Worker(f"infercanary-controls-{device}")
        self._controls: dict[str, Control] | None = None
        self._open: set[str] = set()
        self._retry_at: dict[str, float] = {}
        self._complaints: dict[str, str] = {}

    def measure(self) -> dict[str, float]:
        """Name → median seconds of a repeat, for those that could be measured. Never raises."""
        begin = perf_counter()
        found: dict[str, float] = {}
        try:
            found = self._worker.call(self._measure, _DEADLINE_SECONDS)
        except (Interrupted, StillBusy):
            pass
        except DeadlineExceeded as error:
            self._complain("controls", str(error))
        except BaseException as error:
            self._complain("controls", one_line(error))
        self._worker.rest()
        self.cost = perf_counter() - begin
        self._show(found)
        return found

    def interrupt(self) -> None:
        """End the wait for a measurement, now and from now on; callable from any thread."""
        self._worker.interrupt()

    def close(self, seconds: float) -> bool:
        """Let go of everything; whether that was within ``seconds``."""
        return self._worker.stop(seconds, self._close if self._open else None)

    def _show(self, found: dict[str, float]) -> None:
        for metric in (SECONDS, FLOPS, BYTES):
            self._tally.forget(metric)
        for name in self._controls or ():
            self._tally.set(UP, name in found, name, self._device)
        for name, seconds in found.items():
            work = (self._controls or {})[name].work
            self._tally.set(SECONDS, seconds, name, self._device)
            if work.flops and seconds:
                self._tally.set(FLOPS, work.flops / seconds, name, self._device)
            if work.bytes and seconds:
                self._tally.set(BYTES, work.bytes / seconds, name, self._device)

    def _complain(self, name: str, complaint: str) -> None:
        if complaint != self._complaints.get(name):  # once per change, not once per run
            log.warning("control %s on %s: %s", name, self._device, complaint)
        self._complaints[name] = complaint

    # From here on all runs in the controls' thread.

    def _measure(self) -> dict[str, float]:
        if self._controls is None:
            self._controls = available_controls(self._device)
        found = {}
        for name, control in list(self._controls.items()):
            try:
                if name not in self._open:
                    if perf_counter() < self._retry_at.get(name, 0.0):
                        continue
                    self._open.add(name)
                    control.open()
                    _repeat(control, _WARM_UP_REPEATS)
                found[name] = _repeat(control, _REPEATS)
                self._complaints.pop(name, None)
            except Unavailable as error:  # no such device here
                log.info("control %s on %s: %s", name, self._device, error)
                self._open.discard(name)
                del self._controls[name]
            except Exception as error:
                self._complain(name, one_line(error))
                self._retry_at[name] = perf_counter() + _REOPEN_SECONDS
                self._close_one(name)
        return found

    def _close(self) -> None:
        for name in list(self._open):
            self._close_one(name)

    def _close_one(self, name: str) -> None:
        self._open.discard(name)
        try:
            (self._controls or {})[name].close()
        except Exception as error:
            log.warning("control %s on %s: closing failed: %s", name, self._device, one_line(error))


def _repeat(control: Control, repeats: int) -> float:
    """Median seconds of the work itself."""
    return statistics.median(working_seconds(control.clock.measure(control.run)[0]) for _ in range(repeats))
