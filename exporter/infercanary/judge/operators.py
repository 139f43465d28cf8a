"""Which operators a shift went to: profiled repeats of both sides, compared.

An operator is what the model called (``aten::conv2d``, ``Conv``), with all that it called in turn. Operators are
matched (matching.py); what did their work, its device and its types then say what kind of change it was. The operators'
parts and what lies outside of them add up to the change of the profiled wall time. They are only claimed where that
change is like the timed one, and where they are the greater part of it (docs/adr/0023-profiled-repeats.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np

from infercanary.contract.profile import Profile, ProfileRow, bounded
from infercanary.judge.matching import Match, longest, matches
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.shift import Shift

Kind = Literal["grew", "shrank", "new", "gone", "moved", "kernel", "type", "calls"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""``moved`` is to another device, ``kernel`` is other work for the same operator (another library, instruction set or
algorithm), ``type`` is other numbers (float64), ``calls`` is more calls or launches, as where fusion was lost."""

State = Literal["explained", "outside", "unexplained", "too_few"]
STATES: tuple[State, ...] = get_args(State)
"""``outside``: the change lies outside of operators. ``unexplained``: neither, or the profiled repeats did not change
as the timed ones did. ``too_few``: not enough profiled repeats yet."""

MOST = 10
_NORMAL_MAD = 1.4826  # of a normal distribution: standard deviations in a median absolute deviation
_MEDIAN_ERROR = 1.2533  # how much wider a median's standard error is than a mean's
_LEAST_SPREAD = 0.01  # of a few repeats, two may be equal by chance
_CLEAR = 0.01  # share of the change below which an operator is not listed
_GREATER = 0.5
_OFTEN = 1.05


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
    """Of the row that changed most; empty where the operator has only one."""

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


class _Side(NamedTuple):
    profiles: Sequence[Profile]

    @property
    def repeats(self) -> int:
        return sum(profile.repeats for profile in self.profiles)

    def values(self, of: Callable[[Profile], Sequence[float]]) -> list[list[float]]:
        """Of each profile, a value for each repeat."""
        return [list(of(profile)) for profile in self.profiles]

    def rows(self, names: Collection[str]) -> list[ProfileRow]:
        return [row for profile in self.profiles for row in profile.rows if row.kind in names]

    def has_rest(self) -> bool:
        return any(any(profile.rest) for profile in self.profiles)


def compare_operators(
    before: Sequence[Profile], after: Sequence[Profile], timed: tuple[float, float], policy: Policy = LIVE
) -> Operators | None:
    """Say which operators a shift went to.

    Args:
        before: Profiles of the old side, in order of time.
        after: Those of the new one.
        timed: Medians of the timed runs of both sides, in seconds.
        policy: How many repeats are needed, and how much they must explain.

    Returns:
        None where a side has no profile, or the timed runs show no change.
    """
    # A profiler that sees something else, as kernels that it is refused, would find operators gone.
    seen = (after[-1].engine, after[-1].state) if after else None
    old = _Side(
        _like(
            [p for p in before if (p.engine, p.state) == seen][-policy.attribute.profiles :], timed[0], policy
        )
    )
    new = _Side(_like(list(after)[-policy.attribute.profiles :], timed[1], policy))
    change = timed[1] - timed[0]
    if not old.profiles or not new.profiles or not change:
        return None
    repeats = old.repeats, new.repeats
    if min(repeats) < policy.attribute.profiled_repeats:
        return Operators("too_few", repeats)
    wall = _difference(old.values(lambda p: p.wall), new.values(lambda p: p.wall))
    outside = _difference(old.values(lambda p: p.outside), new.values(lambda p: p.outside))
    found = Operators(
        "unexplained", repeats, outside=(outside.before, outside.after), wall=(wall.before, wall.after)
    )
    whole = wall.gained
    if (
        not whole
        or not policy.attribute.profile_agrees <= whole / change <= 1 / policy.attribute.profile_agrees
    ):
        return found
    matched = matches(old.profiles, new.profiles)
    # Each is a claim of its own: of forty intervals of 95 % two would exclude zero by chance (Bonferroni).
    level = 1 - (1 - policy.attribute.cause_confidence) / max(1, len(matched))
    shifts = [_shift(match, old, new, whole, level) for match in matched]
    share = 1 - outside.gained / whole
    listed = [s for s in shifts if abs(s.share) >= _CLEAR and (s.low > 0 or s.high < 0)]
    listed.sort(key=lambda s: -s.share)
    found = msgspec.structs.replace(
        found,
        share=share,
        shifts=tuple(listed[:MOST]),
        new=sum(s.change == "new" for s in shifts),
        gone=sum(s.change == "gone" for s in shifts),
    )
    explained = sum(s.share for s in listed)
    if explained >= policy.attribute.profile_explains and share >= policy.attribute.profile_explains:
        return msgspec.structs.replace(found, state="explained")
    if 1 - share >= policy.attribute.profile_explains and (outside.low > 0 or outside.high < 0):
        return msgspec.structs.replace(found, state="outside")
    return found


