"""Reads numbers and durations from the cells of tables."""

from __future__ import annotations

import math
import re
from typing import cast

import msgspec

from infercanary.command.settings import UsageError
from infercanary.compare.recording import shown

_LEAST, _MOST = 1e-15, 1e15  # a nanosecond in days, and eleven days in nanoseconds

PER_SECOND = {
    "ns": 1e9, "us": 1e6, "µs": 1e6, "μs": 1e6, "usec": 1e6, "ms": 1e3, "msec": 1e3, "s": 1.0, "sec": 1.0, "secs": 1.0,
    "seconds": 1.0, "m": 1 / 60, "min": 1 / 60, "h": 1 / 3600,
}  # fmt: skip
"""Unit → how many of it are a second."""

DECIMAL_COMMA = re.compile(r"\s*\d{1,3}(\.\d{3})*,\d+\s*|\s*\d+,\d+\s*")


class Numbers:
    """Reads the cells of one file, which has one way to write numbers."""

    def __init__(self, decimal_comma: bool) -> None:
        self.has_units = False
        self._plain = self._comma = self._point = False
        self._decimal_comma = decimal_comma

    def latency(self, where: str, cell: object) -> float:
        value: float | None = None
        unit = False
        if isinstance(cell, str):
            value = plain_number(cell)
            if value is None:
                cell = _without_groups(cell)
                value = plain_number(cell)
            if self._decimal_comma:
                value = self._with_comma(where, cell, value)
            if value is None:
                value = duration(cell.replace(",", ".") if self._decimal_comma else cell)
                unit = value is not None
        elif is_number(cell):
            value = _float(cast("float", cell))
        if value is None:
            raise UsageError(f"{where}: {_what(cell)} is not a number{_hint(cell)}")
        if not _LEAST <= value <= _MOST:
            is_odd = not 0 < value < math.inf
            range_ = (
                "those are finite and above zero"
                if is_odd
                else f"in any unit those are from {_LEAST:g} to {_MOST:g}"
            )
            raise UsageError(f"{where}: {shown(str(cell))} is not a latency: {range_}; take it out")
        self.has_units |= unit
        self._plain |= not unit
        if self.has_units and self._plain:
            raise UsageError(
                f"{where}: `{shown(str(cell))}` {'has' if unit else 'without'} a unit, unlike the numbers before; "
                "give all of them one"
            )
        return value

    def _with_comma(self, where: str, cell: str, value: float | None) -> float | None:
        if value is None and DECIMAL_COMMA.fullmatch(cell):
            value = float(cell.replace(".", "").replace(",", "."))
            self._comma = True
        elif value is not None and "." in cell:
            self._point = True
        if self._comma and self._point:
            raise UsageError(
                f"{where}: {_what(cell)}: decimal commas and points in one column; write all with a point"
            )
        return value


def is_number(value: object) -> bool:
    """Return whether a value of JSON is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _without_groups(cell: str) -> str:
    """Leave out separators of thousands where they cannot be anything else."""
    if re.fullmatch(r"\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,}", cell):
        return cell.replace(",", "")
    return re.sub(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3})", "", cell)


def _hint(cell: object) -> str:
    if not isinstance(cell, str):
        return ""
    if not cell:
        return "; take the row out"  # a cell of a table
    if re.fullmatch(r"\d+,\d+", cell.strip()):
        return "; write a decimal comma as a point, or separate columns by `;`, and leave out separators of thousands"
    if len(cell.replace(",", " ").split()) > 1:
        return "; put one number on a line, or give the table a header and name a column with --column"
    return "; take it out"


def plain_number(text: str) -> float | None:
    """Return the number that ``text`` is, with or without a comment after it; None if it is none."""
    try:
        return float(text.partition("#")[0].strip())
    except ValueError:
        return None


_DURATION = re.compile(r"(?:\d+(?:\.\d*)?\s*(?:ns|usec|us|µs|μs|msec|ms|seconds|secs|sec|s|min|m|h)\s*)+")


def duration(text: str) -> float | None:
    """Return the seconds of such as ``20.7ms``, ``850 µs`` or ``1m2.5s``; None if it is none."""
    text = text.partition("#")[0].strip()
    if not _DURATION.fullmatch(text):
        return None
    parts = re.findall(r"(\d+(?:\.\d*)?)\s*([a-zµμ]+)", text)
    return sum(float(number) / PER_SECOND[unit] for number, unit in parts)


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def as_text(cell: object) -> str:
    """Return a cell as --where compares it: null is empty."""
    if isinstance(cell, str):
        return cell
    if cell is None or cell != cell:  # NaN
        return ""
    return msgspec.json.encode(cell)[:200].decode(errors="replace")


def _what(cell: object) -> str:
    if cell is None or cell == "":
        return "nothing"
    return f"`{shown(cell if isinstance(cell, str) else msgspec.json.encode(cell)[:80].decode(errors='replace'))}`"
