"""Operators that a shift went to: profiled repeats of both sides, compared.

An operator is what the model called (``aten::conv2d``, ``Conv``), with all that it called in turn. The changes of the
operators and of the time outside of them add up to the change of the profiled wall time. Operators are claimed only if
the wall time changed as the timed one did, and if they make the greater part of it (docs/adr/0023-profiled-repeats.md).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from statistics import median
from typing import Literal, get_args

import msgspec

from infercanary.contract.profile import Profile, ProfileRow

Kind = Literal["grew", "shrank", "new", "gone", "moved", "kernel", "type", "calls"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""``moved`` is to another device, ``kernel`` is other work for the same operator (another library, instruction set or
algorithm), ``type`` is other numbers (float64), ``calls`` is more calls or launches, as where fusion was lost."""

State = Literal["explained", "outside", "unexplained"]
"""``outside``: the change lies outside of operators. ``unexplained``: neither, or the profiled repeats did not change
as the timed ones did."""

MOST = 10

_WORK = (
    "attention|flash|fmha",
    "conv|fprop|winograd",
    "gemm|matmul|linear|addmm|bmm|::mm|cutlass|fullyconnected",
    "norm",
    "softmax",
    "pool",
    "lstm|gru|rnn",
    "embedding|gather",
    "reorder|transpose|reformat|permute|shuffle",
)
"""Kinds of work, by words in the names that torch, ONNX Runtime, TensorRT, cuDNN and Inductor give; the first that
matches counts. Elementwise work is no kind: a sum and a sigmoid are not the same operator."""


class OperatorShift(msgspec.Struct, frozen=True):
    """One operator's part of a change. Times are seconds of one inference, in profiled repeats."""

    operator: str
    before: float
    after: float
    share: float
    """Of the change of the profiled wall time; below 0 where it went the other way."""
    change: Kind
    detail: str = ""
    """What changed with it: ``mkldnn_convolution → _slow_conv2d_forward``, ``cuda:0 → cpu``, ``5 → 9 calls``."""
    shapes: str = ""
    """Of the row that changed most; empty where they are not known."""

    @property
    def gained(self) -> float:
        """Seconds of an inference, below 0 where it takes less now."""
        return self.after - self.before


class Operators(msgspec.Struct, frozen=True):
    """What profiled repeats say of a shift."""

    state: State
    repeats: tuple[int, int]
    """Profiled before and after."""
    shifts: tuple[OperatorShift, ...] = ()
    """Those that clearly changed, the largest part first; :data:`MOST` at most."""
    share: float = 0.0
    """All operators' share of the change of the profiled wall time; what is missing to 1 is outside of them."""
    outside: tuple[float, float] = (0.0, 0.0)
    """Seconds outside of operators, before and after."""
    wall: tuple[float, float] = (0.0, 0.0)
    """Profiled seconds of an inference, before and after."""


def compare_operators(
    before: Sequence[Profile], after: Sequence[Profile], timed: tuple[float, float]
) -> Operators | None:
    """Say which operators a shift went to.

    Args:
        before: Profiles of the old side, in order of time.
        after: Those of the new one.
        timed: Medians of the timed runs of both sides, in seconds.

    Returns:
        None where a side has too few profiled repeats to show how much they scatter, or the timed runs are the same.
    """
    # A profiler that sees something else, as kernels that it is refused, would find operators gone.
    before = [p for p in before if after and (p.engine, p.state) == (after[-1].engine, after[-1].state)]
    if not before or timed[0] == timed[1]:
        return None
    old, new = before[-6:], after[-6:]
    repeats = sum(profile.repeats for profile in old), sum(profile.repeats for profile in new)
    if min(repeats) < 3:
        return None
    wall = _median(old, "wall"), _median(new, "wall")
    outside = _median(old, "outside"), _median(new, "outside")
    whole = wall[1] - wall[0]
    # Otherwise the profiler saw something else than users feel.
    if not 0.5 <= whole / (timed[1] - timed[0]) <= 2:
        return Operators("unexplained", repeats, outside=outside, wall=wall)
    names = old_names(old[-1], new[-1])
    rows = [row for row in (*new[-1].rows, *old[-1].rows) if row.kind not in names.values()]
    kinds = {row.kind: names.get(row.kind, row.kind) for row in rows}
    shifts = [shift for now, was in kinds.items() if (shift := _shift(was, now, old, new, whole)) is not None]
    share = 1 - (outside[1] - outside[0]) / whole
    is_explained = sum(shift.share for shift in shifts) >= 0.5
    state: State = "explained" if is_explained else "outside" if share <= 0.5 else "unexplained"
    shifts.sort(key=attrgetter("share"), reverse=True)
    return Operators(state, repeats, tuple(shifts[:MOST]), share, outside, wall)


