"""Crowding: splits CPU wait into wait caused inside the container (by requests or other work) and on the host.

A probe reads the CPU time that other threads and processes in the container used during a run. This time is the part of
the run's CPU wait that was caused inside. The slowdown by the host and the slowdown inside the container multiply: the
scheduler gives the container a part of a CPU, and the canary shares this part with other processes in the container. So
the logarithm of a latency is the sum of three terms:

- log(own): the canary's own CPU time;
- log((own + inside) / own): the slowdown by ``inside``, the wait caused in the container;
- log(latency / (own + inside)): the slowdown by other processes on the host.

Only *additional* CPU time in the container counts. Otherwise a busy server would be blamed for the wait caused by a new
neighbour on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from infercanary.judge.model import Sample, medians

LATENCY = attrgetter("median")
"""Median latency of a sample, in seconds."""


class Crowding(NamedTuple):
    """Origin of the change in CPU wait."""

    inside: float = 0.0
    """Share of the wait, 0 to 1, caused inside the container. The rest is caused by other processes on the host."""
    load: float | None = 0.0
    """Share of the additional CPU time in the container, 0 to 1, that more requests explain; None if unknown."""
    cores: tuple[float, float] = (0.0, 0.0)
    """Cores that other processes in the container used while the canary ran, before and after."""


def crowding(before: Sequence[Sample], after: Sequence[Sample], fewest: int) -> Crowding | None:
    """Return the origin of the change in CPU wait.

    Args:
        before: Runs with the old image.
        after: Runs with the new image.
        fewest: Smallest number of runs on each side that report the CPU use of other processes in the container.

    Returns:
        None if either side has too few such runs.
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
    # Polls and health checks send about one segment a second. Their CPU cost is unknown, so at least 1 % of a core is
    # assumed. Their number fluctuates, so a change below a fifth does not count.
    rise = grown["received"] / (1 + old["received"])
    requested = max(cores[0], 0.01) * rise * (abs(rise) >= 0.2)
    return Crowding(inside, _share(requested, grown["cores"]), cores)


def _row(sample: Sample) -> dict[str, float] | None:
    """Return a run's values about other processes, by name; None if any value except ``received`` is unknown.

    Returns:
        - ``inside``: slowdown of the run by other processes in the container, as a logarithm;
        - ``longer``: slowdown of the run by all other processes, as a logarithm;
        - ``crowded``: seconds of CPU wait caused in the container;
        - ``cores``: cores that other processes in the container used;
        - ``latency``: seconds;
        - ``received``: TCP segments per second since the previous run, missing for the first run of a start.
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
        inside: True to subtract wait caused inside the container as well.

    Returns:
        None if the wait is unknown, or is as long as the run.
    """
    if sample.median is None or sample.waited is None:
        return None
    own = sample.median - sample.waited - (sample.crowded or 0.0) * inside
    return own if own > 0 else None


def level(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float:
    """Return the median of a value over the runs that have it; 0 if no run has it."""
    values = [x for sample in samples if (x := value(sample)) is not None]
    return median(values) if values else 0.0


def _share(part: float, whole: float) -> float:
    return max(0.0, min(1.0, part / whole)) if whole else 0.0
