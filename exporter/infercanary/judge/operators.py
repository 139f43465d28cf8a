"""Operators: attributes a shift to operators of the model, by comparing profiled repeats of both images.

An operator is a call of the model (``aten::conv2d``, ``Conv``), including all nested calls. The changes of all
operators and of the time outside operators sum to the change of the profiled wall time. Operators are reported as the
explanation only if the profiled wall time changed about as much as the timed latency, and if operators make up at least
half of the change (docs/adr/0023-profiled-repeats.md).
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
"""``explained``: operators explain the change. ``outside``: the change is outside operators. ``unexplained``: neither
explains the change, or the profiled repeats do not show the change of the timed repeats.
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
"""Kinds of work, as patterns of operator names in torch, ONNX Runtime, TensorRT, cuDNN and Inductor. The first match
counts. Elementwise operators have no common kind: a sum and a sigmoid are different work.
"""


class OperatorShift(msgspec.Struct, frozen=True):
    """One operator's part of a change. Times are seconds in one profiled inference."""

    operator: str
    before: float
    after: float
    share: float
    """Share of the change of the profiled wall time; below 0 if the operator changed in the opposite direction."""
    change: Kind
    detail: str = ""
    """Changes of the operator other than its time: device, kernel or library, shapes or types, number of calls.
    Examples: ``mkldnn_convolution → _slow_conv2d_forward``, ``cuda:0 → cpu``, ``8x256 float → 8x256 double``, ``5 → 9
    calls``.
    """
    shapes: str = ""
    """Shapes of the row that changed most; empty if unknown."""


class Operators(msgspec.Struct, frozen=True):
    """Explanation of a shift by profiled repeats."""

    state: State
    shifts: tuple[OperatorShift, ...] = ()
    """At most :data:`MOST` operators that clearly changed, the largest share first."""
    share: float = 0.0
    """Share of all operators in the change of the profiled wall time; the rest is outside operators."""


def compare_operators(
    before: Sequence[Profile], after: Sequence[Profile], timed: tuple[float, float]
) -> Operators | None:
    """Attribute a shift to operators.

    Args:
        before: Profiles of the old image.
        after: Profiles of the new image.
        timed: Median latencies of the timed runs with the old and the new image, in seconds.

    Returns:
        None if an image has no profile with at least three repeats.
    """
    new = _nearest(after, timed[1])
    # Compare only profiles of the same kind. A profiler with fewer rights, such as without access to GPU kernels,
    # does not report all operators.
    old = new and _nearest([p for p in before if (p.engine, p.state) == (new.engine, new.state)], timed[0])
    if old is None or new is None:
        return None
    whole, felt = median(new.wall) - median(old.wall), timed[1] - timed[0]
    # the profiled change is at most half or at least twice the timed change
    if abs(whole - 1.25 * felt) >= 0.75 * abs(felt):
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
    """Return the profile whose repeats were closest to the timed runs, because its profiler slowed the model least."""
    known = [profile for profile in profiles if profile.repeats >= 3]
    return min(known, key=lambda profile: abs(median(profile.wall) - timed), default=None)


def _shift(was: str, now: str, old: Profile, new: Profile, whole: float) -> OperatorShift | None:
    """Return an operator's part of the change of the wall time; None if the operator did not clearly change.

    A clear change exceeds 3.5 standard errors, because many operators are tested. A profile with too many operators has
    only a sum for the short operators. So an operator without a row may have taken as long as this sum.

    Args:
        was: Name of the operator with the old image.
        now: Name of the operator with the new image.
        old: Profile of the old image.
        new: Profile of the new image.
        whole: Change of the profiled wall time in seconds.
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
    """Return the median time of an operator in seconds, and its standard error.

    The error is 1.86 median absolute deviations divided by the square root of (number of repeats - 2). The factor and
    the 2 allow for few repeats, which may be equal by chance.
    """
    seconds = [*map(sum, zip(*(row.seconds for row in rows), strict=True))] or 3 * [0.0]
    middle = median(seconds)
    return middle, 1.86 * median(abs(x - middle) for x in seconds) / math.sqrt(len(seconds) - 2)


def _details(old: Sequence[ProfileRow], new: Sequence[ProfileRow]) -> tuple[str, str]:
    """Return the changes in the rows of one operator, and the shapes of the row that changed most.

    If the row with the largest increase of time is not in the old image, this row is reported as the replacement of the
    row with the largest decrease.
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
    """Shorten a name for display: ``aten::conv2d`` to ``conv2d``, ``CUDAExecutionProvider`` to ``CUDA``."""
    return name.removeprefix("aten::").removesuffix("ExecutionProvider")


def old_names(old: Profile, new: Profile) -> dict[str, str]:
    """Map operator names of the new image to names of the old image, for work whose name changed.

    Another engine, compiler or graph has other names for the same work. Names are matched by kind of work and by the
    order of calls.
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
    """Return the kind of work of an operator, or its name if no kind matches."""
    return next((work for work in _WORK if re.search(work, name.lower())), name)
