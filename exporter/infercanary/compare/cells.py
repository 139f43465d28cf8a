"""Reads numbers and durations from the cells of tables."""

from __future__ import annotations

import re
from typing import TypeGuard

import msgspec

from infercanary.command.settings import UsageError
from infercanary.compare.recording import shown

_LEAST, _MOST = 1e-15, 1e15  # a nanosecond in days, and eleven days in nanoseconds

PER_SECOND = {
    "ns": 1e9, "us": 1e6, "µs": 1e6, "μs": 1e6, "usec": 1e6, "ms": 1e3, "msec": 1e3, "s": 1.0, "sec": 1.0, "secs": 1.0,
    "seconds": 1.0, "m": 1 / 60, "min": 1 / 60, "h": 1 / 3600,
}  # fmt: skip
"""Unit → how many of it are a second."""

_GROUPS = re.compile(r"\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,}")
_DECIMAL_COMMA = re.compile(r"\d{1,3}(\.\d{3})*,\d+|\d+,\d+")
_PART = rf"(\d+(?:\.\d*)?)\s*({'|'.join(sorted(PER_SECOND, key=len, reverse=True))})\s*"
_DURATION = re.compile(f"(?:{_PART})+")


class Numbers:
    """Reads the cells of one file, which has one way to write numbers."""

    def __init__(self, decimal_comma: bool) -> None:
        self._decimal_comma = decimal_comma
        self._forms: set[str] = set()

    @property
    def has_units(self) -> bool:
        return not self._forms.isdisjoint(("unit", "unit, comma"))

    def latency(self, where: str, cell: object) -> float:
        """Return a cell in its column's unit, or in seconds if it names its unit."""
        value, form = parsed(cell)
        if value is None or ("comma" in form and not self._decimal_comma):
            text = as_text(cell)
            raise UsageError(
                f"{where}: {f'`{shown(text)}`' if text else 'nothing'} is not a number; {_hint(text)}"
            )
        if not _LEAST <= value <= _MOST:
            raise UsageError(
                f"{where}: {shown(str(cell))} is not a latency: those are above zero, and in any unit from {_LEAST:g} "
                f"to {_MOST:g}; take it out"
            )
        self._forms.add(form)
        if len(self._forms) == 1:
            return value
        if self._decimal_comma and {"comma", "point"} <= self._forms:
            raise UsageError(
                f"{where}: `{shown(str(cell))}`: decimal commas and points in one column; write all with a point"
            )
        if self.has_units and not self._forms <= {"unit", "unit, comma"}:
            raise UsageError(
                f"{where}: `{shown(str(cell))}` {'has' if 'unit' in form else 'without'} a unit, unlike the numbers "
                "before; give all of them one"
            )
        return value


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value of JSON is a number."""
    return type(value) in (int, float)


def parsed(cell: object) -> tuple[float | None, str]:
    """Return the number in a cell, None if there is none, and how it is written; durations in seconds.

    Args:
        cell: Such as ``20.7``, ``1,234.5``, ``1.234,5``, ``20.7ms``, ``850 µs`` or ``1m2.5s``.
    """
    if not isinstance(cell, str):
        return float(min(cell, 2 * _MOST)) if is_number(
            cell
        ) else None, ""  # an integer may have hundreds of digits
    if (value := plain_number(cell)) is None:
        cell = re.sub(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3})", "", cell.partition("#")[0].strip())
        cell = cell.replace(",", "") if _GROUPS.fullmatch(cell) else cell
        value = plain_number(cell)
    if value is not None:
        return value, "point" if "." in cell else ""
    if _DECIMAL_COMMA.fullmatch(cell):
        return float(cell.replace(".", "").replace(",", ".")), "comma"
    with_points = cell.replace(",", ".")
    if not _DURATION.fullmatch(with_points):
        return None, ""
    seconds = sum(float(number) / PER_SECOND[unit] for number, unit in re.findall(_PART, with_points))
    return seconds, "unit" if cell == with_points else "unit, comma"


def _hint(text: str) -> str:
    if re.fullmatch(r"\d+,\d+", text.strip()):
        return "write a decimal comma as a point, or separate columns by `;`, and leave out separators of thousands"
    if len(text.replace(",", " ").split()) > 1:
        return "put one number on a line, or give the table a header and name a column with --column"
    return "take it out"


def plain_number(text: str) -> float | None:
    """Return the number that ``text`` is, with or without a comment after it; None if it is none."""
    try:
        return float(text.partition("#")[0])
    except ValueError:
        return None


def as_text(cell: object) -> str:
    """Return a cell as --where compares it: null is empty."""
    if isinstance(cell, str):
        return cell
    if cell is None or cell != cell:  # NaN
        return ""
    return msgspec.json.encode(cell)[:200].decode(errors="replace")
