"""Reads latencies from text: one a line, JSON, or a table with a header. The content decides which."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec

from infercanary.command.settings import UsageError
from infercanary.compare import layouts
from infercanary.compare.cells import as_text, is_number, parsed
from infercanary.compare.layouts import Row
from infercanary.compare.recording import RecordedRuns, at_most, listed, shown
from infercanary.compare.rows import MAX_POINTS, File, pick_column, read_rows

_BEGINNING = 4096  # bytes by which a text of a tool is known
_DEEPEST = 20  # objects in objects
_SEPARATOR = re.compile(r'^"?sep=([^"])"?$', re.IGNORECASE | re.MULTILINE)
"""Excel's first line."""


def numbers(file: File, data: bytes) -> dict[str, RecordedRuns]:
    """Read the latencies in ``data``.

    Args:
        file: The file's name, the column or key that holds the latencies, and a list for notes.
        data: Its content.

    Returns:
        Column → its runs in the order of the file, in its unit, or in seconds where that is known; an empty name if
        there is one column.

    Raises:
        UsageError: The content is not of a known form, or holds something that is no latency.
    """
    if b"\0" in data:
        raise UsageError(
            f"{file.place}: a binary file; give a journal, or numbers as text (of vegeta: `vegeta encode --to csv`)"
        )
    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")  # lines of old Macs and some instruments
    first = next((line for _, line in _filled(data)), b"")
    if not first:
        raise UsageError(f"{file.place}: holds comments only; give numbers too")
    layouts.refuse_summary(file.place, text=data[:_BEGINNING].decode(errors="replace"))
    return (_of_json if first.startswith((b"[", b"{")) else _of_table)(file, data, first)


def _lines(data: bytes) -> Iterator[bytes]:
    """Yield the lines; those that are comments, or Excel's `sep=`, as blank ones."""
    for line in io.BytesIO(data):
        yield b"\n" if line.lstrip().startswith((b"#", b"sep=", b'"sep=')) else line


