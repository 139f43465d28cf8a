"""What a run took beside its time: read once before its repeats and once after them, never between.

In a process of the probe's own the kernel and the engine count the most memory of a run anew. In a server's process
they do not: those counts are the server's too (``ru_maxrss``, by which some servers restart their workers), so that
what is in use right after the repeats is taken instead.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Final

from infercanary.contract.measures import DEVICE_MEMORY, HOST_MEMORY, THROUGHPUT
from infercanary.contract.report import Metric
from infercanary.probe.shortage import readable
from infercanary.probe.targets import CountsSamples, Target, TracksPeakMemory
from infercanary.probe.timing import Timing

MEMORY = Metric(
    "infercanary_run_memory_peak_bytes",
    "gauge",
    "The most memory during the last run: of the host, that the probe's process had, shared libraries included; of "
    "the device, that the canary's engine had allocated in that process. In a server's process, where a peak is the "
    "server's own, what was resident right after the repeats. Missing of a canary that calls a server.",
    ("canary", "where"),
    reading="The same work each time, so it should not move. Another level since an upgrade is the image's: other "
    "weights or precision, another allocator, another algorithm that takes more between. Where several canaries share "
    "a process, each has the memory of all.",
)
RATE = Metric(
    "infercanary_run_samples_per_second",
    "gauge",
    "Samples of the last run's requests over the wall time of its repeats.",
    ("canary",),
    reading="One request at a time: it moves as the latency does. What the canary can do under load is "
    "`infercanary_sweep_samples_per_second`.",
)

PLACES = ("host", "device")

_SHOWN: Mapping[str, tuple[Metric, tuple[str, ...]]] = {
    THROUGHPUT: (RATE, ()),
    HOST_MEMORY: (MEMORY, PLACES[:1]),
    DEVICE_MEMORY: (MEMORY, PLACES[1:]),
}
_PROC: Final = Path("/proc/self")
_RESET_PEAK: Final = (
    b"5"  # proc(5), clear_refs: the peak begins at what is resident now; nothing else changes
)
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def shown(measures: Mapping[str, float]) -> dict[Metric, dict[tuple[str, ...], float]]:
    """The gauges of a canary's last run.

    Args:
        measures: As :attr:`~infercanary.contract.report.Run.measures` has them.

    Returns:
        Metric → label values after the canary's → value. Each metric is there, one without points too.
    """
    found: dict[Metric, dict[tuple[str, ...], float]] = {metric: {} for metric, _ in _SHOWN.values()}
    for name, (metric, labels) in _SHOWN.items():
        if name in measures:
            found[metric][labels] = measures[name]
    return found


def described(measures: Mapping[str, float]) -> dict[str, str]:
    """A row of text for each thing that is known.

    Args:
        measures: Of a run.

    Returns:
        Label → text.
    """
    rows = {}
    if (rate := measures.get(THROUGHPUT)) is not None:
        rows["throughput"] = f"{float(f'{rate:.4g}'):g} samples/s"
    places = (HOST_MEMORY, "host"), (DEVICE_MEMORY, "device")
    if known := [f"{place} {readable(measures[name])}" for name, place in places if name in measures]:
        rows["memory"] = "  ".join([*known, "at most, during the run"])
    return rows


class Taking:
    """Reads the measures of one target's runs. What cannot be known is left out, and nothing raises.

    Args:
        target: Asked for its samples, and for its engine's memory.
        proc: The process's folder in ``/proc``.
    """

    def __init__(self, target: Target, proc: Path = _PROC) -> None:
        self.is_guest = False
        """Whether the process is a server's, whose peaks are not reset."""
        self._counts = target if isinstance(target, CountsSamples) else None
        self._tracks = target if isinstance(target, TracksPeakMemory) else None
        self._proc = proc
        self._has_peak = False

    def begin(self) -> None:
        """Begin to count peaks anew; called before the first repeat."""
        self._has_peak = False
        if self.is_guest:
            return
        with suppress(OSError):  # a kernel without CONFIG_PROC_PAGE_MONITOR
            (self._proc / "clear_refs").write_bytes(_RESET_PEAK)
            self._has_peak = True
        if self._tracks is not None:
            with suppress(Exception):  # the target may be anyone's
                self._tracks.reset_peak_memory()

    def end(self, timings: Sequence[Timing], calls_a_server: bool) -> dict[str, float]:
        """Read them; called after the last repeat.

        Args:
            timings: Of the repeats, one at least.
            calls_a_server: Whether the work is done in another process, whose memory is not known here.

        Returns:
            Name (of :mod:`infercanary.contract.measures`) → value.
        """
        found: dict[str, float] = {}
        with suppress(Exception):
            samples = 1 if self._counts is None else int(self._counts.samples)
            found[THROUGHPUT] = samples / fmean(timing.wall for timing in timings)
        if not calls_a_server:
            with suppress(OSError, ValueError, IndexError):
                found[HOST_MEMORY] = self._peak() if self._has_peak else self._resident()
        if self._tracks is not None and not self.is_guest:
            with suppress(Exception):
                if (peak := self._tracks.peak_memory()) is not None:
                    found[DEVICE_MEMORY] = int(peak)
        return {name: value for name, value in found.items() if 0 < value < math.inf}

    def _peak(self) -> int:
        _, _, rest = (self._proc / "status").read_bytes().partition(b"\nVmHWM:")
        return int(rest.split(maxsplit=1)[0]) << 10

    def _resident(self) -> int:
        return int((self._proc / "statm").read_bytes().split()[1]) * _PAGE
