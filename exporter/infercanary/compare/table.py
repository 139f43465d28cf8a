"""Reads latencies from text: one number per line, JSON, or a table with a header. The content decides the format."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from infercanary.command.settings import UsageError
from infercanary.compare import layouts
from infercanary.compare.cells import as_text, is_number, parsed
from infercanary.compare.layouts import Row
from infercanary.compare.recording import RecordedRuns, at_most, listed, shown
from infercanary.compare.rows import MAX_POINTS, File, pick_column, read_rows

_DEEPEST = 20  # depth of nested objects
_SEPARATOR = re.compile(r'(?im)^"?sep=([^"])"?$')
"""First line of some CSV files from Excel, which names the delimiter."""
_COMMENT = re.compile(rb'(?m)^[ \t]*(?:#|"?sep=).*')


def numbers(file: File, data: bytes) -> dict[str, RecordedRuns]:
    """Read the latencies in ``data``.

    Args:
        file: The file with the user's selection, and a list for notes.
        data: Content of the file.

    Returns:
        Runs by column in the order of the file, in seconds if the unit is known, otherwise in the file's unit. If there
        is only one column, its key is "".

    Raises:
        UsageError: The format is unknown, or a value is not a latency.
    """
    if b"\0" in data:
        raise UsageError(
            f"{file.place}: a binary or packed file; give a journal, or numbers as text (for vegeta: `vegeta encode "
            "--to csv`)"
        )
    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")  # line ends of old Macs and some instruments
    text = _COMMENT.sub(b"", data)
    layouts.refuse_summary(file.place, text=text[:4096].decode(errors="replace"))
    first = next((line for _, line in _filled(text)), b"")
    if first.startswith((b"[", b"{")):
        return _of_json(file, text, first)
    return _of_table(
        file, text, first.decode(errors="replace"), data[: data.index(first)].decode(errors="replace")
    )


def _filled(text: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the non-blank lines with their line numbers."""
    return ((at, line) for at, each in enumerate(io.BytesIO(text), 1) if (line := each.strip()))


# JSON ----------------------------------------------------------------------------------------------------------------


