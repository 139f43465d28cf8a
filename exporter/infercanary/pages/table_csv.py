"""Tables as CSV (RFC 4180). Spreadsheets read every text as text, even if it looks like a formula."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import TypeAlias

from infercanary.contract.text import printable
from infercanary.render.units import when

Cell: TypeAlias = "str | float | None"

# Signs that begin a formula: https://owasp.org/www-community/attacks/CSV_Injection. That page also lists tabs and line
# ends, which printable() replaces. Full-width signs begin a formula in Chinese and Japanese spreadsheets.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def render_csv(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Yield the lines of a table; each line ends with CR LF.

    Args:
        columns: Names of the columns.
        rows: Cells in the order of the columns. None, or a number that is not finite, becomes an empty cell.
    """
    writer = csv.writer(SimpleNamespace(write=str))  # writerow() returns the result of write(), here the line
    for row in chain([columns], rows):
        yield writer.writerow(map(_cell, row))


def moment(seconds: float) -> str:
    """Return the date and time (UTC, ISO 8601); empty for a time outside the calendar.

    Args:
        seconds: Unix time by a probe's clock, which may be wrong.
    """
    return when(seconds, "%Y-%m-%dT%H:%M:%S.%fZ", "")


def _cell(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell if isinstance(cell, int) or (cell is not None and math.isfinite(cell)) else ""
    text = printable(cell)
    # A spreadsheet may remove spaces before it checks for the sign.
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
