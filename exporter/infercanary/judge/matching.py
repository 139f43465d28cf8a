"""Which operators of two sides are the same one: by name; then by kind of work and order; then by device.

Another engine, compiler or graph calls the same work by another name. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from infercanary.contract.profile import Profile, ProfileRow

# Words in the names that torch, ONNX Runtime, TensorRT, cuDNN and Inductor give; the first kind that has one counts.
# Elementwise work is no kind: a sum and a sigmoid are not the same operator.
_KINDS = {
    "attention": ("attention", "flash", "fmha"),
    "convolution": ("conv", "fprop", "winograd"),
    "product": ("gemm", "matmul", "linear", "addmm", "bmm", "::mm", "cutlass", "fullyconnected"),
    "normalisation": ("norm",),
    "softmax": ("softmax",),
    "pooling": ("pool",),
    "recurrent": ("lstm", "gru", "rnn"),
    "lookup": ("embedding", "gather"),
    "layout": ("reorder", "transpose", "reformat", "permute", "shuffle"),
}


class Match(NamedTuple):
    """Operators that are compared with one another; one side is empty where they are new or gone."""

    before: tuple[str, ...]
    after: tuple[str, ...]


def matches(before: Sequence[Profile], after: Sequence[Profile]) -> list[Match]:
    """Match the operators of two sides.

    Args:
        before: Profiles of the old side.
        after: Those of the new one.

    Returns:
        Each operator of both sides, once.
    """
    old, new = _operators(before), _operators(after)
    found = [Match((name,), (name,)) for name in new if name in old]
    for kind in _KINDS:
        one, other = (
            [name for name in own if name not in others and _kind(name) == kind]
            for own, others in ((old, new), (new, old))
        )
        found += [Match((a,), (b,)) for a, b in zip(one, other, strict=False)]
    left_old, left_new = (
        [name for name in own if not any(name in match[side] for match in found)]
        for side, own in enumerate((old, new))
    )
    if left_old and left_new and (_are_off(left_old, old, new) or _are_off(left_new, new, old)):
        # All of it runs elsewhere now, such as in another provider, which makes one of many.
        return [*found, Match(tuple(left_old), tuple(left_new))]
    return [*found, *(Match((name,), ()) for name in left_old), *(Match((), (name,)) for name in left_new)]


def _operators(profiles: Sequence[Profile]) -> dict[str, list[ProfileRow]]:
    """Name → its rows; in the order in which a model calls them, as the last profile has it."""
    found: dict[str, list[ProfileRow]] = {}
    for profile in reversed(profiles):
        for row in sorted(profile.rows, key=lambda row: row.order):
            found.setdefault(row.kind, []).append(row)
    return found


def _kind(name: str) -> str | None:
    text = name.lower()
    return next((kind for kind, words in _KINDS.items() if any(word in text for word in words)), None)


def _are_off(
    names: Sequence[str], own: Mapping[str, list[ProfileRow]], other: Mapping[str, list[ProfileRow]]
) -> bool:
    """Whether these run on devices that the other side has nothing on."""
    theirs = {row.device for rows in other.values() for row in rows}
    return all(row.device not in theirs for name in names for row in own[name])


def longest(names: Sequence[str], profiles: Sequence[Profile]) -> list[str]:
    """Sort operators by their time.

    Args:
        names: Of operators.
        profiles: That have them.

    Returns:
        Those that take most first.
    """

    def seconds(name: str) -> float:
        return sum(median(row.seconds) for p in profiles for row in p.rows if row.kind == name)

    return sorted(names, key=lambda name: -seconds(name))
