"""Files that load generators and benchmarks write: those with single runs are read, of summaries the option is named.

One entry for each layout, with the smallest function that makes rows of it. Times become seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias, cast

from infercanary.command.settings import UsageError
from infercanary.compare.cells import PER_SECOND
from infercanary.compare.recording import listed, shown
from infercanary.compare.rows import WRONG, Layout, Row

Document: TypeAlias = "Mapping[str, Any]"
_REQUESTS = ("http_req_duration", "grpc_req_duration")
_AGGREGATE = re.compile("_(mean|median|stddev|cv|min|max)$")


def _objects(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _floats(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _k6_point(row: Row) -> Row | None:
    return row if row.get("type", "Point") == "Point" and "data.value" in row else None


def _in_seconds(row: Row, columns: Sequence[str], unit: object) -> Row:
    per_second = PER_SECOND.get(str(unit).strip(), 0.0)
    if not per_second:
        raise UsageError(f"unit `{str(unit)[:20]}` is not one of time; convert the file to seconds")
    times = {name: x / per_second for name in columns if isinstance(x := _number(row.get(name)), float)}
    return {**row, **times}


def _number(cell: object) -> object:
    try:
        return float(cell) if isinstance(cell, (str, int, float)) and not isinstance(cell, bool) else cell
    except (ValueError, OverflowError):
        return cell


def _google_row(row: Row) -> Row | None:
    if row.get("run_type", "iteration") != "iteration" or _AGGREGATE.search(str(row.get("name", ""))):
        return None
    times = ("real_time", "cpu_time")
    kept = {name: value for name, value in row.items() if name != "time_unit"}
    return _in_seconds(kept, times, row.get("time_unit") or "ns")


def _aiperf(row: Row) -> Row | None:
    if str(row.get("metadata.benchmark_phase") or row.get("metadata.credit_phase")).lower() == "warmup":
        return None
    found = {name: value for name, value in row.items() if not name.startswith("metrics.")}
    for name, value in row.items():
        metric, _, part = name.removeprefix("metrics.").rpartition(".")
        if name.startswith("metrics.") and part == "value":
            unit = row.get(f"metrics.{metric}.unit", "ms")
            found[metric] = (
                _in_seconds({metric: value}, (metric,), unit)[metric] if unit in PER_SECOND else value
            )
    return found


_AIPERF = ("request_latency", "time_to_first_token", "inter_token_latency")
TABLES: Sequence[Layout] = (
    Layout(
        "k6 CSV", ["metric_value"], needs=("metric_name", "timestamp", "metric_value"), per_second=1e3,
        series=("metric_name",), only={"metric_name": _REQUESTS},
    ),
    Layout(
        "k6 JSON", ["data.value"], _k6_point, needs=("type", "metric", "data.value"), per_second=1e3,
        series=("metric",), only={"metric": _REQUESTS},
    ),
    Layout("vegeta", ["latency"], needs=("code", "timestamp", "latency", "bytes_in"), per_second=1e9),
    Layout("JMeter", ["elapsed"], needs=("timeStamp", "elapsed"), per_second=1e3),
    Layout("hey", ["response-time"], needs=("response-time", "status-code")),
    Layout("oha", ["request-duration"], needs=("request-start", "request-duration")),
    Layout("ghz", ["duration (ms)"], needs=("duration (ms)", "status"), per_second=1e3),
    Layout("ab -g", ["ttime"], needs=("starttime", "ttime", "wait"), per_second=1e3),
    Layout(
        "Google Benchmark", ["real_time"], _google_row, needs=("name", "iterations", "real_time", "time_unit"),
        series=("name",),
    ),
    Layout(
        "AIPerf", _AIPERF, _aiperf,
        needs=("metadata.benchmark_phase", "metadata.worker_id"),
    ),
    Layout("AIPerf", _AIPERF, _aiperf, needs=("metrics.request_latency.value",)),
)  # fmt: skip

_VEGETA = (
    "timestamp", "code", "latency", "bytes_out", "bytes_in", "error", "body", "attack", "seq", "method", "url",
    "headers",
)  # fmt: skip
_JMETER = (
    "timeStamp", "elapsed", "label", "responseCode", "responseMessage", "threadName", "dataType", "success",
    "failureMessage", "bytes", "sentBytes", "grpThreads", "allThreads", "URL", "Latency", "IdleTime", "Connect",
)  # fmt: skip


def header_of(cells: Sequence[str]) -> Sequence[str]:
    """Return the columns of a table that its tool writes without a header; empty if it is none.

    Args:
        cells: Of the first row.
    """
    if 6 <= len(cells) <= len(_VEGETA) and all(map(re.fullmatch, (r"\d{18,19}", r"\d{1,3}", r"\d+"), cells)):
        return _VEGETA[: len(cells)]
    if 9 <= len(cells) <= len(_JMETER) and all(map(re.fullmatch, (r"\d{13}", r"\d+(\.\d+)?"), cells)):
        return _JMETER[: len(cells)] if cells[7].lower() in ("true", "false") else ()
    return ()


def table_of(names: Iterable[str]) -> Layout | None:
    """Return the layout of a table with these columns, if it is known."""
    return next((layout for layout in TABLES if set(layout.needs) <= {*names}), None)


def _hyperfine(document: Document) -> Iterator[Row]:
    results = _objects(document["results"])
    if not any(_floats(result.get("times")) for result in results):
        raise UsageError("hyperfine's results without `times`; let --export-json FILE write them")
    for result in results:
        times, codes = _floats(result.get("times")), _floats(result.get("exit_codes"))
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
            name: benchmark.get(name) for name in ("name", "fullname", "group") if name in benchmark
        }
        for seconds in _floats(benchmark["stats"].get("data")):
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
        for sample in _floats(series.get("values")):
            # No requests at that time.
            if isinstance(sample, list) and len(sample) == 2 and sample[1] not in ("NaN", "+Inf", "-Inf"):
                yield {**(labels if isinstance(labels, dict) else {}), "value": sample[1]}


def _serving(document: Document) -> Iterator[Row]:
    ttfts, itls, errors, lengths = (
        _floats(document.get(name)) for name in ("ttfts", "itls", "errors", "output_lens")
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
            ends = _floats(request.get("response_timestamps"))
            row: dict[str, object] = {"experiment": number, "success": bool(ends)}
            if ends:
                row["latency"] = ends[-1] - request["timestamp"]
            yield row


def _ghz(document: Document) -> Iterator[Row]:
    yield from _objects(document["details"])


class _DocumentLayout(NamedTuple):
    needs: Callable[[Document], bool]
    rows: Callable[[Document], Iterator[Row]]
    layout: Callable[[Document], Layout]


def _first(document: Document, key: str) -> Mapping[str, Any]:
    return next(iter(_objects(document.get(key))), {})


def _result(document: Document) -> str:
    data = document.get("data")
    return str(data.get("resultType")) if isinstance(data, dict) and "result" in data else ""


def _labels(document: Document) -> list[str]:
    metrics = (series.get("metric") for series in _objects(document["data"]["result"]))
    return sorted({name for metric in metrics if isinstance(metric, dict) for name in metric})


DOCUMENTS: Sequence[_DocumentLayout] = (
    _DocumentLayout(
        lambda d: "command" in _first(d, "results"), _hyperfine,
        lambda _: Layout("hyperfine", ["times"], series=("command",)),
    ),
    _DocumentLayout(
        lambda d: isinstance(_first(d, "benchmarks").get("stats"), dict), _pytest_benchmark,
        lambda _: Layout("pytest-benchmark", ["data"], series=("name", "fullname")),
    ),
    _DocumentLayout(
        lambda d: "context" in d and {"name", "run_type"} & {*_first(d, "benchmarks")} != set(), _google_benchmark,
        lambda _: Layout("Google Benchmark", ["real_time"], _google_row, series=("name",)),
    ),
    _DocumentLayout(
        lambda d: bool(_floats(d.get("ttfts"))), _serving,
        lambda _: Layout("vLLM or SGLang", ["ttfts", "itls"]),
    ),
    _DocumentLayout(
        lambda d: "requests" in _first(d, "experiments"), _perf_analyzer,
        lambda _: Layout("perf_analyzer", ["latency"], per_second=1e9, series=("experiment",)),
    ),
    _DocumentLayout(
        lambda d: "latency" in _first(d, "details"), _ghz,
        lambda _: Layout("ghz", ["latency"], per_second=1e9),
    ),
    _DocumentLayout(
        lambda d: _result(d) == "matrix", _query_range,
        lambda d: Layout("Prometheus", ["value"], series=_labels(d), has_outcomes=False),
    ),
)  # fmt: skip


def document_of(place: str, document: Document) -> tuple[Layout, list[tuple[str, Row]]] | None:
    """Return the rows of a JSON document whose layout is known.

    Args:
        place: The file's name, for messages.
        document: One JSON object.

    Raises:
        UsageError: It is known, and holds no single runs.
    """
    for known in DOCUMENTS:
        if known.needs(document):
            try:
                return known.layout(document), _placed(place, known.rows(document))
            except UsageError as error:
                raise UsageError(f"{place}: {error}") from None
            except WRONG as error:
                raise UsageError(
                    f"{place}: not as {known.layout(document).tool} writes it ({shown(repr(error))}); write it again"
                ) from None
    refuse_summary(place, document)
    return None


def _placed(place: str, rows: Iterable[Row]) -> list[tuple[str, Row]]:
    return [(f"{place}: entry {number}", row) for number, row in enumerate(rows, 1)]


_SUMMARIES: Sequence[tuple[str, Sequence[str], str]] = (
    ("k6's summary", ("metrics", "root_group"), "let `k6 run --out csv=FILE` write each request"),
    ("k6's summary", ("metrics.http_req_duration",), "let `k6 run --out csv=FILE` write each request"),
    ("oha's summary", ("summary", "responseTimeHistogram"), "let `oha --output-format csv` write each request"),
    ("oha's summary", ("latencyPercentiles",), "let `oha --output-format csv` write each request"),
    ("vegeta's report", ("latencies", "bytes_in", "status_codes"), "let `vegeta encode --to csv` write each request"),
    ("the summary of vLLM's or SGLang's benchmark", ("mean_ttft_ms",),
     "run it again with --save-result --save-detailed (vLLM) or --output-details (SGLang)"),
    ("AIPerf's summary", ("request_latency", "input_config"),
     "give its profile_export.jsonl, which --export-level records writes"),
    ("AIPerf's or GenAI-Perf's summary", ("Metric", "avg", "p99"),
     "give its profile_export.jsonl, which AIPerf's --export-level records writes"),
    ("Locust's statistics", ("Type", "Name", "Request Count"), "_locust"),
    ("Locust's statistics", ("User Count", "Type", "Name"), "_locust"),
    ("Locust's statistics", ("num_requests", "response_times"), "_locust"),
    ("perf_analyzer's summary", ("Concurrency", "Inferences/Second"),
     "let `perf_analyzer --profile-export-file FILE` write each request"),
    ("perf_analyzer's summary", ("Request Rate", "Inferences/Second"),
     "let `perf_analyzer --profile-export-file FILE` write each request"),
    ("hyperfine's summary", ("command", "mean", "stddev"), "let `hyperfine --export-json FILE` write each run"),
    ("JMeter's report", ("Label", "# Samples", "Average"), "let `jmeter -l FILE.jtl` write each request"),
    ("JMeter's report", ("Total.sampleCount",), "let `jmeter -l FILE.jtl` write each request"),
    ("fortio's histogram", ("DurationHistogram",), "let `fortio load -access-log-file FILE` write each request"),
    ("ab's percentiles", ("Percentage served", "Time in ms"), "let `ab -g FILE` write each request"),
    ("pytest-benchmark's statistics", ("name", "stddev", "iqr"),
     "let `pytest --benchmark-json FILE` write each round"),
    ("an error of Prometheus", ("status", "errorType"), "fix the query"),
    ("an answer of Prometheus about one moment", ("data.resultType",), "ask /api/v1/query_range"),
)  # fmt: skip
_LOCUST = (
    "let a listener of Locust's `events.request` write each response_time, for none of its options (--csv, "
    "--csv-full-history) does"
)


def refuse_summary(place: str, columns: Iterable[str] | Document) -> None:
    """Refuse percentiles and averages of a tool that can write single runs, too.

    Args:
        place: The file's name, for messages.
        columns: Of a table, or a JSON document.

    Raises:
        UsageError: It is a summary; the line names the tool's option.
    """
    names = {*columns}
    if isinstance(columns, Mapping):
        nested = cast("Document", columns)
        names |= {f"{key}.{k}" for key, value in nested.items() if isinstance(value, dict) for k in value}
    for what, needs, advice in _SUMMARIES:
        if names >= {*needs}:
            _refuse(place, what, _LOCUST if advice == "_locust" else advice)


_TEXTS: Sequence[tuple[str, str, str]] = (
    (r"(?s)\ARunning .+ test @ .*threads and .*connections", "the summary of wrk or wrk2",
     "neither has an option that writes single runs (-L writes percentiles): measure with `oha --output-format csv`, "
     "`hey -o csv` or vegeta"),
    (r"\AValue\s+Percentile\s+TotalCount", "an HdrHistogram of wrk2 or others",
     "measure with `oha --output-format csv`, `hey -o csv` or vegeta"),
    (r"(?s)\ASummary:\s+Success rate:", "oha's summary", "let `oha --output-format csv` write each request"),
    (r"(?s)\ASummary:\s+Total:", "hey's summary", "let `hey -o csv` write each request"),
    (r"(?s)\ASummary:\s+(Name|Count):", "ghz's summary", "let `ghz -O csv` write each request"),
    (r"(?s)\ARequests\s+\[total", "vegeta's report", "let `vegeta encode --to csv` write each request"),
    (r"(?s)\AThis is ApacheBench", "ab's summary", "let `ab -g FILE` write each request"),
    (r"(?s)\A\*\*\* Measurement Settings", "perf_analyzer's summary",
     "let `perf_analyzer --profile-export-file FILE` write each request"),
    (r"http_req_duration\.+:", "k6's summary", "let `k6 run --out csv=FILE` write each request"),
    (r"\AType\s+Name\s+# reqs", "Locust's statistics", _LOCUST),
    (r"Serving Benchmark Result ===", "the summary of vLLM's or SGLang's benchmark",
     "run it again with --save-result --save-detailed (vLLM) or --output-details (SGLang)"),
    (r"\ABenchmark 1: ", "hyperfine's summary", "let `hyperfine --export-json FILE` write each run"),
    (r"(?s)\A<\?xml.*<testResults|\A<testResults", "JMeter's results in XML",
     "let `jmeter -Jjmeter.save.saveservice.output_format=csv -l FILE.jtl` write them as CSV"),
)  # fmt: skip


def refuse_text(place: str, text: str) -> None:
    """Refuse what a tool prints for people.

    Args:
        place: The file's name, for messages.
        text: The beginning of the file.

    Raises:
        UsageError: It is known; the line names the tool's option.
    """
    for pattern, what, advice in _TEXTS:
        if re.search(pattern, text.lstrip()):
            _refuse(place, what, advice)


def _refuse(place: str, what: str, advice: str) -> None:
    raise UsageError(f"{place}: {what}, without single runs; {advice}")


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
        _refuse(
            place, f"a summary ({listed(statistics, 4)})", "let its tool write each request, with its time"
        )
