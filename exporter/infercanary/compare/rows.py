"""Reads latencies from the rows of a table: picks rows, and counts failed runs instead of averaging them in."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from infercanary.command.settings import UsageError
from infercanary.compare.cells import DECIMAL_COMMA, Numbers, as_text, duration, plain_number
from infercanary.compare.outcomes import FAILED, RUNS, Outcomes, outcome_kind, words_of
from infercanary.compare.recording import Attempts, RecordedRuns, listed, shown
from infercanary.compare.units import count

MAX_POINTS = 5_000_000

_HEAD = 100  # records whose keys are the columns of JSON Lines
_DEEPEST = 20  # objects in objects
_NAMED = 12  # values that a message lists

WRONG = (AttributeError, LookupError, TypeError, ValueError, ArithmeticError)
"""Errors of an entry whose form is not the tool's."""

Row: TypeAlias = "Mapping[str, object]"
Rows: TypeAlias = "Iterable[tuple[str, Row]]"
"""Place of a row, for messages, and its columns."""


class Layout(NamedTuple):
    """How a tool writes single runs."""

    tool: str
    columns: Sequence[str]
    """Latencies; those that occur are judged one by one unless --column names one."""
    read: Callable[[Row], Row | None] = lambda row: row
    """Gives a row its columns, or None if it is no run."""
    needs: Iterable[str] = ()
    """Columns by which a table is known to be of this tool."""
    per_second: float = 1.0
    """1e3 if the times are in milliseconds."""
    series: Sequence[str] = ()
    """Columns that name what was measured."""
    only: Mapping[str, Iterable[str]] = {}
    """Column → values; other rows count only if --where names that column."""
    has_outcomes: bool = True
    """False if all columns are the user's own, so that `status` may be anything."""


class Choice(NamedTuple):
    """Column and rows that --column and --where select."""

    column: str = ""
    where: Sequence[tuple[str, str]] = ()


_SERIES = {"metric", "metrics", "measurement", "measure", "statistic", "stat", "variable", "field"}
_NUMBERED_SERIES = {"quantile", "percentile", "series", "unit", "units"}
_NEVER = {"timestamp", "timestamps", "date", "datetime", "seq", "sequence", "index", "id", "iteration"}
_TIMES = {
    "latency", "latencies", "latenz", "duration", "elapsed", "took", "ttft", "ns", "us", "ms", "s", "sec", "seconds",
    "millis", "milliseconds", "microseconds", "nanoseconds",
}  # fmt: skip
_SERIES_WORDS = _SERIES | _NUMBERED_SERIES
_LABELS = {
    "label", "labels", "url", "uri", "name", "method", "endpoint", "path", "route", "operation", "scenario", "group",
    "transaction",
}  # fmt: skip


def _is_label(name: str) -> bool:
    return name.rpartition(".")[2].lower() in _LABELS


def _is_series(name: str, cell: str) -> bool:
    words = words_of(name)
    if words & _NUMBERED_SERIES:
        return True
    return bool(words & _SERIES) and "value" not in words and plain_number(cell) is None and cell != ""


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

    def _failed(self, outcomes: Outcomes) -> NDArray[np.bool_]:
        failures = outcomes.failed()
        for state, mistake in self._mistakes.items():
            if state not in failures:
                raise mistake
        return np.isin(np.frombuffer(bytes(self._states), dtype=np.uint8), failures)

    def attempts(self, outcomes: Outcomes) -> Attempts:
        return Attempts(len(self.points), int(self._failed(outcomes).sum()))

    def runs(self, outcomes: Outcomes, reason: str) -> RecordedRuns:
        failed = self._failed(outcomes)
        kept = np.frombuffer(self.points, dtype=np.float64)[~failed]
        total = int(failed.sum())
        return RecordedRuns(
            [kept], left_out={"failed": total} if total else {}, failure=reason if total else ""
        )


class _Pick:
    """Picks rows by one column."""

    def __init__(self, values: set[str]) -> None:
        self.values = values
        self.others: dict[str, None] = {}

    def fits(self, cell: object) -> bool:
        text = as_text(cell).strip()
        if text in self.values:
            return True
        _note(self.others, text)
        return False


