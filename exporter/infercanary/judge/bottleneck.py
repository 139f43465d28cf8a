"""Bottleneck: the resource that a change went to (memory, compute, I/O or scheduling).

The latency of each run is divided into parts (:mod:`infercanary.contract.bottleneck`); the growth of a part is its
share of the change. Growth of processor time is memory or compute: the controls of the same runs, each of which
depends on one resource, tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from infercanary.contract.bottleneck import LIMITS, Limit, Parts, parts
from infercanary.contract.vocabulary import CONTROLS
from infercanary.judge.crowding import LATENCY, level
from infercanary.judge.model import Sample
from infercanary.judge.shift import Shift


def bottlenecks(
    before: Sequence[Sample],
    after: Sequence[Sample],
    controls: Mapping[str, Shift],
    clock: Shift | None,
    moved: Callable[[Shift], bool],
) -> dict[Limit, float]:
    """Return the share of the change that each resource made, the largest first.

    Args:
        controls: Shift of each known control.
        clock: Part of the shift that the SM clock explains.
        moved: Function that tells whether a shift is clear.

    Returns:
        Shares sum to about 1. One is below 0, and others above 1, if a part became shorter. Empty if nothing changed.
    """
    is_known = all(s.off_cpu for s in (*before, *after))
    runs = (
        [parts(s.median or 0.0, s.phases, s.off_cpu if is_known else {}) for s in side]
        for side in (before, after)
    )
    old, new = (Parts._make(np.median(side, axis=0).tolist()) for side in runs)
    grown = Parts._make(b - a for a, b in zip(old, new, strict=True))
    split: dict[Limit, float] = {"compute": 1.0}
    if max(old, new).is_launched_slowly:
        split = {"scheduling": 1.0}
    elif grown.processor and old.processor and new.processor:
        of_device = {name: s for name, s in controls.items() if name.startswith("gpu_") == bool(new.launch)}
        split = _split(math.log(new.processor / old.processor), of_device, clock, moved)
    whole = (level(after, LATENCY) - level(before, LATENCY)) or math.inf
    shares = {
        # Parts of a run: processor time is not yet split into compute and memory.
        limit: (getattr(grown, limit, 0.0) + split.get(limit, 0.0) * grown.processor) / whole
        for limit in LIMITS
    }
    # A share below half a percent rounds to nothing.
    return {limit: x for limit, x in sorted(shares.items(), key=lambda item: -item[1]) if abs(x) >= 0.005}


def _split(
    growth: float, controls: Mapping[str, Shift], clock: Shift | None, moved: Callable[[Shift], bool]
) -> dict[Limit, float]:
    """Split the growth of processor time (a logarithm) into shares of compute and memory.

    The shift of a computing control or of the clock is compute. A memory control's further shift is memory. The rest
    is the program's own compute, unless a memory control moved by a quarter of the growth, or its error allows as
    much as the rest: a program may be more sensitive to memory than the control.
    """

    def explained(shifts: Iterable[Shift]) -> float:
        return min(1.0, max([0.0, *(s.log / growth for s in shifts if moved(s))]))

    computing, remembering = (
        [s for name, s in controls.items() if CONTROLS[name].bottleneck == kind]
        for kind in ("compute", "memory")
    )
    compute = explained(computing if clock is None else [*computing, clock])
    memory = max(0.0, explained(remembering) - compute)
    rest = 1.0 - compute - memory
    is_flat = memory < 0.25 and all(moved(s._replace(log=rest * growth)) for s in remembering)
    if remembering and is_flat:
        return {"compute": compute + rest, "memory": memory}
    return {"compute": compute, "memory": memory, "unknown": rest}
