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


def unasked(needs: Sequence[Need]) -> None:
    """Take whatever there is: the target is used without a probe.

    Args:
        needs: Not looked at.
    """


def unbounded() -> int | None:
    """Bound nothing: the target is used without a probe.

    Returns:
        None.
    """
    return None


def on_device(needs: Iterable[Need]) -> list[Need]:
    """What is needed on the device as well: the copies of inputs and outputs, and the weights of a file.

    Args:
        needs: As they are on the host.

    Returns:
        A need for each.
    """
    return [need._replace(where="device") for need in needs]


def of_input(place: str, shape: Sequence[int], dtype: str) -> Need:
    """What an input takes: it is drawn in place, and the host has one of it (on a GPU in pinned memory).

    Args:
        place: In the settings: ``inputs[0]``.
        shape: Its dimensions.
        dtype: By its name, such as ``bfloat16`` or ``int64``.

    Returns:
        The need.
    """
    size = min(math.prod(shape) * _bytes(dtype), _MOST)
    return Need(place, size, f"{_shown(shape)} {dtype}", "give a smaller shape")


def of_output(shape: Sequence[int], dtype: str) -> Need:
    """What the host's copy of an output takes, which a GPU's is read into.

    Args:
        shape: Its dimensions.
        dtype: As of :func:`of_input`.

    Returns:
        The need.
    """
    found = of_input("model", shape, dtype)
    return found._replace(what=f"an output, {found.what},", fix="give a smaller input")


def of_a_load(shapes: Iterable[Sequence[int]], dtypes: Iterable[str]) -> list[Need]:
    """What the inputs of a sweep's point take.

    Args:
        shapes: Of each input, with as many samples as the point has.
        dtypes: Of each.

    Returns:
        A need for each.
    """
    each = (of_input("sweep", shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    return [need._replace(fix="name fewer or smaller loads") for need in each]


def of_files(place: str, paths: Iterable[Path]) -> Need:
    """What a model's files take once they are read.

    Args:
        place: In the settings: ``model``.
        paths: One that is not there counts nothing: whoever loads it says that better.

    Returns:
        The need.
    """
    size = 0
    for path in paths:
        with suppress(OSError):
            size += path.stat().st_size
    return Need(place, size, "its file", "take a smaller model")


def _bytes(dtype: str) -> int:
    """Of one number; 1 where the name does not say it, as of bool."""
    bits = _BITS.search(dtype)
    return max(1, int(bits[0]) // 8) if bits is not None else 1


def _shown(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
