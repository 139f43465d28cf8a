"""Reads latencies from the rows of a table: picks rows, and counts failed runs instead of averaging them in."""

from __future__ import annotations

import functools
import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

import numpy as np

from infercanary.command.settings import UsageError
from infercanary.compare.cells import Numbers, as_text, number_of, plain_number
from infercanary.compare.layouts import UNKNOWN, Layout, Row, table_of
from infercanary.compare.outcomes import FAILED, WORDS, failures, outcome_kind, signs, words_of
from infercanary.compare.recording import Attempts, RecordedRuns, at_most, listed, shown
from infercanary.compare.units import count

MAX_POINTS = 5_000_000

_HEAD = 100  # rows whose keys are the columns of JSON Lines
_MOST_VALUES = 12  # of a column, that a message lists

_Values: TypeAlias = "defaultdict[str, dict[str, None]]"
"""Column → some of its texts, in order."""


class Choice(NamedTuple):
    """Column and rows that --column and --where select."""

    column: str = ""
    where: Sequence[tuple[str, str]] = ()


class File(NamedTuple):
    """A file that is read, and what the user picked of it."""

    place: str
    """Name for messages."""
    notes: list[str]
    """Remarks for the reader, which grow as the file is read."""
    column: str = ""
    where: Sequence[tuple[str, str]] = ()


class _Column:
    """The values of one column."""

    def __init__(self, per_second: float) -> None:
        self.points = array("d")
        self._per_second = per_second
        self._signs = bytearray()
        self._mistakes: dict[int, UsageError] = {}

    def add(self, found: int, at: str, cell: object, numbers: Numbers) -> None:
        """Take the value of a row. A mistake in it counts only if the row turns out to be no failure."""
        value = math.nan
        if not found & FAILED:
            try:
                value = numbers.latency(at, cell) / self._per_second
            except UsageError as mistake:
                self._mistakes.setdefault(found, mistake)
        self.points.append(value)
        self._signs.append(found)

    def runs(self, failed_signs: int, reason: str, *, tells: bool) -> RecordedRuns:
        for found, mistake in self._mistakes.items():
            if not found & failed_signs:
                raise mistake
        failed = np.frombuffer(bytes(self._signs), dtype=np.uint8) & failed_signs != 0
        total = int(failed.sum())
        return RecordedRuns(
            [np.frombuffer(self.points, dtype=np.float64)[~failed]],
            left_out={"failed": total} if total else {},
            attempts=Attempts(len(failed), total) if tells else None,
            failure=reason * bool(total),
        )


