"""Files that load generators and benchmarks write: those with single runs are read, of summaries the option is named.

``layouts.yaml`` declares the tables and the summaries; here is what takes code. Times become seconds.
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
from infercanary.compare.cells import PER_SECOND
from infercanary.compare.recording import listed, shown

Document: TypeAlias = "Mapping[str, Any]"
Row: TypeAlias = "Mapping[str, object]"

_WRONG = (UsageError, AttributeError, LookupError, TypeError, ValueError, ArithmeticError)
"""Errors of an entry whose form is not the tool's."""
_AGGREGATE = re.compile("_(mean|median|stddev|cv|min|max)$")


class Layout(msgspec.Struct, frozen=True):
    """How a tool writes single runs."""

    tool: str = ""
    columns: Sequence[str] = ()
    """Latencies; those that occur are judged one by one unless --column names one."""
    needs: frozenset[str] = frozenset()
    """Columns by which a table is known to be of this tool."""
    per_second: float = 1.0
    """1e3 if the times are in milliseconds."""
    series: Sequence[str] = ()
    """Columns that name what was measured."""
    only: dict[str, set[str]] = {}
    """Column → values; other rows count only if --where names that column."""
    is_labelled: bool = False
    """True if all other columns are the user's own: each names a series, and `status` may be anything."""

    def shaped(self, where: str, row: Row) -> Row | None:
        """Return a row's columns, or None if it is no run.

        Args:
            where: Its place, for messages.
            row: As it was written.

        Raises:
            UsageError: The tool does not write such a row.
        """
        if not (read := _READERS.get(self.tool)):
            return row
        try:
            return read(row)
        except _WRONG as error:
            raise _misread(where, self, error, "take it out") from None


UNKNOWN = Layout()
"""Layout of an unknown tool."""


class _Header(msgspec.Struct):
    columns: Sequence[str]
    fewest: int
    cells: Sequence[str]


class _Summary(msgspec.Struct):
    what: str
    advice: str
    needs: Sequence[frozenset[str]] = ()
    texts: Sequence[str] = ()


class _Declared(msgspec.Struct):
    tables: Sequence[Layout]
    headers: Sequence[_Header]
    summaries: Sequence[_Summary]


@functools.cache
def _declared() -> _Declared:
    return msgspec.yaml.decode(files(__package__).joinpath("layouts.yaml").read_bytes(), type=_Declared)


def _misread(where: str, layout: Layout, error: Exception, advice: str) -> UsageError:
    if isinstance(error, UsageError):
        return UsageError(f"{where}: {error}")
    return UsageError(f"{where}: not as {layout.tool} writes it ({shown(repr(error))}); {advice}")


