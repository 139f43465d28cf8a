"""Who had the CPU that a canary waited for: others inside its container or others on the host; and whether requests
explain what those inside took.

A probe splits each run's waiting by what its container computed meanwhile. A server that is always busy would so be
blamed for a neighbour that came: only what *grew* with the shift counts. Where those inside took no more CPU than
before, more waiting is not theirs.
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
    before: Sequence[Sample], after: Sequence[Sample], received: Shift, policy: Policy
) -> Crowding | None:
    """Who had the CPU, by the growth of what those inside took.

    Args:
        before: Runs before the shift.
        after: Runs after it.
        received: Shift of how much the container was asked; its error is infinite where that is not known.
        policy: From when on requests have risen, and what an idle container takes.

    Returns:
        None where runs on either side do not know what others in their container took.
    """
    known = [[s for s in side if s.inside is not None and s.crowded is not None] for side in (before, after)]
    if min(map(len, known)) < policy.fewest_new_runs:
        return None
    old, new = known
    cores = (_level(old, lambda s: s.inside), _level(new, lambda s: s.inside))
    crowded = _level(new, lambda s: s.crowded) - _level(old, lambda s: s.crowded)
    grown = crowded + _level(new, lambda s: s.waited) - _level(old, lambda s: s.waited)
    longer = max(_level(side, lambda s: s.median) for side in known)
    sign = math.copysign(1.0, grown)
    # Neither more than was split off as theirs, nor more than they computed beyond what they did before.
    theirs = min(sign * crowded, sign * (cores[1] - cores[0]) * longer)
    inside = max(0.0, min(1.0, theirs / abs(grown))) if grown else 0.0
    return Crowding(inside, _load(cores, received, policy), cores)


def _load(cores: tuple[float, float], received: Shift, policy: Policy) -> float | None:
    """What as much work for each request as before explains of the change of ``cores``."""
    if not math.isfinite(received.se):
        return None
    before, after = cores
    is_clear = abs(received.log) > policy.moved_sigmas * received.se
    ratio = math.exp(min(received.log, 700.0))
    if not is_clear or abs(ratio - 1) < policy.more_requests or before == after:
        return 0.0
    # Of a container that was idle, what a request costs is not known better than this.
    level = max(before, policy.idle_cores) if ratio > 1 else before
    return max(0.0, min(1.0, level * (ratio - 1) / (after - before)))


def _level(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float:
    values = [x for sample in samples if (x := value(sample)) is not None]
    return median(values) if values else 0.0
