"""Bottleneck: attributes a change to resources (memory, compute, I/O or scheduling).

The latency of each run is divided into parts (:mod:`infercanary.contract.bottleneck`). A part's share of the change is
the part's growth divided by the latency's growth. Processor time grows because of memory or compute. Controls in the
same runs tell which of the two, because each control depends on one resource.
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
    """Return the share of the change by resource, the largest first.

    Args:
        before: Runs with the old image.
        after: Runs with the new image.
        controls: Shift by control, for controls with enough runs.
        clock: Part of the shift that the SM clock explains.
        moved: Function that returns True if a shift is significant.

    Returns:
        Shares that sum to about 1; empty if nothing changed. A share is below 0 if its part changed in the opposite
        direction. Then other shares may be above 1.
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
        # A run reports processor time as one part. Split this part into compute and memory.
        limit: (getattr(grown, limit, 0.0) + split.get(limit, 0.0) * grown.processor) / whole
        for limit in LIMITS
    }
    # A share below half a percent would be displayed as 0 %.
    return {limit: x for limit, x in sorted(shares.items(), key=lambda item: -item[1]) if abs(x) >= 0.005}


def _split(
    growth: float, controls: Mapping[str, Shift], clock: Shift | None, moved: Callable[[Shift], bool]
) -> dict[Limit, float]:
    """Split the growth of processor time (a logarithm) into shares of compute, memory and unknown.

    The compute share is the largest shift of a compute control or of the clock, relative to the growth. The memory
    share is the largest relative shift of a memory control, minus the compute share. The rest counts as compute if
    memory surely did not cause this rest: the memory share is below a quarter, and each memory control is precise
    enough to show a shift as large as the rest. Otherwise the rest is unknown: a program may depend more on memory than
    a control does.
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
