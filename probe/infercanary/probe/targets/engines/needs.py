"""Memory that a target is about to take, of the host and of a device: its inputs, outputs, and its model's files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from infercanary.probe.targets import Need

_MOST = 1 << 62  # a shape of absurd sizes is still a number that can be written


def on_device(needs: Iterable[Need]) -> list[Need]:
    """Repeat needs of the host for the device: copies of inputs and outputs, and the weights of a file."""
    return [need._replace(where="device") for need in needs]


def of_input(place: str, shape: Sequence[int], dtype: str, fix: str = "give a smaller shape") -> Need:
    """Return the need of a tensor of the host.

    Args:
        place: In the settings: ``inputs[0]``.
        shape: Its dimensions.
        dtype: Such as ``bfloat16`` or ``int64``; without a number of bits, as bool, an element has one byte.
        fix: How to need less.
    """
    bits = re.search(r"\d+", dtype)
    size = math.prod(shape) * (max(1, int(bits[0]) // 8) if bits else 1)
    return Need(place, min(size, _MOST), f"[{', '.join(map(str, shape))}] {dtype}", fix)


def of_output(shape: Sequence[int], dtype: str, on_device: bool = False) -> list[Need]:
    """Return the needs of the host's copy of an output, and of the output itself on the device."""
    need = of_input("model", shape, dtype, "give a smaller input")
    need = need._replace(what=f"an output, {need.what},")
    return [need, need._replace(where="device")] if on_device else [need]


def of_load(size: int) -> list[Need]:
    """Return the need of the inputs of a sweep's point, in bytes."""
    return [Need("sweep", size, "its inputs", "name fewer or smaller loads")]


def of_files(place: str, paths: Iterable[Path]) -> Need:
    """Return the need of a model's files once they are read; a missing file counts nothing."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += path.stat().st_size
    return Need(place, size, "its file", "take a smaller model")
