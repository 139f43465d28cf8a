"""Operators: which operators a shift went to, by profiled repeats of both sides.

An operator is a call of the model (``aten::conv2d``, ``Conv``) with everything that it called in turn. The changes of
all operators and of the time outside operators add up to the change of the profiled wall time. Operators are named
only if the profiled wall time changed as the timed one did, and if they make the greater part of it
(docs/adr/0023-profiled-repeats.md).
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
"""``outside``: the change is outside operators. ``unexplained``: neither operators nor the time outside them explain
the change, or the profiled repeats do not show the change of the timed repeats.
"""

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
"""Kinds of work, by words in the names of torch, ONNX Runtime, TensorRT, cuDNN and Inductor; the first match counts.
Elementwise work is no kind: a sum and a sigmoid are different operators.
"""


class OperatorShift(msgspec.Struct, frozen=True):
    """One operator's part of a change. Times are seconds of one inference in profiled repeats."""

    operator: str
    before: float
    after: float
    share: float
    """Share of the change of the profiled wall time; below 0 for the opposite direction."""
    change: Kind
    detail: str = ""
    """Other changes of it: device, kernel or library, shapes or types, number of calls, such as ``mkldnn_convolution
    → _slow_conv2d_forward``, ``cuda:0 → cpu``, ``8x256 float → 8x256 double``, ``5 → 9 calls``.
    """
    shapes: str = ""
    """Shapes of the row that changed most; empty if unknown."""


class Operators(msgspec.Struct, frozen=True):
    """Explanation of a shift by profiled repeats."""

    state: State
    shifts: tuple[OperatorShift, ...] = ()
    """Operators that clearly changed, the largest part first; :data:`MOST` at most."""
    share: float = 0.0
    """Share of all operators in the change of the profiled wall time; the rest is outside operators."""


def compare_operators(
    before: Sequence[Profile], after: Sequence[Profile], timed: tuple[float, float]
) -> Operators | None:
    """Find the operators that a shift went to.

    Args:
        before: Profiles of the old side.
        after: Profiles of the new side.
        timed: Medians of the timed runs of both sides, in seconds.

    Returns:
        None if a side has no profile with enough repeats to know their scatter.
    """
    new = _nearest(after, timed[1])
    # Profilers with different rights, such as without kernels, would report operators as gone.
    old = new and _nearest([p for p in before if (p.engine, p.state) == (new.engine, new.state)], timed[0])
    if old is None or new is None:
        return None
    whole, felt = median(new.wall) - median(old.wall), timed[1] - timed[0]
    if abs(whole - 1.25 * felt) >= 0.75 * abs(felt):  # less than half of the timed change, or more than twice
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
    """Return the profile that disturbed the model least: its repeats took about as long as the timed ones."""
    known = [profile for profile in profiles if profile.repeats >= 3]
    return min(known, key=lambda profile: abs(median(profile.wall) - timed), default=None)


def _shift(was: str, now: str, old: Profile, new: Profile, whole: float) -> OperatorShift | None:
    """Return an operator's part of the change ``whole``; None if it is not clear.

    Clear is beyond 3.5 standard errors, because each of many operators is a claim. If a profile has more operators
    than rows, the short ones are summed: one without a row may have had as much time as that sum.
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
    """Return the median of an operator's seconds, and its standard error.

    The error is 1.86 median absolute deviations over the root of the number less two, because few repeats may be
    equal by chance.
    """
    seconds = [*map(sum, zip(*(row.seconds for row in rows), strict=True))] or 3 * [0.0]
    middle = median(seconds)
    return middle, 1.86 * median(abs(x - middle) for x in seconds) / math.sqrt(len(seconds) - 2)


def _details(old: Sequence[ProfileRow], new: Sequence[ProfileRow]) -> tuple[str, str]:
    """Return the changes in the rows of one operator, and the shapes of the row that changed most.

    Its work is different if the row that gained most is not on the old side and differs from the row that gained
    least.
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
    """Return a name for a sentence, without torch's namespace or a provider's suffix.

    Args:
        name: Such as ``aten::conv2d`` or ``OpenVINOExecutionProvider``.
    """
    return name.removeprefix("aten::").removesuffix("ExecutionProvider")


def old_names(old: Profile, new: Profile) -> dict[str, str]:
    """Map names to those of the old side: another engine, compiler or graph has other names for the same work.

    They are matched by kind of work and order of calls.
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
    """Return the kind of work, or the name if it is of no kind."""
    return next((work for work in _WORK if re.search(work, name.lower())), name)