def _like(profiles: Sequence[Profile], timed: float, policy: Policy) -> Sequence[Profile]:
    """Profiles with those repeats alone that took about as long as the timed ones: others show what a profiler did to
    them, such as memory that was given back each time. Where there are not enough of those, all stay: a profiler may
    slow each of them.
    """

    def kept(values: Sequence[float], wall: Sequence[float]) -> tuple[float, ...]:
        pairs = zip(values, wall, strict=True)
        return tuple(
            x
            for x, w in pairs
            if policy.attribute.profile_agrees <= w / timed <= 1 / policy.attribute.profile_agrees
        )

    found = []
    for profile in profiles if timed > 0 else ():
        wall = profile.wall
        if own := kept(wall, wall):
            rows = tuple(msgspec.structs.replace(r, seconds=kept(r.seconds, wall)) for r in profile.rows)
            others = {"outside": kept(profile.outside, wall), "rest": kept(profile.rest, wall)}
            found.append(msgspec.structs.replace(profile, wall=own, rows=rows, **others))
    return found if sum(p.repeats for p in found) >= policy.attribute.profiled_repeats else profiles


class _Difference(NamedTuple):
    before: float
    after: float
    low: float
    high: float

    @property
    def gained(self) -> float:
        return self.after - self.before


def _difference(before: list[list[float]], after: list[list[float]], level: float = 0.95) -> _Difference:
    """Medians of both sides, and an interval of their difference. Repeats of one profile may be off together: where a
    side has several profiles, what these differ by counts too."""
    middles, errors, freedoms = [], [], []
    for side in (before, after):
        values = np.array([value for profile in side for value in profile])
        middle = float(np.median(values))
        spread = max(_NORMAL_MAD * float(np.median(np.abs(values - middle))), _LEAST_SPREAD * abs(middle))
        error = _MEDIAN_ERROR * spread / math.sqrt(values.size)
        freedom = values.size - 1
        if len(side) > 3:  # of fewer, chance decides how far they lie apart
            of_each = [float(np.median(profile)) for profile in side]
            between = float(np.std(of_each, ddof=1)) / math.sqrt(len(side))
            if between > error:
                error, freedom = between, len(side) - 1
        middles.append(middle)
        errors.append(error)
        freedoms.append(freedom)
    gained = middles[1] - middles[0]
    se = math.hypot(*errors)
    if se == 0:
        return _Difference(middles[0], middles[1], gained, gained)
    low, high = Shift(gained, se, sum(freedoms)).interval(level)
    return _Difference(middles[0], middles[1], low, high)


def _shift(match: Match, old: _Side, new: _Side, whole: float, level: float) -> OperatorShift:
    both = _difference(old.values(_seconds(match.before)), new.values(_seconds(match.after)), level)
    before, after = old.rows(match.before), new.rows(match.after)
    change, detail = _kind(match, before, after, both, (old, new))
    return OperatorShift(
        operator=_named(match, old, new),
        change=change,
        before=both.before,
        after=both.after,
        low=both.low,
        high=both.high,
        share=both.gained / whole,
        detail=detail,
        shapes=_shapes(before, after),
    )


def _named(match: Match, old: _Side, new: _Side) -> str:
    """By the new side's name. Of one that became many, or many that became one, the many are named."""
    names, side = (
        (match.after, new) if match.after and len(match.after) >= len(match.before) else (match.before, old)
    )
    if len(names) == 1:
        return names[0]
    first, *others = longest(names, side.profiles)
    more = len(others) - 1
    return bounded(f"{first}, {others[0]}" + (f" and {more} more" if more else ""))


