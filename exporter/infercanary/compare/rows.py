"""Reads latencies from the selected rows of a table. Failed runs are counted, and their latencies are left out."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from infercanary.command.settings import UsageError
from infercanary.compare.cells import Numbers, as_text, parsed, plain_number
from infercanary.compare.layouts import Layout, Row, table_of
from infercanary.compare.outcomes import (
    FAILED,
    WORD,
    WORDS,
    Outcomes,
    failures,
    outcome_kind,
    signs,
    words_of,
)
from infercanary.compare.recording import Attempts, RecordedRuns, at_most, listed, shown
from infercanary.render.units import count

MAX_POINTS = 5_000_000

_HEAD = 100  # number of rows whose keys define the columns of JSON Lines


class File(NamedTuple):
    """A file to read, with the user's selection."""

    place: str
    """Name for messages."""
    notes: list[str]
    """Remarks for the user; the list grows while the file is read."""
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
        file: The file with the user's selection.
        rows: Rows in the order of the file, each with its place.
        document: Layout of the document that contains the rows; None to find the layout from the columns.
        records: True if rows may lack columns, as JSON objects may.
        decimal_comma: True if ``12,5`` may be a number.

    Returns:
        Runs by column, in seconds if the unit is known. If only one column is read, its key is "".

    Raises:
        UsageError: A column is missing or ambiguous, the rows belong to several series, or a cell is not a latency.
    """
    place = file.place
    rows = iter(rows)
    raw = [*islice(rows, _HEAD)]
    layout = document or table_of(place, [name for _, row in raw for name in row])
    shaped = ((at, row) for at, each in chain(raw, rows) if (row := layout.shaped(at, each)) is not None)
    head = [*islice(shaped, _HEAD)]
    names = [*dict.fromkeys(name for _, row in head for name in row)]
    if not names:
        raise UsageError(f"{place}: a file of {layout.tool or 'numbers'} without a run; {layout.advice}")
    columns: dict[str, array[float]] = {}

    def outcomes(row: Row) -> Outcomes:
        if layout.is_labelled:
            return ()
        # A generator would take twice as long as this list.
        return tuple([(n, as_text(row[n])) for n in row if outcome_kind(n) and n not in columns])

    usual = [name for name in layout.columns if name in names]
    if records and all(signs(outcomes(row)) & FAILED for _, row in head):
        # Without a successful run, the latency column may be missing in all rows.
        usual = [file.column or next(iter(layout.columns), "")]
    elif file.column or not usual:
        column = file.column or _only_times(head, names)
        usual = [pick_column(place, names, column)]
        if column != file.column and len(names) > 1:
            file.notes.append(f"{place}: read `{shown(column)}`, the only column of times")
    columns |= {name: array("d") for name in usual}
    where: defaultdict[str, set[str]] = defaultdict(set)
    for name, text in file.where:
        where[pick_column(place, names, name, "--where")].add(text.strip())
    wanted = layout.only | where
    # The first distinct texts of each watched column, in order.
    kinds: defaultdict[str, dict[str, None]] = defaultdict(dict)
    watched = [
        n
        for n in names
        if n not in {*usual, *where, *layout.units.values()} and (_is_label(n) or _is_series(layout, n, [""]))
    ]
    numbers = Numbers(decimal_comma)
    states = bytearray()
    # First mistake for each combination of signs. The mistake is raised later, unless these signs mean a failed run.
    mistakes: dict[int, UsageError] = {}
    seen = 0
    told: Outcomes = ()
    reason = ""
    for at, row in chain(head, shaped):
        if any(as_text(row.get(name)).strip() not in values for name, values in wanted.items()):
            continue
        for name in watched:
            # collect only enough texts for a message
            if (text := as_text(row.get(name))) and len(kinds[name]) < 12:
                kinds[name][text] = None
        told = outcomes(row)
        found = signs(told)
        seen |= found
        states.append(found)
        at_most(MAX_POINTS, len(states), place, "numbers")
        if found & FAILED:
            reason = f"{at}: {shown(', '.join([f'{name} {text}' for name, text in told if text]), 200)}"
        for name, points in columns.items():
            value = math.nan  # placeholder for a failed run
            if found & FAILED:
                pass
            elif name not in row:
                value = math.inf  # placeholder for a row that is not a run
            elif records and as_text(row[name]) == "":
                reason = f"{at}: no `{shown(name)}`"
            else:
                try:
                    value = numbers.latency(at, row[name], layout.unit_of(name, row))
                except UsageError as mistake:
                    mistakes.setdefault(found, mistake)
            points.append(value)
    if not states:
        picked = [f"{name}={value}" for name, values in wanted.items() for value in sorted(values)]
        raise UsageError(f"{place}: no row has {listed(picked)}; change --where COLUMN=VALUE")
    several = {name: cells for name, cells in kinds.items() if len(cells) > 1}

    def choice(name: str) -> str:
        return (
            f"`{shown(name)}` such as {listed(several[name], 4)}; select one with --where {shown(name)}=VALUE"
        )

    for name, cells in several.items():
        if _is_series(layout, name, cells):
            raise UsageError(f"{place}: the rows belong to several series, with {choice(name)}")
    if labels := [*filter(_is_label, several)]:
        # A URL may contain a request's id, so choose the column with the fewest texts.
        name = min(labels, key=lambda name: len(several[name]))
        file.notes.append(
            f"{place}: rows of several kinds are judged together, with {choice(name)} if their shares differ between "
            "the files"
        )
    for found, wrong in mistakes.items():
        if not found & failures(seen):
            raise wrong
    signed = np.frombuffer(states, dtype=np.uint8)
    is_failure = signed & failures(seen) != 0
    runs = {}
    for name, points in columns.items():
        # A word such as `started` does not prove that a run without a latency has ended.
        is_run = ~np.isinf(points) | (is_failure & (signed & WORD == 0))
        seconds = np.array(points)[is_run]
        failed = is_failure[is_run] | np.isnan(seconds)
        total = int(failed.sum())
        if not layout.tool and not is_run.all():
            missing = count(len(states) - len(seconds), "record")
            file.notes.append(f"{place}: {missing} without `{shown(name)}` left out")
        if len(seconds) and (name or is_run.all()):
            runs[name] = RecordedRuns(
                [seconds[~failed]],
                left_out={"failed": total} if total else {},
                attempts=Attempts(len(failed), total) if records or told else None,
                failure=reason * bool(total),
                in_seconds=numbers.has_units or name in layout.columns,
            )
    if not runs:
        raise UsageError(f"{place}: no record has {listed(columns) or 'a latency'}; give another --column")
    return {"": runs.popitem()[1]} if len(runs) == 1 else runs


def _is_label(name: str) -> bool:
    return name.rpartition(".")[2].lower() in WORDS["labels"]


def _is_series(layout: Layout, name: str, cells: Iterable[str]) -> bool:
    """True if a column names the measured object. Columns with some names must have a cell that is not a number."""
    words = words_of(name)
    if layout.is_labelled or name in layout.series or words & WORDS["numbered series"]:
        return True
    return bool(words & WORDS["series"]) and "value" not in words and None in map(plain_number, cells)


def _only_times(head: Sequence[tuple[str, Row]], names: Iterable[str]) -> str:
    """Return the only column that may contain latencies, if its name fits; empty otherwise."""
    candidates = []
    for name in names:
        cells = [text for _, row in head if (text := as_text(row.get(name)))]
        are_numbers = sum(bool(parsed(text)[0]) for text in cells) > len(cells) / 2
        if are_numbers and not outcome_kind(name) and not words_of(name) & WORDS["never a time"]:
            candidates.append(name)
    return candidates[0] if len(candidates) == 1 and words_of(candidates[0]) & WORDS["times"] else ""


def pick_column(place: str, names: Sequence[str], column: str, option: str = "--column") -> str:
    """Return the column that an option names, or the only column if the option is empty."""
    fitting = [name for name in names if name == (column or name)]
    if len(fitting) == 1:
        return fitting[0]
    what = f"no column `{shown(column)}`" if column else "several columns"
    if choices := listed(names):
        raise UsageError(f"{place}: {what}; name a column in {option}: {choices}")
    raise UsageError(f"{place}: {what}, and there is none to choose; remove {option}")
