"""Measures: quantities of a run besides its latency, such as throughput of a load, memory and energy. Pure functions.

A run has its measures in :attr:`~infercanary.contract.report.Run.measures`, by name. The throughput of a sweep's point
has the load in its name (:func:`throughput_of`); all other measures are in :data:`MEASURES`. Names are plain strings:
an exporter keeps the unknown measures of a newer probe, but judges only known measures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

THROUGHPUT: Final = "throughput"
HOST_MEMORY: Final = "host_memory"
DEVICE_MEMORY: Final = "device_memory"
DEVICE_USE: Final = "device_use"
ENERGY: Final = "energy"
OUTPUT: Final = "output"

_LOAD = re.compile(THROUGHPUT + r"@([1-9]\d{0,3})x([1-9]\d?)", re.ASCII)


@dataclass(frozen=True)
class Measure:
    """A quantity of a run besides its latency."""

    name: str
    words: str
    """Name of the measure in sentences, such as "host memory"."""
    unit: str
    """Base unit; empty for a ratio."""
    more_is_better: bool = False
    is_judged: bool = False
    """True if the measure gets a verdict. Measures that depend on the latency or on other processes get no verdict."""


SPREAD: Final = Measure("spread", "run-to-run spread", "")
"""Mean difference between consecutive runs, divided by the latency. The judge computes this measure from many runs."""

MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        measure.name: measure
        for measure in (
            # Number of samples in the run's requests, divided by the wall time of the repeats.
            Measure(THROUGHPUT, "throughput", "samples/s", more_is_better=True),
            # Peak host memory of the canary's process during the run. If the probe is in the server's process, or the
            # server is in the probe's container: memory in use after the run.
            Measure(HOST_MEMORY, "host memory", "bytes", is_judged=True),
            # Peak device memory that the engine allocated during the run.
            Measure(DEVICE_MEMORY, "device memory", "bytes", is_judged=True),
            # Share of the time in which the device worked, for any process.
            Measure(DEVICE_USE, "use of the device", ""),
            # Energy of the device for one inference, including the energy for other users of the device.
            Measure(ENERGY, "energy", "joules", is_judged=True),
            # Number of tokens in the run's last streamed completion: fewer tokens take less time with any image.
            Measure(OUTPUT, "output", "tokens", more_is_better=True),
        )
    }
)


def throughput_of(batch: int, concurrency: int) -> str:
    """Return the name of the throughput at a sweep's point: ``throughput@8x1`` for a batch of 8, one request at a
    time.
    """
    return f"{THROUGHPUT}@{batch}x{concurrency}"


def measure_of(name: str) -> Measure | None:
    """Return the measure with this name, also for a sweep's point; None for an unknown measure of a newer probe."""
    if (known := MEASURES.get(name)) is not None:
        return known
    if name == SPREAD.name:
        return SPREAD
    if (load := _LOAD.fullmatch(name)) is None:
        return None
    batch, concurrency = load.groups()
    at_a_time = f" with {concurrency} requests at a time" if concurrency != "1" else ""
    return Measure(
        name,
        f"throughput at batch {batch}{at_a_time}",
        "samples/s",
        more_is_better=True,
        is_judged=True,
    )
