"""Who had the CPU that a canary waited for: others inside its container or others on the host; and whether requests
explain what those inside took.

A probe splits each run's waiting by what its container computed meanwhile. Shares multiply: the host gives a container
a part of a CPU, and of that the canary gets a part beside others inside (the scheduler does it so for cgroups). So the
logarithm of a latency is that of its own computing, plus one for those inside, (own + inside) / own, plus one for those
outside, latency / (own + inside). A busy loop inside makes a canary wait twice as long for the neighbours too.

A server that is always busy would be blamed for a neighbour that came: only what those inside computed *more* counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from infercanary.judge.model import Sample
from infercanary.judge.policy import Policy
from infercanary.judge.shift import Shift


class Crowding(NamedTuple):
    """Who had the CPU for the waiting that came (or went) with a shift."""

    inside: float
    """Share of that waiting, from 0 to 1: others inside the container; the rest is others on the host."""
    load: float | None
    """Share of what those inside took more, from 0 to 1, that more requests explain; None where these are unknown."""
    cores: tuple[float, float]
    """How many cores those inside took while the canary ran, before and after."""


def crowding(
    before: Sequence[Sample],
    after: Sequence[Sample],
    parts: tuple[float, float],
    received: Shift,
    policy: Policy,
) -> Crowding | None:
    """Who had the CPU, by the growth of what those inside took.

    Args:
        before: Runs before the shift.
        after: Runs after it.
        parts: How much of the shift is waiting for others inside and for others outside (logarithms), as runs split it.
        received: Shift of how much the container was asked; its error is infinite where that is not known.
        policy: From when on requests have risen, and what an idle container takes.

    Returns:
        None where runs on either side do not know what others in their container took.
    """
    known = [[s for s in side if s.inside is not None and s.crowded is not None] for side in (before, after)]
    if min(map(len, known)) < policy.pool.fewest_new_runs:
        return None
    old, new = known
    cores = (level(old, lambda s: s.inside), level(new, lambda s: s.inside))
    crowded = level(new, lambda s: s.crowded) - level(old, lambda s: s.crowded)
    longer = max(level(side, lambda s: s.median) for side in known)
    # Not all that was split off as theirs, but what they computed beyond what they did before.
    more = (cores[1] - cores[0]) * longer
    theirs = parts[0] * max(0.0, min(1.0, more / crowded)) if crowded else 0.0
    whole = sum(parts)
    inside = max(0.0, min(1.0, theirs / whole)) if whole else 0.0
    return Crowding(inside, _load(cores, received, policy), cores)


def _load(cores: tuple[float, float], received: Shift, policy: Policy) -> float | None:
    """What as much work for each request as before explains of the change of ``cores``."""
    if not math.isfinite(received.se):
        return None
    before, after = cores
    is_clear = abs(received.log) > policy.attribute.moved_sigmas * received.se
    ratio = math.exp(min(received.log, 700.0))
    if not is_clear or abs(ratio - 1) < policy.attribute.more_requests or before == after:
        return 0.0
    # Of a container that was idle, what a request costs is not known better than this.
    own = max(before, policy.attribute.idle_cores) if ratio > 1 else before
    return max(0.0, min(1.0, own * (ratio - 1) / (after - before)))


def level(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float:
    """The median of what runs know; 0 where none does.

    Args:
        samples: Any runs.
        value: What is asked of each.
    """
    values = [x for sample in samples if (x := value(sample)) is not None]
    return median(values) if values else 0.0
