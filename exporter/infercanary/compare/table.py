"""Reads latencies from text: one a line, JSON, or a table with a header.

The content decides which. A mistake is reported in one line that names the line of the file.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from infercanary.command.settings import UsageError
from infercanary.compare import layouts
from infercanary.compare.cells import as_text, is_number, number_of
from infercanary.compare.layouts import Row
from infercanary.compare.recording import at_most, listed, shown
from infercanary.compare.rows import MAX_POINTS, Choice, Series, read_rows

_BEGINNING = 4096  # bytes by which a text of a tool is known
_DEEPEST = 20  # objects in objects
_NO_DELIMITER = "\x1f"  # of lines with one number and a comment
_SEPARATOR = re.compile(r'^"?sep=([^"])"?$', re.IGNORECASE | re.MULTILINE)
"""Excel's first line."""


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
        raise UsageError(
            f"{place}: a binary file; give a journal, or numbers as text (of vegeta: `vegeta encode --to csv`)"
        )
    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")  # lines of old Macs and some instruments
    first = next((line for _, line in _lines(data)), b"")
    if not first:
        raise UsageError(f"{place}: holds comments only; give numbers too")
    layouts.refuse_summary(place, text=data[:_BEGINNING].decode(errors="replace"))
    if first.startswith((b"[", b"{")):
        return _Json(place, choice).series(data)
    return _table(place, data, first, choice)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers; a `#` begins a comment, `sep=` is Excel's."""
    for at, line in enumerate(io.BytesIO(data), 1):
        line = line.strip()
        if line and not line.startswith((b"#", b"sep=", b'"sep=')):
            yield at, line


class _Json:
    """Reads a JSON document or JSON Lines."""

    def __init__(self, place: str, choice: Choice) -> None:
        self.place = place
        self.choice = choice
        self.notes: list[str] = []

    def series(self, data: bytes) -> Series:
        (_, first), *more_lines = islice(_lines(data), 2)
        try:
            if more_lines and first.startswith(b"{"):
                return self._of_lines(_parse(first), data)
        except msgspec.DecodeError:
            pass
        at_most(MAX_POINTS, data.count(b","), self.place, "numbers")  # read, it takes 32 times its size
        try:
            document = _parse(data if more_lines else first)
        except msgspec.DecodeError as error:
            raise UsageError(
                f"{self.place}: not JSON ({error}); is it whole? Give one document, or one object on each line"
            ) from None
        return self._of_entries(document) if isinstance(document, list) else self._of_document(document)

    def _of_lines(self, first: Row, data: bytes) -> Series:
        entries = self._entries(data)
        if not layouts.document_of(first):
            return self._of_records(entries)
        at_most(MAX_POINTS, data.count(b","), self.place, "numbers")
        return self._of_documents([document for _, document in entries])

    def _entries(self, data: bytes) -> Iterator[tuple[str, Row]]:
        lines = _lines(data)
        for at, line in lines:
            where = f"{self.place}:{at}"
            try:
                entry = _parse(line)
            except msgspec.DecodeError as error:
                # Only the last line may be truncated, and only if its line end is missing.
                if data.endswith(b"\n") or next(lines, None):
                    raise UsageError(f"{where}: not JSON ({error}); put one object on each line") from None
                self.notes.append(f"{self.place}: the last line is truncated, and was left out")
                return
            if not isinstance(entry, dict):
                raise UsageError(
                    f"{where}: `{shown(as_text(entry))}` among objects; keep to one format in a file"
                )
            yield where, entry

    def _of_records(self, entries: Iterable[tuple[str, Row]]) -> Series:
        rows = ((where, dict(_flat(entry))) for where, entry in entries)
        runs, notes = read_rows(self.place, rows, self.choice, records=True)
        return runs, notes + self.notes

    def _of_entries(self, entries: Sequence[Any]) -> Series:
        rows = [(f"{self.place}: entry {number}", entry) for number, entry in enumerate(entries, 1)]
        if entries and all(isinstance(entry, dict) for entry in entries):
            return self._of_records(rows)
        return read_rows(self.place, [(where, {"": entry}) for where, entry in rows], self.choice)

    def _of_document(self, document: Row) -> Series:
        if layout := layouts.document_of(document):
            rows = [
                (f"{self.place}: entry {number}", row)
                for number, row in enumerate(layout.rows(document), 1)
            ]
            return read_rows(self.place, rows, self.choice, layout, records=True)
        row = dict(_flat(document))
        layouts.refuse_summary(self.place, row)
        if arrays := _arrays(document):
            return self._of_array(arrays)
        layouts.refuse_statistics(self.place, row)
        if nested := [name for name, value in row.items() if isinstance(value, list) and value]:
            raise UsageError(
                f"{self.place}: one JSON object, whose arrays ({listed(nested, 4)}) hold no numbers that --column "
                "could name; give an array of numbers, or one object on each line"
            )
        return self._of_entries([document])

    def _of_array(self, arrays: Mapping[str, tuple[Sequence[Any], str]]) -> Series:
        """Read one of several arrays, each with the key of its numbers if it has objects."""
        column = self.choice.column
        picked = [name for name, (_, key) in arrays.items() if not column or column in (name, key)]
        if not picked or (len(picked) > 1 and not column):
            what = f"no array `{shown(column)}`" if column else "several arrays"
            sizes = (f"{name} ({len(entries):,})" for name, (entries, _) in arrays.items())
            raise UsageError(f"{self.place}: {what}; give --column one of: {listed(sizes)}")
        entries, key = arrays[picked[0]]
        self.choice = self.choice._replace(column=key)
        return self._of_entries(entries)

    def _of_documents(self, documents: Sequence[Row]) -> Series:
        """Read one of several results in a file, to which a tool appends."""
        every = [
            {key: as_text(value) for key, value in document.items() if not isinstance(value, (dict, list))}
            for document in documents
        ]
        keys = {key for texts in every for key in texts}
        about = [(key, value) for key, value in self.choice.where if key in keys]
        picked = [
            document
            for document, texts in zip(documents, every, strict=True)
            if all(texts.get(key, "") == value for key, value in about)
        ]
        if len(picked) != 1:
            different = [key for key in documents[0] if len({texts.get(key) for texts in every}) > 1]
            raise UsageError(
                f"{self.place}: holds {len(documents)} results of a benchmark, and {len(picked)} fit; give a file of "
                f"each, or pick one with --where COLUMN=VALUE, of: {listed(different) or 'none differs'}"
            )
        rest = tuple(pair for pair in self.choice.where if pair not in about)
        self.choice = self.choice._replace(where=rest)
        return self._of_document(picked[0])


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


