"""Operators that a shift went to: profiled repeats of both sides, compared.

An operator is what the model called (``aten::conv2d``, ``Conv``), with all that it called in turn. The changes of the
operators and of the time outside of them add up to the change of the profiled wall time. Operators are claimed only if
the wall time changed as the timed one did, and if they make the greater part of it (docs/adr/0023-profiled-repeats.md).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from statistics import median
from typing import Literal, NamedTuple, get_args

import msgspec

from infercanary.contract.profile import OUTSIDE, Profile, ProfileRow, bounded

Kind = Literal["grew", "shrank", "new", "gone", "moved", "kernel", "type", "calls"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""``moved`` is to another device, ``kernel`` is other work for the same operator (another library, instruction set or
algorithm), ``type`` is other numbers (float64), ``calls`` is more calls or launches, as where fusion was lost."""

State = Literal["explained", "outside", "unexplained", "too_few"]
STATES: tuple[State, ...] = get_args(State)
"""``outside``: the change lies outside of operators. ``unexplained``: neither, or the profiled repeats did not change
as the timed ones did. ``too_few``: not enough profiled repeats yet."""

MOST = 10
NAMED_SHARE = 0.1
"""Share of a change from which on a sentence names an operator."""

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
    change: Kind
    before: float
    after: float
    low: float
    """The interval of ``after - before``, from the scatter of the repeats."""
    high: float
    share: float
    """Of the change of the profiled wall time; below 0 where it went the other way."""
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
    new: int = 0
    """Operators that only the new side has."""
    gone: int = 0


_WALL = ""
"""Beside the names of operators, which are never empty."""


class _Side(NamedTuple):
    repeats: Sequence[Mapping[str, float]]
    """Seconds of each operator, of :data:`_WALL` and of :data:`OUTSIDE`."""
    rows: Sequence[ProfileRow]
    """Of the last profile: they say which operators there are, and what does their work."""
    hidden: float
    """Seconds that an operator may have had without a row: of more operators than rows the short ones are summed."""


def compare_operators(
    before: Sequence[Profile], after: Sequence[Profile], timed: tuple[float, float]
) -> Operators | None:
    """Say which operators a shift went to.

    Args:
        before: Profiles of the old side, in order of time.
        after: Those of the new one.
        timed: Medians of the timed runs of both sides, in seconds.

    Returns:
        None where a side has no profile, or the timed runs show no change.
    """
    # A profiler that sees something else, as kernels that it is refused, would find operators gone.
    before = [p for p in before if after and (p.engine, p.state) == (after[-1].engine, after[-1].state)]
    timed_before, timed_after = timed
    if not before or timed_before == timed_after:
        return None
    renamed = common_names(before[-1], after[-1])
    old, new = _side(before, timed_before, renamed), _side(after, timed_after, renamed)
    repeats = len(old.repeats), len(new.repeats)
    if min(repeats) < 3:  # nothing shows how much they scatter
        return Operators("too_few", repeats)
    wall, outside = _span(old, new, _WALL), _span(old, new, OUTSIDE)
    found = Operators("unexplained", repeats, outside=outside[:2], wall=wall[:2])
    whole = wall[1] - wall[0]
    # Otherwise the profiler saw something else than users feel.
    if not 0.5 <= whole / (timed_after - timed_before) <= 2:
        return found
    names = dict.fromkeys(row.kind for row in (*old.rows, *new.rows))
    shifts = [_shift(name, old, new, whole) for name in names]
    clear = [shift for shift in shifts if shift.low * shift.high > 0 and abs(shift.share) >= 0.01]
    share = 1 - (outside[1] - outside[0]) / whole
    explained = sum(shift.share for shift in clear)
    changes = [shift.change for shift in shifts]
    return msgspec.structs.replace(
        found,
        state="explained" if explained >= 0.5 else "outside" if share <= 0.5 else "unexplained",
        share=share,
        shifts=tuple(sorted(clear, key=attrgetter("share"), reverse=True)[:MOST]),
        new=changes.count("new"),
        gone=changes.count("gone"),
    )


def _side(profiles: Sequence[Profile], timed: float, renamed: Mapping[str, str]) -> _Side:
    """The latest profiles, with those repeats alone that took about as long as the timed ones: a profiler can make the
    C library give memory back at each call. With all repeats if too few are left: it may slow each of them.
    """
    repeats = []
    for profile in profiles[-6:]:
        rows = [msgspec.structs.replace(row, kind=renamed.get(row.kind, row.kind)) for row in profile.rows]
        for i, wall in enumerate(profile.wall):
            seconds = defaultdict(float, {_WALL: wall, OUTSIDE: profile.outside[i]})
            for row in rows:
                seconds[row.kind] += row.seconds[i]
            repeats.append(seconds)
    like = [seconds for seconds in repeats if timed / 2 <= seconds[_WALL] <= timed * 2]
    hidden = 2 * min(map(median, (profile.rest, *(row.seconds for row in rows))))
    return _Side(like if len(like) >= 3 else repeats, rows, hidden)


