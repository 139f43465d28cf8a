"""Profiled repeats of a canary: which operators its time went to. A probe attaches them to a run; the judge compares.

A profiler disturbs what it measures, so these repeats are none of the timed ones (docs/adr/0023-profiled-repeats.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from infercanary.contract.text import printable

MAX_ROWS: Final = 40
MAX_REPEATS: Final = 8
NAME_BYTES: Final = 120
"""Of a name, a kind, a device or shapes, in UTF-8."""

OUTSIDE: Final = "outside operators"
OK: Final = "ok"
NO_CUPTI: Final = "no_cupti"
"""The driver refused to time kernels, and operators are shown by the host's time alone."""

_LATEST, _MOST_SECONDS, _MOST_CALLS = 2.0**33, 1e6, 1e15  # as contract/bounds.py has them, which imports this
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_HASH = re.compile(r"(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}|\bc[a-z2-7]{50,}\b")
_COUNTER = re.compile(r"(?<=[A-Za-z])_\d+$")


class ProfileRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one operator took, in each repeat, together with all that it called."""

    kind: str
    """The operator: ``aten::conv2d``, ``Conv``; of TensorRT the layer."""
    name: str
    """What did the most of its work: ``aten::mkldnn_convolution``, or a kernel on a GPU; ``kind`` where that is all."""
    device: str
    """``cpu``, ``cuda:0``, or ONNX Runtime's provider."""
    shapes: str
    """Of its first inputs: ``1x3x224x224 float, 64x3x7x7 float``; empty where they are not known."""
    calls: float
    """In one inference; on a GPU the kernels that were launched."""
    seconds: tuple[float, ...]
    """Of one inference, in each repeat."""
    order: int = 0
    """Which one it is of those that the model calls, by its first call; 0 in profiles of older probes."""


class Profile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Repeats that were profiled one after another. Times are seconds of one inference, a value for each repeat."""

    taken_at: float
    """When they began, a Unix time."""
    engine: str
    """Whose profiler it is: ``torch``, ``onnxruntime``, ``tensorrt``."""
    state: str
    """:data:`OK`, or what the profiler could not see. Plain text, since a newer probe may have another."""
    wall: tuple[float, ...]
    """By the host's clock, as of a timed repeat."""
    outside: tuple[float, ...]
    """Outside of every operator: Python, pre- and postprocessing, launching that nothing overlapped."""
    rest: tuple[float, ...]
    """Operators that have no row of their own."""
    rows: tuple[ProfileRow, ...]
    """The longest first, :data:`MAX_ROWS` at most."""

    @property
    def repeats(self) -> int:
        """How many."""
        return len(self.wall)


def normalised(name: str) -> str:
    """A name that stays the same from start to start: without addresses, hashes and what a compiler numbers by.

    Args:
        name: An operator's or a kernel's, as a profiler has it.

    Returns:
        One line of printable text, of :data:`NAME_BYTES` at most.
    """
    text = name.removeprefix("void ")
    # Of a C++ function the arguments say nothing that its template does not. An anonymous namespace is none.
    text = text.replace("(anonymous namespace)::", "").partition("(")[0] or text
    text = _COUNTER.sub("", _HASH.sub("#", _ADDRESS.sub("#", text)))
    return bounded(text)


def bounded(text: str) -> str:
    """Printable text that is not longer than names may be.

    Args:
        text: Any.

    Returns:
        Its beginning, of :data:`NAME_BYTES` at most in UTF-8.
    """
    return printable(text, NAME_BYTES).encode(errors="replace")[:NAME_BYTES].decode(errors="ignore")


def shares(profile: Profile, most: int) -> dict[str, float]:
    """What the time of a profile went to.

    Args:
        profile: A sound one.
        most: Operators.

    Returns:
        Operator, or :data:`OUTSIDE`, → its share of the wall time, by medians, 1 at most in all; the largest first.
    """
    found = {OUTSIDE: median(profile.outside)}
    for row in profile.rows:
        found[row.kind] = found.get(row.kind, 0.0) + median(row.seconds)
    # Medians of parts may be more than that of the whole: another part may be slow in each repeat.
    wall = max(median(profile.wall), sum(found.values()) + median(profile.rest))
    largest = sorted(found, key=lambda name: -found[name])[:most]
    return {name: found[name] / wall for name in largest} if wall > 0 else {}


def is_sound(profile: Profile) -> bool:
    """Whether a profile keeps to its bounds: a probe, or a file, is untrusted.

    Args:
        profile: As it was decoded: of the right types.
    """
    repeats = profile.repeats
    rows = profile.rows
    return (
        1 <= repeats <= MAX_REPEATS
        and len(rows) <= MAX_ROWS
        and 0 <= profile.taken_at <= _LATEST
        and _is_name(profile.engine)
        and _is_name(profile.state)
        and all(_are_times(values, repeats) for values in (profile.wall, profile.outside, profile.rest))
        and all(_are_times(row.seconds, repeats) and 0 <= row.calls <= _MOST_CALLS for row in rows)
        and all(0 <= row.order <= _MOST_CALLS for row in rows)
        and all(_is_name(text) for row in rows for text in (row.kind, row.name, row.device))
        and all(not row.shapes or _is_name(row.shapes) for row in rows)
    )


def _are_times(values: Sequence[float], repeats: int) -> bool:
    return len(values) == repeats and all(0 <= value <= _MOST_SECONDS for value in values)


def _is_name(text: str) -> bool:
    return (
        0 < len(text) <= NAME_BYTES
        and text.isprintable()
        and len(text.encode(errors="replace")) <= NAME_BYTES
    )
