"""Tables as CSV (RFC 4180), whose text no spreadsheet takes for a formula."""

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

# https://owasp.org/www-community/attacks/CSV_Injection; tabs and line ends, which it names too, are made printable.
# Full-width signs begin a formula where people write Chinese or Japanese.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")


def render_csv(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Yield the lines of a table; each ends with CR LF.

    Args:
        columns: Their names.
        rows: Cells in the order of the columns; None, and a number that is not finite, is an empty cell.
    """
    writer = csv.writer(SimpleNamespace(write=str))  # writerow() returns what write() does: the line
    for row in chain([columns], rows):
        yield writer.writerow(map(_cell, row))


def moment(seconds: float) -> str:
    """Return the date and time (UTC, ISO 8601); empty outside of the calendar.

    Args:
        seconds: Unix time of a probe's clock, which may be wrong.
    """
    return when(seconds, "%Y-%m-%dT%H:%M:%S.%fZ", "")


def _cell(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell if isinstance(cell, int) or (cell is not None and math.isfinite(cell)) else ""
    text = printable(cell)
    # A spreadsheet may drop blanks before it looks for the sign.
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
