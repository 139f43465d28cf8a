"""Measures of a run besides its time, read before the first repeat and after the last repeat, never between repeats.

In a separate process of the probe, the kernel and the engine reset their memory peaks before each run. In a server's
process, memory peaks are never reset, because the server uses them too (some servers restart workers by their
``ru_maxrss``). There, the memory in use right after the repeats is measured instead.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from time import perf_counter

from infercanary.contract.measures import DEVICE_MEMORY, DEVICE_USE, ENERGY, HOST_MEMORY, OUTPUT, THROUGHPUT
from infercanary.contract.report import Metric
from infercanary.probe.samplers.cgroup import ContainerCpu
from infercanary.probe.sampling import UTILIZATION_SECONDS
from infercanary.probe.tags import Window
from infercanary.probe.targets import Target
from infercanary.probe.targets.wire.listener import listens_here
from infercanary.probe.timing import Timing

MEMORY = Metric(
    "infercanary_run_memory_peak_bytes",
    "gauge",
    "Peak memory of the last run: host (resident memory of the process) and device (allocated by the engine).",
    ("canary", "where"),
    reading="A new level since an upgrade is due to the image. In a server's process, this is the memory in use "
    "after the run.",
)
RATE = Metric(
    "infercanary_run_samples_per_second",
    "gauge",
    "Samples of the last run's requests, divided by the wall time of the repeats.",
    ("canary",),
    reading="With one request at a time, this rate follows the latency. For the rate under load, see "
    "`infercanary_sweep_samples_per_second`.",
)
JOULES = Metric(
    "infercanary_run_energy_joules",
    "gauge",
    "Energy of the GPU for one inference of the last run, including other users' work; missing for runs below 2 s.",
    ("canary",),
    reading="A rise with an image: more work, or a less efficient kernel. A rise on all containers of a GPU: a "
    "neighbour.",
)

PLACES = ("host", "device")

SHOWN: Mapping[str, tuple[Metric, tuple[str, ...]]] = {
    THROUGHPUT: (RATE, ()),
    HOST_MEMORY: (MEMORY, PLACES[:1]),
    DEVICE_MEMORY: (MEMORY, PLACES[1:]),
    ENERGY: (JOULES, ()),
}
"""Measure → gauge, and the labels that follow the label ``canary``."""
_PROC = Path("/proc/self")
# Resets the peak to the resident memory without changes to pages: clear_refs in the kernel's filesystems/proc.rst.
_RESET_PEAK = b"5"
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STEP_SECONDS = 0.1  # seconds: longest time between two updates of the driver's energy counter
_TOLERANCE = 0.05


def of_gpu(window: Window) -> dict[str, float]:
    """Return the measures of a run's GPU, from the samples around the run.

    The samples span more time than the repeats, and the driver's energy counter may be 0.1 s old. The energy is known
    only if both errors together are at most 5 % of the repeats' time.

    Args:
        window: The run, and the samples.

    Returns:
        Name → value; empty on a CPU, for a server, and for a part of a GPU (MIG), which NVML does not count
        separately.
    """
    found: dict[str, float] = {}
    if window.gpus is None or len(window.gpus) != 1 or not window.done.timings:
        return found
    (gpu,) = window.gpus
    if any(labels[0].startswith(f"{gpu}:") for labels in window.after.get("infercanary_gpu_up", {})):
        return found
    inferences = window.done.inferences
    seconds = inferences * fmean(timing.wall for timing in window.done.timings)
    if window.seconds is None:  # a sampler was late, so its sample may be older than the run
        return found
    energy = window.grown("infercanary_gpu_energy_joules_total", gpu)
    if energy > 0 and window.seconds - seconds + _STEP_SECONDS <= _TOLERANCE * seconds:
        found[ENERGY] = energy / inferences
    use = window.after.get("infercanary_gpu_utilization_ratio", {}).get((gpu,))
    if use is not None and seconds >= UTILIZATION_SECONDS:
        found[DEVICE_USE] = use
    return found


class Taking:
    """Reads the measures of one target's runs. Unknown measures are missing. Never raises.

    Args:
        target: Target that reports samples, tokens, the engine's memory, and the address of a called server.
        container: The container of this process.
    """

    def __init__(self, target: Target, container: ContainerCpu) -> None:
        self.is_guest = False
        """True in a server's process, whose memory peaks are not reset."""
        self.seconds = 0.0
        """Seconds that reading took for one run."""
        self._target = target
        # True if the server runs in this container; None before the first good run
        self._is_beside: bool | None = None
        self._container = container
        self._has_peak = False

    def begin(self) -> None:
        """Reset the memory peaks. Call this method before the first repeat."""
        begin = perf_counter()
        self._has_peak = False
        if not self.is_guest:
            with suppress(OSError):  # the kernel lacks CONFIG_PROC_PAGE_MONITOR
                reset_peak()
                self._has_peak = True
            with suppress(Exception):  # the target may be a user's code, which may raise any exception
                self._target.reset_memory_peak()
        self.seconds = perf_counter() - begin

    def end(self, timings: Sequence[Timing], calls_a_server: bool) -> dict[str, float]:
        """Read the measures. Call this method after the last repeat.

        Args:
            timings: Timings of the repeats, at least one.
            calls_a_server: True if another process does the work. If that process is in the same container, the
                container's memory is measured.

        Returns:
            Name (of :mod:`infercanary.contract.measures`) → value.
        """
        begin = perf_counter()
        wall = fmean(timing.wall for timing in timings)
        readers = {
            THROUGHPUT: lambda: int(self._target.samples) / wall,
            OUTPUT: lambda: self._target.output_tokens,
            HOST_MEMORY: self._of_container if calls_a_server else peak if self._has_peak else resident,
            DEVICE_MEMORY: self._on_device,
        }
        measures = {}
        for name, read in readers.items():
            with suppress(Exception):  # the target may be a user's code, which may raise any exception
                if 0 < (value := read() or 0) < math.inf:
                    measures[name] = value
        self.seconds += perf_counter() - begin
        return measures

    def _on_device(self) -> int | None:
        memory = self._target.memory()
        return memory and int(memory.in_use if self.is_guest else memory.peak)

    def _of_container(self) -> int | None:
        if self._is_beside is None and (address := self._target.server_address) is not None:
            self._is_beside = listens_here(*address)
        return self._container.resident() if self._is_beside else None


def reset_peak() -> None:
    """Reset the peak of the process's resident memory.

    Raises:
        OSError: The kernel lacks CONFIG_PROC_PAGE_MONITOR.
    """
    (_PROC / "clear_refs").write_bytes(_RESET_PEAK)


def peak() -> int:
    """Return the largest resident memory since the last reset, in bytes."""
    _, _, rest = (_PROC / "status").read_bytes().partition(b"\nVmHWM:")
    return int(rest.split(maxsplit=1)[0]) << 10


def resident() -> int:
    """Return the present resident memory in bytes; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int((_PROC / "statm").read_bytes().split()[1]) * _PAGE
    return 0