def read_rows(
    file: File,
    rows: Iterable[tuple[str, Row]],
    document: Layout | None = None,
    *,
    records: bool = False,
    decimal_comma: bool = False,
) -> dict[str, RecordedRuns]:
    """Read the latencies of a table.

    Args:
        file: The file, and what the user picked.
        rows: In the order of the file, each with its place.
        document: Layout of the document that has the rows; None if their columns tell it.
        records: Whether rows may lack columns, as JSON objects do.
        decimal_comma: Whether ``12,5`` may be a number.

    Returns:
        The runs by column, in seconds if the unit is known; the name is empty if one column is read.

    Raises:
        UsageError: A column is missing or not clear, the rows are of several series, or a latency cannot be one.
    """
    place = file.place
    rows = iter(rows)
    raw = [*islice(rows, _HEAD)]
    layout = document or table_of(place, [name for _, row in raw for name in row])
    shaped = ((at, row) for at, each in chain(raw, rows) if (row := layout.shaped(at, each)) is not None)
    head = [*islice(shaped, _HEAD)]
    names = [*dict.fromkeys(name for _, row in head for name in row)]
    if not names:
        nothing = f"a file of {layout.tool} without a run; {layout.advice}"
        raise UsageError(f"{place}: {nothing if layout.tool else 'holds no numbers; give one a line, or a table'}")
    if names == [""] and (file.column or file.where):
        raise UsageError(f"{place}: numbers without columns; leave --column and --where out")

    @functools.lru_cache
    def outcomes_in(names: tuple[str, ...]) -> list[str]:
        return [name for name in names if outcome_kind(name) and not layout.is_labelled]

    usual = [name for name in layout.columns if name in names]
    if records and all(_signs(row, outcomes_in((*row,))) & FAILED for _, row in head):
        # No run ended well, and so none may have the column.
        usual = [file.column or next(iter(layout.columns or names))]
    elif file.column or not usual:
        only_one = "" if file.column else _only_times([row for _, row in head], names)
        usual = [only_one or pick_column(place, names, file.column)]
        if only_one and len(names) > 1:
            file.notes.append(f"{place}: read `{shown(only_one)}`, the only column of times")
    where: defaultdict[str, set[str]] = defaultdict(set)
    for name, text in file.where:
        where[pick_column(place, names, name, "--where")].add(text.strip())
    wanted = layout.only | where
    others: _Values = defaultdict(dict)
    kinds: _Values = defaultdict(dict)
    watched = [n for n in names if n not in (*usual, *where) and (_is_label(n) or _series_sign(layout, n))]
    numbers = Numbers(decimal_comma)
    columns = {name: _Column(layout.per_second if name in layout.columns else 1.0) for name in usual}
    seen = total = 0
    told: Sequence[str] = ()
    reason = ""
    for at, row in chain(head, shaped):
        for name, values in wanted.items():
            if (text := as_text(row.get(name)).strip()) not in values:
                _note(others[name], text)
                break
        else:
            for name in watched:
                _note(kinds[name], as_text(row.get(name)))
            told = [name for name in outcomes_in((*row,)) if name not in columns]
            found = _signs(row, told)
            seen |= found
            total += 1
            at_most(MAX_POINTS, total, place, "numbers")
            if found & FAILED:
                texts = [f"{shown(name)} {shown(text)}" for name in told if (text := as_text(row[name]))]
                reason = f"{at}: {', '.join(texts[:4])}"
            for name, column in columns.items():
                if records and not found & FAILED:
                    if name not in row:
                        continue
                    if as_text(row[name]) == "":
                        reason = f"{at}: no `{shown(name)}`"
                        column.add(FAILED, at, None, numbers)
                        continue
                column.add(found, at, row.get(name), numbers)
    points = {name: column for name, column in columns.items() if column.points}
    if wanted and not points:
        name = max(wanted, key=lambda name: len(others[name]))
        raise UsageError(
            f"{place}: no row whose `{shown(name)}` is {listed(sorted(wanted[name]))}; give --where "
            f"{shown(name)}=VALUE with a value such as {listed(others[name]) or 'none'}"
        )
    for name, several in kinds.items():
        sign = _series_sign(layout, name)
        if len(several) > 1 and (sign == "sure" or (sign and None in map(plain_number, several))):
            raise UsageError(
                f"{place}: its rows are of several series, with `{shown(name)}` such as {listed(several)}; pick one "
                f"with --where {shown(name)}=VALUE"
            )
    labels = [name for name, values in kinds.items() if len(values) > 1 and _is_label(name)]
    if labels:
        name = min(labels, key=lambda name: len(kinds[name]))  # a URL may hold an id of each request
        file.notes.append(
            f"{place}: rows of several kinds are judged together, with `{shown(name)}` such as "
            f"{listed([*kinds[name]][:4])}; if their shares differ between the files, pick one with --where "
            f"{shown(name)}=VALUE"
        )
    runs = {}
    for name, column in points.items():
        if (missing := total - len(column.points)) and layout is UNKNOWN:
            file.notes.append(f"{place}: {count(missing, 'record')} without `{shown(name)}` left out")
        series = column.runs(failures(seen), reason, tells=records or bool(told))
        runs["" if len(points) == 1 else name] = series._replace(
            in_seconds=numbers.has_units or name in layout.columns
        )
    return runs


def _signs(row: Row, told: Iterable[str]) -> int:
    return signs(tuple([(name, as_text(row.get(name))) for name in told]))


def _is_label(name: str) -> bool:
    return name.rpartition(".")[2].lower() in WORDS["labels"]


def _series_sign(layout: Layout, name: str) -> str:
    """Return `sure` if a column names what was measured, `words` if it does where it holds words; "" for others."""
    words = words_of(name)
    if layout.is_labelled or name in layout.series or words & WORDS["numbered series"]:
        return "sure"
    return "words" if words & WORDS["series"] and "value" not in words else ""


def _only_times(rows: Sequence[Row], names: Iterable[str]) -> str:
    """Return the column that is named like a latency and is the only one that may be one; empty if there is none."""
    found = []
    for name in names:
        cells = [text for row in rows if (text := as_text(row.get(name)))]
        if sum(map(bool, map(number_of, cells))) > len(cells) / 2 and not outcome_kind(name):
            found += [name] * (not words_of(name) & WORDS["never a time"])
    return found[0] if len(found) == 1 and words_of(found[0]) & WORDS["times"] else ""


def _note(values: dict[str, None], text: str) -> None:
    if text and len(values) < _MOST_VALUES:
        values[text[:200]] = None


def pick_column(place: str, names: Sequence[str], column: str, option: str = "--column") -> str:
    """Return the column that the user named with an option, or the only one."""
    if column and column in names:
        return column
    if not column and len(names) == 1:
        return names[0]
    what = f"no column `{shown(column)}`" if column else "several columns"
    raise UsageError(f"{place}: {what}; give {option} one of: {listed(names)}")