def _entries(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _objects(value: object) -> list[dict[str, Any]]:
    return [entry for entry in _entries(value) if isinstance(entry, dict)]


def _seconds(cell: Any, unit: object) -> Any:
    if not (per_second := PER_SECOND.get(str(unit).strip())):
        raise UsageError(f"unit `{str(unit)[:20]}` is not one of time; convert the file to seconds")
    try:
        return cell if isinstance(cell, bool) else float(cell) / per_second
    except (TypeError, ValueError, OverflowError):
        return cell


def _k6_point(row: Row) -> Row | None:
    return row if row.get("type", "Point") == "Point" and "data.value" in row else None


def _google_row(row: Row) -> Row | None:
    if row.get("run_type", "iteration") != "iteration" or _AGGREGATE.search(str(row.get("name", ""))):
        return None
    unit = row.get("time_unit") or "ns"
    return {
        name: _seconds(value, unit) if name in ("real_time", "cpu_time") else value
        for name, value in row.items()
        if name != "time_unit"
    }


def _aiperf(row: Row) -> Row | None:
    if str(row.get("metadata.benchmark_phase") or row.get("metadata.credit_phase")).lower() == "warmup":
        return None
    found: dict[str, object] = {}
    for name, value in row.items():
        metric = name.removeprefix("metrics.")
        if metric == name:
            found[name] = value
        elif metric.endswith(".value"):
            metric = metric.removesuffix(".value")
            unit = row.get(f"metrics.{metric}.unit", "ms")
            found[metric] = _seconds(value, unit) if unit in PER_SECOND else value
    return found


_READERS: Mapping[str, Callable[[Row], Row | None]] = {
    "k6 JSON": _k6_point, "Google Benchmark": _google_row, "AIPerf": _aiperf,
}  # fmt: skip


def header_of(cells: Sequence[str]) -> Sequence[str]:
    """Return the columns of a table that its tool writes without a header; empty if it is none.

    Args:
        cells: Of the first row.
    """
    for known in _declared().headers:
        if known.fewest <= len(cells) <= len(known.columns) and all(map(re.fullmatch, known.cells, cells)):
            return known.columns[: len(cells)]
    return ()


def table_of(names: Iterable[str]) -> Layout:
    """Return the layout of a table with these columns."""
    return next((layout for layout in _declared().tables if layout.needs <= {*names}), UNKNOWN)


def _hyperfine(document: Document) -> Iterator[Row]:
    results = _objects(document["results"])
    if not any(_entries(result.get("times")) for result in results):
        raise UsageError("hyperfine's results without `times`; let --export-json FILE write them")
    for result in results:
        times, codes = _entries(result.get("times")), _entries(result.get("exit_codes"))
        parameters = result.get("parameters")
        about = {"command": result["command"], **(parameters if isinstance(parameters, dict) else {})}
        for seconds, code in zip_longest(times, codes[: len(times)], fillvalue=0):
            # A command that a signal ended has no exit code.
            yield {**about, "times": seconds, "exit_code": -1 if code is None else code}


def _pytest_benchmark(document: Document) -> Iterator[Row]:
    benchmarks = _objects(document["benchmarks"])
    if not any("data" in benchmark["stats"] for benchmark in benchmarks):
        raise UsageError(
            "pytest-benchmark's statistics without single rounds (`data`); run it with --benchmark-save-data, or write "
            "the file with --benchmark-json"
        )
    for benchmark in benchmarks:
        about: dict[str, object] = {
            name: benchmark[name] for name in ("name", "fullname", "group") if name in benchmark
        }
        for seconds in _entries(benchmark["stats"].get("data")):
            yield {**about, "data": seconds}


def _google_benchmark(document: Document) -> Iterator[Row]:
    rows = _objects(document["benchmarks"])
    if not any(map(_google_row, rows)):
        raise UsageError(
            "Google Benchmark's aggregates without repetitions; run it with --benchmark_repetitions=N and "
            "--benchmark_report_aggregates_only=false"
        )
    for row in rows:
        if row.get("real_time") is not None or row.get("error_occurred"):
            yield row


def _query_range(document: Document) -> Iterator[Row]:
    for series in _objects(document["data"]["result"]):
        labels = series.get("metric")
        for sample in _entries(series.get("values")):
            # No requests at that time.
            if isinstance(sample, list) and len(sample) == 2 and sample[1] not in ("NaN", "+Inf", "-Inf"):
                yield {**(labels if isinstance(labels, dict) else {}), "value": sample[1]}


def _serving(document: Document) -> Iterator[Row]:
    ttfts, itls, errors, lengths = (
        _entries(document.get(name)) for name in ("ttfts", "itls", "errors", "output_lens")
    )
    for ttft, gaps, error, length in zip_longest(ttfts, itls, errors, lengths):
        row: dict[str, object] = {"error": error or ""}
        # A request that failed has neither, in some versions without a text.
        if not error and not ttft and not length:
            row["error"] = "no token"
        row["ttfts"] = ttft
        if row["error"]:
            row["itls"] = None
        elif isinstance(gaps, list) and gaps:
            row["itls"] = sum(gaps) / len(gaps)
        yield row


def _perf_analyzer(document: Document) -> Iterator[Row]:
    for number, experiment in enumerate(_objects(document["experiments"]), 1):
        for request in _objects(experiment.get("requests")):
            ends = _entries(request.get("response_timestamps"))
            row: dict[str, object] = {"experiment": number, "success": bool(ends)}
            if ends:
                row["latency"] = ends[-1] - request["timestamp"]
            yield row


def _first(document: Document, key: str) -> Document:
    return next(iter(_objects(document.get(key))), {})


def _is_matrix(document: Document) -> bool:
    data = document.get("data")
    return isinstance(data, dict) and "result" in data and data.get("resultType") == "matrix"


_DOCUMENTS: Sequence[tuple[Callable[[Document], bool], Callable[[Document], Iterator[Row]], Layout]] = (
    (
        lambda d: "command" in _first(d, "results"), _hyperfine,
        Layout("hyperfine", ["times"], series=["command"]),
    ),
    (
        lambda d: isinstance(_first(d, "benchmarks").get("stats"), dict), _pytest_benchmark,
        Layout("pytest-benchmark", ["data"], series=["name", "fullname"]),
    ),
    (
        lambda d: "context" in d and not {"name", "run_type"}.isdisjoint(_first(d, "benchmarks")), _google_benchmark,
        Layout("Google Benchmark", ["real_time"], series=["name"]),
    ),
    (lambda d: bool(_entries(d.get("ttfts"))), _serving, Layout("vLLM or SGLang", ["ttfts", "itls"])),
    (
        lambda d: "requests" in _first(d, "experiments"), _perf_analyzer,
        Layout("perf_analyzer", ["latency"], per_second=1e9, series=["experiment"]),
    ),
    (
        lambda d: "latency" in _first(d, "details"), lambda d: iter(_objects(d["details"])),
        Layout("ghz", ["latency"], per_second=1e9),
    ),
    (_is_matrix, _query_range, Layout("Prometheus", ["value"], is_labelled=True)),
)  # fmt: skip


def document_of(place: str, document: Document) -> tuple[Layout, list[tuple[str, Row]]] | None:
    """Return the rows of a JSON document whose layout is known.

    Args:
        place: The file's name, for messages.
        document: One JSON object.

    Raises:
        UsageError: It is known, and holds no single runs.
    """
    for is_its, rows, layout in _DOCUMENTS:
        if is_its(document):
            try:
                return layout, [(f"{place}: entry {i}", row) for i, row in enumerate(rows(document), 1)]
            except _WRONG as error:
                raise _misread(place, layout, error, "write it again") from None
    refuse_summary(place, document)
    return None


def refuse_summary(place: str, columns: Iterable[str] = (), text: str = "") -> None:
    """Refuse percentiles and averages of a tool that can write single runs, too.

    Args:
        place: The file's name, for messages.
        columns: Of a table, or a JSON document.
        text: The beginning of a file, which may be what a tool prints for people.

    Raises:
        UsageError: It is a summary; the line names the tool's option.
    """
    names = {*columns}
    if isinstance(columns, Mapping):
        names |= {f"{key}.{k}" for key, value in columns.items() if isinstance(value, dict) for k in value}
    for known in _declared().summaries:
        if any(names >= needed for needed in known.needs) or any(
            re.search(pattern, text.lstrip()) for pattern in known.texts
        ):
            raise UsageError(_without_runs(place, known.what, known.advice))


def _without_runs(place: str, what: str, advice: str) -> str:
    return f"{place}: {what}, without single runs; {advice}"


_STATISTIC = re.compile(r"p\(?\d+|\d+(\.\d+)?(th|%|$)|(avg|average|mean|median|stddev|std)$")


def refuse_statistics(place: str, names: Iterable[str]) -> None:
    """Refuse a document of averages and percentiles whose tool is not known.

    Args:
        place: The file's name, for messages.
        names: Its keys; the last part counts.

    Raises:
        UsageError: Two or more of them are statistics.
    """
    statistics = [name for name in names if _STATISTIC.match(name.rpartition(".")[2].lower())]
    if len(statistics) > 1:
        what = f"a summary ({listed(statistics, 4)})"
        raise UsageError(_without_runs(place, what, "let its tool write each request, with its time"))
