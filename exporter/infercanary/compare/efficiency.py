"""Throughput, memory and energy of a canary, and what 1,000 inferences cost. Pure.

An inference is one sample: a request with a batch of 8 is 8 of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median
from typing import Literal

import msgspec

from infercanary.command.settings import UsageError
from infercanary.contract.measures import DEVICE_MEMORY, ENERGY, HOST_MEMORY, THROUGHPUT, measure_of
from infercanary.judge.model import Sample

_LEAST, _MOST = 1e-15, 1e15  # of any measure, in its base unit: a probe may report anything
_MOST_PRICE = 1e9

ThroughputSource = Literal["sweep", "runs", "latency"]


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over runs. What is not known is None."""

    throughput: float
    """Samples a second at the best load that is known."""
    throughput_from: ThroughputSource
    """A sweep; the canary's own requests; or its latency, as if each request were one inference, one at a time."""
    best_load: str = ""
    """Of a sweep, such as ``batch 8``."""
    host_memory: float | None = None
    """Bytes."""
    device_memory: float | None = None
    energy_per_1000: float | None = None
    """Joules of its device for 1,000 inferences, at the canary's own load."""
    cost_per_1000: float | None = None
    """Of 1,000 inferences at that throughput, in the currency of the price."""


def efficiency(samples: Iterable[Sample], price: float | None = None) -> Efficiency:
    """Return what the runs of a canary show of its cost.

    Args:
        samples: Those that count, one or more.
        price: Of an hour of the machine; None where it is not known.

    Returns:
        Medians, the throughput at the best load, and the cost at that throughput.
    """
    values: dict[str, list[float]] = {}
    latencies, batches = [], []
    for sample in samples:
        latencies.append(sample.median or math.nan)
        for name, number in sample.measures.items():
            if _LEAST < number < _MOST:
                values.setdefault(name, []).append(number)
                if name == THROUGHPUT:  # the batch over the mean of the repeats
                    batches.append(number * latencies[-1])
    medians = {name: median(numbers) for name, numbers in values.items()}
    loads = {
        name: measure.words.removeprefix("throughput at ")
        for name in medians
        if (measure := measure_of(name)) and measure.unit == "samples/s"
    }
    best = max(loads, key=medians.__getitem__, default="")
    rate = medians[best] if best else 1 / median(latencies)
    batch = max(1, round(median(batches))) if batches else 1
    return Efficiency(
        throughput=rate,
        throughput_from="latency" if not best else "runs" if best == THROUGHPUT else "sweep",
        best_load="" if best == THROUGHPUT else loads.get(best, ""),
        host_memory=medians.get(HOST_MEMORY),
        device_memory=medians.get(DEVICE_MEMORY),
        energy_per_1000=1000 * medians[ENERGY] / batch if ENERGY in medians else None,
        cost_per_1000=price / 3600 / rate * 1000 if price else None,
    )


def prices(texts: Iterable[str], hosts: Iterable[str]) -> dict[str, float]:
    """Read ``--price``.

    Args:
        texts: ``2.5`` for every host, or ``HOST=2.5`` for one.
        hosts: Names of all hosts.

    Returns:
        Host → price of an hour; without those for which none is given.

    Raises:
        UsageError: It is no price, or of no host.
    """
    found: dict[str, float] = {}
    for text in sorted(texts, key=lambda text: "=" in text):  # a host's own price counts
        host, _, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not 0 < price < _MOST_PRICE or host not in ("", *hosts):
            raise UsageError(
                f"--price {text}: give what an hour costs, such as 2.5, or gpu-1=2.5; hosts: {', '.join(hosts)}"
            )
        found |= dict.fromkeys([host] if host else hosts, price)
    return found
