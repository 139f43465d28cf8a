"""Contention for the CPU: others inside the container, others on the host, and the share that more requests explain.

A probe splits the CPU wait of each run by what its container computed meanwhile. Shares multiply: the host gives a
container a part of a CPU, and the canary gets a part of that beside others inside (the scheduler does it so for
cgroups). So the logarithm of a latency is that of the canary's own computing, plus log((own + inside) / own), plus
log(latency / (own + inside)). A busy loop inside makes a canary wait twice as long for neighbours, too.

A server that is always busy would be blamed for a neighbour that came: only what those inside compute *more* counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from infercanary.judge.model import Sample, medians

LATENCY = attrgetter("median")
"""A run's value that is judged."""


class Crowding(NamedTuple):
    """Who had the CPU during the wait that came (or went) with a shift."""

    inside: float = 0.0
    """Share of the wait, from 0 to 1, caused inside the container; the rest is caused by others on the host."""
    load: float | None = 0.0
    """Share of the CPU time that those inside took more, from 0 to 1, that more requests explain; None if unknown."""
    cores: tuple[float, float] = (0.0, 0.0)
    """Cores that those inside took while the canary ran, before and after."""


def crowding(before: Sequence[Sample], after: Sequence[Sample], fewest: int) -> Crowding | None:
    """Who had the CPU.

    Args:
        before: Runs before the shift.
        after: Runs after it.
        fewest: Runs that must know it, on either side.

    Returns:
        None where too few runs know what others in their container took.
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
    # Polls and health checks make about one segment a second, and nobody knows what one of them costs: at least 1 % of
    # a core is assumed. There are never quite as many as before.
    rise = grown["received"] / (1 + old["received"])
    requested = max(cores[0], 0.01) * rise * (abs(rise) >= 0.2)
    return Crowding(inside, _share(requested, grown["cores"]), cores)


def _row(sample: Sample) -> dict[str, float] | None:
    """What a run knows of others.

    Returns:
        Logarithms by which it took longer for others ``inside``, and ``longer`` for all others; its wait for those
        inside, their cores, its latency, and the requests since the run before, which the first run of a start may not
        know. None where anything else is unknown.
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
    """Seconds of a run after subtracting CPU wait.

    Args:
        sample: The run.
        inside: Whether wait caused by others inside the container is subtracted, too.

    Returns:
        None if the wait is unknown, or was all of it.
    """
    if sample.median is None or sample.waited is None:
        return None
    own = sample.median - sample.waited - (sample.crowded or 0.0) * inside
    return own if own > 0 else None


def level(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float:
    """The median of ``value``; 0 where no run knows it."""
    values = [x for sample in samples if (x := value(sample)) is not None]
    return median(values) if values else 0.0


def _share(part: float, whole: float) -> float:
    return max(0.0, min(1.0, part / whole)) if whole else 0.0
