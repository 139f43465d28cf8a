"""Reads latencies from text: one a line, JSON, or a table with a header.

The content decides which. A mistake is reported in one line that names the line of the file.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeAlias

import msgspec

from infercanary.command.settings import UsageError
from infercanary.compare import layouts
from infercanary.compare.arrays import array_of, flat
from infercanary.compare.cells import as_text, duration, plain_number
from infercanary.compare.layouts import UNKNOWN
from infercanary.compare.recording import RecordedRuns, at_most, listed, shown
from infercanary.compare.rows import MAX_POINTS, Choice, pick_column, read_rows

Series: TypeAlias = "tuple[dict[str, RecordedRuns], list[str]]"
"""Runs by column (an empty name if there is one), and notes for the reader."""

_BEGINNING = 4096  # bytes by which a text of a tool is known
_NUMBER_LIKE = re.compile(r"[+-]?[\d.]")

_SEPARATOR = re.compile(r'"?sep=([^"])"?', re.IGNORECASE)
"""Excel's first line."""

_decode = msgspec.json.Decoder().decode


def numbers(place: str, data: bytes, choice: Choice = Choice()) -> Series:  # noqa: B008 - immutable
    """Read the latencies in ``data``.

    Args:
        place: The file's name, for messages.
        data: Its content.
        choice: What the user picked: the column or key that holds the latencies, and rows.

    Returns:
        The runs in the order of the file, in its unit, or in seconds where that is known; notes for the reader.

    Raises:
        UsageError: The content is not of a known form, or holds something that is no latency.
    """
    if b"\0" in data:
        is_vegeta = b"Result" in data[:300] and b"BytesOut" in data[:300]
        more = "; vegeta's own results become text by `vegeta encode --to csv`" * is_vegeta
        raise UsageError(f"{place}: a binary file; give a journal, or numbers as text{more}")
    if b"\n" not in data:  # lines of old Macs and some instruments
        data = data.replace(b"\r", b"\n")
    first = next((line for _, line in _lines(data)), b"")
    if not first:
        raise UsageError(f"{place}: holds comments only; give numbers too")
    layouts.refuse_summary(place, text=data[:_BEGINNING].decode(errors="replace"))
    if first.startswith(b"["):
        _bounded(place, data)
        try:
            return _entries(place, _parse(data), choice)
        except msgspec.DecodeError as error:
            raise UsageError(f"{place}: not a JSON array ({error}); is it whole?") from None
    if first.startswith(b"{"):
        return _objects(place, data, first, choice)
    text = first.decode(errors="replace")
    if _is_number(text):
        comment = data[: data.index(first)].decode(errors="replace").rpartition("#")[2].strip()
        if choice.where or (choice.column and choice.column != comment):
            option = "--where" if choice.where else "--column"
            raise UsageError(f"{place}: one number a line, without columns; leave {option} out")
        lines = ((f"{place}:{at}", {"": line.decode(errors="replace")}) for at, line in _lines(data))
        return read_rows(place, lines)
    return _table(place, data, choice)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers; a `#` begins a comment, `sep=` is Excel's."""
    for at, line in enumerate(io.BytesIO(data), 1):
        line = line.strip()
        if line and not line.startswith((b"#", b"sep=", b'"sep=')):
            yield at, line


def _bounded(place: str, data: bytes) -> None:
    at_most(MAX_POINTS, data.count(b","), place, "numbers")  # before it is read, and takes 32 times its size


def _entries(place: str, entries: list[Any], choice: Choice) -> Series:
    rows = ((f"{place}: entry {number}", entry) for number, entry in enumerate(entries, 1))
    if entries and all(isinstance(entry, dict) for entry in entries):
        layouts.refuse_summary(place, entries[0])
        return _records(place, rows, choice)
    if choice.option:
        raise UsageError(f"{place}: an array of numbers, without columns; leave {choice.option} out")
    return read_rows(place, ((where, {"": entry}) for where, entry in rows))


