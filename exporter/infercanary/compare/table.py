"""Reads latencies from text: one a line, a JSON array, JSON objects, or a table with a header.

The content decides which. A mistake is reported in one line that names the line of the file.
"""

from __future__ import annotations

import csv
import io
import math
import re
from array import array
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec
import numpy as np

from infercanary.command.settings import UsageError
from infercanary.compare.recording import Floats, listed, shown

_LEAST, _MOST = 1e-15, 1e15  # a nanosecond in days, and eleven days in nanoseconds
MAX_POINTS = 5_000_000

Cells: TypeAlias = "Iterable[tuple[str, object]]"  # place and value

_decode = msgspec.json.Decoder().decode


def numbers(place: str, data: bytes, column: str = "") -> tuple[Floats, list[str]]:
    """Read the latencies in ``data``.

    Args:
        place: The file's name, for messages.
        data: Its content.
        column: The column or key that holds the latencies, where there are several.

    Returns:
        The latencies, in the unit and the order of the file, and notes for the reader.

    Raises:
        UsageError: The content is not of a known form, or holds something that is no latency.
    """
    if b"\0" in data:
        raise UsageError(f"{place}: a binary file; give a journal, or numbers as text")
    notes: list[str] = []
    first = next((line for _, line in _lines(data)), b"")
    if not first:
        raise UsageError(f"{place}: holds comments only; give numbers too")
    cells: Cells
    if (
        first.startswith(b"[") and data.count(b",") > MAX_POINTS
    ):  # before it is read, and takes 32 times its size
        raise UsageError(f"{place}: more than {MAX_POINTS:,} numbers; give a part of them")
    if first.startswith(b"["):
        cells = _array(place, data, column)
    elif first.startswith(b"{"):
        cells = _objects(place, data, column, notes)
    elif _number(first.decode(errors="replace")) is not None:
        if column:
            raise UsageError(f"{place}: one number a line, without columns; leave --column out")
        cells = ((f"{place}:{at}", line.decode(errors="replace")) for at, line in _lines(data))
    else:
        cells = _rows(place, data, column)
    points = array("d")
    for where, cell in cells:
        points.append(_latency(where, cell))
        if len(points) > MAX_POINTS:
            raise UsageError(f"{place}: more than {MAX_POINTS:,} numbers; give a part of them")
    if not points:
        raise UsageError(f"{place}: holds no numbers; give one a line, or a table with a header")
    return np.frombuffer(points, dtype=np.float64), notes


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers; a `#` begins a comment."""
    for at, line in enumerate(io.BytesIO(data), 1):
        line = line.strip()
        if line and not line.startswith(b"#"):
            yield at, line


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf


def _latency(where: str, cell: object) -> float:
    if isinstance(cell, str):
        value = _number(cell)
    else:
        value = _float(cell) if isinstance(cell, (int, float)) and not isinstance(cell, bool) else None
    if value is None:
        hint = ""
        if isinstance(cell, str) and len(cell.replace(",", " ").split()) > 1:
            hint = "; put one number on a line, or give the table a header and name a column with --column"
        raise UsageError(f"{where}: {_what(cell)} is not a number{hint}")
    if not 0 < value < math.inf:
        raise UsageError(
            f"{where}: {shown(str(cell))} is not a latency: those are finite and above zero; take it out"
        )
    if not _LEAST <= value <= _MOST:
        raise UsageError(
            f"{where}: {shown(str(cell))} is not a latency: in any unit those are from {_LEAST:g} to {_MOST:g}; "
            "take it out"
        )
    return value


def _number(text: str) -> float | None:
    try:
        return float(text.partition("#")[0].strip())
    except ValueError:
        return None


def _what(cell: object) -> str:
    if cell is None or cell == "":
        return "nothing"
    return f"`{shown(cell if isinstance(cell, str) else msgspec.json.encode(cell)[:80].decode(errors='replace'))}`"


def _array(place: str, data: bytes, column: str) -> Cells:
    try:
        document = _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        _refuse_nan(place, data)
        raise UsageError(f"{place}: not a JSON array ({error}); is it whole?") from None
    if document and all(isinstance(entry, dict) for entry in document):
        column = _column(place, _keys(document[0]), column)
        return (
            (f"{place}: entry {i}", _value(f"{place}: entry {i}", e, column))
            for i, e in enumerate(document, 1)
        )
    if column:
        raise UsageError(f"{place}: an array of numbers, without columns; leave --column out")
    return ((f"{place}: entry {i}", entry) for i, entry in enumerate(document, 1))


def _objects(place: str, data: bytes, column: str, notes: list[str]) -> Cells:
    truncated = ""
    chosen = ""
    for at, line in _lines(data):
        if truncated:
            break
        where = f"{place}:{at}"
        try:
            entry = _decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            _refuse_nan(where, line)
            truncated = f"{where}: not JSON ({error}); put one object on each line"
            continue
        if not isinstance(entry, dict):
            raise UsageError(f"{where}: {_what(entry)} among objects; keep to one format in a file")
        chosen = chosen or _column(where, _keys(entry), column)
        yield where, _value(where, entry, chosen)
    else:
        # Only the last line may be truncated, and only if its line end is missing.
        if truncated and not data.endswith(b"\n"):
            notes.append(f"{place}: the last line is truncated, and was left out")
            truncated = ""
    if truncated:
        raise UsageError(truncated)


def _refuse_nan(where: str, text: bytes) -> None:
    """Report NaN and Infinity as such: some programs write them, though JSON has no such numbers."""
    if found := re.search(rb"[\[,:]\s*(-?(?:NaN|Infinity))\b", text):
        raise UsageError(
            f"{where}: {found[1].decode()} is not a latency: those are finite and above zero; take it out"
        )


def _rows(place: str, data: bytes, column: str) -> Cells:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(
            f"{place}: a binary file, or not in UTF-8; give a journal, or numbers as text"
        ) from None
    kept = ("\n" if line.lstrip().startswith("#") else line for line in io.StringIO(text, newline=""))
    lines = (line.strip() for line in io.StringIO(text, newline=""))
    header = next((line for line in lines if line and not line.startswith("#")), "")
    if len(header) > csv.field_size_limit():
        raise UsageError(f"{place}:1: a line of {len(header):,} characters; put one number on a line")
    # A quoted name may hold another delimiter: the delimiter is the one that gives most columns.
    delimiter = max(",;\t", key=lambda sign: len(next(csv.reader([header], delimiter=sign))))
    rows = csv.reader(kept, delimiter=delimiter, skipinitialspace=True)
    names: list[str] = []
    index = 0
    try:
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            where = f"{place}:{rows.line_num}"
            if not names:
                names = [cell.strip() for cell in row]
                if all(_number(name) is not None for name in names):
                    raise UsageError(
                        f"{where}: several numbers on a line, and no header to name them; add one, or give one a line"
                    )
                index = names.index(_column(where, names, column))
                continue
            if len(row) != len(names):
                raise UsageError(
                    f"{where}: {len(row)} columns, and the header has {len(names)}; fix the line"
                )
            yield where, row[index].strip()
    except csv.Error as error:
        raise UsageError(f"{place}:{rows.line_num}: not a table ({error})") from None


def _column(where: str, names: list[str], column: str) -> str:
    """Return the column to read among ``names``."""
    if not column and len(names) == 1:
        return names[0]
    if not column:
        raise UsageError(f"{where}: which column? Give --column one of: {listed(names)}")
    if column not in names:
        raise UsageError(f"{where}: no column `{shown(column)}`; there are: {listed(names)}")
    if names.count(column) > 1:
        raise UsageError(
            f"{where}: the column `{shown(column)}` is there {names.count(column)} times; rename one"
        )
    return column


def _keys(entry: dict[str, object], under: str = "") -> list[str]:
    """Return the keys of an object; those of nested objects as `outer.inner`."""
    names = []
    for key, value in entry.items():
        if isinstance(value, dict):
            names += _keys(value, f"{under}{key}.")
        else:
            names.append(f"{under}{key}")
    return names


def _value(where: str, entry: dict[str, object], column: str) -> object:
    if column in entry:
        return entry[column]
    value: object = entry
    for key in column.split("."):
        if not isinstance(value, dict) or key not in value:
            raise UsageError(
                f"{where}: no `{shown(column)}` here; take the line out, or give another --column"
            )
        value = value[key]
    return value
