"""Makes one profile of the repeats that an engine's profiler listed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from infercanary.contract.profile import MAX_ROWS, OK, Profile, ProfileRow, bounded, normalised

_SHAPES = 3  # inputs whose shapes are shown


class Operator(NamedTuple):
    """Key of a row."""

    kind: str
    device: str
    shapes: str = ""


class _Row:
    """Sums of one operator; seconds of one inference in each repeat."""

    def __init__(self, order: int, repeats: int) -> None:
        self.order = order
        self.calls = 0.0
        self.seconds = [0.0] * repeats
        self.names: dict[str, float] = {}


class OperatorTimes:
    """Times of operators in profiled repeats.

    Args:
        repeats: One at least.
        inferences: In each of them.
    """

    def __init__(self, repeats: int, inferences: int = 1) -> None:
        self._repeats, self._inferences = repeats, inferences
        self._rows: dict[Operator, _Row] = {}

    def add(self, repeat: int, operator: Operator, name: str, seconds: float, calls: float = 1.0) -> None:
        """Add time of an operator, in the order of first calls.

        Args:
            repeat: Number of the repeat, from 0 on.
            operator: Its row.
            name: The kernel, or the inner operator, that took the time.
            seconds: In this repeat.
            calls: Calls of the operator, or kernels.
        """
        row = self._rows.setdefault(operator, _Row(len(self._rows), self._repeats))
        row.seconds[repeat] += seconds / self._inferences
        row.names[name] = row.names.get(name, 0.0) + seconds
        row.calls += calls / self._inferences / self._repeats

    def profile(self, walls: Sequence[float], engine: str, taken_at: float, state: str = OK) -> Profile:
        """Make the profile: the longest operators with a row of their own, the others summed.

        Args:
            walls: Wall seconds of each repeat.
            engine: Name of the profiler's engine.
            taken_at: Unix time.
            state: See :class:`~infercanary.contract.profile.Profile`.
        """
        rows = self._rows
        longest = sorted(rows, key=lambda operator: (-median(rows[operator].seconds), operator))
        inference = [wall / self._inferences for wall in walls]
        totals, rest = (
            [sum(rows[operator].seconds[i] for operator in operators) for i in range(self._repeats)]
            for operators in (longest, longest[MAX_ROWS:])
        )
        return Profile(
            taken_at=taken_at,
            engine=engine,
            state=state,
            wall=_rounded(inference),
            outside=_rounded(max(0.0, wall - total) for wall, total in zip(inference, totals, strict=True)),
            rest=_rounded(rest),
            rows=tuple(_profile_row(operator, rows[operator]) for operator in longest[:MAX_ROWS]),
        )


def _profile_row(operator: Operator, row: _Row) -> ProfileRow:
    name = max(row.names, key=lambda name: (row.names[name], name))
    return ProfileRow(
        kind=bounded(operator.kind),
        name=normalised(name) or bounded(operator.kind),
        device=bounded(operator.device),
        shapes=bounded(operator.shapes),
        calls=_rounded([row.calls])[0],
        seconds=_rounded(row.seconds),
        order=row.order,
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


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Round to four digits: no profiler has more, and each is written again and again."""
    return tuple(float(f"{value:.4g}") for value in values)