def _span(old: _Side, new: _Side, name: str) -> tuple[float, float, float, float]:
    """Medians of both sides, and an interval of their difference.

    3.5 standard errors wide, since each of many operators is a claim. The standard error of a median is 1.86 median
    absolute deviations over the root of the number; that is less by two, since of few repeats some are equal by chance.
    """
    medians, variance = [], 0.0
    for side in (old, new):
        values = [seconds.get(name, 0.0) for seconds in side.repeats]
        medians.append(median(values))
        variance += median(abs(value - medians[-1]) for value in values) ** 2 / (len(values) - 2)
    gained = medians[1] - medians[0]
    half = 6.5 * math.sqrt(variance)
    return medians[0], medians[1], gained - half, gained + half


def _shift(name: str, old: _Side, new: _Side, whole: float) -> OperatorShift:
    span = before, after, *_ = _span(old, new, name)
    rows = [[row for row in side.rows if row.kind == name] for side in (old, new)]
    old_calls, new_calls = (sum(row.calls for row in side) for side in rows)
    change: Kind = "grew" if after >= before else "shrank"
    detail = ""
    if not rows[0] and after > old.hidden:
        change = "new"
    elif not rows[1] and before > new.hidden:
        change = "gone"
    elif detail := _exchanged(rows, attrgetter("device")):
        change = "moved"
    elif detail := _exchanged(rows, lambda row: row.shapes.partition(",")[0].partition(" ")[2]):
        change = "type"  # of its first input
    elif detail := _exchanged(rows, attrgetter("name")):
        change = "kernel"
    # More calls are what changed if each of them grew by less.
    elif old_calls and before < after and after * old_calls**2 < before * new_calls**2:
        change, detail = "calls", f"{old_calls:g} → {new_calls:g} calls"
    gains = _gains(rows, attrgetter("shapes"))
    shapes = max(gains, key=lambda each: abs(gains[each]))
    return OperatorShift(name, change, *span, (after - before) / whole, detail, shapes)


def _gains(rows: Sequence[Sequence[ProfileRow]], word: Callable[[ProfileRow], str]) -> dict[str, float]:
    """Seconds that rows with the same word gained."""
    gains: dict[str, float] = defaultdict(float)
    for sign, side in zip((-1, 1), rows, strict=True):
        for row in side:
            gains[word(row)] += sign * median(row.seconds)
    return gains


def _exchanged(rows: Sequence[Sequence[ProfileRow]], word: Callable[[ProfileRow], str]) -> str:
    """``old word → new word`` if the one that gained most is one that the old side lacks; else empty."""
    gains = _gains(rows, word)
    old = {word(row) for row in rows[0]}
    least, most = (choose(gains, key=lambda each: gains[each]) for choose in (min, max))
    is_known = least in old and most not in old and least and most
    return f"{short_name(least)} → {short_name(most)}" if is_known else ""


def short_name(name: str) -> str:
    """A name as a sentence has it: torch's own without their namespace, and a provider's without what it is.

    Args:
        name: Such as ``aten::conv2d``, or ``OpenVINOExecutionProvider``.
    """
    return name.removeprefix("aten::").removesuffix("ExecutionProvider")


def common_names(old: Profile, new: Profile) -> dict[str, str]:
    """Match operators whose names differ, since another engine, compiler or graph calls the same work by another name.

    Args:
        old: A profile of the old side.
        new: One of the new side.

    Returns:
        Name → the one by which both sides are compared; by kind of work and order of calls, then by device.
    """
    names = [dict.fromkeys(row.kind for row in sorted(p.rows, key=attrgetter("order"))) for p in (old, new)]
    left = [[name for name in own if name not in other] for own, other in (names, names[::-1])]
    found = {}
    for name in [*left[0]]:
        alike = [other for other in left[1] if _work(other) == _work(name)]
        if alike:
            found[name] = alike[0]
            left[0].remove(name)
            left[1].remove(alike[0])
    rows = *old.rows, *new.rows
    if all(left) and not set.intersection(*({row.device for row in rows if row.kind in own} for own in left)):
        # All of it runs elsewhere now, such as in another provider, which makes one of many: the many are named.
        many = max(left[::-1], key=len)
        found.update(dict.fromkeys(left[0] + left[1], bounded(", ".join(many))))
    return found


def _work(name: str) -> str:
    """The kind of work, or the name where it is none."""
    return next((work for work in _WORK if re.search(work, name.lower())), name)
