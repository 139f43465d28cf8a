"""Formats numbers for people."""

from __future__ import annotations

from datetime import datetime, timezone


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
        return f"{number / 1e3:.3g} kJ" if number >= 1e3 else f"{number:.3g} J"
    if not unit:
        return f"{100 * number:.3g} %"
    return f"{number:,.0f} {unit}" if number >= 1000 else f"{number:.3g} {unit}"


def size(number: float) -> str:
    """How Docker shows so many bytes.

    Args:
        number: Bytes.
    """
    return f"{number / 1e9:.3g} GB" if number >= 1e9 else f"{number / 1e6:.3g} MB"


def short(number: float, digits: int = 2) -> str:
    """Return ``number`` in so many significant digits, without trailing zeros.

    Args:
        number: Finite or not.
        digits: 1 or more.
    """
    return f"{float(f'{number:.{digits}g}'):g}"


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


def _digits(number: float) -> str:
    before = len(str(int(number)))
    return f"{number:.{min(3, max(0, 4 - before))}f}"
