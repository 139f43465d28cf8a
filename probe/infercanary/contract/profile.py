"""Profiled repeats of a canary: the time of each operator. A probe attaches a profile to a run; the judge compares
profiles.

A profiler slows the inference, so profiled repeats are separate from timed repeats
(docs/adr/0023-profiled-repeats.md).
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
"""Maximum length of a name, kind, device or shapes, in bytes of UTF-8."""

COVERAGE: Final = 0.8
"""Work or limit must be known for at least this share of the time; otherwise the answer is "unknown"."""

OUTSIDE: Final = "outside operators"
OK: Final = "ok"
NO_CUPTI: Final = "no_cupti"
"""The driver refused to time kernels, so operators have host times only."""

_LATEST, _MOST_SECONDS, _MOST_CALLS, _MOST_WORK = (
    2.0**33,
    1e6,
    1e15,
    1e18,
)  # equal to the bounds in contract/bounds.py, which imports this module
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_HASH = re.compile(r"(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}|\bc[a-z2-7]{50,}\b")
_COUNTER = re.compile(r"(?<=[A-Za-z])_\d+$")


class ProfileRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Time of one operator in each repeat, including all operators that it calls."""

    kind: str
    """Operator, such as ``aten::conv2d`` or ``Conv``; for TensorRT, the layer."""
    name: str
    """Inner operator or kernel with most of the operator's time, such as ``aten::mkldnn_convolution``; equal to
    ``kind`` if there is none.
    """
    device: str
    """``cpu``, ``cuda:0``, or ONNX Runtime's provider."""
    shapes: str
    """Shapes of the first inputs, such as ``1x3x224x224 float, 64x3x7x7 float``; empty if unknown."""
    calls: float
    """Number of calls in one inference; on a GPU, number of launched kernels."""
    seconds: tuple[float, ...]
    """Seconds of one inference, in each repeat."""
    order: int = 0
    """Position among the model's operators, by first call; 0 in profiles of older probes."""
    flops: float = 0.0
    """Floating-point operations of products and attention in one inference; 0 for other operators."""
    bytes: float = 0.0
    """Bytes that one inference reads and writes at least, by the shapes of the tensors."""
    launches: float = 0.0
    """Number of calls, including those of inner operators; on a GPU, number of kernels. 0 if the work is unknown."""


class Profile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive profiled repeats. Times are seconds for one inference, with one value for each repeat."""

    taken_at: float
    """Unix time of the first repeat."""
    engine: str
    """Engine whose profiler made the profile: ``torch``, ``onnxruntime``, ``tensorrt``."""
    state: str
    """:data:`OK`, or the reason why the profile is limited. It is plain text, because newer probes may add states."""
    wall: tuple[float, ...]
    """Wall time by the host's clock, as for a timed repeat."""
    outside: tuple[float, ...]
    """Time outside operators: Python, pre- and postprocessing, and launches that do not overlap with operators."""
    rest: tuple[float, ...]
    """Time of operators without a row."""
    rows: tuple[ProfileRow, ...]
    """Operators in descending order of their time, at most :data:`MAX_ROWS`."""

    @property
    def repeats(self) -> int:
        """Number of profiled repeats."""
        return len(self.wall)


def normalised(name: str) -> str:
    """Return a name without addresses, hashes and compiler-generated numbers, which differ after a restart.

    Args:
        name: Name of an operator or a kernel, as a profiler reports it.

    Returns:
        One printable line of at most :data:`NAME_BYTES` bytes.
    """
    text = name.removeprefix("void ")
    # Remove anonymous namespaces, and the arguments of a C++ function, which repeat its template parameters.
    text = text.replace("(anonymous namespace)::", "").partition("(")[0] or text
    text = _COUNTER.sub("", _HASH.sub("#", _ADDRESS.sub("#", text)))
    return bounded(text)


def bounded(text: str) -> str:
    """Cut printable text to at most :data:`NAME_BYTES` bytes of UTF-8."""
    return printable(text, NAME_BYTES).encode(errors="replace")[:NAME_BYTES].decode(errors="ignore")


def shares(profile: Profile, most: int) -> dict[str, float]:
    """Return the largest shares of the wall time, by operator or :data:`OUTSIDE`, in descending order.

    Args:
        profile: A profile for which :func:`is_sound` is True.
        most: Maximum number of shares.

    Returns:
        Shares, computed from medians over the repeats; their sum is at most 1.
    """
    found = {OUTSIDE: median(profile.outside)}
    for row in profile.rows:
        found[row.kind] = found.get(row.kind, 0.0) + median(row.seconds)
    # The medians' sum may exceed the median wall time if each repeat has a different slow part.
    wall = max(median(profile.wall), sum(found.values()) + median(profile.rest))
    largest = sorted(found, key=lambda name: -found[name])[:most]
    return {name: found[name] / wall for name in largest} if wall > 0 else {}


def work(profile: Profile) -> tuple[float, float] | None:
    """Return the floating-point operations and bytes of one inference: a lower bound, from the operators with known
    work.

    Returns:
        None if these operators take less than :data:`COVERAGE` of the operators' time.
    """
    known = [row for row in profile.rows if row.launches]
    seconds, covered = (sum(median(row.seconds) for row in rows) for rows in (profile.rows, known))
    if covered <= COVERAGE * (seconds + median(profile.rest)):
        return None
    return sum(row.flops for row in known), sum(row.bytes for row in known)


def is_sound(profile: Profile) -> bool:
    """True if all values of a decoded profile are within bounds. The check is needed because probes and files are
    untrusted.
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
        and all(
            0 <= number <= _MOST_WORK
            for row in rows
            for number in (row.order, row.flops, row.bytes, row.launches)
        )
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
