"""What a target is about to take of the host's memory and of a device's: its inputs, and its model's files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from infercanary.probe.targets import Need

_BITS = re.compile(r"\d+")
_MOST = 1 << 62  # a shape of absurd sizes is still a number that can be written


def unbounded() -> int | None:
    """Bound nothing: the target is used without a probe."""
    return None


def on_device(needs: Iterable[Need]) -> list[Need]:
    """Return the same needs of the device: copies of inputs and outputs, and the weights of a file."""
    return [need._replace(where="device") for need in needs]


def of_input(place: str, shape: Sequence[int], dtype: str) -> Need:
    """Return the need of an input, which is drawn in place; the host has one of it (on a GPU in pinned memory).

    Args:
        place: In the settings: ``inputs[0]``.
        shape: Its dimensions.
        dtype: A name such as ``bfloat16`` or ``int64``.
    """
    bits = _BITS.search(dtype)
    width = max(1, int(bits[0]) // 8) if bits is not None else 1  # bool
    size = min(math.prod(shape) * width, _MOST)
    return Need(place, size, f"[{', '.join(map(str, shape))}] {dtype}", "give a smaller shape")


def of_output(shape: Sequence[int], dtype: str) -> Need:
    """Return the need of the host's copy of an output, which a GPU's is read into."""
    need = of_input("model", shape, dtype)
    return need._replace(what=f"an output, {need.what},", fix="give a smaller input")


def of_a_load(shapes: Iterable[Sequence[int]], dtypes: Iterable[str]) -> list[Need]:
    """Return the needs of the inputs of a sweep's point, in shapes with all samples of a request."""
    needs = (of_input("sweep", shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    return [need._replace(fix="name fewer or smaller loads") for need in needs]


def of_files(place: str, paths: Iterable[Path]) -> Need:
    """Return the need of a model's files once they are read; a missing one counts nothing, as its loader says more."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += path.stat().st_size
    return Need(place, size, "its file", "take a smaller model")
