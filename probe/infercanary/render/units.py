"""Numbers as text: units, significant digits, signs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
_BYTES = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}
_FACTORS = 10.0  # shifts from this ratio on are written as a factor


def value(number: float | None, unit: str | None) -> str:
    """Return a latency with up to four digits, such as ``57.5 ms``, or a number without a unit.

    Args:
        number: Number in ``unit``; None becomes "unknown".
        unit: "s", or "" or None for an unknown unit.
    """
    if number is None:
        return "unknown"
    if unit == "s":
        return _scaled(number, 4, _SECONDS)
    return f"{number:,}" if isinstance(number, int) else short(number, 4)


def quantity(number: float, unit: str) -> str:
    """Return a number with its unit: a latency with up to four digits, another measure with up to three.

    Args:
        number: Number in ``unit``.
        unit: Unit of a :class:`~infercanary.render.document.Fact` or of a measure; "ratio" for a measure without a
            unit.
    """
    if unit in ("", "s"):
        return value(number, unit)
    if unit == "bytes":
        return size(number)
    factor, name = {"ratio": (100, "%"), "joules": (1, "J")}.get(unit, (1, unit))
    return f"{short(factor * number, 3)} {name}"


def quantities(numbers: Mapping[Any, float], unit: str) -> str:
    """Return named quantities in one line, such as ``load 1.8 s, first run 143 ms``. Leave zeros out."""
    return ", ".join(f"{name} {quantity(number, unit)}" for name, number in numbers.items() if number)


def size(number: float) -> str:
    """Return a size in decimal units of bytes, as Docker does."""
    return _scaled(number, 3, _BYTES)


def short(number: float, digits: int = 2) -> str:
    """Return a number with ``digits`` significant digits, thousands separators and at most nine decimals."""
    return f"{float(f'{number:.{digits}g}'):,.9f}".rstrip("0").rstrip(".")


def count(number: float, noun: str) -> str:
    """Return a number with its noun, such as ``1 run`` or ``1,200 runs``."""
    return f"{short(number, 12)} {noun}{'' if number == 1 else 's'}"


def when(seconds: float, form: str = "%Y-%m-%d %H:%M:%S UTC", unknown: str = "at an unknown time") -> str:
    """Return the date and time (UTC) of Unix seconds, or ``unknown`` if a wrong clock gives an impossible time."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime(form)
    except (ValueError, OverflowError, OSError):
        return unknown


def duration(seconds: float) -> str:
    """Return a time in the largest unit with a value of two or more, such as ``3 h``."""
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def percent(ratio: float, is_factor: bool = False) -> str:
    """Return a shift, such as ``+12.4 %`` or ``+178 %``; a large shift as a factor, such as ``×11``.

    Args:
        ratio: 0.05 is 5 %.
        is_factor: Write any shift as a factor.
    """
    if is_factor or ratio >= _FACTORS:
        return f"×{short(1 + ratio, 3)}".replace("inf", "∞")
    return f"{100 * ratio:+.{int(abs(ratio) < 1)}f} %"


def interval(shift: float, low: float, high: float) -> str:
    """Return a shift with its interval (ratios): ``+12.4 % [+10.9, +13.8]``, or as factors: ``×9.2 [×7.5, ×11.3]``."""
    is_factor = max(shift, low, high) >= _FACTORS
    text, *ends = (percent(ratio, is_factor) for ratio in (shift, low, high))
    return f"{text} [{', '.join(end.removesuffix(' %') for end in ends)}]"


def _scaled(number: float, digits: int, units: Mapping[str, float]) -> str:
    """Return a number in the largest unit in which it rounds to one or more. Smaller numbers get the smallest unit."""
    rounded = abs(number) / (1 - 0.5 / 10**digits)
    name = next((name for name, factor in units.items() if rounded >= factor), [*units][-1])
    return f"{short(number / units[name], digits)} {name}"
