"""How far phases and controls moved between two recordings. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from infercanary.compare.recording import RecordedRuns, shown
from infercanary.judge.model import Start
from infercanary.judge.policy import Policy
from infercanary.judge.pooling import shift_of_starts
from infercanary.judge.shift import Shift


class PartShift(msgspec.Struct, frozen=True):
    """The shift of a phase or a control, as ratios."""

    shift: float
    low: float
    high: float
    moved: bool
    """By the smallest effect or more, with an interval that excludes zero."""
    share: float | None = None
    """Of a phase: its share of the whole change."""


def phases(old: RecordedRuns, new: RecordedRuns, policy: Policy) -> dict[str, PartShift]:
    """Return the shift of each phase, with its share of the change if the whole changed.

    Args:
        old: The starts that count of the baseline.
        new: Those of the candidate.
        policy: The numbers that decide.

    Returns:
        Phase → shift, of those that both sides have.
    """
    each = pieces(old, new, "phases", policy)
    whole = float(np.median(new.every) - np.median(old.every)) if each else 0.0
    if not whole or abs(whole) < policy.decide.clear_zone * float(np.median(old.every)):
        return each
    return {
        name: msgspec.structs.replace(
            piece, share=(_level(new.starts, name) - _level(old.starts, name)) / whole
        )
        for name, piece in each.items()
    }


def pieces(
    old: RecordedRuns, new: RecordedRuns, field: Literal["phases", "controls"], policy: Policy
) -> dict[str, PartShift]:
    """Return the shift of each that both sides have. Its interval leaves the variance of restarts out.

    Args:
        old: The starts that count of the baseline.
        new: Those of the candidate.
        field: Of a sample.
        policy: The numbers that decide.

    Returns:
        Name → shift.
    """
    found = {}
    for name in dict.fromkeys(
        name for start in old.starts for s in start.samples for name in getattr(s, field)
    ):
        before, after = ([_values(start, field, name) for start in side.starts] for side in (old, new))
        shift = shift_of_starts(before, after, pool=policy.pool)
        if math.isfinite(shift.se):
            found[shown(name)] = _piece(shift, policy)
    return found


def _values(start: Start, field: str, name: str) -> list[float]:
    return [x for sample in start.samples if 0 < (x := getattr(sample, field).get(name, 0.0)) < math.inf]


def _piece(shift: Shift, policy: Policy) -> PartShift:
    low, high = shift.interval(policy.decide.confidence)
    moved = abs(shift.log) >= policy.decide.log_effect and (low > 0 or high < 0)
    return PartShift(_ratio(shift.log), _ratio(low), _ratio(high), moved)


def _level(starts: Sequence[Start], name: str) -> float:
    values = [x for start in starts for sample in start.samples if (x := sample.phases.get(name)) is not None]
    return float(np.median(values)) if values else 0.0


def _ratio(log: float) -> float:
    return math.expm1(min(log, 700.0))
