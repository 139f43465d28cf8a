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

_PART = rf"(\d+(?:\.\d*)?)\s*({'|'.join(sorted(PER_SECOND, key=len, reverse=True))})\s*"
_DURATION = re.compile(f"(?:{_PART})+")
_DECIMAL_COMMA = re.compile(r"\s*\d{1,3}(\.\d{3})*,\d+\s*|\s*\d+,\d+\s*")


class Numbers:
    """Reads the cells of one file, which has one way to write numbers."""

    def __init__(self, decimal_comma: bool) -> None:
        self.has_units = self._plain = self._comma = self._point = False
        self._decimal_comma = decimal_comma

    def latency(self, where: str, cell: object) -> float:
        """Return a cell in its column's unit, or in seconds if it names its unit."""
        value: float | None = None
        unit = False
        if isinstance(cell, str):
            if (value := plain_number(cell)) is None:
                cell = _without_groups(cell)
                value = plain_number(cell)
            if self._decimal_comma:
                self._point |= value is not None and "." in cell
                if value is None and (value := decimal_comma(cell)):
                    self._comma = True
                if self._comma and self._point:
                    raise UsageError(
                        f"{where}: `{shown(cell)}`: decimal commas and points in one column; write all with a point"
                    )
            if value is None:
                value = duration(cell.replace(",", ".") if self._decimal_comma else cell)
                unit = value is not None
        elif is_number(cell):
            value = float(min(cell, 2 * _MOST))  # an integer may have hundreds of digits
        if value is None:
            text = as_text(cell)
            raise UsageError(
                f"{where}: {f'`{shown(text)}`' if text else 'nothing'} is not a number; {_hint(text)}"
            )
        if not _LEAST <= value <= _MOST:
            raise UsageError(
                f"{where}: {shown(str(cell))} is not a latency: those are above zero, and in any unit from {_LEAST:g} "
                f"to {_MOST:g}; take it out"
            )
        self.has_units |= unit
        self._plain |= not unit
        if self.has_units and self._plain:
            raise UsageError(
                f"{where}: `{shown(str(cell))}` {'has' if unit else 'without'} a unit, unlike the numbers before; "
                "give all of them one"
            )
        return value


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value of JSON is a number."""
    return type(value) in (int, float)


def number_of(text: str) -> float | None:
    """Return the number or duration in a cell, also with a decimal comma; None if it is neither."""
    value = plain_number(text)
    return value if value is not None else decimal_comma(text) or duration(text)


def _without_groups(cell: str) -> str:
    """Leave out separators of thousands where they cannot be anything else."""
    if re.fullmatch(r"\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,}", cell):
        return cell.replace(",", "")
    return re.sub(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3})", "", cell)


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


def decimal_comma(text: str) -> float | None:
    """Return the number of such as ``12,5`` or ``1.234,5``; None if it is none."""
    return float(text.replace(".", "").replace(",", ".")) if _DECIMAL_COMMA.fullmatch(text) else None


def duration(text: str) -> float | None:
    """Return the seconds of such as ``20.7ms``, ``850 µs`` or ``1m2.5s``; None if it is none."""
    text = text.partition("#")[0].strip()
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) / PER_SECOND[unit] for number, unit in re.findall(_PART, text))


def as_text(cell: object) -> str:
    """Return a cell as --where compares it: null is empty."""
    if isinstance(cell, str):
        return cell
    if cell is None or cell != cell:  # NaN
        return ""
    return msgspec.json.encode(cell)[:200].decode(errors="replace")
