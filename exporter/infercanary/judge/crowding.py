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

import numpy as np

from infercanary.judge.model import Sample

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
    old, new = (np.median(rows, axis=0).tolist() for rows in sides)
    by_inside, longer, crowded, more, *_ = (b - a for a, b in zip(old, new, strict=True))
    cores = old[3], new[3]
    inside = _share(by_inside * _share(more * max(old[4], new[4]), crowded), longer)
    # Polls and health checks make about one segment a second, and nobody knows what one of them costs: at least 1 % of
    # a core is assumed.
    requested = max(cores[0], 0.01) * ((1 + new[5]) / (1 + old[5]) - 1)
    return Crowding(inside, None if math.isnan(requested) else _share(requested, more), cores)


def _row(sample: Sample) -> tuple[float, ...] | None:
    """By how much a run took longer for others inside, and for all others (logarithms); its wait for those inside and
    their cores; its latency, and the requests meanwhile. None where one but the last is not known."""
    s, own = sample, computing(sample)
    if own is None or s.median is None or s.crowded is None or s.inside is None:
        return None
    by_inside, longer = math.log1p(s.crowded / own), math.log(s.median / own)
    return by_inside, longer, s.crowded, s.inside, s.median, math.nan if s.received is None else s.received


def computing(sample: Sample) -> float | None:
    """Seconds of a run without its CPU wait; None if the wait is unknown, or was all of it."""
    if sample.median is None or sample.waited is None:
        return None
    own = sample.median - sample.waited - (sample.crowded or 0.0)
    return own if own > 0 else None


def level(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float:
    """The median of ``value``; 0 where no run knows it."""
    values = [x for sample in samples if (x := value(sample)) is not None]
    return median(values) if values else 0.0


def _share(part: float, whole: float) -> float:
    return max(0.0, min(1.0, part / whole)) if whole else 0.0
