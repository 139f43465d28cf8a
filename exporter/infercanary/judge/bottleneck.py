"""Which resource a change went to: memory, compute, I/O or scheduling.

Each run's latency is divided into parts (:mod:`infercanary.contract.bottleneck`); what each part grew by is its share
of the change. Time on the processor grew for one of two reasons, which the controls of the same runs tell apart: each
of them depends on one resource.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from infercanary.contract.bottleneck import LIMITS, Limit, Parts, parts
from infercanary.contract.vocabulary import CONTROLS, Bottleneck
from infercanary.judge.model import Sample
from infercanary.judge.policy import Policy
from infercanary.judge.shift import Shift

_LEAST = 0.005  # of the change: a smaller share rounds to nothing
_STOOD = Shift(0.0, 0.0, math.inf)


def bottlenecks(
    before: Sequence[Sample],
    after: Sequence[Sample],
    controls: Mapping[str, Shift],
    beside: Sequence[Shift | None],
    policy: Policy,
) -> dict[Limit, float]:
    """How much of a change each resource made.

    Args:
        before: Runs before it.
        after: Runs after it.
        controls: Control → its shift; those whose error is infinite are not known.
        beside: What the clock explains of it, and how far siblings moved; each None where that is not known.
        policy: From when on a control moved.

    Returns:
        Resource → its share, the largest first. Shares sum to about 1; one is below 0, and others are above 1, where a
        part became shorter meanwhile. Empty where nothing changed.
    """
    old, new, whole = _levels(before, after, policy)
    if not whole:
        return {}
    grown = Parts._make(b - a for a, b in zip(old, new, strict=True))
    found: dict[Limit, float] = dict.fromkeys(LIMITS, 0.0)
    found |= {"io": grown.io, "scheduling": grown.scheduling, "unknown": grown.unknown}
    processor = grown.processor
    slower = max(old, new, key=lambda of: of.processor)
    if slower.is_launched_slowly and grown.launch * processor > 0:
        launched = math.copysign(min(abs(grown.launch), abs(processor)), processor)
        found["scheduling"] += launched
        processor -= launched
    if processor * whole > 0 and old.processor > 0 and new.processor > 0:
        moved = math.log(new.processor / old.processor)
        of_device = {name: s for name, s in controls.items() if name.startswith("gpu_") == bool(new.launch)}
        for limit, share in _split(moved, of_device, beside, policy).items():
            found[limit] += share * processor
    else:
        found["compute"] += processor
    shares = {limit: seconds / whole for limit, seconds in found.items()}
    named = {limit: share for limit, share in shares.items() if abs(share) >= _LEAST}
    return dict(sorted(named.items(), key=lambda item: -item[1]))


def _split(
    moved: float, controls: Mapping[str, Shift], beside: Sequence[Shift | None], policy: Policy
) -> dict[Limit, float]:
    """What made the processor's time grow, as shares of that.

    What the computing controls or the clock moved by too is compute. What a memory control moved by beyond that is
    memory. If neither moved as far, and siblings felt as much, it is something of the host that no control feels. Else
    the program computes more; but where a memory control moved, the program may feel that more than the control does,
    and where one varied so much that the memory may have made it, nobody knows.

    Args:
        moved: The growth (a logarithm, not 0).
    """
    sign = math.copysign(1.0, moved)
    left = abs(moved)

    def most(shifts: Sequence[Shift]) -> Shift:
        """The one that moved furthest in the same direction."""
        clear = [s for s in shifts if s.has_moved(policy) and s.log * sign > 0]
        return max(clear, key=lambda s: abs(s.log), default=_STOOD)

    def known(kind: Bottleneck) -> list[Shift]:
        each = ((name, s) for name, s in controls.items() if math.isfinite(s.se))
        return [s for name, s in each if name in CONTROLS and CONTROLS[name].bottleneck == kind]

    clock, siblings = beside
    of_compute, of_memory = known("compute"), known("memory")
    computing = most([*of_compute, *([clock] if clock is not None else [])])
    remembering = most(of_memory)
    compute = min(left, abs(computing.log))
    left -= compute
    beyond = Shift(abs(remembering.log) - abs(computing.log), math.hypot(remembering.se, computing.se), 0.0)
    is_memory = beyond.log > 0 and beyond.has_moved(policy)
    memory = min(left, beyond.log) if is_memory else 0.0
    left -= memory
    if is_memory or not of_memory or not of_compute:
        unknown = left
    else:
        felt = most([siblings]) if siblings is not None else _STOOD
        unknown = min(left, max(0.0, abs(felt.log) - compute))
        if (
            max(s.log * sign + policy.attribute.moved_sigmas * s.se for s in of_memory)
            >= policy.attribute.whole_share * left
        ):
            unknown = left
    compute += left - unknown
    whole = abs(moved)
    return {"compute": compute / whole, "memory": memory / whole, "unknown": unknown / whole}


def _levels(before: Sequence[Sample], after: Sequence[Sample], policy: Policy) -> tuple[Parts, Parts, float]:
    """Median seconds of each part on both sides, and by how much the latency grew.

    Why threads did not compute counts where both sides know it: a newer probe alone would have found a new bottleneck.
    """
    sides = [before, after]
    known = [[sample for sample in side if sample.off_cpu] for side in sides]
    is_known = min(map(len, known)) >= policy.pool.fewest_new_runs
    each = [
        [(s.median, _parts(s, s.median, is_known)) for s in side if s.median]
        for side in (known if is_known else sides)
    ]
    if not all(each):
        return Parts(0, 0, 0, 0), Parts(0, 0, 0, 0), 0.0
    old, new = (Parts._make(map(median, zip(*(of for _, of in side), strict=True))) for side in each)
    whole = median(seconds for seconds, _ in each[1]) - median(seconds for seconds, _ in each[0])
    return old, new, whole


def _parts(sample: Sample, latency: float, is_known: bool) -> Parts:
    waited = None if sample.waited is None else sample.waited + (sample.crowded or 0.0)
    return parts(latency, sample.phases, sample.off_cpu if is_known else {}, waited)