def _flat(
    entry: Row, under: str = "", depth: int = 0, *, columns: bool = False
) -> Iterator[tuple[str, Any]]:
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


def _arrays(document: Row) -> dict[str, tuple[Sequence[Any], str]]:
    """Return the arrays of numbers in a document, and of objects those with numbers, with the key of the numbers."""
    found: dict[str, tuple[Sequence[Any], str]] = {}
    for name, value in _flat(document, columns=True):
        if isinstance(value, list) and value:
            if all(x is None or is_number(x) for x in value):
                found[name] = value, ""
            elif all(isinstance(x, dict) for x in value):
                found |= {f"{name}.{key}": (value, key) for key, x in value[0].items() if is_number(x)}
    return found


def _table(place: str, data: bytes, line: bytes, choice: Choice) -> Series:
    """Read a table, or lines with one number, which may follow the name of their column in a comment."""
    before, header = (text.decode(errors="replace") for text in (data[: data.index(line)], line))
    is_one = number_of(header) is not None
    separator = _SEPARATOR.search(before)
    # A quoted name may hold another delimiter: the delimiter is the one that gives most columns.
    usual = separator[1] if separator else max(",;\t", key=lambda sign: len(_cells(header, sign)))
    delimiter = _NO_DELIMITER if is_one else usual
    first = _cells(header, delimiter)
    comment = next(reversed(re.findall(r"^\s*#+(.*)$", before, re.MULTILINE)), "")
    beside = _cells(comment, delimiter)
    names = layouts.header_of(first)
    if not names and any(map(_is_number, first)) and len(beside) == len(first):
        names = [] if all(map(_is_number, beside)) else beside
    if choice.column and not names and first.count(choice.column) > 1:
        raise UsageError(
            f"{place}: the column `{shown(choice.column)}` is there {first.count(choice.column)} times; rename one"
        )
    names = names or [""] * is_one
    lines = _text(place, data, "replace" if is_one else "strict")
    rows = _rows(place, lines, delimiter, names)
    return read_rows(place, rows, choice, decimal_comma=delimiter in ";\t")


def _text(place: str, data: bytes, errors: str) -> Iterator[str]:
    """Yield the lines with their ends, decoded one by one: the text as a whole may take four times its bytes."""
    try:
        for line in io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors=errors, newline=""):
            is_data = not line.lstrip().startswith("#") and not _SEPARATOR.match(line)
            yield line if is_data else "\n"
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
    return number_of(cell) is not None


def _rows(
    place: str, lines: Iterator[str], delimiter: str, names: Sequence[str]
) -> Iterator[tuple[str, Row]]:
    """Yield the rows; without ``names`` the first one is the header."""
    quoting = csv.QUOTE_NONE if delimiter == _NO_DELIMITER else csv.QUOTE_MINIMAL
    rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, quoting=quoting)
    try:
        for row in rows:
            row = [cell.strip() for cell in row]
            if not any(row):
                continue
            where = f"{place}:{rows.line_num}"
            if not names:
                names = row
                values = [*filter(None, names)]
                if all(map(_is_number, values)) or (len(names) == 1 and re.match(r"[+-]?[\d.]", names[0])):
                    raise UsageError(
                        f"{where}: `{shown(', '.join(names))}` is no header, and not one number; give one number a line, "
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
    except csv.Error as error:
        raise UsageError(f"{place}:{rows.line_num}: not a table ({error}); fix the line") from None
