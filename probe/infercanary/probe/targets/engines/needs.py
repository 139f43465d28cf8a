"""Memory that a target will soon need on the host or on a device, for inputs, outputs and model files."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from infercanary.probe.targets import Need, Unsized
from infercanary.probe.targets.engines.tensors import common_size

_MOST = 1 << 62  # largest size of a need, so that absurd shapes still fit into 64 bits


def on_device(needs: Iterable[Need]) -> list[Need]:
    """Return the same memory needs on the device, for copies of tensors and weights there."""
    return [need._replace(where="device") for need in needs]


def of_input(place: str, shape: Sequence[int], dtype: str, fix: str = "give a smaller shape") -> Need:
    """Return the memory need of a tensor on the host.

    Args:
        place: Key in the settings: ``inputs[0]``.
        shape: Dimensions of the tensor.
        dtype: Name such as ``bfloat16`` or ``int64``; a name without a number of bits, such as bool, means one byte an
            element.
        fix: Advice on how to need less memory.
    """
    bits = re.search(r"\d+", dtype)
    size = math.prod(shape) * (max(1, int(bits[0]) // 8) if bits else 1)
    return Need(place, min(size, _MOST), f"[{', '.join(map(str, shape))}] {dtype}", fix)


def of_output(shape: Sequence[int], dtype: str, on_device: bool = False) -> list[Need]:
    """Return the memory needs of an output: its copy on the host and, if ``on_device``, the original."""
    need = of_input("model", shape, dtype, "give a smaller input")
    need = need._replace(what=f"an output, {need.what},")
    return [need, need._replace(where="device")] if on_device else [need]


def of_batch(tensors: Collection[Any], batch: int, samples: int) -> list[Need]:
    """Return the memory needs of the inputs of a sweep point, which are repeated to ``batch`` samples.

    Raises:
        Unsized: The inputs have no common first dimension, so their size cannot change.
    """
    if batch != samples and common_size(tensor.shape for tensor in tensors) is None:
        raise Unsized("the inputs have no common first dimension")
    size = sum(tensor.nbytes for tensor in tensors) * batch // samples
    return [Need("sweep", size, "its inputs", "give fewer or smaller loads")]


def of_files(place: str, paths: Iterable[Path]) -> Need:
    """Return the memory need of loading a model's files. A missing file counts as empty."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += path.stat().st_size
    return Need(place, size, "its file", "take a smaller model")
