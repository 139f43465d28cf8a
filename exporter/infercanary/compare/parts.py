"""How far phases and controls moved between two recordings. Pure."""

from __future__ import annotations

import math
from statistics import median
from typing import Literal

from infercanary.compare.recording import shown
from infercanary.judge.model import Pair
from infercanary.judge.policy import Policy
from infercanary.judge.pooling import shift_of_starts
from infercanary.judge.result import Part


class PartShift(Part, frozen=True):
    """The shift of a phase or a control, as ratios. Its interval leaves out the variance of restarts."""

    moved: bool = False
    """By the smallest effect or more, with an interval that excludes zero."""
    share: float | None = None
    """Of a phase: its share of the whole change."""


def part_shifts(pair: Pair, field: Literal["phases", "controls"], policy: Policy) -> dict[str, PartShift]:
    """Return the shift of each phase or control that both sides have; with its share of the change of latency, if the
    latency changed."""
    decide = policy.decide
    sides = (pair.before, pair.after)
    before, after = (median(s.median for start in side for s in start.samples if s.median) for side in sides)
    is_changed = field == "phases" and abs(after - before) >= decide.clear_zone * before > 0
    parts = {}
    samples = (sample for start in pair.before for sample in start.samples)
    for name in dict.fromkeys(name for sample in samples for name in getattr(sample, field)):
        values = [
            [
                [x for s in start.samples if 0 < (x := getattr(s, field).get(name, 0.0)) < math.inf]
                for start in side
            ]
            for side in sides
        ]
        shift = shift_of_starts(values[0], values[1], pool=policy.pool)
        if math.isfinite(shift.se):
            part = Part.of(shift, decide.confidence)
            levels = [median(x for start in side for x in start) for side in values]
            parts[shown(name)] = PartShift(
                part.shift,
                part.low,
                part.high,
                moved=abs(shift.log) >= decide.log_effect and not part.low <= 0 <= part.high,
                share=(levels[1] - levels[0]) / (after - before) if is_changed else None,
            )
    return parts
