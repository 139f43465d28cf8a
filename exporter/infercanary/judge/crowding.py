"""Crowding: CPU wait caused inside the container, caused on the host, and the share that more requests explain.

A probe splits each run's CPU wait by what the container computed meanwhile. Shares multiply: the host gives the
container a part of a CPU, and the canary gets a part of that beside the others inside (the scheduler works this way
for cgroups). So the logarithm of a latency is that of the canary's own compute, plus log((own + inside) / own), plus
log(latency / (own + inside)). A busy loop inside also doubles the wait for neighbours.

Only *additional* compute inside counts. Otherwise a server that is always busy would be blamed for a new neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from infercanary.judge.model import Sample, medians

LATENCY = attrgetter("median")
"""Judged value of a run."""


class Crowding(NamedTuple):
    """Origin of the CPU wait that came or went with a shift."""

    inside: float = 0.0
    """Share of the wait, 0 to 1, caused inside the container; the rest is caused by others on the host."""
    load: float | None = 0.0
    """Share of the additional CPU time inside, 0 to 1, that more requests explain; None if unknown."""
    cores: tuple[float, float] = (0.0, 0.0)
    """Cores that others inside used while the canary ran, before and after."""


def crowding(before: Sequence[Sample], after: Sequence[Sample], fewest: int) -> Crowding | None:
    """Return the origin of the CPU wait; None if too few runs know the CPU use of others in their container.

    Args:
        fewest: Smallest number of runs on either side that know it.
    """
    sides = [[row for s in side if (row := _row(s))] for side in (before, after)]
    if min(map(len, sides)) < fewest:
        return None
    old, new = map(medians, sides)
    grown = {name: new[name] - old[name] for name in old.keys() & new.keys()}
    cores = old["cores"], new["cores"]
    latency = max(old["latency"], new["latency"])
    inside = _share(grown["inside"] * _share(grown["cores"] * latency, grown["crowded"]), grown["longer"])
    if "received" not in grown:
        return Crowding(inside, None, cores)
    # Polls and health checks make about one segment a second, and nobody knows their cost: assume at least 1 % of a
    # core. Their number is never exactly the same.
    rise = grown["received"] / (1 + old["received"])
    requested = max(cores[0], 0.01) * rise * (abs(rise) >= 0.2)
    return Crowding(inside, _share(requested, grown["cores"]), cores)


def _row(sample: Sample) -> dict[str, float] | None:
    """Return a run's data about other processes; None if anything but the requests is unknown.

    Returns:
        Logarithms of the growth by others ``inside`` and by all others (``longer``); wait for those inside, their
        cores, the latency, and requests since the previous run (unknown for the first run of a start).
    """
    own = computing(sample)
    if own is None or sample.median is None or sample.crowded is None or sample.inside is None:
        return None
    row = {
        "inside": math.log1p(sample.crowded / own),
        "longer": math.log(sample.median / own),
        "crowded": sample.crowded,
        "cores": sample.inside,
        "latency": sample.median,
    }
    return row if sample.received is None else {**row, "received": sample.received}


def computing(sample: Sample, *, inside: bool = True) -> float | None:
    """Return the seconds of a run after subtracting CPU wait.

    Args:
        inside: True if wait caused inside the container is subtracted, too.

    Returns:
        None if the wait is unknown, or is the whole run.
    """
    if sample.median is None or sample.waited is None:
        return None
    own = sample.median - sample.waited - (sample.crowded or 0.0) * inside
    return own if own > 0 else None


def level(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float:
    """Return the median of a value; 0 if no run knows it."""
    values = [x for sample in samples if (x := value(sample)) is not None]
    return median(values) if values else 0.0


def _share(part: float, whole: float) -> float:
    return max(0.0, min(1.0, part / whole)) if whole else 0.0
