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
from infercanary.compare.cells import Numbers, as_text, parsed, plain_number
from infercanary.compare.layouts import UNKNOWN, Layout, Row, table_of
from infercanary.compare.outcomes import FAILED, WORD, WORDS, failures, outcome_kind, signs, words_of
from infercanary.compare.recording import Attempts, RecordedRuns, at_most, listed, shown
from infercanary.render.units import count

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
        raise UsageError(
            f"{place}: {nothing if layout.tool else 'holds no numbers; give one a line, or a table'}"
        )
    if names == [""] and (file.column or file.where):
        raise UsageError(f"{place}: numbers without columns; leave --column and --where out")

    usual = [name for name in layout.columns if name in names]
    if records and all(_signs(row, filter(outcome_kind, row)) & FAILED for _, row in head):
        # No run ended well, and so none may have the column.
        usual = [file.column or next(iter(layout.columns), "")]
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
    columns = {name: array("d") for name in usual}
    states = bytearray()

    @functools.lru_cache
    def telling(names: tuple[str, ...]) -> Sequence[str]:
        return [n for n in names if outcome_kind(n) and n not in columns and not layout.is_labelled]

    mistakes: dict[int, UsageError] = {}  # each counts only if its row turns out to be no failure
    seen = 0
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
            told = telling((*row,))
            found = _signs(row, told) if told else 0
            seen |= found
            states.append(found)
            at_most(MAX_POINTS, len(states), place, "numbers")
            if found & FAILED:
                texts = [f"{shown(name)} {shown(text)}" for name in told if (text := as_text(row[name]))]
                reason = f"{at}: {', '.join(texts[:4])}"
            for name, points in columns.items():
                value = math.nan  # a failed run
                if records and not found & FAILED and name not in row:
                    value = math.inf  # no run
                elif records and not found & FAILED and as_text(row[name]) == "":
                    reason = f"{at}: no `{shown(name)}`"
                elif not found & FAILED:
                    try:
                        value = numbers.latency(at, row[name])
                    except UsageError as mistake:
                        mistakes.setdefault(found, mistake)
                points.append(value)
    if not states:
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
    for found, wrong in mistakes.items():
        if not found & failures(seen):
            raise wrong
    signed = np.frombuffer(bytes(states), dtype=np.uint8)
    is_failure = signed & failures(seen) != 0
    runs = {}
    for name, points in columns.items():
        is_run = ~np.isinf(points) | (is_failure & (signed & WORD == 0))  # `started` is no end of a run
        is_scaled = name in layout.columns and not numbers.has_units
        seconds = np.array(points)[is_run] / (layout.per_second if is_scaled else 1.0)
        failed = is_failure[is_run] | np.isnan(seconds)
        total = int(failed.sum())
        if not name and not is_run.all():
            raise UsageError(
                f"{place}: its first {_HEAD} runs failed, and do not name the latencies; give --column"
            )
        if layout is UNKNOWN and not is_run.all():
            missing = count(len(states) - len(seconds), "record")
            file.notes.append(f"{place}: {missing} without `{shown(name)}` left out")
        if len(seconds):
            runs[name] = RecordedRuns(
                [seconds[~failed]],
                left_out={"failed": total} if total else {},
                attempts=Attempts(len(failed), total) if records or told else None,
                failure=reason * bool(total),
                in_seconds=numbers.has_units or name in layout.columns,
            )
    if not runs:
        raise UsageError(f"{place}: no {listed(columns)} in any record; give another --column")
    return {"": runs.popitem()[1]} if len(runs) == 1 else runs


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
        if sum(bool(parsed(text)[0]) for text in cells) > len(cells) / 2 and not outcome_kind(name):
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
