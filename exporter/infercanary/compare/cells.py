"""Numbers and durations in the cells of tables."""

from __future__ import annotations

import json
import re
from typing import TypeGuard

from infercanary.command.settings import UsageError
from infercanary.compare.recording import shown

_LEAST, _MOST = 1e-15, 1e15  # for any unit: 1e-15 days are 0.1 ns, and 1e15 ns are 11 days

PER_SECOND = {
    "ns": 1e9, "us": 1e6, "µs": 1e6, "μs": 1e6, "usec": 1e6, "ms": 1e3, "msec": 1e3, "s": 1.0, "sec": 1.0, "secs": 1.0,
    "seconds": 1.0, "m": 1 / 60, "min": 1 / 60, "h": 1 / 3600,
}  # fmt: skip
"""Number of units in a second, by name of the unit."""

_GROUPS = re.compile(r"\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,}")
_GROUPS_OF_POINTS = re.compile(r"\d{1,3}(\.\d{3})+,\d+")
_PART = rf"(\d+(?:\.\d*)?)\s*({'|'.join(sorted(PER_SECOND, key=len, reverse=True))})\s*"
_DURATION = re.compile(f"(?:{_PART})+")

_encoder = json.JSONEncoder(ensure_ascii=False)  # dumps() would make a new encoder for each cell


class Numbers:
    """Reads the cells of one file. All numbers of the file must have the same form."""

    def __init__(self, decimal_comma: bool) -> None:
        self._decimal_comma = decimal_comma
        self._signs: set[str] = set()  # decimal signs
        self.has_units: bool | None = None
        """True if the cells have units; None before the first cell."""

    def latency(self, where: str, cell: object, unit: str) -> float:
        """Return a cell's value in seconds, or the number unchanged if neither cell nor column has a known unit.

        Args:
            where: Place of the cell, for messages.
            cell: The cell's content, with or without a unit.
            unit: Unit of the column; empty if unknown.
        """
        value, sign, has_unit = parsed(cell)
        per_second = PER_SECOND.get(unit or "s")
        if value is None or (sign == "," and not self._decimal_comma):
            mistake = (
                "is not a number; write a number with a decimal point and without thousands separators, or remove "
                "the row"
            )
        elif not _LEAST <= value <= _MOST:
            mistake = "is not a latency, which is a finite number above zero; remove the row"
        elif self._decimal_comma and self._signs | {sign} >= {",", "."}:
            mistake = "has a different decimal sign (comma or point) from the numbers before; write all with a point"
        elif self.has_units not in (None, has_unit):
            mistake = (
                f"has {'a' if has_unit else 'no'} unit, unlike the numbers before; write all with a unit"
            )
        elif per_second is None:
            mistake = f"is in `{shown(unit)}`, which is not a unit of time; choose another --column"
        else:
            self._signs.add(sign)
            self.has_units = has_unit
            return value if has_unit else value / per_second
        raise UsageError(f"{where}: `{shown('nothing' if cell in (None, '') else str(cell))}` {mistake}")


def is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)


def parsed(cell: object) -> tuple[float | None, str, bool]:
    """Return a cell's number (None without a number), its decimal sign, and whether the cell has a unit.

    A number with a unit is converted to seconds.

    Args:
        cell: For example ``20.7``, ``1,234.5``, ``1.234,5``, ``20.7ms``, ``850 µs`` or ``1m2.5s``.
    """
    if not isinstance(cell, str):  # limited: float() cannot convert an integer with hundreds of digits
        return float(min(cell, 2 * _MOST)) if is_number(cell) else None, "", False
    if (value := plain_number(cell)) is not None:
        return value, "." * ("." in cell), False
    cell = re.sub(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3})", "", cell.partition("#")[0].strip())
    if _GROUPS.fullmatch(cell):
        cell = cell.replace(",", "")
    elif _GROUPS_OF_POINTS.fullmatch(cell):
        cell = cell.replace(".", "")
    sign = next((sign for sign in ",." if sign in cell), "")
    cell = cell.replace(",", ".")
    if (value := plain_number(cell)) is not None or not _DURATION.fullmatch(cell):
        return value, sign, False
    return sum(float(number) / PER_SECOND[unit] for number, unit in re.findall(_PART, cell)), sign, True


def plain_number(text: str) -> float | None:
    """Return the number at the beginning of a text, before an optional comment; None without a number."""
    try:
        return float(text.partition("#")[0])
    except ValueError:
        return None


def as_text(cell: object) -> str:
    """Return a cell as text, to compare it with the value of --where. null becomes ""."""
    if isinstance(cell, str):
        return cell
    if cell is None or cell != cell:  # NaN differs from itself
        return ""
    try:
        return _encoder.encode(cell)[:200]
    except RecursionError:
        return "nested too deeply"
