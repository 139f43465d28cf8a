"""Makes one profile of the repeats that an engine's profiler listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from infercanary.contract.profile import MAX_ROWS, OK, Profile, ProfileRow, bounded, normalised

_SHAPES = 3  # inputs whose shapes are shown


class Operator(NamedTuple):
    """Key of a row."""

    kind: str
    device: str
    shapes: str = ""


@dataclass
class Spent:
    """Time of an operator in one repeat."""

    calls: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    """Name of a kernel, or of an inner operator → seconds."""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def add(self, name: str, seconds: float, calls: float = 1.0) -> None:
        self.calls += calls
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


class ProfiledRepeat(NamedTuple):
    """One repeat."""

    wall: float
    """Seconds by the host's clock."""
    operators: dict[Operator, Spent]
    """In the order of their first calls."""
    inferences: int = 1


_NOTHING = Spent()


def assemble(repeats: Sequence[ProfiledRepeat], engine: str, taken_at: float, state: str = OK) -> Profile:
    """Make one profile: the longest operators with a row of their own, the others summed.

    Args:
        repeats: One at least.
        engine: Name of the profiler's engine.
        taken_at: Unix time.
        state: See :class:`~infercanary.contract.profile.Profile`.
    """
    order: dict[Operator, int] = {}
    for repeat in repeats:
        for operator in repeat.operators:
            order.setdefault(operator, len(order))
    seconds = {
        operator: tuple(r.operators.get(operator, _NOTHING).total / r.inferences for r in repeats)
        for operator in order
    }
    longest = sorted(order, key=lambda operator: (-median(seconds[operator]), operator))
    shown, rest = longest[:MAX_ROWS], longest[MAX_ROWS:]
    inferences = sum(repeat.inferences for repeat in repeats)

    def make_row(operator: Operator) -> ProfileRow:
        parts = [r.operators[operator] for r in repeats if operator in r.operators]
        names: dict[str, float] = {}
        for part in parts:
            for name, took in part.seconds.items():
                names[name] = names.get(name, 0.0) + took
        return ProfileRow(
            kind=bounded(operator.kind),
            name=normalised(max(names, key=lambda name: (names[name], name))) or bounded(operator.kind),
            device=bounded(operator.device),
            shapes=bounded(operator.shapes),
            calls=_rounded(sum(part.calls for part in parts) / inferences),
            seconds=tuple(map(_rounded, seconds[operator])),
            order=order[operator],
        )

    totals = [sum(column) for column in zip(*seconds.values(), strict=True)] or [0.0] * len(repeats)
    walls = [repeat.wall / repeat.inferences for repeat in repeats]
    return Profile(
        taken_at=taken_at,
        engine=engine,
        state=state,
        wall=tuple(map(_rounded, walls)),
        outside=tuple(_rounded(max(0.0, wall - total)) for wall, total in zip(walls, totals, strict=True)),
        rest=tuple(_rounded(sum(seconds[operator][i] for operator in rest)) for i in range(len(repeats))),
        rows=tuple(map(make_row, shown)),
    )


def shapes_text(shapes: Sequence[Sequence[object]], dtypes: Sequence[str]) -> str:
    """Name the first tensors: ``1x3x224x224 float, 64x3x7x7 float``.

    Args:
        shapes: Of all inputs; an input that is no tensor has an empty one.
        dtypes: Of the same inputs; may be shorter.
    """
    texts = []
    for i, shape in enumerate(shapes):
        if shape and all(isinstance(size, int) for size in shape):
            texts.append(" ".join(["x".join(map(str, shape)), *filter(None, dtypes[i : i + 1])]))
    return ", ".join(texts[:_SHAPES])


def _rounded(value: float) -> float:
    """Round to four digits: no profiler has more, and each is written again and again."""
    return float(f"{value:.4g}")
