"""What a run is judged by beside its latency: the throughput of a load, memory, energy. Pure.

A run carries them as :attr:`~infercanary.contract.report.Run.measures`: name → value. Those of :data:`MEASURES` stand
here; throughput that a sweep measured has the load in its name (:func:`throughput_of`). Names stay plain strings, as
all that travels: an exporter keeps those of a newer probe, and judges those that it knows.
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
    """One of them."""

    name: str
    words: str
    """As a sentence says it: "takes 31 % more host memory"."""
    unit: str
    """Base unit, empty for a ratio."""
    more_is_better: bool = False
    is_judged: bool = False
    """Whether values of runs get a verdict. What moves as the latency does, or with the neighbours, does not."""


SPREAD: Final = Measure("spread", "run-to-run spread", "")
"""Mean difference of neighbouring runs, as a share of the latency: no run has it, the judge takes it from many."""

MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        measure.name: measure
        for measure in (
            # Samples of the run's requests over the wall time of its repeats.
            Measure(THROUGHPUT, "throughput", "samples/s", more_is_better=True),
            # The most memory of the host that the canary's process had during the run; in a server's process, or of a
            # server in the probe's container, what was in use after it.
            Measure(HOST_MEMORY, "host memory", "bytes", is_judged=True),
            # The most memory of its device that the engine had allocated during the run.
            Measure(DEVICE_MEMORY, "device memory", "bytes", is_judged=True),
            # Share of the time in which the device worked, whoever's work it was.
            Measure(DEVICE_USE, "use of the device", ""),
            # Energy of its device for one inference, whoever else had the device meanwhile.
            Measure(ENERGY, "energy", "joules", is_judged=True),
            # Tokens of the run's last streamed completion: fewer take less time, whatever the image.
            Measure(OUTPUT, "output", "tokens", more_is_better=True),
        )
    }
)


def throughput_of(batch: int, concurrency: int) -> str:
    """The name of the throughput of a sweep's point: ``throughput@8x1`` is a batch of 8, one request at a time.

    Args:
        batch: Samples of a request.
        concurrency: Requests at a time.
    """
    return f"{THROUGHPUT}@{batch}x{concurrency}"


def measure_of(name: str) -> Measure | None:
    """What is known of a measure; None where it is a newer probe's.

    Args:
        name: As runs carry it.

    Returns:
        Of a sweep's point a measure with the load in its words, which is judged.
    """
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
