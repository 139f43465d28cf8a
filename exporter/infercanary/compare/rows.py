"""Reads latencies from the rows of a table: picks rows, and counts failed runs instead of averaging them in."""

from __future__ import annotations

import functools
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from infercanary.command.settings import UsageError
from infercanary.compare.recording import Attempts, RecordedRuns, listed, shown
from infercanary.compare.units import count

MAX_POINTS = 5_000_000

_LEAST, _MOST = 1e-15, 1e15  # a nanosecond in days, and eleven days in nanoseconds
_HEAD = 100  # records whose keys are the columns of JSON Lines
_DEEPEST = 20  # objects in objects
_NAMED = 12  # values that a message lists

PER_SECOND = {
    "ns": 1e9, "us": 1e6, "µs": 1e6, "μs": 1e6, "usec": 1e6, "ms": 1e3, "msec": 1e3, "s": 1.0, "sec": 1.0, "secs": 1.0,
    "seconds": 1.0, "m": 1 / 60, "min": 1 / 60, "h": 1 / 3600,
}  # fmt: skip
"""Unit → how many of it are a second."""

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


class Choice(NamedTuple):
    """What --column and --where name."""

    column: str = ""
    where: Sequence[tuple[str, str]] = ()


_NO = {
    "",
    "0",
    "false",
    "no",
    "n",
    "f",
    "none",
    "null",
    "nan",
    "nil",
    "-",
    "n/a",
    "na",
    "[]",
    "{}",
    "ok",
    "success",
}
_SUCCESS = {"success", "successful", "succeeded", "ok", "passed"}
_ERROR = {"error", "errors", "err", "exception", "failure", "failures", "failed", "fail"}
_ENDED = {"cancelled", "canceled", "aborted", "timeout", "timed"}  # a number may be a limit
_CODE = {"code", "codes", "rc", "returncode"}
_OF_CODES = _CODE | {"http", "grpc", "response", "resp", "exit", "return", "result", "request", "status"}
_NO_OUTCOME = {
    "rate", "ratio", "percent", "pct", "std", "stddev", "margin", "mean", "s", "sec", "bar", "count", "total", "num",
}  # fmt: skip
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
_GOOD = {
    "ok",
    "success",
    "succeeded",
    "successful",
    "passed",
    "pass",
    "completed",
    "complete",
    "done",
    "finished",
}
_BAD = {
    "error", "err", "fail", "failed", "failure", "timeout", "timedout", "timed", "exception", "cancelled", "canceled",
    "aborted", "abort", "unavailable", "refused", "denied", "ko", "unsuccessful", "rejected", "crashed", "killed",
    "exceeded", "exhausted", "internal", "unauthenticated", "deadlineexceeded", "resourceexhausted", "reset",
}  # fmt: skip

# States of a row. What a zero or a word means is known once the whole column is: 0 is OK to gRPC and a refused
# connection to HTTP; `miss` is a failure beside `ok`, and not beside `hit`.
_RUNS, _FAILED, _ZERO, _WORD = range(4)


@functools.lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    """Return whether a column tells how runs ended (`success`, `error`, `ended`, `status`); "" for others."""
    words = _words(name.rpartition(".")[2]) or _words(name)
    path = {*words, *(_words(name.rpartition(".")[0]) & _ERROR)}
    if path & _NO_OUTCOME or "%" in name:
        return ""
    if words == {"expected", "response"}:
        return "success"
    for kind, known in (("success", _SUCCESS), ("error", _ERROR), ("ended", _ENDED)):
        if path & known:
            return kind
    return "status" if words & {"status", "outcome"} or (words & _CODE and words <= _OF_CODES) else ""


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def _is_label(name: str) -> bool:
    return name.rpartition(".")[2].lower() in _LABELS


def _is_series(name: str, cell: str) -> bool:
    words = _words(name)
    if words & _NUMBERED_SERIES:
        return True
    return bool(words & _SERIES) and "value" not in words and plain_number(cell) is None and cell != ""


class _Outcomes:
    """How rows ended."""

    def __init__(self) -> None:
        self.is_http = self.has_good = self.any = False

    def state(self, row: Row, columns: Iterable[str]) -> int:
        """A column of successes decides, where it says anything: a tool may expect a 404."""
        state = _RUNS
        for name in columns:
            kind = _kind(name)
            if not kind:
                continue
            self.any = True
            cell = as_text(row.get(name)).strip().lower()
            if kind == "success":
                if cell in ("true", "1", "yes", "y", "t", "1.0", "ok", "success", "pass", "passed"):
                    return _RUNS
                if cell in ("false", "0", "no", "n", "f", "0.0", "ko", "fail", "failed", "error"):
                    state = _FAILED
            elif kind == "status":
                state = state if state == _FAILED else self._status(cell) or state
            elif kind == "ended":
                state = _FAILED if cell in ("true", "1", "yes") else state
            elif cell not in _NO:
                number = plain_number(cell)
                state = _FAILED if number is None or (number and number.is_integer()) else state
        return state

    def _status(self, cell: str) -> int:
        if not cell:
            return _RUNS
        number = plain_number(cell.split()[0])
        if number is None:
            words = _words(cell)
            if words & _BAD or re.fullmatch("[45]xx", cell):
                return _FAILED
            self.has_good |= bool(words & _GOOD)
            return _RUNS if words & _GOOD or not words or re.fullmatch("[123]xx", cell) else _WORD
        if 100 <= number < 600:
            self.is_http = True
            return _FAILED if number >= 400 else _RUNS
        if number == 0:
            return _ZERO
        return _FAILED if -256 <= number < 100 else _RUNS

    def failed(self) -> list[int]:
        """Return the states that are failures, now that all rows are read."""
        return [_FAILED, *[_ZERO] * self.is_http, *[_WORD] * self.has_good]