def _seconds(names: Collection[str]) -> Callable[[Profile], Sequence[float]]:
    def of(profile: Profile) -> list[float]:
        own = [row.seconds for row in profile.rows if row.kind in names]
        return [sum(times) for times in zip(*own, strict=True)] if own else [0.0] * profile.repeats

    return of


def _kind(
    match: Match,
    before: Sequence[ProfileRow],
    after: Sequence[ProfileRow],
    both: _Difference,
    sides: tuple[_Side, _Side],
) -> tuple[Kind, str]:
    """What kind of change it was, and between what."""
    if not before and not _may_be_in_rest(both.after, sides[0]):
        return "new", ""
    if not after and not _may_be_in_rest(both.before, sides[1]):
        return "gone", ""
    for change, of in (("moved", _device), ("type", _type), ("kernel", _name)):
        if before and after and (exchanged := _exchanged(before, after, of)) is not None:
            return change, " → ".join(map(short_name, exchanged))  # type: ignore[return-value]
    if match.before and match.after and match.before != match.after:
        return "kernel", f"{short_name(match.before[0])} → {short_name(match.after[0])}"
    calls = _calls(sides[0], match.before), _calls(sides[1], match.after)
    if calls[0] and calls[1] > _OFTEN * calls[0]:
        dearer = calls[0] * (both.after / calls[1] - both.before / calls[0])
        if dearer < _GREATER * both.gained:
            return "calls", f"{calls[0]:g} → {calls[1]:g} calls"
    return ("grew" if both.gained >= 0 else "shrank"), ""


def _may_be_in_rest(seconds: float, side: _Side) -> bool:
    """Whether a side may have had an operator with so much time and no row: it has then more operators than rows."""
    least = min((sum(p.rows[-1].seconds) / p.repeats for p in side.profiles if p.rows), default=0.0)
    return side.has_rest() and seconds <= 2 * least


def _exchanged(
    before: Sequence[ProfileRow], after: Sequence[ProfileRow], of: Callable[[ProfileRow], str]
) -> tuple[str, str] | None:
    """What most of the time that is new went by, where nothing of the old side has it: the old word and the new one."""
    old, new = _by(before, of), _by(after, of)
    fresh = {word: seconds for word, seconds in new.items() if word and word not in old}
    lost = {word: seconds for word, seconds in old.items() if word and word not in new}
    if not fresh:
        return None
    word = max(fresh, key=lambda each: fresh[each])
    total = sum(new.values())
    # Beside what stayed as it was, as where one layer of many changed, it must be what the operator gained.
    gained = total - sum(old.values())
    is_most = fresh[word] >= _GREATER * total or (gained > 0 and fresh[word] >= _GREATER * gained)
    if not is_most:
        return None
    left = lost or {each: seconds for each, seconds in old.items() if each}
    return (max(left, key=lambda each: left[each]), word) if left else None


def _by(rows: Iterable[ProfileRow], of: Callable[[ProfileRow], str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        word = of(row)
        found[word] = found.get(word, 0.0) + float(np.median(row.seconds))
    return found


def _device(row: ProfileRow) -> str:
    return row.device


def _type(row: ProfileRow) -> str:
    """Of its first input."""
    return row.shapes.partition(",")[0].partition(" ")[2]


def _name(row: ProfileRow) -> str:
    return row.name


def _calls(side: _Side, names: Collection[str]) -> float:
    return float(np.median([sum(r.calls for r in p.rows if r.kind in names) for p in side.profiles]))


def _shapes(before: Sequence[ProfileRow], after: Sequence[ProfileRow]) -> str:
    """Of the row that changed most, where there are several."""
    old, new = (_by(rows, lambda row: row.shapes) for rows in (before, after))
    if len({*old, *new}) < 2:
        return ""
    return max({**old, **new}, key=lambda shapes: abs(new.get(shapes, 0.0) - old.get(shapes, 0.0)))


def short_name(name: str) -> str:
    """A name as a sentence has it: torch's own without their namespace, and a provider's without what it is.

    Args:
        name: Such as ``aten::conv2d``, or ``OpenVINOExecutionProvider``.
    """
    return name.removeprefix("aten::").removesuffix("ExecutionProvider")
