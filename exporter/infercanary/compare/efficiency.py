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
from infercanary.compare.units import measured, short, size
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
        seconds = sample.median or math.nan
        latencies.append(seconds)
        for name, value in sample.measures.items():
            if _LEAST < value < _MOST:
                values.setdefault(name, []).append(value)
                if name == THROUGHPUT:  # the batch over the mean of the repeats
                    batches.append(value * seconds)
    known = {name: median(each) for name, each in values.items()}
    rates = {name: rate for name, rate in known.items() if _is_throughput(name)}
    best = max(rates, key=rates.__getitem__, default="")
    rate = rates[best] if best else 1 / median(latencies)
    measure = measure_of(best)
    batch = max(1, round(median(batches))) if batches else 1
    energy = known.get(ENERGY)
    return Efficiency(
        throughput=rate,
        throughput_from="latency" if not best else "runs" if best == THROUGHPUT else "sweep",
        best_load=measure.words.removeprefix("throughput at ") if measure and best != THROUGHPUT else "",
        host_memory=known.get(HOST_MEMORY),
        device_memory=known.get(DEVICE_MEMORY),
        energy_per_1000=None if energy is None else 1000 * energy / batch,
        cost_per_1000=None if price is None else price / 3600 / rate * 1000,
    )


def in_words(of: Efficiency) -> str:
    """Return what is known, as one line; empty where it is the latency alone.

    Args:
        of: One row's.
    """
    rate = measured(of.throughput, "samples/s")
    throughput = {
        "sweep": f"{rate} at {of.best_load} (sweep)",
        "runs": f"{rate} by its own requests",
        "latency": f"{rate} by its latency, as if a request were one inference" if of.cost_per_1000 else "",
    }[of.throughput_from]
    cost = f"{short(of.cost_per_1000, 3)} for 1,000 inferences at " if of.cost_per_1000 else ""
    parts = [
        cost + throughput,
        f"{measured(of.energy_per_1000, 'joules')} for 1,000 inferences" if of.energy_per_1000 else "",
        f"{size(of.host_memory)} of host memory" if of.host_memory else "",
        f"{size(of.device_memory)} of device memory" if of.device_memory else "",
    ]
    return "; ".join(filter(None, parts))


def prices(given: Iterable[str], hosts: Iterable[str]) -> dict[str, float]:
    """Read ``--price``.

    Args:
        given: ``2.5`` for every host, or ``HOST=2.5`` for one.
        hosts: Names of all hosts.

    Returns:
        Host → price of an hour; without those for which none is given.

    Raises:
        UsageError: It is no price, or of no host.
    """
    every, own = {}, {}
    known = list(hosts)
    for each in given:
        host, named, number = each.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not 0 < price < _MOST_PRICE:
            raise UsageError(
                f"--price {each}: give what an hour costs, a number above 0, such as 2.5 or gpu-1=2.5"
            )
        if named and host not in known:
            raise UsageError(f"--price {each}: no host `{host}`; there are: {', '.join(known)}")
        if named:
            own[host] = price
        else:
            every = dict.fromkeys(known, price)
    return every | own


def _is_throughput(name: str) -> bool:
    measure = measure_of(name)
    return measure is not None and measure.unit == "samples/s"