def read_rows(
    place: str,
    rows: Rows,
    choice: Choice = Choice(),  # noqa: B008 - immutable
    layout: Layout | None = None,
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
        layout: Of the tool that wrote it; None where it is not known.
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
    shaped = [row for at, raw in head if (row := _shaped(layout, at, raw)) is not None]
    names = [*dict.fromkeys(name for row in shaped for name in row)]
    first = header or (head[0][0] if head else place)
    usual = [name for name in (layout.columns if layout else ()) if name in names]
    if records and shaped and all(outcomes.state(row, _outcomes_in(row, layout)) == FAILED for row in shaped):
        # No run ended well, and so none may have the column.
        usual = [choice.column or next(iter(layout.columns if layout else names))]
        names = [*dict.fromkeys([*names, *usual])]
    elif not choice.column and not usual and len(names) > 1 and (only_one := _only_times(shaped, names)):
        usual = [only_one]
        notes.append(f"{place}: read `{shown(only_one)}`, the only column of times")
    if choice.column or not usual:
        usual = [pick_column(first, names, choice.column)] if head else []
    where: dict[str, set[str]] = {}
    for name, text in choice.where:
        where.setdefault(pick_column(first, names, name, "--where"), set()).add(text.strip())
    only = {name: {*values} for name, values in (layout.only if layout else {}).items()}
    picks = {name: _Pick(values) for name, values in (only | where).items()}
    series = layout.series if layout else ()
    kinds: dict[str, dict[str, None]] = {
        name: {}
        for name in names
        if name not in (*usual, *where)
        and (name in series or _is_label(name) or words_of(name) & _SERIES_WORDS)
    }
    columns = {name: _Column() for name in usual}
    fixed = [name for name in names if name not in columns and outcome_kind(name)]
    reason = ""
    for at, raw in chain(head, rows):
        row = _shaped(layout, at, raw)
        if row is None or not all(pick.fits(row.get(name)) for name, pick in picks.items()):
            continue
        for name, kind in kinds.items():
            _note(kind, as_text(row.get(name)))
        status_columns = (
            [name for name in _outcomes_in(row, layout) if name not in columns] if records else fixed
        )
        state = outcomes.state(row, status_columns)
        if state == FAILED:
            reason = _reason(at, row)
        for name, column in columns.items():
            per_second = layout.per_second if layout and name in layout.columns else 1.0
            if len(column.points) >= MAX_POINTS:
                raise UsageError(f"{place}: more than {MAX_POINTS:,} numbers; give a part of them")
            if not records or state == FAILED:
                column.add(state, at, row.get(name), numbers, per_second)
            elif name not in row:
                column.missing += 1
            elif as_text(row[name]) == "":
                reason = f"{at}: no `{shown(name)}`"
                column.add(FAILED, at, None, numbers, per_second)
            else:
                column.add(state, at, row[name], numbers, per_second)
    if picks and not any(column.points for column in columns.values()):
        _refuse_empty(place, picks)
    _refuse_several(place, layout, kinds)
    runs: dict[str, RecordedRuns] = {}
    for name, column in columns.items():
        if column.missing and not column.points:
            raise UsageError(f"{place}: no `{shown(name)}` in any record; give another --column")
        if column.missing and layout is None:
            notes.append(f"{place}: {count(column.missing, 'record')} without `{shown(name)}` left out")
        if column.points:
            runs[name] = column.runs(outcomes, reason)._replace(
                attempts=column.attempts(outcomes) if outcomes.any or records else None,
                in_seconds=numbers.has_units or (layout is not None and name in layout.columns),
            )
    if not runs:
        raise UsageError(f"{place}: holds no numbers; give one a line, or a table with a header")
    if labels := [(n, v) for n, v in kinds.items() if len(v) > 1 and _is_label(n)]:
        notes.append(_mixed(place, labels))
    return {"" if len(runs) == 1 else name: series for name, series in runs.items()}, notes


def _outcomes_in(row: Row, layout: Layout | None) -> list[str]:
    if layout is not None and not layout.has_outcomes:
        return []
    return [name for name in row if outcome_kind(name)]


def _shaped(layout: Layout | None, at: str, row: Row) -> Row | None:
    if layout is None:
        return row
    try:
        return layout.read(row)
    except UsageError as error:
        raise UsageError(f"{at}: {error}") from None
    except WRONG as error:
        raise UsageError(
            f"{at}: not as {layout.tool} writes it ({shown(repr(error))}); take it out"
        ) from None


def _only_times(rows: Iterable[Row], names: Iterable[str]) -> str:
    """Return the column that is named like a latency and is the only one that may be one; empty if there is none."""
    found = []
    for name in names:
        cells = [as_text(row[name]) for row in rows if row.get(name) not in (None, "")]
        numbers = sum(bool(DECIMAL_COMMA.fullmatch(x) or plain_number(x) or duration(x)) for x in cells)
        if numbers > len(cells) / 2 and not outcome_kind(name) and not words_of(name) & _NEVER:
            found.append(name)
    return found[0] if len(found) == 1 and words_of(found[0]) & _TIMES else ""


def _note(values: dict[str, None], text: str) -> None:
    if text and len(values) <= _NAMED:
        values[text[:200]] = None


def _reason(at: str, row: Row) -> str:
    found = [(name, as_text(row[name])) for name in row if outcome_kind(name) and as_text(row[name])]
    return f"{at}: " + ", ".join(f"{shown(name)} {shown(text)}" for name, text in found[:4])


def _refuse_empty(place: str, picks: Mapping[str, _Pick]) -> None:
    name, pick = next(
        ((name, pick) for name, pick in picks.items() if pick.others), next(iter(picks.items()))
    )
    values = ", ".join(f"`{shown(value)}`" for value in sorted(pick.values))
    found = _named(pick.others)
    raise UsageError(
        f"{place}: no row whose `{shown(name)}` is {values}"
        + (f"; there are: {found}; pick with --where {shown(name)}=VALUE" if found else "")
    )


def _refuse_several(place: str, layout: Layout | None, kinds: Mapping[str, Mapping[str, None]]) -> None:
    series = layout.series if layout else ()
    for name, values in kinds.items():
        if len(values) > 1 and (name in series or any(_is_series(name, value) for value in values)):
            raise UsageError(
                f"{place}: its rows are of several series, `{shown(name)}` is {_named(values)}; pick one with "
                f"--where {shown(name)}=VALUE"
            )


def _mixed(place: str, labels: Sequence[tuple[str, Mapping[str, None]]]) -> str:
    # Labels with few values come first: a URL may hold an id of each request.
    labels = sorted(labels, key=lambda label: len(label[1]))
    each = [
        f"`{shown(name)}` "
        + (f"has more than {_NAMED} values" if len(values) > _NAMED else f"is {_named(values, 4)}")
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


def flat(entry: Mapping[str, object], under: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield the keys and values of an object; those of nested objects as `outer.inner`."""
    for key, value in entry.items():
        if isinstance(value, dict) and value and depth < _DEEPEST:
            yield from flat(value, f"{under}{key}.", depth + 1)
        else:
            yield f"{under}{key}", value
