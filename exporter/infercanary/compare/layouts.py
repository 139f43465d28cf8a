"""Output files of load generators and benchmarks.

Files with single runs are read. A summary is refused; the message names the tool's option that writes single runs.

``layouts.yaml`` declares tables, documents and summaries; this module has the conversions that need code.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import accumulate, islice, zip_longest
from typing import Any, TypeAlias

import msgspec

from infercanary.command.settings import UsageError
from infercanary.compare.cells import as_text
from infercanary.compare.recording import shown

Row: TypeAlias = "Mapping[str, Any]"


class Layout(msgspec.Struct, frozen=True):
    """Format in which a tool writes single runs or a summary."""

    tool: str = ""
    """Name of the tool or of its summary."""
    columns: Sequence[str] = ()
    """Columns of latencies. Each of these columns in the file is judged separately, unless --column names one."""
    needs: frozenset[str] = frozenset()
    """Columns that identify a table of this tool, or paths that identify a document."""
    unit: str = "s"
    """Default unit of the latencies, for rows without a unit."""
    units: dict[str, str] = {}
    """Name of the column with the unit, by column of latencies."""
    series: Sequence[str] = ()
    """Columns that name the measured object."""
    only: dict[str, set[str]] = {}
    """Accepted values by column. Rows with other values do not count, unless --where names this column."""
    skip: dict[str, str] = {}
    """Pattern by column: rows with a matching cell are not runs."""
    header: Sequence[str] = ()
    """Column names of a table without a header line."""
    first_row: str = ""
    """Pattern of the first row (cells joined by tabs), which identifies a table without a header line."""
    is_labelled: bool = False
    """True if all columns without latencies are the user's own labels. A label names a series, and even a label
    `status` may have any meaning.
    """
    path: str = ""
    """Path of the objects in a document; empty if the document itself is the only object."""
    about: Sequence[str] = ()
    """Keys of an object that become columns of its rows."""
    lists: dict[str, str] = {}
    """Path of the list of cells in an object, by column. Without lists, an object is one row."""
    text: str = "(?!)"
    """Pattern of the tool's printed summary; the default never matches."""
    advice: str = "give another file"
    """Advice for a summary, or for a document without a run."""

    def rows(self, document: Row) -> Iterator[Row]:
        """Yield the rows of a document in the tool's form (before :meth:`shaped`)."""
        for number, entry in enumerate(_objects(_at(document, self.path)), 1):
            if not self.lists:
                yield entry
                continue
            about: dict[str, Any] = {}
            for name in self.about:
                value = entry.get(name)
                about |= value if isinstance(value, dict) else {name: value}
            cells = [x if isinstance(x := _at(entry, path), list) else [] for path in self.lists.values()]
            for row in islice(zip_longest(*cells, fillvalue=""), len(cells[0])):
                yield {**about, "entry": number, **dict(zip(self.lists, row, strict=True))}

    def shaped(self, where: str, row: Row) -> Row | None:
        """Return the columns of a row; None if the row is not a run.

        Args:
            where: Place of the row, for messages.
            row: The row as the tool wrote it.

        Raises:
            UsageError: The tool does not write such rows.
        """
        if shape := _SHAPES.get(self.tool):
            try:
                row = shape(row)
            except (AttributeError, LookupError, TypeError, ArithmeticError) as error:
                raise UsageError(
                    f"{where}: not in the format of {self.tool} ({shown(repr(error))}); correct or remove the row"
                ) from None
        is_skipped = (re.fullmatch(pattern, as_text(row.get(name))) for name, pattern in self.skip.items())
        return None if any(is_skipped) else row

    def unit_of(self, column: str, row: Row) -> str:
        """Return the unit of a cell; empty if unknown."""
        unit = as_text(row.get(self.units[column])) if column in self.units else ""
        return unit or self.unit * (column in self.columns)


@functools.cache
def _declared() -> dict[str, Sequence[Layout]]:
    text = files(__package__).joinpath("layouts.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=dict[str, Sequence[Layout]])


def _objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list. A single object counts as a list with one entry."""
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if isinstance(entry, dict)]


def _at(value: Any, path: str) -> Any:
    """Return the value at ``path``, such as `results.times`; from a list, the first object is used."""
    for key in filter(None, path.split(".")):
        value = next(iter(_objects(value)), {}).get(key)
    return value


def _hyperfine(row: Row) -> Row:
    # The exit code is null if a signal ended the command.
    return {**row, "exit_code": -1 if row["exit_code"] is None else row["exit_code"]}


def _serving(row: Row) -> Row:
    # A failed request has no tokens and no length. Some versions also leave the error empty.
    error = row["error"] or ("" if row["ttfts"] or row["length"] else "no token")
    shaped, gaps = {"error": error, "ttfts": row["ttfts"]}, row["itls"]
    if isinstance(gaps, list) and gaps and not error:
        shaped["itls"] = sum(gaps) / len(gaps)
    return shaped


def _perf_analyzer(row: Row) -> Row:
    request = row["request"]
    ends = request.get("response_timestamps")
    latency = {"latency": ends[-1] - request["timestamp"]} if ends else {}
    return {"entry": row["entry"], "success": bool(ends), **latency}


def _prometheus(row: Row) -> Row:
    return {**row, "value": row["value"][1]}


def _aiperf(row: Row) -> Row:
    values = {name[len("metrics.") : -len(".value")]: row[name] for name in row if name.endswith(".value")}
    return {**row, **values}


_SHAPES: Mapping[str, Callable[[Row], Row]] = {
    "hyperfine": _hyperfine, "vLLM or SGLang": _serving, "perf_analyzer": _perf_analyzer, "Prometheus": _prometheus,
    "AIPerf": _aiperf,
}  # fmt: skip


def header_of(cells: Sequence[str]) -> Sequence[str]:
    """Return the columns of a known table without a header; empty if the table is unknown.

    Args:
        cells: First row.
    """
    row = "\t".join(cells)
    known = (layout.header for layout in _declared()["tables"] if re.fullmatch(layout.first_row, row))
    return next(known, ())[: len(cells)]


def table_of(place: str, names: Iterable[str]) -> Layout:
    """Return the layout of a table with these columns.

    Args:
        place: Name of the file, for messages.
        names: Columns, or keys of JSON objects.

    Raises:
        UsageError: The table is a summary.
    """
    names = {*names}
    for layout in _declared()["tables"]:
        if layout.needs <= names:
            return layout
    refuse_summary(place, names)
    return Layout()


def document_of(document: object) -> Layout | None:
    """Return the layout of a JSON document; None if unknown."""
    for layout in _declared()["documents"]:
        if all(_at(document, path) not in (None, []) for path in layout.needs):
            return layout
    return None


def refuse_summary(place: str, names: Iterable[str] = (), text: str = "") -> None:
    """Refuse percentiles and averages from a tool that can also write single runs.

    Args:
        place: Name of the file, for messages.
        names: Columns of a table, or keys of a JSON document such as `outer.inner`.
        text: Beginning of the file, which may be the tool's printed summary.

    Raises:
        UsageError: The file is a summary. The message names the tool's option for single runs.
    """
    parts = {part for name in names for part in accumulate(name.split("."), "{}.{}".format)}
    for known in _declared()["summaries"]:
        if (known.needs and parts >= known.needs) or re.search(known.text, text.lstrip()):
            raise UsageError(f"{place}: {known.tool}, without single runs; {known.advice}")