def _filled(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    return ((at, line) for at, each in enumerate(_lines(data), 1) if (line := each.strip()))


# JSON ----------------------------------------------------------------------------------------------------------------


def _of_json(file: File, data: bytes, first: bytes) -> dict[str, RecordedRuns]:
    is_one = len([*islice(_filled(data), 2)]) == 1
    document: Any = None
    with suppress(msgspec.DecodeError):  # JSON Lines if the first line is an object
        document = first.startswith(b"{") and not is_one and _parse(first)
    if isinstance(document, dict) and not layouts.document_of(document):
        return _of_objects(file, _json_lines(file, data))
    at_most(MAX_POINTS, data.count(b","), file.place, "numbers")  # read, it takes 32 times its size
    if document:  # a tool appends its results
        file, document = _pick_document(file, [entry for _, entry in _json_lines(file, data)])
    else:
        try:
            document = _parse(first if is_one else data)
        except msgspec.DecodeError as error:
            raise UsageError(
                f"{file.place}: not JSON ({error}); is it whole? Give one document, or one object on each line"
            ) from None
    if isinstance(document, dict):
        if layout := layouts.document_of(document):
            return read_rows(file, _numbered(file, layout.rows(document)), layout, records=True)
        file, document = _pick_array(file, document)
    if all(isinstance(entry, dict) for entry in document):
        return _of_objects(file, _numbered(file, document))
    return read_rows(file, _numbered(file, ({"": entry} for entry in document)))


def _numbered(file: File, rows: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    return ((f"{file.place}: entry {number}", row) for number, row in enumerate(rows, 1))


def _of_objects(file: File, entries: Iterable[tuple[str, Row]]) -> dict[str, RecordedRuns]:
    return read_rows(file, ((where, dict(_flat(entry))) for where, entry in entries), records=True)


def _json_lines(file: File, data: bytes) -> Iterator[tuple[str, Row]]:
    lines = _filled(data)
    for at, line in lines:
        where = f"{file.place}:{at}"
        try:
            entry = _parse(line)
        except msgspec.DecodeError as error:
            # Only the last line may be truncated, and only if its line end is missing.
            if data.endswith(b"\n") or next(lines, None):
                raise UsageError(f"{where}: not JSON ({error}); put one object on each line") from None
            file.notes.append(f"{file.place}: the last line is truncated, and was left out")
            return
        if not isinstance(entry, dict):
            raise UsageError(f"{where}: `{shown(as_text(entry))}` among objects; put one object on each line")
        yield where, entry


def _pick_document(file: File, documents: Sequence[Row]) -> tuple[File, Row]:
    """Return the one of several results that --where names, and what else it picks."""
    first = documents[0]
    about = [pair for pair in file.where if pair[0] in first]
    picked = [d for d in documents if all(as_text(d.get(key)) == value for key, value in about)]
    if len(picked) != 1:
        different = [key for key in first if len({as_text(document.get(key)) for document in documents}) > 1]
        raise UsageError(
            f"{file.place}: holds {len(documents)} results of a benchmark, and {len(picked)} fit; give a file of each, "
            f"or pick one with --where COLUMN=VALUE, of: {listed(different) or 'none differs'}"
        )
    return file._replace(where=[pair for pair in file.where if pair not in about]), picked[0]


def _pick_array(file: File, document: Row) -> tuple[File, Sequence[Any]]:
    """Return the entries in a document of an unknown layout, and the key of their numbers; or the document itself."""
    row = dict(_flat(document))
    layouts.refuse_summary(file.place, row)
    keys: dict[str, tuple[str, Sequence[Any]]] = {}
    for name, value in _flat(document, columns=True):
        if isinstance(value, list) and value:
            if all(x is None or is_number(x) for x in value):
                keys[name] = "", value
            elif all(isinstance(x, dict) for x in value):
                keys |= {f"{name}.{key}": (key, value) for key, x in value[0].items() if is_number(x)}
    if not keys:
        layouts.refuse_statistics(file.place, row)
        return file, [document]
    of_key = {key: name for name, (key, _) in reversed(keys.items()) if key}
    key, entries = keys[pick_column(file.place, [*keys], of_key.get(file.column, file.column))]
    return file._replace(column=key), entries


def _parse(text: bytes) -> Any:
    """Decode JSON, also with NaN and Infinity, which Python writes: SGLang's request rate is Infinity by default."""
    try:
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            if not re.search(rb"[\[,:]\s*-?(?:NaN|Infinity)\b", text):
                raise
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def _flat(entry: Row, under: str = "", depth: int = 0, *, columns: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of an object; those of nested objects as `outer.inner`.

    Args:
        entry: The object.
        under: What its keys begin with.
        depth: Of the object.
        columns: Whether objects with the keys 0, 1, 2 … are arrays: columns as pandas writes them.
    """
    for key, value in entry.items():
        if columns and isinstance(value, dict) and [*value] == [*map(str, range(len(value)))]:
            value = [*value.values()]
        if isinstance(value, dict) and value and depth < _DEEPEST:
            yield from _flat(value, f"{under}{key}.", depth + 1, columns=columns)
        else:
            yield f"{under}{key}", value


# Tables --------------------------------------------------------------------------------------------------------------


def _of_table(file: File, data: bytes, first: bytes) -> dict[str, RecordedRuns]:
    """Read a table, or lines with one number, which may follow the name of their column in a comment."""
    before, header = (text.decode(errors="replace") for text in (data[: data.index(first)], first))
    comment = ["", *re.findall(r"^\s*#+\s*(.*)$", before, re.MULTILINE)][-1].strip()
    if _is_number(header) and "," not in header.partition("#")[0]:
        name = comment if comment == file.column else ""
        lines = ((f"{file.place}:{at}", line.decode(errors="replace")) for at, line in _filled(data))
        return read_rows(file, ((where, {name: line}) for where, line in lines))

    def cells(line: str, sign: str) -> list[str]:
        rows = csv.reader([line[: csv.field_size_limit()]], delimiter=sign, skipinitialspace=True)
        return [cell.strip() for cell in next(rows, [])]

    separator = _SEPARATOR.search(before)
    # A quoted name may hold another delimiter: the delimiter is the one that gives most columns.
    delimiter = separator[1] if separator else max(",;\t", key=lambda sign: len(cells(header, sign)))
    values, beside = cells(header, delimiter), cells(comment, delimiter)
    names = layouts.header_of(values)
    if not names and any(map(_is_number, values)) and len(beside) == len(values):
        names = [] if all(map(_is_number, beside)) else beside
    if file.column and not names and values.count(file.column) > 1:
        raise UsageError(f"{file.place}: several columns `{shown(file.column)}`; rename all but one")
    rows = csv.reader((line.decode() for line in _lines(data)), delimiter=delimiter, skipinitialspace=True)
    placed = ((f"{file.place}:{rows.line_num}", [cell.strip() for cell in row]) for row in rows)
    return read_rows(file, _rows(file, placed, names), decimal_comma=delimiter in ";\t")


def _is_number(cell: str) -> bool:
    return parsed(cell)[0] is not None


def _rows(
    file: File, rows: Iterator[tuple[str, list[str]]], names: Sequence[str]
) -> Iterator[tuple[str, Row]]:
    """Yield the rows; without ``names`` the first one is the header."""
    where = file.place
    try:
        for where, row in rows:
            if not any(row):
                continue
            if not names:
                names = row
                is_odd = len(row) == 1 and re.match(r"[+-]?[\d.]", row[0])
                if is_odd or all(map(_is_number, filter(None, row))):
                    raise UsageError(
                        f"{where}: `{shown(', '.join(row))}` is no header, and not one number; give one number a line, "
                        "with a decimal point, or name the columns in a first line"
                    )
                continue
            if len(row) == len(names) + 1 and not row[-1]:
                row.pop()  # a delimiter ends each line
            if len(row) != len(names):
                raise UsageError(
                    f"{where}: {len(row)} columns, and the header has {len(names)}; fix the line (a decimal comma: "
                    "write a point)"
                )
            yield where, dict(zip(names, row, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(
            f"{where}: no table in UTF-8 follows ({error}); fix the line, or save the file as UTF-8"
        ) from None
