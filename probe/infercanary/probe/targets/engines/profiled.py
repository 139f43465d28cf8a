"""What an engine's profiler said of some repeats, made into one profile. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from statistics import median
from typing import NamedTuple

import msgspec

from infercanary.contract.profile import MAX_ROWS, OK, Profile, ProfileRow, bounded, normalised

_SHAPES = 3  # inputs whose shapes are shown


class Operator(NamedTuple):
    """What makes a row of its own."""

    kind: str
    device: str
    shapes: str = ""


class Spent:
    """What an operator took in one repeat."""

    def __init__(self) -> None:
        self.calls = 0.0
        self.seconds = 0.0
        self.within: dict[str, float] = {}
        """Name of what did the work → seconds."""
        self.allocated = 0.0

    def add(
        self, seconds: float, within: dict[str, float], calls: float = 1.0, allocated: float = 0.0
    ) -> None:
        """Add some calls.

        Args:
            seconds: That they took together.
            within: Name of what did the work → seconds of that.
            calls: How many.
            allocated: Bytes that they allocated.
        """
        self.calls += calls
        self.allocated += allocated
        self.seconds += seconds
        for name, part in within.items():
            self.within[name] = self.within.get(name, 0.0) + part


class ProfiledRepeat(NamedTuple):
    """One repeat; times in seconds, calls and bytes of the whole repeat."""

    wall: float
    """By the host's clock."""
    traced: float
    """The same by the profiler's own clock, which may hold time of the profiler itself."""
    operators: dict[Operator, Spent]
    """In the order of their first calls."""
    inferences: int = 1


def assembled(repeats: Sequence[ProfiledRepeat], engine: str, taken_at: float, state: str = OK) -> Profile:
    """Make one profile: the longest operators with a row of their own, the others summed.

    Args:
        repeats: One at least.
        engine: Whose profiler it was.
        taken_at: When the first one began, a Unix time.
        state: What the profiler could see.

    Returns:
        Seconds and calls of one inference; names are normalised and bounded.
    """
    totals: dict[Operator, Spent] = {}
    for repeat in repeats:
        for operator, spent in repeat.operators.items():
            total = totals.setdefault(operator, Spent())
            total.add(spent.seconds, spent.within, spent.calls, spent.allocated)
    middle = {
        operator: median(r.operators[operator].seconds if operator in r.operators else 0.0 for r in repeats)
        for operator in totals
    }
    ordered = sorted(totals, key=lambda operator: (-middle[operator], operator))
    order = {operator: i for i, operator in enumerate(totals)}
    inferences = sum(repeat.inferences for repeat in repeats)

    def seconds(of: Sequence[Operator]) -> tuple[float, ...]:
        return tuple(
            _rounded(sum(r.operators[o].seconds for o in of if o in r.operators) / r.inferences)
            for r in repeats
        )

    rows = tuple(
        ProfileRow(
            kind=bounded(operator.kind),
            name=_longest(operator, totals[operator]),
            device=bounded(operator.device),
            shapes=bounded(operator.shapes),
            calls=_rounded(totals[operator].calls / inferences),
            seconds=seconds([operator]),
            order=order[operator],
            allocated=_rounded(totals[operator].allocated / inferences),
        )
        for operator in ordered[:MAX_ROWS]
    )
    outside = (
        max(0.0, min(r.wall, r.traced) - sum(spent.seconds for spent in r.operators.values())) / r.inferences
        for r in repeats
    )
    return Profile(
        taken_at=taken_at,
        engine=engine,
        state=state,
        wall=tuple(_rounded(repeat.wall / repeat.inferences) for repeat in repeats),
        outside=tuple(map(_rounded, outside)),
        rest=seconds(ordered[MAX_ROWS:]),
        rows=rows,
    )


def shapes_text(shapes: Sequence[Sequence[object]], dtypes: Sequence[str]) -> str:
    """Such as ``1x3x224x224 float, 64x3x7x7 float``.

    Args:
        shapes: Of the inputs; what is no tensor has an empty one.
        dtypes: Of the same inputs; may be shorter.

    Returns:
        The first few tensors.
    """
    found = []
    for i, shape in enumerate(shapes):
        if shape and all(isinstance(size, int) for size in shape):
            dtype = dtypes[i] if i < len(dtypes) else ""
            found.append("x".join(map(str, shape)) + (f" {dtype}" if dtype else ""))
    return ", ".join(found[:_SHAPES])


def _longest(operator: Operator, spent: Spent) -> str:
    """What did the most of its work."""
    name = max(spent.within, key=lambda name: (spent.within[name], name), default=operator.kind)
    return normalised(name) or bounded(operator.kind)


def _rounded(value: float) -> float:
    """To four digits: no profiler has more, and each is written again and again."""
    return float(f"{value:.4g}")


def joined(profiles: Sequence[Profile]) -> Profile:
    """Make one profile of several that were taken one after another.

    Args:
        profiles: Of one engine, one at least.

    Returns:
        The repeats of all, in order; an operator that one of them has no row for took nothing there that is known.
    """
    first = profiles[0]
    if len(profiles) == 1:
        return first
    rows: dict[tuple[str, str, str], dict[int, ProfileRow]] = {}
    for i, profile in enumerate(profiles):
        for row in profile.rows:
            rows.setdefault((row.kind, row.device, row.shapes), {})[i] = row

    def of(found: dict[int, ProfileRow]) -> ProfileRow:
        last = found[max(found)]
        seconds = (
            found[i].seconds if i in found else (0.0,) * profile.repeats for i, profile in enumerate(profiles)
        )
        repeats = sum(profile.repeats for profile in profiles)
        calls, allocated = (
            _rounded(sum(of_row(row) * profiles[i].repeats for i, row in found.items()) / repeats)
            for of_row in (attrgetter("calls"), attrgetter("allocated"))
        )
        return msgspec.structs.replace(
            last, calls=calls, allocated=allocated, seconds=tuple(x for part in seconds for x in part)
        )

    made = sorted(map(of, rows.values()), key=lambda row: -median(row.seconds))
    rest = [x for profile in profiles for x in profile.rest]
    for row in made[MAX_ROWS:]:
        rest = [a + b for a, b in zip(rest, row.seconds, strict=True)]
    return Profile(
        taken_at=first.taken_at,
        engine=first.engine,
        state=next((profile.state for profile in profiles if profile.state != OK), OK),
        wall=tuple(x for profile in profiles for x in profile.wall),
        outside=tuple(x for profile in profiles for x in profile.outside),
        rest=tuple(rest),
        rows=tuple(made[:MAX_ROWS]),
    )