def _of_json(file: File, text: bytes, first: bytes) -> dict[str, RecordedRuns]:
    document: Any = None
    with suppress(ValueError):  # JSON Lines if the first line is an object by itself
        document = first.startswith(b"{") and first != text.strip() and _parse(first)
    if isinstance(document, dict) and not layouts.document_of(document):
        return _of_objects(file, _json_lines(file, text))
    # Decoded numbers take 32 times their size in the text.
    at_most(MAX_POINTS, text.count(b","), file.place, "numbers")
    if document:  # some tools append each result to the same file
        results = [
            each
            for _, each in _json_lines(file, text)
            if all(as_text(each.get(k, v)) == v for k, v in file.where)
        ]
        if len(results) != 1:
            raise UsageError(
                f"{file.place}: {len(results)} results of a benchmark match; give a separate file for each, or "
                f"select one with --where COLUMN=VALUE: {listed(document)}"
            )
        file = file._replace(where=[pair for pair in file.where if pair[0] not in document])
        document = results[0]
    else:
        try:
            document = _parse(text)
        except ValueError as error:
            raise UsageError(
                f"{file.place}: not JSON ({shown(str(error))}); is the file complete? Give one document, or one "
                "object on each line"
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


def _json_lines(file: File, text: bytes) -> Iterator[tuple[str, Row]]:
    lines = _filled(text)
    for at, line in lines:
        entry = None
        with suppress(ValueError):
            entry = _parse(line)
        if isinstance(entry, dict):
            yield f"{file.place}:{at}", entry
        elif text.endswith(b"\n") or next(lines, None):
            raise UsageError(f"{file.place}:{at}: not a JSON object; write one object on each line")
        else:  # only a last line without a line end may be truncated
            file.notes.append(f"{file.place}: the last line is truncated, and was left out")


def _pick_array(file: File, document: Row) -> tuple[File, Sequence[Any]]:
    """Return the entries of a document with an unknown layout, and ``file`` with the key of the numbers as column.

    If the document has no list of entries, the document itself is the only entry.
    """
    row = dict(_flat(document, columns=True))
    layouts.refuse_summary(file.place, row)
    keys: dict[str, tuple[str, Sequence[Any]]] = {}
    for name, value in row.items():
        if isinstance(value, list) and value:
            if all(x is None or is_number(x) for x in value):
                keys[name] = "", value
            elif all(isinstance(x, dict) for x in value):
                keys |= {f"{name}.{key}": (key, value) for key, x in value[0].items() if is_number(x)}
    if not keys:
        if file.column in row and re.search(r"(?i)(^|[^a-z])p\d\d|mean|median|percentile", file.column):
            raise UsageError(
                f"{file.place}: one JSON object, without single runs; give an array of latencies, or one object per "
                "run, each on its own line"
            )
        return file, [document]
    of_key = {key: name for name, (key, _) in reversed(keys.items()) if key}
    key, entries = keys[pick_column(file.place, [*keys], of_key.get(file.column, file.column))]
    return file._replace(column=key), entries


def _parse(text: bytes) -> Any:
    """Decode JSON.

    NaN and Infinity are accepted, because Python writes them: SGLang's default request rate is Infinity.
    """
    try:
        return json.loads(text.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _flat(entry: Row, under: str = "", depth: int = 0, *, columns: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of an object; keys of nested objects become `outer.inner`.

    Args:
        under: Prefix of the keys.
        depth: Depth of the object.
        columns: True if objects with the keys 0, 1, 2 … count as arrays, because pandas writes columns in this form.
    """
    for key, value in entry.items():
        if columns and isinstance(value, dict) and [*value] == [*map(str, range(len(value)))]:
            value = [*value.values()]
        name = f"{under}{key}"
        if isinstance(value, dict) and value and depth < _DEEPEST:
            yield from _flat(value, f"{name}.", depth + 1, columns=columns)
        else:
            yield name, value


# Tables --------------------------------------------------------------------------------------------------------------


def _of_table(file: File, text: bytes, header: str, before: str) -> dict[str, RecordedRuns]:
    """Read a table, or lines with one number each. The column names may be in a comment ``before`` the table."""
    comment = ["", *re.findall(r"(?m)^\s*#+\s*(.*)$", before)][-1]

    def cells(line: str, sign: str) -> list[str]:
        rows = csv.reader([line[: csv.field_size_limit()]], delimiter=sign, skipinitialspace=True)
        return [cell.strip() for cell in next(rows, [])]

    is_plain = _is_number(header) and "," not in header.partition("#")[0]
    if separator := _SEPARATOR.search(before):
        delimiter = separator[1]
    else:  # the delimiter with the most columns wins: a quoted name may contain another delimiter
        delimiter = "\x1f" if is_plain else max(",;\t", key=lambda sign: len(cells(header, sign)))
    values, beside = cells(header, delimiter), cells(comment, delimiter)
    names = layouts.header_of(values)
    if not names and any(map(_is_number, values)):
        names = beside if len(beside) == len(values) else [""] * is_plain
    lines = (line.decode(errors="replace") for line in io.BytesIO(text))
    rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    return read_rows(file, _rows(file, rows, names), decimal_comma=delimiter in ";\t")


def _is_number(cell: str) -> bool:
    return parsed(cell)[0] is not None


def _rows(file: File, rows: Any, names: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a CSV reader. Without ``names``, the first row is the header."""
    try:
        for row in rows:
            where = f"{file.place}:{rows.line_num}"
            row = [cell.strip() for cell in row]
            if not any(row):
                continue
            if not names:
                names = row
                is_odd = len(row) == 1 and re.match(r"[+-]?[\d.]", row[0])
                if is_odd or all(map(_is_number, filter(None, row))):
                    raise UsageError(
                        f"{where}: `{shown(', '.join(row))}` is neither a header nor a number; write one number "
                        "on each line (with a decimal point, not a comma), or begin with a line of column names"
                    )
                if row.count(file.column) > 1:
                    raise UsageError(f"{where}: several columns `{shown(file.column)}`; rename all but one")
                continue
            if len(row) == len(names) + 1 and not row[-1]:
                row.pop()  # the tool writes a delimiter at the end of each line
            if len(row) != len(names):
                raise UsageError(
                    f"{where}: {len(row)} columns, but the header has {len(names)}; fix the line (write a point "
                    "instead of a decimal comma)"
                )
            yield where, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise UsageError(
            f"{file.place}:{rows.line_num}: not a row of a table ({error}); fix the line"
        ) from None
