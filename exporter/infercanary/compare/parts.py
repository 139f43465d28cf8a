"""How far phases and controls moved between two recordings. Pure."""

from __future__ import annotations

import math

from infercanary.compare.recording import shown
from infercanary.judge.evidence import Evidence
from infercanary.judge.model import Pair, medians
from infercanary.judge.policy import Policy
from infercanary.judge.result import Part
from infercanary.judge.shift import UNKNOWN


class PartShift(Part, frozen=True):
    """The shift of a phase or a control, as ratios. Its interval leaves out the variance of restarts."""

    moved: bool = False
    """As the judge says it of a control."""
    share: float | None = None
    """Of a phase: its share of the whole change."""


def part_shifts(pair: Pair, policy: Policy) -> list[dict[str, PartShift]]:
    """Return the shifts of phases, and those of controls, that both sides have.

    A phase has its share of the change of latency, if that is beyond the dead band.
    """
    seen = Evidence(UNKNOWN, [pair], (), policy)
    grown = seen.latencies[1] - seen.latencies[0]
    is_changed = abs(grown) >= policy.decide.clear_zone * seen.latencies[0]
    parts: list[dict[str, PartShift]] = []
    for field in ("phases", "controls"):
        old, new = (medians([getattr(s, field) for s in side]) for side in (seen.before, seen.after))
        shifts = {}
        for name in (name for name in old if name in new):
            shift = seen.shift_of(seen.compared, lambda s: getattr(s, field).get(name))  # noqa: B023
            part = Part.of(shift, policy.decide.confidence)
            share = (new[name] - old[name]) / grown if is_changed and field == "phases" else None
            if math.isfinite(shift.se):
                shifts[shown(name)] = PartShift(part.shift, part.low, part.high, seen.moved(shift), share)
        parts.append(shifts)
    return parts