class _Column:
    """The values of one column."""

    def __init__(self) -> None:
        self.points = array("d")
        self.states = bytearray()
        self.mistakes: dict[int, UsageError] = {}
        self.missing = 0

    def add(self, state: int, value: float) -> None:
        self.points.append(value)
        self.states.append(state)


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
    names = [*dict.fromkeys(name for _, row in head for name in row)]
    if layout is not None:
        shaped = (read for _, row in head if (read := layout.read(row)) is not None)
        names = [*dict.fromkeys([*(name for row in shaped for name in row)])] or names
    first = header or (head[0][0] if head else place)
    usual = [name for name in (layout.columns if layout else ()) if name in names]
    notes = []
    if not choice.column and not usual and len(names) > 1 and (only_one := _only_numbers(head, names)):
        usual = [only_one]
        notes.append(f"{place}: read `{shown(only_one)}`, the only column of times")
    if choice.column or not usual:
        usual = [pick_column(first, names, choice.column)] if head else []
    where: dict[str, set[str]] = {}
    for name, text in choice.where:
        where.setdefault(pick_column(first, names, name, "--where"), set()).add(text.strip())
    only = {
        name: set(values) for name, values in (layout.only if layout else {}).items() if name not in where
    }
    wanted = {**only, **where}
    seen: dict[str, dict[str, None]] = {name: {} for name in wanted}
    numbers = _Numbers(decimal_comma)
    outcomes = _Outcomes()
    columns = {name: _Column() for name in usual}
    series = layout.series if layout else ()
    kinds: dict[str, dict[str, None]] = {
        name: {}
        for name in names
        if name not in (*usual, *where)
        and (name in series or _is_label(name) or _words(name) & _SERIES_WORDS)
    }
    fixed = [name for name in names if name not in usual and _kind(name)]
    reason = ""
    for at, raw in chain(head, rows):
        row = raw if layout is None else layout.read(raw)
        if row is None:
            continue
        if not all(_keeps(row, name, values, seen[name]) for name, values in wanted.items()):
            continue
        for name, kind in kinds.items():
            _note(kind, as_text(row.get(name)))
        state = outcomes.state(row, (n for n in row if n not in columns) if records else fixed)
        if state == _FAILED:
            reason = _reason(at, row)
        for name, column in columns.items():
            if len(column.points) >= MAX_POINTS:
                raise UsageError(f"{place}: more than {MAX_POINTS:,} numbers; give a part of them")
            value = math.nan
            if records and name not in row and state == _RUNS:
                column.missing += 1
                continue
            if records and row.get(name) is None and state == _RUNS:
                reason, outcomes.any = f"{at}: no `{shown(name)}`", True
                column.add(_FAILED, value)
                continue
            if state != _FAILED:
                try:
                    value = numbers.latency(at, row.get(name)) / (layout.per_second if layout else 1.0)
                except UsageError as error:
                    if state == _RUNS:
                        raise
                    column.mistakes.setdefault(state, error)
            column.add(state, value)
    if wanted and not any(column.points for column in columns.values()):
        _refuse_empty(place, wanted, seen)
    _refuse_several(place, layout, kinds)
    has_outcomes = outcomes.any or records
    runs = {
        name: _runs(place, column, outcomes, has_outcomes, reason, numbers.has_units or layout is not None)
        for name, column in columns.items()
        if column.points or len(columns) == 1
    }
    notes += [
        f"{place}: {count(column.missing, 'record')} without `{shown(name)}` left out"
        for name, column in columns.items()
        if column.missing and layout is None
    ]
    for name, column in columns.items():
        if not column.points and column.missing:
            raise UsageError(f"{place}: no `{shown(name)}` in any record; give another --column")
    if labels := [(n, v) for n, v in kinds.items() if len(v) > 1 and _is_label(n)]:
        notes.append(_mixed(place, labels))
    if not runs:
        raise UsageError(f"{place}: holds no numbers; give one a line, or a table with a header")
    return {"" if len(runs) == 1 else name: series for name, series in runs.items()}, notes


def _only_numbers(head: Iterable[tuple[str, Row]], names: Iterable[str]) -> str:
    """Return the only column that may hold latencies; empty if there are several."""
    found = []
    for name in names:
        cells = [as_text(row[name]) for _, row in head if row.get(name) not in (None, "")]
        numbers = sum(bool(_COMMA.fullmatch(x) or plain_number(x) or duration(x)) for x in cells)
        if numbers > len(cells) / 2 and not _kind(name) and not _words(name) & _NEVER:
            found.append(name)
    return found[0] if len(found) == 1 and _words(found[0]) & _TIMES else ""


