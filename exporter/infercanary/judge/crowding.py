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
from statistics import median
from typing import NamedTuple

from infercanary.judge.model import Sample


class Crowding(NamedTuple):
    """Who had the CPU during the wait that came (or went) with a shift."""

    inside: float = 0.0
    """Share of the wait, from 0 to 1, caused inside the container; the rest is caused by others on the host."""
    load: float | None = 0.0
    """Share of the CPU time that those inside took more, from 0 to 1, that more requests explain; None if unknown."""
    cores: tuple[float, float] = (0.0, 0.0)
    """Cores that those inside took while the canary ran, before and after."""


def crowding(
    before: Sequence[Sample], after: Sequence[Sample], fewest: int, more_requests: float
) -> Crowding | None:
    """Who had the CPU.

    Args:
        before: Runs before the shift.
        after: Runs after it.
        fewest: Runs that must know it, on either side.
        more_requests: Ratio by which requests must have changed to count.

    Returns:
        None where too few runs know what others in their container took.
    """
    sides = [
        [s for s in side if s.inside is not None and s.crowded is not None and computing(s)]
        for side in (before, after)
    ]
    if min(map(len, sides)) < fewest:
        return None
    by_inside, by_outside, crowded, inside, whole = (
        [level(side, value) for side in sides]
        for value in (
            lambda s: math.log((s.median - s.waited) / computing(s)),
            lambda s: math.log(s.median / (s.median - s.waited)),
            lambda s: s.crowded,
            lambda s: s.inside,
            lambda s: s.median,
        )
    )
    more = inside[1] - inside[0]
    theirs = (by_inside[1] - by_inside[0]) * _share(more * max(whole), crowded[1] - crowded[0])
    share = _share(theirs, by_inside[1] + by_outside[1] - by_inside[0] - by_outside[0])
    if any(s.received is None for side in sides for s in side):
        return Crowding(share, None, (inside[0], inside[1]))
    # Polls and health checks make about one segment a second, and nobody knows what one of them costs: at least 1 % of
    # a core is assumed.
    old, new = (1.0 + level(side, lambda s: s.received) for side in sides)
    cost = max(inside[0], 0.01) if new > old else inside[0]
    is_other = abs(new / old - 1) >= more_requests
    return Crowding(share, _share(cost * (new / old - 1), more) if is_other else 0.0, (inside[0], inside[1]))


def computing(sample: Sample) -> float | None:
    """Seconds of a run without its CPU wait; None if the wait is unknown, or was all of it."""
    if sample.median is None or sample.waited is None:
        return None
    waited = sample.waited + (sample.crowded or 0.0)
    return sample.median - waited if waited < sample.median else None


def level(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float:
    """The median of ``value``; 0 where no run knows it."""
    values = [x for sample in samples if (x := value(sample)) is not None]
    return median(values) if values else 0.0


def _share(part: float, whole: float) -> float:
    return max(0.0, min(1.0, part / whole)) if whole else 0.0
