"""Formats numbers for people."""

from __future__ import annotations

import math
from datetime import datetime, timezone

import numpy as np
from numpy.typing import NDArray

from infercanary.command.settings import UsageError

_ROUNDS_UP = 0.9995  # from here on three digits are those of the next unit: 1 GB, and not 1e+03 MB
_SMALL, _LARGE = 1e-4, 1e6  # beyond these `:g` writes an exponent


MOST_APART = 20.0
"""Ratio of two files of numbers beyond which they are more likely in other units, such as ms and s, than so much apart:
a CPU-only wheel by mistake made a service 3.5 times as slow (docs/causes.md)."""


def check_same(before: NDArray[np.float64], after: NDArray[np.float64], place: str) -> None:
    """Refuse two files of numbers that may be in other units.

    Args:
        before: Latencies, in the unit of their file.
        after: The same of the other file.
        place: The name of that file, for the message.

    Raises:
        UsageError: Their medians are more than :data:`MOST_APART` times apart.
    """
    if not (len(before) and len(after)):
        return
    old, new = float(np.median(before)), float(np.median(after))
    if old > 0 and new > 0 and not 1 / MOST_APART <= new / old <= MOST_APART:
        raise UsageError(
            f"{place}: its median is {short(new, 4)}, the baseline's {short(old, 4)}: are both in one unit, such as "
            "ms? Convert one, or give --same-unit if they are"
        )


def value(number: float | None, unit: str | None) -> str:
    """Return a latency in four digits.

    Args:
        number: Seconds where ``unit`` is "s", else in the unit of the file.
        unit: "s", or None where the unit is not known.
    """
    if number is None:
        return "unknown"
    if unit is None:
        return f"{number:.4g}"
    for name, factor in (("s", 1.0), ("ms", 1e3)):
        if number * factor >= 1:
            return f"{_digits(number * factor)} {name}"
    return f"{_digits(number * 1e6)} µs"


def measured(number: float, unit: str) -> str:
    """Return a measure in three digits or more.

    Args:
        number: In the base unit.
        unit: Of :class:`~infercanary.contract.measures.Measure`; empty for a ratio.
    """
    if unit == "bytes":
        return size(number)
    if unit == "joules":
        return f"{_three(number / 1e3)} kJ" if number >= _ROUNDS_UP * 1e3 else f"{_three(number)} J"
    if not unit:
        return f"{_three(100 * number)} %"
    return f"{_three(number)} {unit}"


def size(number: float) -> str:
    """How Docker shows so many bytes.

    Args:
        number: Bytes.
    """
    factor, name = (1e9, "GB") if number >= _ROUNDS_UP * 1e9 else (1e6, "MB")
    return f"{_three(number / factor)} {name}"


def finite(number: float | None) -> float | None:
    """Return a number as JSON may have it: None where it is not finite.

    Args:
        number: Any, or None.
    """
    return number if number is not None and math.isfinite(number) else None


def short(number: float, digits: int = 2) -> str:
    """Return ``number`` in so many significant digits, without trailing zeros.

    Args:
        number: Finite or not.
        digits: 1 or more.
    """
    rounded = float(f"{number:.{digits}g}")
    if 0 < abs(rounded) < _SMALL:
        return f"{rounded:.{digits - 1 - math.floor(math.log10(abs(rounded)))}f}".rstrip("0")
    return f"{rounded:,.0f}" if abs(rounded) >= _LARGE else f"{rounded:g}"


def count(number: int, noun: str) -> str:
    """A number with its noun, such as ``1 run`` or ``1,200 runs``.

    Args:
        number: From zero on.
        noun: In the singular; its plural ends with an s.
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def when(seconds: float) -> str:
    """The date and time (UTC) of Unix seconds. A probe's clock may be wrong, so any number is accepted.

    Args:
        seconds: Those outside of the calendar become ``at an unknown time``.
    """
    try:
        return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def _three(number: float) -> str:
    return f"{number:,.0f}" if number >= 999.5 else f"{number:.3g}"


def _digits(number: float) -> str:
    before = len(str(int(number)))
    return f"{number:.{min(3, max(0, 4 - before))}f}"
