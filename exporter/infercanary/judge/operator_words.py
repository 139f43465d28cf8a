"""What profiled repeats say of a shift, in words: a part of the sentence, and a line for each operator."""

from __future__ import annotations

from infercanary.contract.text import shortened
from infercanary.judge.operators import Operators, OperatorShift, short_name

_NAMED = 2  # operators in a sentence; others that are new or gone are counted
_NAMED_SHARE = 0.1  # of a change, from which on an operator is named
_NAME = 40  # characters

CHANGES = {
    "grew": "slower",
    "shrank": "faster",
    "new": "new",
    "gone": "gone",
}
"""Kind of change → how a table words it."""


def part(found: Operators) -> str:
    """Such as ``conv2d 9.8 → 31.2 ms (84 % of the change, mkldnn_convolution → _slow_conv2d_forward), 3 more new``.

    Args:
        found: What profiled repeats say of a shift.

    Returns:
        Part of a sentence.
    """
    if found.state == "outside":
        return f"no operator explains it: {100 * (1 - found.share):.0f} % of the change is outside of them"
    if found.state == "unexplained":
        return "the profile does not explain it"
    named = [shift for shift in found.shifts if shift.share >= _NAMED_SHARE][:_NAMED]
    words = [_named(shift, " of the change" if not i else "") for i, shift in enumerate(named)]
    others = [shift.change for shift in found.shifts if shift not in named]
    return ", ".join([*words, *(f"{others.count(x)} more {x}" for x in ("new", "gone") if x in others)])


def summary(found: Operators) -> str:
    """Say what the operators explain.

    Args:
        found: What profiled repeats say of a shift.

    Returns:
        One line.
    """
    if found.state == "unexplained":
        return "the profile does not explain it"
    return f"{100 * found.share:.0f} % of the change is in operators, {100 * (1 - found.share):.0f} % outside"


def line(shift: OperatorShift) -> str:
    """Such as ``aten::conv2d: slower, 9.8 → 31.2 ms, 84 % of the change; a → b``.

    Args:
        shift: Of one operator.

    Returns:
        One line.
    """
    share = f"{100 * shift.share:.0f} % of the change"
    words = f"{shift.operator}: {CHANGES[shift.change]}, {times(shift.before, shift.after)}, {share}"
    more = [text for text in (shift.detail, shift.shapes) if text]
    return "; ".join([words, *more])


def times(*seconds: float) -> str:
    """Such as ``9.8 → 31.2 ms``, in the unit of the largest.

    Args:
        seconds: One or more.

    Returns:
        Numbers of three digits, with their unit at the end.
    """
    largest = max(seconds)
    unit, factor = ("s", 1.0) if largest >= 1 else ("ms", 1e3) if largest >= 1e-3 else ("µs", 1e6)
    return " → ".join(f"{factor * each:.3g}" for each in seconds) + f" {unit}"


def _named(shift: OperatorShift, of: str) -> str:
    name = shortened(short_name(shift.operator), _NAME)
    share = f"{100 * shift.share:.0f} %{of}"
    if shift.change in ("new", "gone"):
        return f"{name} {shift.change} ({times(max(shift.before, shift.after))}, {share})"
    detail = f", {shortened(shift.detail, 80)}" if shift.detail else ""
    return f"{name} {times(shift.before, shift.after)} ({share}{detail})"