def _records(place: str, entries: Iterator[tuple[str, Mapping[str, Any]]], choice: Choice) -> Series:
    """Read JSON objects, one for each run."""
    rows = ((where, dict(flat(entry))) for where, entry in entries)
    head = [*islice(rows, 100)]
    layout = layouts.table_of({name for _, row in head for name in row})
    return read_rows(place, chain(head, rows), choice, layout, records=True)


def _objects(place: str, data: bytes, first: bytes, choice: Choice) -> Series:
    """Read one JSON document, or JSON Lines."""
    (at, _), *more_lines = islice(_lines(data), 2)
    if not more_lines:
        _bounded(place, data)
    try:
        beginning = _parse(first)
    except msgspec.DecodeError as error:
        _bounded(place, data)
        try:
            return _document(place, _parse(data), choice)
        except msgspec.DecodeError as of_all:
            if not more_lines or more_lines[0][1].startswith(
                b'{"'
            ):  # JSON Lines, of which the first is wrong
                message = f"{place}:{at}: not JSON ({error}); put one object on each line"
            else:
                message = f"{place}: not JSON ({of_all}); is it whole? Give one document, or one object on each line"
            raise UsageError(message) from None
    if not more_lines:
        return _document(place, beginning, choice, line=at)
    notes: list[str] = []
    records = _json_lines(place, data, notes)
    if layouts.document_of(place, beginning):
        _bounded(place, data)
        runs, more = _documents(place, [*records], choice)
    else:
        runs, more = _records(place, records, choice)
    return runs, [*more, *notes]


def _json_lines(place: str, data: bytes, notes: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = _lines(data)
    for at, line in lines:
        where = f"{place}:{at}"
        try:
            entry = _parse(line)
        except msgspec.DecodeError as error:
            # Only the last line may be truncated, and only if its line end is missing.
            if data.endswith(b"\n") or next(lines, None):
                raise UsageError(f"{where}: not JSON ({error}); put one object on each line") from None
            notes.append(f"{place}: the last line is truncated, and was left out")
            return
        if not isinstance(entry, dict):
            raise UsageError(
                f"{where}: `{shown(as_text(entry))}` among objects; keep to one format in a file"
            )
        yield where, entry


def _document(place: str, document: dict[str, Any], choice: Choice, line: int = 1) -> Series:
    """Read the runs in one JSON object."""
    if known := layouts.document_of(place, document):
        layout, rows = known
        if not rows:
            raise UsageError(f"{place}: a file of {layout.tool} without a run; give another")
        return read_rows(place, rows, choice, layout, records=True)
    array = array_of(place, document, choice.column)
    if array is None:
        row = dict(flat(document))
        layouts.refuse_statistics(place, row)
        if nested := [name for name, value in row.items() if isinstance(value, list) and value]:
            raise UsageError(
                f"{place}: one JSON object, whose arrays ({listed(nested, 4)}) hold no numbers that --column could "
                "name; give an array of numbers, or one object on each line"
            )
        return _records(place, iter([(f"{place}:{line}", document)]), choice)
    return _entries(place, array.entries, choice._replace(column=array.key))


def _documents(place: str, documents: Sequence[tuple[str, dict[str, Any]]], choice: Choice) -> Series:
    """Read one of several results in a file, to which a tool appends."""
    keys = {k for _, document in documents for k, x in document.items() if not isinstance(x, (dict, list))}
    about = [(key, value) for key, value in choice.where if key in keys]
    every = [{key: as_text(document.get(key)) for key in keys} for _, document in documents]
    picked = [
        document
        for (_, document), texts in zip(documents, every, strict=True)
        if all(texts[key] == value for key, value in about)
    ]
    if len(picked) != 1:
        different = [key for key in documents[0][1] if len({texts.get(key) for texts in every}) > 1]
        option = f"pick one with --where COLUMN=VALUE, of: {listed(different)}" if different else ""
        raise UsageError(
            f"{place}: holds {len(documents)} results of a benchmark, and {len(picked) if about else 'all'} fit; "
            f"{option or 'give a file of each'}"
        )
    rest = tuple(pair for pair in choice.where if pair not in about)
    return _document(place, picked[0], choice._replace(where=rest))


def _parse(text: bytes) -> Any:
    """Decode JSON, also with NaN and Infinity, which Python writes: SGLang's request rate is Infinity by default."""
    try:
        try:
            return _decode(text)
        except msgspec.DecodeError:
            if not re.search(rb"[\[,:]\s*-?(?:NaN|Infinity)\b", text):
                raise
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def _table(place: str, data: bytes, choice: Choice) -> Series:
    comment = header = separator = ""
    at = 0
    for at, raw in enumerate(_text(place, data), 1):  # noqa: B007 - the header's
        line = raw.strip()
        if found := _SEPARATOR.fullmatch(raw.rstrip("\r\n")):
            separator = found[1]
        elif line.startswith("#"):
            comment = line.lstrip("#").strip()
        elif line:
            header = line
            break
    if len(header) > csv.field_size_limit():
        raise UsageError(f"{place}:1: a line of {len(header):,} characters; put one number on a line")
    # A quoted name may hold another delimiter: the delimiter is the one that gives most columns.
    delimiter = separator or max(",;\t", key=lambda sign: len(_cells(header, sign)))
    first = _cells(header, delimiter)
    names: Sequence[str] = layouts.header_of(first)
    if (
        not names
        and len(beside := _cells(comment, delimiter)) == len(first)
        and not all(map(_is_number, beside))
    ):
        names = beside if any(map(_is_number, first)) else ()
    if not names and first.count(choice.column) > 1:
        pick_column(f"{place}:{at}", first, choice.column)
    rows = _rows(place, _text(place, data), delimiter, [*names])
    head = [*islice(rows, 1)]
    names = [*head[0][1]] if head else [*names] or first
    layout = layouts.table_of(names)
    if layout is UNKNOWN:
        layouts.refuse_summary(place, names)
    comma = delimiter in ";\t"
    if not head:
        raise UsageError(f"{place}: holds no numbers; give one a line, or a table with a header")
    return read_rows(place, chain(head, rows), choice, layout, header=f"{place}:{at}", decimal_comma=comma)


def _text(place: str, data: bytes) -> Iterator[str]:
    """Yield the lines with their ends, decoded one by one: the text as a whole may take four times its bytes."""
    try:
        yield from io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="")
    except UnicodeDecodeError:
        raise UsageError(
            f"{place}: not text in UTF-8; save it as such (`CSV UTF-8` in Excel), or give a journal"
        ) from None


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        row = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return [line]
    return [cell.strip() for cell in row]


