"""Tables as CSV (RFC 4180), whose text no spreadsheet takes for a formula."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TypeAlias

from infercanary.contract.text import printable

Cell: TypeAlias = "str | float | None"

# https://owasp.org/www-community/attacks/CSV_Injection; tabs and line ends, which it names too, are made printable.
# Full-width signs begin a formula where people write Chinese or Japanese.
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_AT_A_TIME = 1000


def lines(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """Yield a table, some rows at a time.

    Args:
        header: Names of the columns.
        rows: Cells in the order of the header; None, and a number that is not finite, is an empty cell.

    Yields:
        Text that ends with a line end (CR LF).
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(map(_cell, header))
    for number, row in enumerate(rows, 1):
        writer.writerow(map(_cell, row))
        if number % _AT_A_TIME == 0:
            yield text.getvalue()
            text.seek(0)
            text.truncate()
    if text.tell():
        yield text.getvalue()


def moment(seconds: float) -> str:
    """The date and time (UTC, ISO 8601) of Unix seconds; empty outside of the calendar.

    Args:
        seconds: By a probe's clock, which may be wrong.
    """
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (ValueError, OverflowError, OSError):
        return ""


def _cell(value: Cell) -> Cell:
    if not isinstance(value, str):
        return value if isinstance(value, int) or (value is not None and math.isfinite(value)) else ""
    safe = printable(value)
    # A spreadsheet may drop blanks before it looks for the sign.
    return f"'{safe}" if safe.lstrip().startswith(_FORMULA) else safe
