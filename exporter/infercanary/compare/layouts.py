"""Files that load generators and benchmarks write: those with single runs are read, of summaries the option is named.

``layouts.yaml`` declares tables, documents and summaries; here is what takes code. Times become seconds.
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
    """How a tool writes single runs, or a summary."""

    tool: str = ""
    """Name of the tool, or of its summary."""
    columns: Sequence[str] = ()
    """Latencies; those that occur are judged one by one unless --column names one."""
    needs: frozenset[str] = frozenset()
    """Columns by which a table is known to be of this tool, or paths by which a document is."""
    unit: str = "s"
    """Unit of the latencies, where a row does not name it."""
    units: dict[str, str] = {}
    """Column → column of its unit."""
    series: Sequence[str] = ()
    """Columns that name what was measured."""
    only: dict[str, set[str]] = {}
    """Column → values; other rows count only if --where names that column."""
    skip: dict[str, str] = {}
    """Column → pattern of the cells of rows that are no runs."""
    header: Sequence[str] = ()
    """Columns of a table that is written without a header."""
    first_row: str = ""
    """Pattern of its first cells, joined by tabs."""
    is_labelled: bool = False
    """True if all other columns are the user's own: each names a series, and `status` may be anything."""
    path: str = ""
    """Path of the objects in a document; empty if the document is the only one."""
    about: Sequence[str] = ()
    """Keys of an object that are columns of its rows."""
    lists: dict[str, str] = {}
    """Column → path of its cells in an object; an object without lists is a row."""
    text: str = "(?!)"
    """Pattern of what a tool prints for people; this one never fits."""
    advice: str = "give another"
    """Action for a summary, or for a document without a run."""

    def rows(self, document: Row) -> Iterator[Row]:
        """Yield the rows of a document; those that are no runs are not shaped yet."""
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
        """Return a row's columns, or None if it is no run.

        Args:
            where: Its place, for messages.
            row: As it was written.

        Raises:
            UsageError: The tool does not write such a row.
        """
        if shape := _SHAPES.get(self.tool):
            try:
                row = shape(row)
            except (AttributeError, LookupError, TypeError, ArithmeticError) as error:
                raise UsageError(
                    f"{where}: not as {self.tool} writes it ({shown(repr(error))}); correct it or take it out"
                ) from None
        is_skipped = (re.fullmatch(pattern, as_text(row.get(name))) for name, pattern in self.skip.items())
        return None if any(is_skipped) else row

    def unit_of(self, column: str, row: Row) -> str:
        """Return the unit of a row's cell; empty if it is not known."""
        unit = as_text(row.get(self.units[column])) if column in self.units else ""
        return unit or self.unit * (column in self.columns)


@functools.cache
def _declared() -> dict[str, Sequence[Layout]]:
    text = files(__package__).joinpath("layouts.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=dict[str, Sequence[Layout]])


def _objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; one object is a list of it."""
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if isinstance(entry, dict)]


def _at(value: Any, path: str) -> Any:
    """Return what ``path`` leads to, such as `results.times`; a list is entered by its first object."""
    for key in filter(None, path.split(".")):
        value = next(iter(_objects(value)), {}).get(key)
    return value


def _hyperfine(row: Row) -> Row:
    # A command that a signal ended has no exit code.
    return {**row, "exit_code": -1 if row["exit_code"] is None else row["exit_code"]}


def _serving(row: Row) -> Row:
    # A request that failed has neither token nor length, in some versions without a text.
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
    """Return the columns of a table that its tool writes without a header; empty if it is none.

    Args:
        cells: Of the first row.
    """
    row = "\t".join(cells)
    known = (layout.header for layout in _declared()["tables"] if re.fullmatch(layout.first_row, row))
    return next(known, ())[: len(cells)]


def table_of(place: str, names: Iterable[str]) -> Layout:
    """Return the layout of a table with these columns.

    Args:
        place: The file's name, for messages.
        names: Columns, or keys of JSON objects.

    Raises:
        UsageError: They are a summary's.
    """
    names = {*names}
    for layout in _declared()["tables"]:
        if layout.needs <= names:
            return layout
    refuse_summary(place, names)
    return Layout()


def document_of(document: object) -> Layout | None:
    """Return the layout of a JSON document; None if it is not known."""
    for layout in _declared()["documents"]:
        if all(_at(document, path) not in (None, []) for path in layout.needs):
            return layout
    return None


def refuse_summary(place: str, names: Iterable[str] = (), text: str = "") -> None:
    """Refuse percentiles and averages of a tool that can write single runs, too.

    Args:
        place: The file's name, for messages.
        names: Columns of a table, or keys of a JSON document such as `outer.inner`.
        text: The beginning of a file, which may be what a tool prints for people.

    Raises:
        UsageError: It is a summary; the line names the tool's option.
    """
    parts = {part for name in names for part in accumulate(name.split("."), "{}.{}".format)}
    for known in _declared()["summaries"]:
        if (known.needs and parts >= known.needs) or re.search(known.text, text.lstrip()):
            raise UsageError(f"{place}: {known.tool}, without single runs; {known.advice}")
