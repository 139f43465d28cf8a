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
from typing import Literal

import msgspec

from infercanary.contract.profile import Profile, ProfileRow

Kind = Literal["grew", "shrank", "new", "gone"]

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
    """What changed with it, of device, kernel (or library), shapes (or types) and number of calls:
    ``mkldnn_convolution → _slow_conv2d_forward``, ``cuda:0 → cpu``, ``8x256 float → 8x256 double``, ``5 → 9 calls``."""
    shapes: str = ""
    """Of the row that changed most; empty where they are not known."""


class Operators(msgspec.Struct, frozen=True):
    """What profiled repeats say of a shift."""

    state: State
    shifts: tuple[OperatorShift, ...] = ()
    """Those that clearly changed, the largest part first; :data:`MOST` at most."""
    share: float = 0.0
    """All operators' share of the change of the profiled wall time; what is missing to 1 is outside of them."""


def compare_operators(
    before: Sequence[Profile], after: Sequence[Profile], timed: tuple[float, float]
) -> Operators | None:
    """Say which operators a shift went to.

    Args:
        before: Profiles of the old side.
        after: Those of the new one.
        timed: Medians of the timed runs of both sides, in seconds.

    Returns:
        None where a side has no profile with enough repeats to show how much they scatter.
    """
    new = _nearest(after, timed[1])
    # A profiler that sees something else, as kernels that it is refused, would find operators gone.
    old = new and _nearest([p for p in before if (p.engine, p.state) == (new.engine, new.state)], timed[0])
    if old is None or new is None:
        return None
    whole, felt = median(new.wall) - median(old.wall), timed[1] - timed[0]
    if abs(whole - 1.25 * felt) >= 0.75 * abs(felt):  # less than half of what users feel, or more than twice
        return Operators("unexplained")
    names = old_names(old, new)
    kinds = {row.kind: row.kind for row in new.rows + old.rows} | names
    changed = [_shift(was, now, old, new, whole) for now, was in kinds.items() if now not in names.values()]
    shifts = sorted(filter(None, changed), key=attrgetter("share"), reverse=True)
    share = 1 - (median(new.outside) - median(old.outside)) / whole
    named = sum(shift.share for shift in shifts)
    state: State = "explained" if named >= 0.5 else "outside" if share <= 0.5 else "unexplained"
    return Operators(state, tuple(shifts[:MOST]), share)


def _nearest(profiles: Sequence[Profile], timed: float) -> Profile | None:
    """The profile that disturbed the model least: its repeats took about as long as the timed ones."""
    known = [profile for profile in profiles if profile.repeats >= 3]
    return min(known, key=lambda profile: abs(median(profile.wall) - timed), default=None)


def _shift(was: str, now: str, old: Profile, new: Profile, whole: float) -> OperatorShift | None:
    """An operator's part of the change ``whole``; None if it is not clear.

    It is clear beyond 3.5 standard errors, since each of many operators is a claim. Of more operators than rows the
    short ones are summed: one without a row may have had as much time as that rest.
    """
    rows = [row for row in old.rows if row.kind == was], [row for row in new.rows if row.kind == now]
    (before, error), (after, other) = map(_seconds, rows)
    rest = 0.0 if all(rows) else median((new if rows[0] else old).rest)
    if abs(after - before) <= max(3.5 * math.hypot(error, other), rest):
        return None
    change: Kind = "grew" if after > before else "shrank"
    if not all(rows):
        change = "gone" if rows[0] else "new"
    return OperatorShift(now, before, after, (after - before) / whole, change, *_details(*rows))


def _seconds(rows: Sequence[ProfileRow]) -> tuple[float, float]:
    """Median of an operator's seconds, and its standard error.

    That is 1.86 median absolute deviations over the root of the number; less by two, since of few repeats some are
    equal by chance.
    """
    seconds = [*map(sum, zip(*(row.seconds for row in rows), strict=True))] or 3 * [0.0]
    middle = median(seconds)
    return middle, 1.86 * median(abs(x - middle) for x in seconds) / math.sqrt(len(seconds) - 2)


def _details(old: Sequence[ProfileRow], new: Sequence[ProfileRow]) -> tuple[str, str]:
    """What changed in the rows of one operator, and the shapes of the row that changed most.

    Its work is another one if what gained most is not on the old side, and differs from what gained least.
    """
    work = attrgetter("device", "name", "shapes")
    gains: dict[tuple[str, str, str], float] = defaultdict(float)
    for row in old:
        gains[work(row)] -= median(row.seconds)
    known = [*gains]
    for row in new:
        gains[work(row)] += median(row.seconds)
    most = max(gains, key=gains.__getitem__)
    least = min(known, key=gains.__getitem__, default=most)
    words = [
        f"{short_name(was)} → {short_name(now)}"
        for was, now in zip(least, most, strict=True)
        if most not in known and was and now and was != now
    ]
    old_calls, new_calls = (sum(row.calls for row in side) for side in (old, new))
    if 0 < old_calls != new_calls > 0:
        words.append(f"{old_calls:g} → {new_calls:g} calls")
    return ", ".join(words), max(gains, key=lambda one: abs(gains[one]))[-1]


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
    before, after = (
        dict.fromkeys(row.kind for row in sorted(profile.rows, key=attrgetter("order")))
        for profile in (old, new)
    )
    gone = [name for name in before if name not in after]
    found: dict[str, str] = {}
    for name in after:
        same = [other for other in gone if _work(other) == _work(name)]
        if same and name not in before:
            found[name] = same[0]
            gone.remove(same[0])
    return found


def _work(name: str) -> str:
    """The kind of work, or the name where it is none."""
    return next((work for work in _WORK if re.search(work, name.lower())), name)
