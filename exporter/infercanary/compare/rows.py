"""Reads latencies from the rows of a table: picks rows, and counts failed runs instead of averaging them in."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

import numpy as np

from infercanary.command.settings import UsageError
from infercanary.compare.cells import DECIMAL_COMMA, Numbers, as_text, duration, plain_number
from infercanary.compare.layouts import UNKNOWN, Layout, Row
from infercanary.compare.outcomes import FAILED, RUNS, WORDS, Outcomes, outcome_kind, words_of
from infercanary.compare.recording import Attempts, RecordedRuns, at_most, listed, shown
from infercanary.compare.units import count

MAX_POINTS = 5_000_000

_HEAD = 100  # records whose keys are the columns of JSON Lines
_NAMED = 12  # values that a message lists

Rows: TypeAlias = "Iterable[tuple[str, Row]]"
"""Place of a row, for messages, and its columns."""


class Choice(NamedTuple):
    """Column and rows that --column and --where select."""

    column: str = ""
    where: Sequence[tuple[str, str]] = ()

    @property
    def option(self) -> str:
        """Name of an option that was given; empty if none was."""
        return "--column" if self.column else "--where" if self.where else ""


def _is_label(name: str) -> bool:
    return name.rpartition(".")[2].lower() in WORDS["labels"]


def _is_series(name: str, cell: str) -> bool:
    words = words_of(name)
    is_named = words & WORDS["series"] and "value" not in words and plain_number(cell) is None and cell
    return bool(words & WORDS["numbered series"] or is_named)


class _Column:
    """The values of one column."""

    def __init__(self) -> None:
        self.points = array("d")
        self.missing = 0
        self._states = bytearray()
        self._mistakes: dict[int, UsageError] = {}

    def add(self, state: int, at: str, cell: object, numbers: Numbers, per_second: float) -> None:
        """Take the value of a row. A mistake in it counts only if the row turns out to be no failure."""
        value = math.nan
        if state != FAILED:
            try:
                value = numbers.latency(at, cell) / per_second
            except UsageError as mistake:
                if state == RUNS:
                    raise
                self._mistakes.setdefault(state, mistake)
        self.points.append(value)
        self._states.append(state)

    def runs(self, outcomes: Outcomes, reason: str) -> RecordedRuns:
        failures = outcomes.failed()
        for state, mistake in self._mistakes.items():
            if state not in failures:
                raise mistake
        failed = np.isin(np.frombuffer(bytes(self._states), dtype=np.uint8), failures)
        total = int(failed.sum())
        return RecordedRuns(
            [np.frombuffer(self.points, dtype=np.float64)[~failed]],
            left_out={"failed": total} if total else {},
            attempts=Attempts(len(self.points), total),
            failure=reason if total else "",
        )


def read_rows(
    place: str,
    rows: Rows,
    choice: Choice = Choice(),  # noqa: B008 - immutable
    layout: Layout = UNKNOWN,
    *,
    header: str = "",
    records: bool = False,
    decimal_comma: bool = False,
) -> tuple[dict[str, RecordedRuns], list[str]]:
    """Read the latencies of a table.

    Args:
        place: The file's name, for messages.
        rows: In the order of the file.
        choice: What the user picked.
        layout: Of the tool that wrote it.
        header: Place of the header, for messages; empty for that of the first row.
        records: Whether rows may lack columns, as JSON objects do.
        decimal_comma: Whether ``12,5`` may be a number.

    Returns:
        The runs by column, in seconds if the unit is known; the name is empty if one column is read. Notes.

    Raises:
        UsageError: A column is missing or not clear, the rows are of several series, or a latency cannot be one.
    """
    rows = iter(rows)
    head = [*islice(rows, _HEAD)]
    outcomes, numbers, notes = Outcomes(), Numbers(decimal_comma), []
    shaped = [row for at, raw in head if (row := layout.shaped(at, raw)) is not None]
    names = [*dict.fromkeys(name for row in shaped for name in row)]
    first = header or (head[0][0] if head else place)
    usual = [name for name in layout.columns if name in names]
    if records and shaped and all(outcomes.state(row, _outcomes_in(row, layout)) == FAILED for row in shaped):
        # No run ended well, and so none may have the column.
        usual = [choice.column or next(iter(layout.columns or names))]
        names = [*dict.fromkeys([*names, *usual])]
    elif not choice.column and not usual and len(names) > 1 and (only_one := _only_times(shaped, names)):
        usual = [only_one]
        notes.append(f"{place}: read `{shown(only_one)}`, the only column of times")
    if choice.column or not usual:
        usual = [pick_column(first, names, choice.column)] if head else []
    wanted = {**layout.only}
    where: dict[str, set[str]] = {}
    for name, text in choice.where:
        where.setdefault(pick_column(first, names, name, "--where"), set()).add(text.strip())
    wanted |= where
    others: dict[str, dict[str, None]] = {name: {} for name in wanted}
    kinds: dict[str, dict[str, None]] = {
        name: {}
        for name in names
        if name not in (*usual, *where)
        and (
            _names_series(layout, name)
            or _is_label(name)
            or words_of(name) & (WORDS["series"] | WORDS["numbered series"])
        )
    }
    columns = {name: _Column() for name in usual}
    fixed = [name for name in _outcomes_in(names, layout) if name not in columns]
    reason = ""
    for at, raw in chain(head, rows):
        row = layout.shaped(at, raw)
        if row is None or not _fits(row, wanted, others):
            continue
        for name, kind in kinds.items():
            _note(kind, as_text(row.get(name)))
        told = [name for name in _outcomes_in(row, layout) if name not in columns] if records else fixed
        state = outcomes.state(row, told)
        if state == FAILED:
            reason = _reason(at, row)
        for name, column in columns.items():
            at_most(MAX_POINTS, len(column.points) + 1, place, "numbers")
            ended = state
            if records and state != FAILED:
                if name not in row:
                    column.missing += 1
                    continue
                if as_text(row[name]) == "":
                    reason = f"{at}: no `{shown(name)}`"
                    ended = FAILED
            per_second = layout.per_second if name in layout.columns else 1.0
            column.add(ended, at, row.get(name), numbers, per_second)
    if wanted and not any(column.points for column in columns.values()):
        _refuse_empty(place, wanted, others)
    for name, values in kinds.items():
        if len(values) > 1 and (
            _names_series(layout, name) or any(_is_series(name, value) for value in values)
        ):
            raise UsageError(
                f"{place}: its rows are of several series, `{shown(name)}` is {_named(values)}; pick one with "
                f"--where {shown(name)}=VALUE"
            )
    runs: dict[str, RecordedRuns] = {}
    for name, column in columns.items():
        if column.missing and not column.points:
            raise UsageError(f"{place}: no `{shown(name)}` in any record; give another --column")
        if column.missing and layout is UNKNOWN:
            notes.append(f"{place}: {count(column.missing, 'record')} without `{shown(name)}` left out")
        if column.points:
            runs[name] = column.runs(outcomes, reason)._replace(
                in_seconds=numbers.has_units or name in layout.columns
            )
    if not runs:
        raise UsageError(f"{place}: holds no numbers; give one a line, or a table with a header")
    if not outcomes.any and not records:
        runs = {name: series._replace(attempts=None) for name, series in runs.items()}
    if labels := [(n, v) for n, v in kinds.items() if len(v) > 1 and _is_label(n)]:
        notes.append(_mixed(place, labels))
    return {"" if len(runs) == 1 else name: series for name, series in runs.items()}, notes


def _outcomes_in(names: Iterable[str], layout: Layout) -> list[str]:
    return [] if layout.is_labelled else [name for name in names if outcome_kind(name)]


def _names_series(layout: Layout, name: str) -> bool:
    return layout.is_labelled or name in layout.series


def _fits(row: Row, wanted: Mapping[str, set[str]], others: Mapping[str, dict[str, None]]) -> bool:
    """Return whether a row is wanted, and note what others there are."""
    for name, values in wanted.items():
        if (text := as_text(row.get(name)).strip()) not in values:
            _note(others[name], text)
            return False
    return True


def _only_times(rows: Iterable[Row], names: Iterable[str]) -> str:
    """Return the column that is named like a latency and is the only one that may be one; empty if there is none."""
    found = []
    for name in names:
        cells = [as_text(row[name]) for row in rows if row.get(name) not in (None, "")]
        numbers = sum(bool(DECIMAL_COMMA.fullmatch(x) or plain_number(x) or duration(x)) for x in cells)
        if numbers > len(cells) / 2 and not outcome_kind(name) and not words_of(name) & WORDS["never a time"]:
            found.append(name)
    return found[0] if len(found) == 1 and words_of(found[0]) & WORDS["times"] else ""


def _note(values: dict[str, None], text: str) -> None:
    if text and len(values) <= _NAMED:
        values[text[:200]] = None


def _reason(at: str, row: Row) -> str:
    found = [(name, as_text(row[name])) for name in row if outcome_kind(name) and as_text(row[name])]
    return f"{at}: " + ", ".join(f"{shown(name)} {shown(text)}" for name, text in found[:4])


def _refuse_empty(place: str, wanted: Mapping[str, set[str]], others: Mapping[str, Iterable[str]]) -> None:
    name = next(filter(others.get, wanted), next(iter(wanted)))
    values = ", ".join(f"`{shown(value)}`" for value in sorted(wanted[name]))
    found = _named(others[name])
    raise UsageError(
        f"{place}: no row whose `{shown(name)}` is {values}"
        + (f"; there are: {found}; pick with --where {shown(name)}=VALUE" if found else "")
    )


def _mixed(place: str, labels: Sequence[tuple[str, Mapping[str, None]]]) -> str:
    # Labels with few values come first: a URL may hold an id of each request.
    labels = sorted(labels, key=lambda label: len(label[1]))
    many = f"has more than {_NAMED} values"
    each = [
        f"`{shown(name)}` {many if len(values) > _NAMED else f'is {_named(values, 4)}'}"
        for name, values in labels[:3]
    ]
    return (
        f"{place}: rows of several kinds are judged together ({'; '.join(each)}); if their shares differ between the "
        f"files, pick one with --where {shown(labels[0][0])}=VALUE"
    )


def _named(values: Iterable[str], most: int = _NAMED) -> str:
    names = [shown(value, 40) for value in values]
    return ", ".join(names[:most]) + " and more" * (len(names) > most)


def pick_column(where: str, names: Sequence[str], column: str, option: str = "--column") -> str:
    """Return the column to read among ``names``.

    Args:
        where: Place of the header, for messages.
        names: All columns.
        column: The one that the user named; empty if none is.
        option: That names it.

    Raises:
        UsageError: It is not there, or not clear.
    """
    if not names:
        raise UsageError(f"{where}: no columns here; give numbers")
    if not column and len(names) == 1:
        return names[0]
    if not column:
        raise UsageError(f"{where}: which column? Give --column one of: {listed(names)}")
    if column not in names:
        of = f" for {option}" if option != "--column" else ""
        raise UsageError(f"{where}: no column `{shown(column)}`{of}; there are: {listed(names)}")
    if names.count(column) > 1:
        raise UsageError(
            f"{where}: the column `{shown(column)}` is there {names.count(column)} times; rename one"
        )
    return column
