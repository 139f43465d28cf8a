"""Measures: what a run is judged by beside its latency (throughput of a load, memory, energy). Pure.

A run carries them as :attr:`~infercanary.contract.report.Run.measures`: name → value. The throughput of a sweep's
point has the load in its name (:func:`throughput_of`); the others are in :data:`MEASURES`. Names are plain strings:
an exporter keeps unknown ones of a newer probe, and judges known ones.
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
    """One measure."""

    name: str
    words: str
    """Its words in a sentence: "takes 31 % more host memory"."""
    unit: str
    """Base unit; empty for a ratio."""
    more_is_better: bool = False
    is_judged: bool = False
    """True if it gets a verdict. A measure that moves with the latency, or with neighbours, does not."""


SPREAD: Final = Measure("spread", "run-to-run spread", "")
"""Mean difference of neighbouring runs, as a share of the latency; computed by the judge from many runs."""

MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        measure.name: measure
        for measure in (
            # Samples of the run's requests over the wall time of its repeats.
            Measure(THROUGHPUT, "throughput", "samples/s", more_is_better=True),
            # Peak host memory of the canary's process during the run; in a server's process, or for a server in the
            # probe's container, the memory in use after it.
            Measure(HOST_MEMORY, "host memory", "bytes", is_judged=True),
            # Peak device memory that the engine had allocated during the run.
            Measure(DEVICE_MEMORY, "device memory", "bytes", is_judged=True),
            # Share of the time in which the device worked, for anybody.
            Measure(DEVICE_USE, "use of the device", ""),
            # Energy of its device for one inference, including other users of the device.
            Measure(ENERGY, "energy", "joules", is_judged=True),
            # Tokens of the run's last streamed completion: fewer take less time, whatever the image.
            Measure(OUTPUT, "output", "tokens", more_is_better=True),
        )
    }
)


def throughput_of(batch: int, concurrency: int) -> str:
    """Return the name for the throughput of a sweep's point: ``throughput@8x1`` is a batch of 8, one request at a
    time.
    """
    return f"{THROUGHPUT}@{batch}x{concurrency}"


def measure_of(name: str) -> Measure | None:
    """Return a known measure, or the judged measure of a sweep's point; None for a newer probe's."""
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
