"""Makes a profile from operator times that an engine's profiler reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from infercanary.contract.profile import MAX_ROWS, OK, Profile, ProfileRow, bounded, normalised

_SHAPES = 3  # maximum number of inputs with shapes in a row


class Operator(NamedTuple):
    """Key of a row of a profile."""

    kind: str
    device: str
    shapes: str = ""


class _Row:
    """Sums for one operator: its calls, and the seconds of one inference in each repeat."""

    def __init__(self, order: int, repeats: int) -> None:
        self.order = order
        self.calls = 0.0
        self.seconds = [0.0] * repeats
        self.names: dict[str, float] = {}
        self.work = [0.0] * 3


class OperatorTimes:
    """Times of operators in profiled repeats.

    Args:
        repeats: At least 1.
        inferences: Number of inferences in each repeat.
    """

    def __init__(self, repeats: int, inferences: int = 1) -> None:
        self._repeats, self._inferences = repeats, inferences
        self._rows: dict[Operator, _Row] = {}

    def add(self, repeat: int, operator: Operator, name: str, seconds: float, calls: float = 1.0) -> None:
        """Add time to an operator. Rows are in the order of the first calls.

        Args:
            repeat: Number of the repeat, starting at 0.
            operator: Key of the row.
            name: Kernel, or inner operator, that took the time.
            seconds: Time in this repeat.
            calls: Calls of the operator, or launched kernels.
        """
        row = self._rows.setdefault(operator, _Row(len(self._rows), self._repeats))
        row.seconds[repeat] += seconds / self._inferences
        row.names[name] = row.names.get(name, 0.0) + seconds
        row.calls += calls / self._inferences / self._repeats

    def add_work(self, operator: Operator, flops: float, size: float, launches: float) -> None:
        """Add the work of one call to an operator that already has time; NaN if the work is unknown."""
        row, number = self._rows[operator], self._repeats * self._inferences
        row.work = [
            before + more / number for before, more in zip(row.work, (flops, size, launches), strict=True)
        ]

    def profile(self, walls: Sequence[float], engine: str, taken_at: float, state: str = OK) -> Profile:
        """Make the profile: a row for each of the longest operators, and the sum of all other operators.

        Args:
            walls: Wall seconds of each repeat.
            engine: Name of the engine whose profiler was used.
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
    flops, size, launches = _rounded(row.work if math.isfinite(sum(row.work)) else (0.0, 0.0, 0.0))
    return ProfileRow(
        kind=bounded(operator.kind),
        name=normalised(name) or bounded(operator.kind),
        device=bounded(operator.device),
        shapes=bounded(operator.shapes),
        calls=_rounded([row.calls])[0],
        seconds=_rounded(row.seconds),
        order=row.order,
        flops=flops,
        bytes=size,
        launches=launches,
    )


def shapes_text(shapes: Sequence[Sequence[object]], dtypes: Sequence[str]) -> str:
    """Describe the first tensors: ``1x3x224x224 float, 64x3x7x7 float``.

    Args:
        shapes: Shapes of all inputs; empty for an input that is not a tensor.
        dtypes: Dtypes of the same inputs; may be shorter.
    """
    texts = []
    for i, shape in enumerate(shapes):
        if shape and all(isinstance(size, int) for size in shape):
            texts.append(" ".join(["x".join(map(str, shape)), *filter(None, dtypes[i : i + 1])]))
    return ", ".join(texts[:_SHAPES])


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    """Round to four significant digits, because profilers are not more precise, and short numbers keep profiles
    small.
    """
    return tuple(float(f"{value:.4g}") for value in values)
