"""Files that load generators and benchmarks write: those with single runs are read, of summaries the option is named.

``layouts.yaml`` declares tables, documents and summaries; here is what takes code. Times become seconds.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import zip_longest
from typing import Any, TypeAlias

import msgspec

from infercanary.command.settings import UsageError
from infercanary.compare.cells import PER_SECOND, parsed
from infercanary.compare.recording import listed, shown

Row: TypeAlias = "Mapping[str, Any]"


class Layout(msgspec.Struct, frozen=True):
    """How a tool writes single runs."""

    tool: str = ""
    columns: Sequence[str] = ()
    """Latencies; those that occur are judged one by one unless --column names one."""
    needs: frozenset[str] = frozenset()
    """Columns by which a table is known to be of this tool, or paths by which a document is."""
    per_second: float = 1.0
    """1e3 if the times are in milliseconds."""
    series: Sequence[str] = ()
    """Columns that name what was measured."""
    only: dict[str, set[str]] = {}
    """Column → values; other rows count only if --where names that column."""
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
    advice: str = "give another"
    """Action for a document without a run."""

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
            for row in zip_longest(*cells, fillvalue=""):
                yield {**about, "entry": number, **dict(zip(self.lists, row, strict=True))}

    def shaped(self, where: str, row: Row) -> Row | None:
        """Return a row's columns, or None if it is no run.

        Args:
            where: Its place, for messages.
            row: As it was written.

        Raises:
            UsageError: The tool does not write such a row.
        """
        if not (shape := _SHAPES.get(self.tool)):
            return row
        try:
            return shape(row)
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise UsageError(
                f"{where}: not as {self.tool} writes it ({shown(repr(error))}); correct it or take it out"
            ) from None


UNKNOWN = Layout()
"""Layout of an unknown tool."""


class _Summary(msgspec.Struct):
    what: str
    advice: str
    needs: Sequence[frozenset[str]] = ()
    texts: Sequence[str] = ()


class _Declared(msgspec.Struct):
    tables: Sequence[Layout]
    documents: Sequence[Layout]
    summaries: Sequence[_Summary]


@functools.cache
def _declared() -> _Declared:
    return msgspec.yaml.decode(files(__package__).joinpath("layouts.yaml").read_bytes(), type=_Declared)


def _objects(value: object) -> list[dict[str, Any]]:
    """Return the objects in a list; one object is a list of it."""
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if isinstance(entry, dict)]


def _at(value: Any, path: str) -> Any:
    """Return what ``path`` leads to, such as `results.times`; a list is entered by its first object."""
    for key in filter(None, path.split(".")):
        value = next(iter(_objects(value)), {}).get(key)
    return value


def _seconds(cell: Any, unit: object) -> Any:
    """Return a cell in seconds, or as it is: a wrong cell counts only if its column is read."""
    if not (per_second := PER_SECOND.get(str(unit).strip())):
        raise ValueError(f"unit `{unit}` is not one of time")
    value, form = parsed(cell)
    if value is None or "unit" in form:
        return cell
    seconds = value / per_second
    if form == "comma":  # a number in some files only
        return f"{seconds:.18f}".replace(".", ",")
    return str(seconds) if form == "point" else seconds


def _hyperfine(row: Row) -> Row | None:
    # A command that a signal ended has no exit code.
    code = -1 if row["exit_code"] is None else row["exit_code"]
    return None if row["times"] == "" else {**row, "exit_code": code}


def _serving(row: Row) -> Row | None:
    # A request that failed has neither token nor length, in some versions without a text.
    error = row["error"] or ("" if row["ttfts"] or row["length"] else "no token")
    shaped, gaps = {"error": error, "ttfts": row["ttfts"]}, row["itls"]
    if error:
        shaped["itls"] = None
    elif isinstance(gaps, list) and gaps:
        shaped["itls"] = sum(gaps) / len(gaps)
    return shaped


def _perf_analyzer(row: Row) -> Row | None:
    ends = row["request"].get("response_timestamps")
    shaped = {"entry": row["entry"], "success": bool(ends)}
    return {**shaped, "latency": ends[-1] - row["request"]["timestamp"]} if ends else shaped


def _prometheus(row: Row) -> Row | None:
    _, value = row["value"]
    # No requests at that time.
    return None if value in ("NaN", "+Inf", "-Inf") else {**row, "value": value}


def _google(row: Row) -> Row | None:
    is_aggregate = re.search("_(mean|median|stddev|cv|min|max)$", str(row.get("name", "")))
    if is_aggregate or row.get("run_type", "iteration") != "iteration":
        return None
    unit = row.get("time_unit") or "ns"
    times = {name: _seconds(row[name], unit) for name in ("real_time", "cpu_time") if name in row}
    return {**row, **times, "time_unit": "s"}


def _aiperf(row: Row) -> Row | None:
    if "warmup" in (row.get("metadata.benchmark_phase"), row.get("metadata.credit_phase")):
        return None
    shaped = dict(row)
    for name in row:
        metric = name.removeprefix("metrics.").removesuffix(".value")
        if name == f"metrics.{metric}.value":
            unit = row.get(f"metrics.{metric}.unit", "ms")
            shaped[metric] = _seconds(row[name], unit) if unit in PER_SECOND else row[name]
    return shaped


_SHAPES: Mapping[str, Callable[[Row], Row | None]] = {
    "hyperfine": _hyperfine, "vLLM or SGLang": _serving, "perf_analyzer": _perf_analyzer, "Prometheus": _prometheus,
    "Google Benchmark": _google, "AIPerf": _aiperf,
}  # fmt: skip


def header_of(cells: Sequence[str]) -> Sequence[str]:
    """Return the columns of a table that its tool writes without a header; empty if it is none.

    Args:
        cells: Of the first row.
    """
    row = "\t".join(cells)
    known = (layout.header for layout in _declared().tables if re.fullmatch(layout.first_row, row))
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
    if layout := next((layout for layout in _declared().tables if layout.needs <= names), None):
        return layout
    refuse_summary(place, names)
    return UNKNOWN


def document_of(document: object) -> Layout | None:
    """Return the layout of a JSON document; None if it is not known."""
    return next(
        (
            layout
            for layout in _declared().documents
            if all(_at(document, path) not in (None, []) for path in layout.needs)
        ),
        None,
    )


def refuse_summary(place: str, names: Iterable[str] = (), text: str = "") -> None:
    """Refuse percentiles and averages of a tool that can write single runs, too.

    Args:
        place: The file's name, for messages.
        names: Columns of a table, or keys of a JSON document such as `outer.inner`.
        text: The beginning of a file, which may be what a tool prints for people.

    Raises:
        UsageError: It is a summary; the line names the tool's option.
    """
    parts = {".".join(parts[:n]) for name in names for parts in [name.split(".")] for n in (1, 2, len(parts))}
    for known in _declared().summaries:
        if any(parts >= needed for needed in known.needs) or any(
            re.search(pattern, text.lstrip()) for pattern in known.texts
        ):
            raise UsageError(f"{place}: {known.what}, without single runs; {known.advice}")


_STATISTIC = re.compile(r"p\(?\d+|\d+(\.\d+)?(th|%|$)|(avg|average|mean|median|stddev|std)$")


def refuse_statistics(place: str, row: Row) -> None:
    """Refuse a document without arrays of numbers that is no single run, and whose tool is not known.

    Args:
        place: The file's name, for messages.
        row: Its keys and values; the last part of a key counts.

    Raises:
        UsageError: It has two statistics or more, or an array.
    """
    arrays = [name for name, value in row.items() if isinstance(value, list) and value]
    statistics = [name for name in row if _STATISTIC.match(name.rpartition(".")[2].lower())]
    if arrays or len(statistics) > 1:
        raise UsageError(
            f"{place}: one JSON object ({listed([*arrays, *statistics], 4)}), without single runs; let its tool write "
            "an array of numbers, or one object on each line"
        )
