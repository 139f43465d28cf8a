"""Files of load generators and benchmarks: single runs are read and judged, of summaries the option is named."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.command import cli as cli
from infercanary.command.settings import UsageError
from infercanary.compare.recording import Attempts, RecordedRuns
from infercanary.compare.rows import File
from infercanary.compare.table import numbers

Latencies = Sequence[float]

COUNT = 120  # more than the rows whose keys are the columns
X = [0.02 + 1e-5 * (i * 37 % 100) for i in range(COUNT)]


def read(text: str | bytes, column: str = "", *where: str) -> tuple[dict[str, RecordedRuns], str]:
    """The series in a text, and the notes."""
    notes: list[str] = []
    pairs = [(name, value) for name, _, value in (each.partition("=") for each in where)]
    return numbers(
        File("f", notes, column, pairs), text if isinstance(text, bytes) else text.encode()
    ), "".join(notes)


def refused(text: str, *options: str) -> str:
    with pytest.raises(UsageError) as raised:
        read(text, *options)
    assert (
        str(raised.value).startswith("f") and "\n" not in str(raised.value) and len(str(raised.value)) < 500
    )
    return str(raised.value)


def lines(header: str, rows: Iterable[str], end: str = "\n") -> str:
    return end.join([*([header] if header else []), *rows]) + end


def json_lines(entries: Iterable[object]) -> str:
    return "".join(f"{json.dumps(entry)}\n" for entry in entries)


def hyperfine(x: Latencies) -> str:
    result = {"command": "./a b", "mean": 1.0, "times": x, "exit_codes": [0] * len(x)}
    return json.dumps({"results": [result]}, indent=2)


def pytest_benchmark(x: Latencies) -> str:
    benchmark = {
        "group": None,
        "name": "test_a[1]",
        "fullname": "t.py::test_a[1]",
        "stats": {"min": 1, "data": x},
    }
    return json.dumps({"machine_info": {"node": "h"}, "benchmarks": [benchmark]}, indent=4)


def google_benchmark(x: Latencies) -> str:
    common = {"name": "BM_a/8", "run_name": "BM_a/8", "time_unit": "us", "cpu_time": 1.0, "threads": 1}
    rows = [{**common, "run_type": "iteration", "real_time": 1e6 * s} for s in x]
    total = {
        **common,
        "name": "BM_a/8_mean",
        "run_type": "aggregate",
        "aggregate_name": "mean",
        "real_time": 1e9,
    }
    return json.dumps({"context": {"num_cpus": 2}, "benchmarks": [*rows, total]}, indent=2)


def google_benchmark_csv(x: Latencies) -> str:
    header = (
        "name,iterations,real_time,cpu_time,time_unit,bytes_per_second,items_per_second,label,error_occurred"
    )
    rows = [f'"BM_a",10,{1e9 * s},{"1" if i else "a cell that is not read"},ns,,,,' for i, s in enumerate(x)]
    return lines(f"{header},error_message", [f"{row}," for row in [*rows, '"BM_a_mean",10,9e9,1,ns,,,,']])


def vegeta_json(x: Latencies) -> str:
    common = {
        "attack": "",
        "timestamp": "2026-01-01T00:00:00Z",
        "bytes_out": 0,
        "bytes_in": 4,
        "error": "",
        "body": None,
    }
    return json_lines({**common, "seq": i, "code": 200, "latency": round(1e9 * s)} for i, s in enumerate(x))


def vegeta_csv(x: Latencies) -> str:
    rows = (
        f"17600000000000{i:05d},200,{1e9 * s:.0f},0,4,,,,{i},GET,http://h/{i},SGk=" for i, s in enumerate(x)
    )
    return lines("", rows)


def k6_csv(x: Latencies) -> str:
    header = (
        "metric_name,timestamp,metric_value,check,error,error_code,expected_response,status,url,extra_tags"
    )
    rows = (
        f"{name},1760000000,{value:.6f},,,,true,200,http://h/,"
        for s in x
        for name, value in (("http_reqs", 1), ("http_req_duration", 1e3 * s), ("vus", 10), ("data_sent", 80))
    )
    return lines(header, rows)


def k6_json(x: Latencies) -> str:
    defined = {"type": "Metric", "metric": "http_req_duration", "data": {"type": "trend", "contains": "time"}}
    tags = {"expected_response": "true", "status": "200", "url": "http://h/"}
    points = (
        {"type": "Point", "metric": name, "data": {"time": "t", "value": value, "tags": tags}}
        for s in x
        for name, value in (("http_req_blocked", 0), ("http_req_duration", 1e3 * s))
    )
    return json_lines([defined, *points])


def jmeter(x: Latencies) -> str:
    header = "timeStamp,elapsed,label,responseCode,responseMessage,threadName,success,failureMessage,Latency"
    return lines(
        header, (f'{i},{1e3 * s:.1f},infer,200,"O,K",T 1-{i},true,,1' for i, s in enumerate(x)), "\r\n"
    )


def jmeter_without_header(x: Latencies) -> str:
    rows = (
        f"17600000000{i % 100:02d},{1e3 * s:.1f},infer,200,OK,T 1-1,text,true,,9,9,1,1,u,1,0,0"
        for i, s in enumerate(x)
    )
    return lines("", rows)


def hey(x: Latencies) -> str:
    header = "response-time,DNS+dialup,DNS,Request-write,Response-delay,Response-read,status-code,offset"
    return lines(header, (f"{s:.6f},0.0,0.0,0.0,0.1,0.0,200,0.5" for s in x))


def oha(x: Latencies) -> str:
    header = "request-start,DNS,DNS+dialup,Response-delay,request-duration,bytes,status"
    return lines(header, (f"{i},0,0,0.01,{s},11,200" for i, s in enumerate(x)))


def ghz(x: Latencies) -> str:
    return json.dumps(
        {"count": len(x), "details": [{"latency": round(1e9 * s), "error": "", "status": "OK"} for s in x]}
    )


def serving(x: Latencies) -> str:
    """vLLM's and SGLang's: times to the first token, and gaps between tokens."""
    common = {
        "backend": "vllm",
        "completed": len(x),
        "mean_ttft_ms": 1.0,
        "request_rate": float("inf"),
        "input_lens": [8] * len(x),
    }
    detailed = {"ttfts": x, "itls": [[s, s] for s in x], "errors": [""] * len(x), "output_lens": [3] * len(x)}
    return json.dumps({**common, **detailed})


def aiperf(x: Latencies) -> str:
    def record(phase: str, seconds: float) -> object:
        about = {"x_request_id": "r", "benchmark_phase": phase, "was_cancelled": False}
        metrics = {
            "request_latency": {"value": 1e3 * seconds, "unit": "ms"},
            "osl": {"value": 9, "unit": "tokens"},
        }
        return {"metadata": about, "metrics": metrics, "error": None}

    return json_lines([record("warmup", 9.0), *(record("profiling", s) for s in x)])


def query_range(x: Latencies) -> str:
    values = [[1760000000 + i, "NaN" if i == 3 else str(s)] for i, s in enumerate(x)]
    result = [{"metric": {"job": "a", "status": "500"}, "values": values}]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def perf_analyzer(x: Latencies) -> str:
    requests = [
        {"timestamp": 10**18, "response_timestamps": [10**18 + 5, 10**18 + round(1e9 * s)]} for s in x
    ]
    return json.dumps(
        {"experiments": [{"experiment": {"mode": "concurrency", "value": 1}, "requests": requests}]}
    )


def ab(x: Latencies) -> str:
    return lines(
        "starttime\tseconds\tctime\tdtime\tttime\twait", (f"a\t1\t0\t1\t{1e3 * s:.2f}\t2" for s in x)
    )


def durations(x: Latencies) -> str:
    return lines("", (f"{1e3 * s:.2f}ms" if i % 2 else f"{1e6 * s:.0f} µs" for i, s in enumerate(x)))


RUNS = [
    hyperfine, pytest_benchmark, google_benchmark, google_benchmark_csv, vegeta_json, vegeta_csv, k6_csv, k6_json,
    jmeter, jmeter_without_header, hey, oha, ghz, serving, aiperf, query_range, perf_analyzer, ab, durations,
]  # fmt: skip


@pytest.mark.parametrize("layout", RUNS, ids=lambda layout: layout.__name__)
def test_single_runs_are_read_in_seconds_without_an_option(layout: Any) -> None:
    found, _ = read(layout(X))
    for series in found.values():
        expected = (
            X[:3] + X[4:] if layout is query_range else X
        )  # it has no value for a time without requests
        assert series.every.tolist() == pytest.approx(expected, abs=6e-5) and series.in_seconds
    assert [*found] == (["ttfts", "itls"] if layout is serving else [""])
    assert [*read(layout(X).rstrip("\r\n"))[0]] == [*found]


@pytest.mark.parametrize(
    ("column", "in_seconds"), [("real_time", True), ("cpu_time", False), ("iterations", False)]
)
def test_a_row_names_the_unit_of_its_times_alone(column: str, in_seconds: bool) -> None:
    rows = [f"B,9,{9 * factor},{9 * factor},{unit}" for unit, factor in (("ms", 1), ("us", 1000))]
    series = read(lines("name,iterations,real_time,cpu_time,time_unit", rows), column)[0][""]
    assert series.every.tolist() == pytest.approx([9, 9] if column == "iterations" else [0.009, 0.009])
    assert series.in_seconds == in_seconds


def k6_summary() -> str:
    return json.dumps({"root_group": {}, "metrics": {"http_req_duration": {"avg": 1, "p(95)": 2}}}, indent=4)


SUMMARIES = {
    "k6": (k6_summary(), "k6 run --out csv=FILE"),
    "oha": (json.dumps({"summary": {"successRate": 1}, "responseTimeHistogram": {}}), "oha --output-format csv"),
    "oha text": ("Summary:\n  Success rate:\t100.00%\n", "oha --output-format csv"),
    "hey text": ("\nSummary:\n  Total:\t1.0 secs\n", "hey -o csv"),
    "vegeta": (json.dumps({"latencies": {"mean": 1}, "bytes_in": {}, "status_codes": {}}), "vegeta encode --to csv"),
    "vllm": (json.dumps({"mean_ttft_ms": 1.5, "p99_ttft_ms": 2.5}), "--save-detailed"),
    "locust": ('Type,Name,Request Count,Failure Count,Median Response Time\n"GET",/,9,0,12\n', "events.request"),
    "locust history": ("Timestamp,User Count,Type,Name,50%\n1,10,,Aggregated,N/A\n", "events.request"),
    "wrk2 histogram": ("       Value     Percentile TotalCount 1/(1-Percentile)\n\n 1.1 0.0 1 1.0\n", "hey -o csv"),
    "wrk2": ("Running 30s test @ http://h/\n  2 threads and 100 connections\n", "oha --output-format csv"),
    "perf_analyzer": ("Concurrency,Inferences/Second,Client Send,p50 latency\n1,50,1,2\n", "--profile-export-file"),
    "hyperfine": ("command,mean,stddev,median,user\nls,1,1,1,1\n", "hyperfine --export-json"),
    "hyperfine without times": (
        json.dumps({"results": [{"command": "ls", "mean": 1.0, "exit_codes": [0, 0]}]}), "--export-json FILE",
    ),
    "pytest-benchmark": (
        json.dumps({"benchmarks": [{"name": "a", "stats": {"mean": 1.0}}]}, indent=1), "--benchmark-save-data",
    ),
    "google_benchmark": (
        json.dumps({"context": {}, "benchmarks": [{"name": "a_mean", "run_type": "aggregate", "real_time": 1}]}),
        "--benchmark_report_aggregates_only=false",
    ),
    "aiperf": (json.dumps({"request_latency": {"unit": "ms", "avg": 1}, "input_config": {}}), "profile_export.jsonl"),
    "jmeter xml": ('<?xml version="1.0"?>\n<testResults version="1.2">\n', "output_format=csv"),
}  # fmt: skip


@pytest.mark.parametrize("tool", SUMMARIES)
def test_a_summary_is_refused_with_the_option_that_writes_runs(tool: str) -> None:
    text, option = SUMMARIES[tool]
    line = refused(text)
    assert option in line and re.search("without (single r|a run)|in XML", line)


def table_of(rows: Iterable[tuple[float, str]], header: str) -> str:
    return lines(header, (f"{1e3 * s:.3f},{more}" for s, more in rows))


@pytest.mark.parametrize(
    ("header", "good", "bad"),
    [
        ("ms,success", "true", "false"), ("ms,ok", "1", "0"), ("ms,error", "", "connection refused"),
        ("ms,responseCode,success", "404,true", "200,false"), ("ms,status", "200", "503"), ("ms,status", "200", "0"),
        ("ms,status", "HTTP/1.1 200 OK", "HTTP/1.1 404 Not Found"), ("ms,status", "2xx", "5xx"),
        ("ms,status", "OK", "Unavailable"), ("ms,status", "OK", "Odd"), ("ms,http_code", "204", "500"),
        ("ms,exit_code", "0", "1"), ("ms,exitcode", "0", "255"), ("ms,return_code", "0", "137"),
        ("ms,expected_response", "true", "false"), ("ms,was_cancelled", "False", "True"),
        ("ms,completed", "true", "false"), ("ms,result", "ok", "Failed"), ("ms,finish_reason", "stop", "abort"),
    ],
)  # fmt: skip
def test_failed_rows_are_failed_runs(header: str, good: str, bad: str) -> None:
    """Whatever is in their latency: only what ended well must have one."""
    rows = [(s if i % 2 else 0.0, good if i % 2 else bad) for i, s in enumerate(X)]
    series = read(table_of(rows, header), "ms")[0][""]
    assert series.every.tolist() == pytest.approx([1e3 * s for s in X[1::2]], abs=1e-3)
    assert series.attempts == Attempts(COUNT, COUNT // 2) and series.left_out["failed"]
    is_told_at_the_end = header == "ms,status" and bad in ("0", "Odd")
    assert is_told_at_the_end or series.failure.startswith(f"f:{COUNT}: {header.split(',')[1]} ")


@pytest.mark.parametrize(
    ("header", "rest"),
    [
        ("ms,std_error", "0.013"), ("ms,error_rate", "0.5"), ("ms,cache_status", "MISS"), ("ms,country_code", "49"),
        ("ms,timeout", "30"), ("ms,status", "302"), ("ms,code", "0"), ("ms,error", "none"),
        ("ms,error", "No error"), ("ms,return_code", "200"), ("ms,max_error", "2"), ("ms,error_bytes", "9"),
        ("ms,success_ms", "0"), ("ms,failed_requests", "1"), ("ms,result", "it failed"), ("ms,result", "3.5"),
    ],
)  # fmt: skip
def test_other_columns_are_no_failures(header: str, rest: str) -> None:
    assert read(table_of([(s, rest) for s in X], header), "ms")[0][""].runs == COUNT


def several(layout: Any, old: str, new: str) -> Any:
    return lambda x: layout(x).replace(old, new, 1)


def alternating(header: str, *names: str) -> Any:
    return lambda x: table_of(((s, names[i % 2]) for i, s in enumerate(x)), header)


SERIES = {
    "long table": (alternating("value,metric_name", "a", "b"), "metric_name=a"),
    "quantiles": (alternating("value,quantile", "0.5", "0.9"), "quantile=0.5"),
    "units": (alternating("value,unit", "ms", "us"), "unit=ms"),
    "k6, two protocols": (several(k6_csv, "vus", "grpc_req_duration"), "metric_name=http_req_duration"),
    "hyperfine": (
        lambda x: json.dumps({"results": [{"command": c, "times": x} for c in ("ls", "cat a=b")]}), "command=cat a=b",
    ),
    "pytest-benchmark": (
        lambda x: json.dumps({"benchmarks": [{"name": n, "stats": {"data": x}} for n in ("test_a", "test_b")]}),
        "name=test_b",
    ),
    "google_benchmark": (several(google_benchmark, '"name": "BM_a/8"', '"name": "BM_b"'), "name=BM_a/8"),
    "query_range": (
        lambda x: json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [
            {"metric": {"pod": pod}, "values": [[i, str(s)] for i, s in enumerate(x)]} for pod in "pq"]}}),
        "pod=q",
    ),
    "results that were appended": (
        lambda x: json_lines({**json.loads(serving(x)), "request_rate": rate} for rate in (1, 4)), "request_rate=4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SERIES)
def test_rows_of_several_series_are_refused_and_where_picks_one(kind: str) -> None:
    layout, where = SERIES[kind]
    name = where.partition("=")[0]
    column = "value" if kind in ("long table", "quantiles", "units") else ""
    line = refused(layout(X), column)
    assert "--where" in line and name in line
    found, _ = read(layout(X), column, where)
    assert all(0 < series.runs <= COUNT for series in found.values())
    line = refused(layout(X), column, f"{name}=none")
    assert "none" in line or "0 results" in line


def test_where_is_repeatable_and_refused_without_columns() -> None:
    text = table_of([(s, f"{'ab'[i % 2]},{'xy'[i // 2 % 2]}") for i, s in enumerate(X)], "ms,label,zone")
    assert read(text, "ms", "label=b", "zone=x")[0][""].runs == COUNT / 4
    assert read(text, "ms", "label=a", "label=b")[0][""].runs == COUNT
    assert "no column `a`; give --where one of: none" in refused("1\n2\n", "", "a=b")
    assert "no column `a`; give --where one of: none" in refused("[1, 2]", "", "a=b")
    assert "no column `q`; give --where one of: ms, label, zone" in refused(text, "ms", "q=1")


def test_labels_with_several_values_give_one_short_note() -> None:
    rows = [
        (s, f"http://h/items/{i}/{'x' * 100},{'infer' if i % 2 else 'search'},GET") for i, s in enumerate(X)
    ]
    _, note = read(table_of(rows, "ms,url,label,method"), "ms")
    assert "--where label=VALUE" in note and "infer" in note and "method" not in note and len(note) < 500


SWAPPED = str.maketrans(",.", ".,")
FORMS = {
    "a header behind #": lambda x: lines("# timestamp,latency_ms", (f"1.7e9,{1e3 * s:.3f}" for s in x)),
    "# beside a header": lambda x: lines("# made by x\nt,latency_ms", (f"{i},{1e3 * s:.3f}" for i, s in enumerate(x))),
    "Excel": lambda x: lines("sep=;", ["t;latency_ms", *(f"10:00;{1e3 * s:.3f}".replace(".", ",") for s in x)], "\r\n"),
    "sep above numbers": lambda x: lines("sep=;", (f"{1e3 * s:.3f}" for s in x)),
    "sep with another sign": lambda x: lines("sep=|", ["t|latency_ms", *(f"10:00|{1e3 * s:.3f}" for s in x)]),
    "units": lambda x: lines("t,latency_ms", (f"{i},{1e3 * s:.3f} ms" for i, s in enumerate(x))),
    "thousands": lambda x: lines("t;latency_ms", (f"{i};{1e6 * s:,.2f}".translate(SWAPPED) for i, s in enumerate(x))),
    "thousands in French": lambda x: lines("t;latency_ms", (f"x;{1e6 * s:,.0f}".replace(",", "\u202f") for s in x)),
    "thousands in quotes": lambda x: lines("t,latency_ms", (f'{i},"{1e6 * s:,.1f}"' for i, s in enumerate(x))),
    "units, with commas": lambda x: lines("t;latency_ms", (f"x;{1e3 * s:.3f}ms".replace(".", ",") for s in x)),
    "a comma behind each row": lambda x: lines("t,latency_ms", (f"x,{1e3 * s:.3f}," for s in x)),
    "an array in an object": lambda x: json.dumps({"about": {"n": 3}, "latency_ms": x}, indent=1),
    "objects in an object": lambda x: json.dumps({"a": {"rows": [{"id": "x", "latency_ms": s} for s in x]}}),
    "a column of pandas": lambda x: json.dumps({"latency_ms": dict(enumerate(x))}),
    "one of two arrays": lambda x: json.dumps({"t": [*range(len(x))], "latency_ms": x}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_people_have(form: str) -> None:
    found, _ = read(FORMS[form](X), "" if form == "sep above numbers" else "latency_ms")
    shares = [value / X[0] for value in found[""].every]
    assert [share / shares[0] for share in shares] == pytest.approx([x / X[0] for x in X], abs=1e-3)
    if form == "one of two arrays":
        assert "--column one of: t, latency_ms" in refused(FORMS[form](X))
    elif form.startswith(("# beside", "thousands in quotes")):
        assert "several columns; give --column one of: t, latency_ms" in refused(FORMS[form](X))
    else:
        with suppress(UsageError):  # or it is the only column of times
            assert read(FORMS[form](X))[0][""].every.tolist() == found[""].every.tolist()


@pytest.mark.parametrize(
    ("record", "failed", "note"),
    [
        ({"error": "cancelled"}, 1, ""), ({"latency_ms": None, "cancelled": True}, 1, ""),
        ({"latency_ms": None}, 1, ""), ({"latency_ms": 0, "ok": False}, 1, ""),
        ({"id": 7}, 0, "1 record without `latency_ms` left out"), ({"status": 503, "latency_ms": 0.4}, 1, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("position", [0, 50, 110])
def test_one_cancelled_record_does_not_refuse_the_file(
    record: Any, failed: int, note: str, position: int
) -> None:
    records: list[dict[str, object]] = [{"id": i, "latency_ms": 1e3 * s} for i, s in enumerate(X)]
    records.insert(position, record)
    found, notes = read(json_lines(records), "latency_ms")
    assert (
        found[""].runs == COUNT and found[""].attempts == Attempts(COUNT + failed, failed) and note in notes
    )


def dead(layout: Any, pattern: str, text: str, count: int = 0) -> Any:
    return lambda: re.sub(pattern, text, layout(X), count=count)


def serving_that_fails(share: int) -> str:
    failed = json.loads(serving(X))
    for i in range(0, COUNT, share):
        failed["ttfts"][i], failed["itls"][i], failed["errors"][i] = 0.0, [], "ClientError"
    return json.dumps(failed)


ABORTED = {
    "metadata": {"benchmark_phase": "profiling", "worker_id": "w"},
    "metrics": {},
    "error": {"code": 499},
}
HALF = COUNT // 2


@pytest.mark.parametrize(
    ("text", "column", "failed"),
    [
        (lambda: serving_that_fails(2), "", HALF), (lambda: serving_that_fails(1), "", COUNT),
        (dead(vegeta_csv, r"(?m),200,(\d+)(?=.*[02468],GET)", ",0,0"), "", HALF),
        (dead(k6_csv, "true,200", "false,503", 2 * COUNT), "", HALF),
        (dead(jmeter, "true", "false", HALF), "", HALF), (dead(jmeter, "true", "false"), "", COUNT),
        (dead(aiperf, '"error": null', '"error": {"code": 499, "type": "t"}', HALF), "", HALF - 1),
        (dead(hyperfine, "        0,", "        null,", HALF), "", HALF),
        (lambda: json_lines([ABORTED] * COUNT), "", COUNT),
        (lambda: json_lines([{"error": "refused"}] * COUNT), "latency_ms", COUNT),
        (lambda: "ms,code\n" + ",503\n" * COUNT, "ms", COUNT),
        (lambda: json_lines([{"ms": 5, "status": 200}] * HALF + [{"status": 0}] * HALF), "ms", HALF),
        (lambda: json_lines([{"status": "started"}, {"ms": 5, "status": "ok"}] * COUNT), "ms", 0),
    ],
)  # fmt: skip
def test_a_failed_request_of_each_tool_is_no_run(text: Any, column: str, failed: int) -> None:
    for series in read(text(), column)[0].values():
        assert (series.attempts, series.runs) == (Attempts(COUNT, failed), COUNT - failed)


def test_the_commands_take_such_files(monkeypatch: Any, capsys: Any, tmp_path: Any, write: Any) -> None:
    """Also that files of different columns are not compared, and failed runs are counted against those before."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["infercanary", *arguments])
        with pytest.raises(SystemExit):
            cli.main()
        return "".join(capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    for name, layout in {"stream": serving, "oha": oha, "hey": hey}.items():
        write(name, layout(X))
    write("failing", serving_that_fails(2))
    assert "equivalent" in run("compare", "oha", "hey") and "steady" in run("scan", "oha")
    assert "holds one series of numbers, and stream ttfts, itls" in run("compare", "stream", "oha")
    assert f": {HALF} of {COUNT} runs failed, 0 of {COUNT} before" in " ".join(
        run("compare", "stream", "failing").split()
    )
    assert "give COLUMN=VALUE" in run("scan", "oha", "--where", "label")


TOKENS = ["null", "[]", "{}", "1e400", "-1", '"x"', "true", ",", "[1]", '{"a": 1}', "\n", ";", "#", ""]


@given(
    st.sampled_from(RUNS),
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from(TOKENS)), min_size=1, max_size=3),
)
def test_a_damaged_file_gives_numbers_or_one_line(layout: Any, damages: Any) -> None:
    text = layout([0.02] * 3)
    for share, token in damages:
        values = [*re.finditer(r"[\[{]|[^\s\[\]{},:]+", text)]
        if values:
            match = values[min(len(values) - 1, int(share * len(values)))]
            text = text[: match.start()] + token + text[match.end() :]
    with suppress(UsageError):
        numbers(File("f", []), text.encode())
