"""Throughput, memory and energy of a canary, and the cost of 1,000 inferences. Pure functions.

One inference is one sample: a request with a batch of 8 is 8 inferences.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import median

import msgspec

from infercanary.command.settings import UsageError
from infercanary.contract.measures import DEVICE_MEMORY, ENERGY, HOST_MEMORY, THROUGHPUT, measure_of
from infercanary.judge.model import Sample

_LEAST, _MOST = 1e-15, 1e15  # limits of a measure in its base unit: a probe may report any number
_MOST_PRICE = 1e9
_RATE = "samples/s"


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over runs; None for an unknown value."""

    throughput_samples_per_second: float
    """Throughput at the best known load."""
    throughput_from: str
    """Source of the throughput: `sweep` with the best load of a sweep; `runs` for the canary's own requests; `latency`
    for the inverse of the latency (one inference at a time).
    """
    host_memory_bytes: float | None = None
    device_memory_bytes: float | None = None
    energy_per_1000_joules: float | None = None
    """Energy that the device uses for 1,000 inferences, at the canary's own load."""
    cost_per_1000: float | None = None
    """Cost of 1,000 inferences at the best throughput, in the currency of the price."""


def efficiency(samples: Sequence[Sample], latency: float, price: float | None) -> Efficiency:
    """Return the efficiency of a canary.

    Args:
        samples: Counted runs.
        latency: Median latency of these runs, seconds.
        price: Price of an hour of the machine; None if unknown.
    """
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, number in sample.measures.items():
            if _LEAST < number < _MOST:
                values.setdefault(name, []).append(number)
    medians = {name: median(numbers) for name, numbers in values.items()}
    loads = {
        name: "runs" if name == THROUGHPUT else measure.words.replace("throughput at", "sweep,")
        for name in medians
        if (measure := measure_of(name)) and measure.unit == _RATE
    }
    best = max(loads, key=medians.__getitem__, default="")
    rate = medians.get(best, 1 / latency)
    batch = max(1, round(medians.get(THROUGHPUT, 0.0) * latency))  # samples in a request
    return Efficiency(
        throughput_samples_per_second=rate,
        throughput_from=loads.get(best, "latency"),
        host_memory_bytes=medians.get(HOST_MEMORY),
        device_memory_bytes=medians.get(DEVICE_MEMORY),
        energy_per_1000_joules=1000 * medians[ENERGY] / batch if ENERGY in medians else None,
        cost_per_1000=price / 3600 / rate * 1000 if price else None,
    )


def prices(texts: Sequence[str], hosts: Collection[str]) -> dict[str, float]:
    """Return the price of an hour by host, from ``--price``: ``2.5`` for every host, or ``HOST=2.5`` for one host.

    Raises:
        UsageError: A text is not a price, or names an unknown host.
    """
    price_of: dict[str, float] = {}
    # The general price comes first; a host's own price overrides it.
    for text in sorted(texts, key=lambda text: "=" in text):
        host, _, number = text.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not 0 < price < _MOST_PRICE or host not in ("", *hosts):
            raise UsageError(
                f"--price {text}: give the price of an hour, such as 2.5 or gpu-1=2.5; hosts: {', '.join(hosts)}"
            )
        price_of |= dict.fromkeys([host] if host else hosts, price)
    return price_of