def _keeps(row: Row, name: str, values: set[str], seen: dict[str, None]) -> bool:
    text = as_text(row.get(name)).strip()
    if text in values:
        return True
    _note(seen, text)
    return False


def _note(values: dict[str, None], text: str) -> None:
    if len(values) <= _NAMED and text:
        values[shown(text)] = None


def _reason(at: str, row: Row) -> str:
    found = [(name, as_text(row[name])) for name in row if _kind(name) and as_text(row[name])]
    return f"{at}: " + ", ".join(f"{shown(name)} {shown(text)}" for name, text in found[:4])


def _runs(
    place: str, column: _Column, outcomes: _Outcomes, has_outcomes: bool, reason: str, in_seconds: bool
) -> RecordedRuns:
    failures = outcomes.failed()
    for state, mistake in column.mistakes.items():
        if state not in failures:
            raise mistake
    points = np.frombuffer(column.points, dtype=np.float64) if column.points else np.empty(0)
    failed = np.isin(np.frombuffer(bytes(column.states), dtype=np.uint8), failures)
    kept = points[~failed]
    total = int(failed.sum())
    if not total and not kept.size:
        raise UsageError(f"{place}: holds no numbers; give one a line, or a table with a header")
    return RecordedRuns(
        [kept],
        left_out={"failed": total} if total else {},
        attempts=Attempts(len(points), total) if has_outcomes else None,
        failure=reason if total else "",
        in_seconds=in_seconds,
    )


def _refuse_empty(place: str, wanted: Mapping[str, set[str]], seen: Mapping[str, Iterable[str]]) -> None:
    name = next((name for name in wanted if seen[name]), next(iter(wanted)))
    values = ", ".join(f"`{shown(value)}`" for value in sorted(wanted[name]))
    found = _named(seen[name])
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


def _mixed(place: str, labels: Iterable[tuple[str, Mapping[str, None]]]) -> str:
    each = [f"`{shown(name)}` is {_named(values, 4)}" for name, values in labels]
    first = shown(next(iter(labels))[0])
    return (
        f"{place}: rows of several kinds are judged together ({'; '.join(each[:3])}); if their shares differ "
        f"between the files, pick one with --where {first}=VALUE"
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


_COMMA = re.compile(r"\s*\d{1,3}(\.\d{3})*,\d+\s*|\s*\d+,\d+\s*")


class _Numbers:
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
            if self._decimal_comma:
                value = self._with_comma(where, cell, value)
            if value is None and (value := duration(cell)) is not None:
                unit = True
        elif isinstance(cell, (int, float)) and not isinstance(cell, bool):
            value = _float(cell)
        if value is None:
            raise UsageError(f"{where}: {_what(cell)} is not a number{_hint(cell)}")
        if not 0 < value < math.inf:
            raise UsageError(
                f"{where}: {shown(str(cell))} is not a latency: those are finite and above zero; take it out"
            )
        if not _LEAST <= value <= _MOST:
            raise UsageError(
                f"{where}: {shown(str(cell))} is not a latency: in any unit those are from {_LEAST:g} to {_MOST:g}; "
                "take it out"
            )
        self.has_units |= unit
        self._plain |= not unit
        if self.has_units and self._plain:
            raise UsageError(
                f"{where}: `{shown(str(cell))}` {'has' if unit else 'without'} a unit, unlike the numbers before; "
                "give all of them one"
            )
        return value

    def _with_comma(self, where: str, cell: str, value: float | None) -> float | None:
        if value is None and _COMMA.fullmatch(cell):
            value = float(cell.replace(".", "").replace(",", "."))
            self._comma = True
        elif value is not None and "." in cell:
            self._point = True
        if self._comma and self._point:
            raise UsageError(
                f"{where}: {_what(cell)}: decimal commas and points in one column; write all with a point"
            )
        return value


def _hint(cell: object) -> str:
    if not isinstance(cell, str):
        return ""
    if re.fullmatch(r"\d+,\d+", cell.strip()):
        return "; if it is a decimal comma, write it with a point, or separate columns by `;`"
    if len(cell.replace(",", " ").split()) > 1:
        return "; put one number on a line, or give the table a header and name a column with --column"
    return ""


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
    if cell is None:
        return ""
    return msgspec.json.encode(cell)[:200].decode(errors="replace")


def _what(cell: object) -> str:
    if cell is None or cell == "":
        return "nothing"
    return f"`{shown(cell if isinstance(cell, str) else msgspec.json.encode(cell)[:80].decode(errors='replace'))}`"


def flat(entry: Mapping[str, object], under: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield the keys and values of an object; those of nested objects as `outer.inner`."""
    for key, value in entry.items():
        if isinstance(value, dict) and value and depth < _DEEPEST:
            yield from flat(value, f"{under}{key}.", depth + 1)
        else:
            yield f"{under}{key}", value
