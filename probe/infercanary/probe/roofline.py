"""Limit of a canary: the resource on which most of its time depends. Pure functions.

Time outside the processor is divided as in :mod:`infercanary.contract.bottleneck`; processor time is divided by the
roofline model (Williams, Waterman and Patterson, 2009, https://doi.org/10.1145/1498765.1498785). An operator belongs to
the ceiling (arithmetic, bandwidth, or calls) of which the operator reaches the largest share.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Final, NamedTuple, get_args

import msgspec

from infercanary.contract.bottleneck import BLOCKED, QUEUED, READING, Limit, parts
from infercanary.contract.profile import COVERAGE, Profile, ProfileRow
from infercanary.contract.vocabulary import Bottleneck

TIE: Final = 0.1
"""The two largest shares are a tie if their difference is at most this value."""
FLOOR: Final = 0.25
"""An operator must reach at least this share of its nearest ceiling. Otherwise its limit is unknown."""

CPU_WAIT, QUOTA = "CPU wait", "CPU quota"
_CAUSES = {
    QUEUED: CPU_WAIT,
    BLOCKED: "lock or sleep",
    READING: "disk reads",
    "h2d": "copies to the device",
    "d2h": "copies from the device",
    "queue": "queue of the device",
}
"""Reason of ``OFF_CPU`` or phase → cause of the limit."""
CAUSES_OF_IO = {"disk reads", "copies to the device", "copies from the device"}
"""Causes of the limit ``io``. All other causes belong to ``scheduling``."""
_COPIES = "Memcpy HtoD", "Memcpy DtoH"  # kernels that run in the phases h2d and d2h


class Ceilings(msgspec.Struct, frozen=True):
    """Fastest rates of a canary's engine, with the engine's threads in this container."""

    dtype: str
    """Dtype of the operator with the most arithmetic, in the profiler's words."""
    flops_per_second: float
    """Rate of a large matrix product in that dtype."""
    bytes_per_second: float
    """Rate of a pass over buffers that are larger than the last-level cache."""
    launch_seconds: float
    """Seconds of a call without work, according to the engine's profiler."""


class Timed(NamedTuple):
    """Timed repeats, as means. Means include the pauses of a CPU quota. Times are seconds of one inference."""

    seconds: float
    phases: Mapping[str, float]
    off_cpu: Mapping[str, float]
    """Reason (of ``OFF_CPU``) → seconds; empty if unknown."""
    throttled: float = 0.0
    """Time in which a CPU quota stopped threads of the container, summed over CPUs."""


class OperatorLimit(msgspec.Struct, frozen=True):
    """Limit of one operator. Calls with the same shapes count as one operator."""

    operator: str
    shapes: str
    share: float
    """Share of the canary's time."""
    limit: Limit = "unknown"
    """"unknown" if the work is unknown, or far below each ceiling."""
    arithmetic: float = 0.0
    """Reached share of the ceiling."""
    bandwidth: float = 0.0
    """Reached share of the ceiling; above 1 if the data comes from caches."""


class CanaryLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Present limit of one canary."""

    canary: str
    limit: Limit = "unknown"
    tied_with: Limit | None = None
    """Second limit, with nearly the same share."""
    why: str = ""
    """Reason why the limit is unknown."""
    seconds: float | None = None
    """Mean time of an inference."""
    shares: dict[Limit, float] = {}
    """Limit → share of the time; the sum is 1."""
    causes: dict[str, float] = {}
    """Cause of `io` or `scheduling` → share of the time."""
    arithmetic: float = 0.0
    """Arithmetic of the inference, as a share of its ceiling."""
    bandwidth: float = 0.0
    """Least memory traffic of the inference, as a share of its ceiling."""
    useful_batch: int | None = None
    """Largest batch up to which each doubling raised the throughput by a tenth; None if doubling does not help."""
    ceilings: Ceilings | None = None
    operators: list[OperatorLimit] = []
    """Operators in descending order of their time."""


def find_limit(canary: str, timed: Timed, profile: Profile | str, ceilings: Ceilings | str) -> CanaryLimit:
    """Find the limit of a canary.

    Args:
        canary: Name of the canary.
        timed: Timed repeats.
        profile: Profiled repeats, or the reason why no repeat was profiled.
        ceilings: Ceilings of the canary's engine, or the reason why ceilings or profile are missing.
    """
    whole, on_device = timed.seconds, "launch" in timed.phases
    run = parts(whole, timed.phases, timed.off_cpu)
    causes = {
        _CAUSES[name]: seconds
        for name, seconds in {**timed.off_cpu, **timed.phases}.items()
        if name in _CAUSES
    }
    if timed.throttled > timed.off_cpu.get(QUEUED, 0.0) / 2:
        causes[QUOTA] = causes.pop(CPU_WAIT, 0.0)
    operators: list[OperatorLimit] = []
    outside = 0.0
    if isinstance(profile, Profile) and isinstance(ceilings, Ceilings):
        rows = [row for row in profile.rows if not on_device or _is_kernel(row)]
        inside = sum(median(row.seconds) for row in rows) + median(profile.rest)
        # Profiled repeats take longer than timed repeats' processor time, because of the profiler or of waiting.
        scale = min(1.0, run.processor / max(inside, 1e-12))
        operators = [_operator_limit(row, ceilings, scale, whole) for row in rows]
        outside = run.processor - scale * inside
        causes["gaps between kernels" if on_device else "outside operators"] = outside
    shares: dict[Limit, float] = {
        name: sum(row.share for row in operators if row.limit == name) for name in get_args(Bottleneck)
    }
    causes["operator calls"] = shares["scheduling"] * whole
    shares["scheduling"] += (run.scheduling + outside) / whole
    shares["io"] = run.io / whole
    first, second, *_ = sorted(shares, key=lambda name: -shares[name])
    unknown = max(0.0, round(1.0 - sum(shares.values()), 9))
    why = ""
    if unknown > 1.0 - COVERAGE + 1e-9:
        names = ", ".join({row.operator: 0 for row in operators if row.limit == "unknown"})
        missing = (
            ceilings if isinstance(ceilings, str) else f"not covered: {names or 'small operators, or waits'}"
        )
        why = f"{100 - 100 * unknown:.0f} % of the time is covered, {100 * COVERAGE:.0f} % are needed; {missing}"
    return CanaryLimit(
        canary=canary,
        limit="unknown" if why else first,
        tied_with=second if not why and shares[first] - shares[second] < TIE else None,
        why=why,
        seconds=whole,
        shares=shares | {"unknown": unknown},
        causes={cause: seconds / whole for cause, seconds in causes.items()},
        arithmetic=sum(row.share * row.arithmetic for row in operators),
        bandwidth=sum(row.share * row.bandwidth for row in operators),
        ceilings=None if isinstance(ceilings, str) else ceilings,
        operators=operators,
    )


def _is_kernel(row: ProfileRow) -> bool:
    return row.device != "cpu" and not row.name.startswith(_COPIES)


def _operator_limit(row: ProfileRow, ceilings: Ceilings, scale: float, whole: float) -> OperatorLimit:
    took = max(median(row.seconds) * scale, 1e-12)
    reached: dict[Limit, float] = {
        "memory": row.bytes / ceilings.bytes_per_second / took,
        "compute": row.flops / ceilings.flops_per_second / took,
        "scheduling": row.launches * ceilings.launch_seconds / took,
    }
    nearest = max(reached, key=lambda limit: reached[limit])
    limit = nearest if reached[nearest] >= FLOOR else "unknown"
    return OperatorLimit(row.kind, row.shapes, took / whole, limit, reached["compute"], reached["memory"])