def _median(profiles: Sequence[Profile], field: str) -> float:
    return float(median(x for profile in profiles for x in getattr(profile, field)))


def _shift(
    was: str, now: str, old: Sequence[Profile], new: Sequence[Profile], whole: float
) -> OperatorShift | None:
    """An operator's part of the change ``whole``; None if it is not clear.

    It is clear beyond 3.5 standard errors, since each of many operators is a claim. Of more operators than rows the
    short ones are summed: one without a row may have had as much time as that rest.
    """
    (before, error), (after, other) = _seconds(old, was), _seconds(new, now)
    rows = [row for row in old[-1].rows if row.kind == was], [row for row in new[-1].rows if row.kind == now]
    rest = 0.0 if all(rows) else max(_median(old, "rest"), _median(new, "rest"))
    if abs(after - before) <= max(3.5 * math.hypot(error, other), 0.01 * abs(whole), rest):
        return None
    change = _change(*rows, after / before if before else math.inf)
    return OperatorShift(now, before, after, (after - before) / whole, *change)


def _seconds(profiles: Sequence[Profile], kind: str) -> tuple[float, float]:
    """Median of an operator's seconds, and its standard error.

    That is 1.86 median absolute deviations over the root of the number; less by two, since of few repeats some are
    equal by chance.
    """
    seconds: list[float] = []
    for profile in profiles:
        rows = [row.seconds for row in profile.rows if row.kind == kind]
        seconds += map(sum, zip(*rows, profile.repeats * [0.0], strict=True))
    middle = median(seconds)
    return middle, 1.86 * median(abs(x - middle) for x in seconds) / math.sqrt(len(seconds) - 2)


def _change(old: Sequence[ProfileRow], new: Sequence[ProfileRow], factor: float) -> tuple[Kind, str, str]:
    """What changed in the rows of one operator that takes ``factor`` times as long: kind, detail and shapes.

    It is exchanged if the work that gained most is one that the old side lacks, and differs from what gained least.
    """
    gains: dict[tuple[str, ...], float] = defaultdict(float)
    for row in old:
        gains[_work_of(row)] -= median(row.seconds)
    known = [*gains]
    for row in new:
        gains[_work_of(row)] += median(row.seconds)
    least, most = min(known or gains, key=gains.__getitem__), max(gains, key=gains.__getitem__)
    shapes = (most if factor > 1 else least)[-1]
    if not (old and new):
        return "gone" if old else "new", "", shapes
    for change, was, now in zip(_EXCHANGED, least, most, strict=False):
        if most not in known and was and now and was != now:
            return change, f"{short_name(was)} → {short_name(now)}", shapes
    old_calls, new_calls = (sum(row.calls for row in side) for side in (old, new))
    # More calls are what changed if each of them grew by less.
    if old_calls and 1 < factor < (new_calls / old_calls) ** 2:
        return "calls", f"{old_calls:g} → {new_calls:g} calls", shapes
    return "grew" if factor > 1 else "shrank", "", shapes


_EXCHANGED: tuple[Kind, ...] = ("moved", "type", "kernel")


def _work_of(row: ProfileRow) -> tuple[str, ...]:
    """What an operator works on and with: device, type of the first input, kernel; and its shapes."""
    return row.device, row.shapes.partition(",")[0].partition(" ")[2], row.name, row.shapes


def short_name(name: str) -> str:
    """A name as a sentence has it: torch's own without their namespace, and a provider's without what it is.

    Args:
        name: Such as ``aten::conv2d``, or ``OpenVINOExecutionProvider``.
    """
    return name.removeprefix("aten::").removesuffix("ExecutionProvider")


def old_names(old: Profile, new: Profile) -> dict[str, str]:
    """Match operators whose names differ, since another engine, compiler or graph calls the same work by another name.

    Args:
        old: A profile of the old side.
        new: One of the new side.

    Returns:
        Name → the one that it had on the old side; by kind of work and order of calls.
    """
    names = [dict.fromkeys(row.kind for row in sorted(p.rows, key=attrgetter("order"))) for p in (new, old)]
    left = [[name for name in own if name not in other] for own, other in (names, names[::-1])]
    found: dict[str, str] = {}
    for work in map(_work, left[0]):
        found.update(zip(*([name for name in side if _work(name) == work] for side in left), strict=False))
    return found


def _work(name: str) -> str:
    """The kind of work, or the name where it is none."""
    return next((work for work in _WORK if re.search(work, name.lower())), name)
