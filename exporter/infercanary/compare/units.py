"""Numbers as people read them."""

from __future__ import annotations

from datetime import datetime, timezone


def value(number: float | None, unit: str | None) -> str:
    """A latency in four digits: in seconds, milliseconds or microseconds, or as it came where the unit is not known."""
    if number is None:
        return "unknown"
    if unit is None:
        return f"{number:.4g}"
    for name, factor in (("s", 1.0), ("ms", 1e3)):
        if number * factor >= 1:
            return f"{_digits(number * factor)} {name}"
    return f"{_digits(number * 1e6)} µs"


def short(number: float, digits: int = 2) -> str:
    """In so many digits, without zeros at the end."""
    return f"{float(f'{number:.{digits}g}'):g}"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def when(seconds: float) -> str:
    """Unix seconds as a date and a time; clocks of probes may be anywhere."""
    try:
        return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def _digits(number: float) -> str:
    before = len(str(int(number)))
    return f"{number:.{min(3, max(0, 4 - before))}f}"
