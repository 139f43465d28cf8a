"""Pictures of latencies for a terminal: distributions on one scale, and a series in order of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from infercanary.compare.recording import Floats

_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII = str.maketrans(
    {
        **dict(zip(_LEVELS, ".:-=+*%#", strict=True)),
        "▲": "^", "→": "->", "×": "x", "∞": "inf", "µ": "u", "μ": "u", "…": "...", "–": "-", "±": "+/-", "·": "-",
    }
)  # fmt: skip
_LEAST = 0.05  # of the middle: the scale spans at least this, so that a flat series looks flat


def plain(text: str) -> str:
    """The nearest ASCII of ``text``, for a terminal that shows nothing else.

    Args:
        text: With the characters of the pictures; any other that is not ASCII becomes ``?``.
    """
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def scale(sides: Iterable[Floats]) -> tuple[float, float]:
    """Return the range in which all sides are drawn, without the outer 1 %: outliers must not flatten the rest.

    Args:
        sides: Series, of which one or more has points.

    Returns:
        Lowest and highest value, in the unit of the points.
    """
    ends = [np.quantile(points, (0.01, 0.99)) for points in sides if points.size]
    low, high = min(float(end[0]) for end in ends), max(float(end[1]) for end in ends)
    room = max((high - low) / 20, 0.001 * high)
    return max(0.0, low - room), high + room


def axis(sides: Iterable[Floats]) -> tuple[float, int]:
    """Return where an axis ends that begins at 0, for a report: beyond the 99.5th percentile few runs are drawn.

    Args:
        sides: Series, of which one or more has points.

    Returns:
        The highest value that is drawn, in the unit of the points; and how many points lie beyond it.
    """
    every = np.concatenate([points for points in sides if points.size])
    high = float(np.quantile(every, 0.995)) or 1.0
    return high, int(np.count_nonzero(every > high))


def densities(points: Floats, low: float, high: float, bins: int) -> list[float]:
    """Return how many points fall into each bin, smoothed over its neighbours: few points would leave gaps.

    Args:
        points: A series, in any order.
        low: Where the first bin begins; points below are not counted.
        high: Where the last bin ends; points above are not counted.
        bins: How many.

    Returns:
        One number for each bin, whose ratios alone mean something.
    """
    counted = np.histogram(points, bins=bins, range=(low, high))[0]
    return [float(x) for x in np.convolve(counted, (1, 2, 3, 2, 1), "same")]


def bars(numbers: Sequence[float]) -> str:
    """Return one character for each number, as high as its share of the highest; only zero is blank.

    Args:
        numbers: From zero on.
    """
    most = max(numbers, default=0)
    if not most:
        return " " * len(numbers)
    return "".join(_LEVELS[round((len(_LEVELS) - 1) * n / most)] if n > 0 else " " for n in numbers)


def place(value: float, low: float, high: float, width: int) -> int:
    """Return the column of ``value`` on a scale of ``width`` columns.

    Args:
        value: Outside of the scale it gets the first or the last column.
        low: Where the scale begins.
        high: Where the scale ends.
        width: Columns.
    """
    return min(width - 1, max(0, int((value - low) / (high - low) * width)))


def condensed(points: Floats, width: int) -> Floats:
    """Return at most ``width`` medians, of parts of almost equal length.

    Args:
        points: In order of time.
        width: 1 or more.

    Returns:
        The points themselves where there are so few.
    """
    if points.size <= width:
        return points
    return np.array([np.median(part) for part in np.array_split(points, width)])


def sparkline(points: Floats, width: int) -> tuple[str, float, float]:
    """Return the series in ``width`` characters, and the lowest and highest value that they show.

    Args:
        points: In order of time; one or more.
        width: Characters at most.

    Returns:
        The characters, and the two ends of their scale, which a flat series does not fill.
    """
    each = condensed(points, width)
    low, high = float(each.min()), float(each.max())
    least = _LEAST * (low + high) / 2
    if high - low < least:
        low, high = (low + high - least) / 2, (low + high + least) / 2
    steps = np.clip((each - low) / (high - low) * len(_LEVELS), 0, len(_LEVELS) - 1)
    return "".join(_LEVELS[int(step)] for step in steps), low, high


def column(index: int, size: int, width: int) -> int:
    """Return the column of ``sparkline`` that shows the point at ``index``.

    Args:
        index: Of the point, from 0 on.
        size: Points of the series.
        width: What ``sparkline`` was given.
    """
    if size <= width:
        return index
    short, longer = divmod(size, width)  # the first so many parts have one point more
    return max(index // (short + 1), (index - longer) // short)