def _is_number(cell: str) -> bool:
    return plain_number(cell) is not None or duration(cell) is not None


def _rows(
    place: str, lines: Iterator[str], delimiter: str, names: list[str]
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the rows; without ``names`` the first one is the header."""
    kept = (
        "\n" if line.lstrip().startswith("#") or _SEPARATOR.fullmatch(line.rstrip("\r\n")) else line
        for line in lines
    )
    rows = csv.reader(kept, delimiter=delimiter, skipinitialspace=True)
    try:
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            where = f"{place}:{rows.line_num}"
            if not names:
                names = _header(where, [cell.strip() for cell in row])
                continue
            if len(row) == len(names) + 1 and not row[-1].strip():
                row.pop()  # a delimiter ends each line
            if len(row) != len(names):
                comma = "; if it is a decimal comma, write a point" * (len(row) == 2 and len(names) == 1)
                raise UsageError(
                    f"{where}: {len(row)} columns, and the header has {len(names)}; fix the line{comma}"
                )
            yield where, dict(zip(names, map(str.strip, row), strict=True))
    except csv.Error as error:
        raise UsageError(f"{place}:{rows.line_num}: not a table ({error})") from None


def _header(where: str, names: list[str]) -> list[str]:
    if all(map(_is_number, values := [name for name in names if name])):
        comma = "; if these are decimal commas, write points" if len(values) == 2 else ""
        raise UsageError(
            f"{where}: several columns on a line, and no header to name them; add one, or give one number a line{comma}"
        )
    if len(names) == 1 and _NUMBER_LIKE.match(names[0]):
        raise UsageError(f"{where}: `{shown(names[0])}` is not a number; give one a line, or a header first")
    return names
