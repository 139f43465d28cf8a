"""Numbers as Grafana writes them, by the name of the unit.

https://github.com/grafana/grafana/tree/main/packages/grafana-data/src/valueFormats
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import NamedTuple


class Scale(NamedTuple):
    """What one step of a unit is worth, and its sign."""

    worth: float
    sign: str


def _thousands(
    unit: str, prefixes: str = "|k|M|G|T", base: float = 1000, first: int = 0
) -> tuple[Scale, ...]:
    names = prefixes.split("|")
    return tuple(Scale(base ** (first + i), f" {name}{unit}".rstrip()) for i, name in enumerate(names))


_SCALES = {
    "none": (Scale(1, ""),),
    "short": _thousands("", "|K|Mil|Bil|Tri"),
    "percentunit": (Scale(0.01, "%"),),
    "s": (
        *_thousands("s", "n|µ|m|", first=-3),
        *(Scale(60, " min"), Scale(3600, " hour"), Scale(86400, " day")),
    ),
    "bytes": _thousands("B", "|Ki|Mi|Gi|Ti", 1024),
    "Bps": _thousands("B/s"),
    "hertz": _thousands("Hz"),
    "flops": _thousands("FLOPS"),
    "watt": _thousands("W"),
    "ops": _thousands("ops/s", "|K |M "),
    "celsius": (Scale(1, " °C"),),
}


def scale(largest: float, unit: str) -> Scale:
    """The one in which ``largest`` is no less than 1, or the smallest.

    Args:
        largest: In the unit itself.
        unit: Grafana's name of it.

    Returns:
        What one of it is worth, and its sign.
    """
    scales = _SCALES[unit]
    fitting = [each for each in scales if abs(largest) >= each.worth]
    if largest == 0:
        return next((each for each in scales if each.worth == 1), scales[0])
    return fitting[-1] if fitting else scales[0]


def written(value: float, unit: str, decimals: int | None = None, now: float = 0.0) -> str:
    """A number for reading.

    Args:
        value: In the unit itself; moments are in Unix milliseconds.
        unit: Grafana's name of it.
        decimals: None for three digits in all.
        now: Unix seconds, for moments that are shown as how long ago they were.
    """
    if math.isnan(value):
        return "NaN"
    if unit == "dateTimeAsIso":
        return datetime.fromtimestamp(value / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    if unit == "dateTimeFromNow":
        return _ago(now - value / 1000)
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    worth, sign = scale(value, unit)
    number = round(value / worth, 9)
    if decimals is None:
        # Three digits, and none after the point of what is whole.
        decimals = 0 if number == int(number) else max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{number:.{min(decimals, 8)}f}{sign}"


def ticks(values: Sequence[float], unit: str) -> list[str]:
    """The numbers along an axis, all of one scale.

    Args:
        values: In the unit itself; they may be none.
        unit: Grafana's name of it.

    Returns:
        A text for each.
    """
    worth, sign = scale(max((abs(value) for value in values), default=0.0), unit)
    return [f"{round(value / worth, 9):g}{sign}" for value in values]


def _ago(seconds: float) -> str:
    for name, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            number = round(seconds / length)
            return f"{number} {name}{'s' if number > 1 else ''} ago"
    return "a few seconds ago"
