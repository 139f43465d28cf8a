"""Pictures of latencies for a terminal: distributions on one scale, and a series in order of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from infercanary.compare.recording import Floats

_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII = str.maketrans(
    {
        **dict(zip(_LEVELS, ".:-=+*%#", strict=True)),
        "▲": "^", "→": "->", "×": "x", "µ": "u", "μ": "u", "…": "...", "–": "-", "±": "+/-", "·": "-",
    }
)  # fmt: skip
_LEAST = 0.05  # of the middle: a series that moves less is drawn as flat as it is


def plain(text: str) -> str:
    """``text`` for a terminal that knows ASCII only."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def scale(sides: Iterable[Floats]) -> tuple[float, float]:
    """From where to where all sides are drawn: a few wild runs must not flatten the rest."""
    ends = [np.quantile(points, (0.01, 0.99)) for points in sides if points.size]
    low, high = min(float(end[0]) for end in ends), max(float(end[1]) for end in ends)
    room = max((high - low) / 20, 0.001 * high)
    return max(0.0, low - room), high + room


def densities(points: Floats, low: float, high: float, bins: int) -> list[float]:
    """How many points fall into each part of the scale, and around it: few points would leave a comb."""
    counted = np.histogram(points, bins=bins, range=(low, high))[0]
    return [float(x) for x in np.convolve(counted, (1, 2, 3, 2, 1), "same")]


def bars(numbers: Sequence[float]) -> str:
    """One character each, as high as its share of the highest; what is there is seen."""
    most = max(numbers, default=0)
    if not most:
        return " " * len(numbers)
    return "".join(_LEVELS[round((len(_LEVELS) - 1) * n / most)] if n > 0 else " " for n in numbers)


def place(value: float, low: float, high: float, width: int) -> int:
    """The column of a value on the scale."""
    return min(width - 1, max(0, int((value - low) / (high - low) * width)))


def condensed(points: Floats, width: int) -> Floats:
    """At most ``width`` medians, of parts that are as even as can be."""
    if points.size <= width:
        return points
    return np.array([np.median(part) for part in np.array_split(points, width)])


def sparkline(points: Floats, width: int) -> tuple[str, float, float]:
    """The series in ``width`` characters, and the lowest and the highest of what they stand for."""
    each = condensed(points, width)
    low, high = float(each.min()), float(each.max())
    least = _LEAST * (low + high) / 2
    if high - low < least:
        low, high = (low + high - least) / 2, (low + high + least) / 2
    steps = np.clip((each - low) / (high - low) * len(_LEVELS), 0, len(_LEVELS) - 1)
    return "".join(_LEVELS[int(step)] for step in steps), low, high


def column(index: int, size: int, width: int) -> int:
    """The column of ``sparkline`` in which the point at ``index`` is."""
    if size <= width:
        return index
    longer = size % width  # so many parts, the first ones, have one point more
    short = size // width
    return (
        index // (short + 1)
        if index < longer * (short + 1)
        else longer + (index - longer * (short + 1)) // short
    )
