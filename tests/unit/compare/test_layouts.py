"""Files of load generators and benchmarks: single runs are read and judged, of summaries the option is named."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.command import cli as cli
from infercanary.command.settings import UsageError
from infercanary.compare.table import numbers as numbers_of

Latencies = Sequence[float]
Run = Callable[..., str]

COUNT = 200


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")

    def run(*arguments: str, code: int) -> str:
        monkeypatch.setattr(sys, "argv", ["infercanary", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        assert exit_.value.code == code, out + err
        assert (err.count("\n") == 1 and out == "") if code == 2 else err == ""
        return err if code == 2 else out

    return run


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
    rows = [f'"BM_a",10,{1e9 * s},1,ns,,,,' for s in x]
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
def test_single_runs_are_read_without_an_option(run: Run, write: Any, numbers: Any, layout: Any) -> None:
    write("old", layout(numbers(0.02, COUNT, seed=1)))
    write("same", layout(numbers(0.02, COUNT, seed=2)))
    write("slow", b"\xef\xbb\xbf" + layout(numbers(0.024, COUNT, seed=3)).rstrip("\r\n").encode())
    assert "equivalent" in run("compare", "old", "same", code=0)
    out = run("compare", "old", "slow", code=1)
    assert re.search(r"^(\w+: )?regressed \+(19|20)\.", out)
    assert re.search(r"\(20(\.\d+)? ms → 2[34](\.\d+)? ms\)", out)
    assert "steady" in run("scan", "old", code=0)


def test_both_times_of_a_stream_are_judged(run: Run, write: Any, numbers: Any) -> None:
    x = numbers(0.02, COUNT)
    slow = json.loads(serving(x))
    slow["itls"] = [[1.3 * s, 1.3 * s] for s in x]
    write("old", serving(x))
    write("new", json.dumps(slow))
    out = run("compare", "old", "new", code=1)
    assert re.findall(r"^(\w+): (\w+)", out, re.MULTILINE) == [("ttfts", "equivalent"), ("itls", "regressed")]
    assert run("compare", "old", "new", "--column", "ttfts", code=0).startswith("equivalent")


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
@pytest.mark.parametrize("command", ["compare", "scan"])
def test_a_summary_is_refused_with_the_option_that_writes_runs(
    run: Run, write: Any, tool: str, command: str
) -> None:
    text, option = SUMMARIES[tool]
    path = write("f", text)
    line = run(command, *[path] * (2 if command == "compare" else 1), code=2)
    assert option in line and re.search("without (single r|repetitions)|in XML", line)


def table_of(rows: Iterable[tuple[float, str]], header: str) -> str:
    return lines(header, (f"{1e3 * s:.3f},{more}" for s, more in rows))


@pytest.mark.parametrize(
    ("header", "good", "bad"),
    [
        ("ms,success", "true", "false"),
        ("ms,ok", "1", "0"),
        ("ms,error", "", "connection refused"),
        ("ms,responseCode,success", "404,true", "200,false"),
        ("ms,status", "200", "503"),
        ("ms,status", "200", "0"),
        ("ms,status", "HTTP/1.1 200 OK", "HTTP/1.1 404 Not Found"),
        ("ms,status", "OK", "Unavailable"),
        ("ms,status", "OK", "Odd"),
        ("ms,http_code", "204", "500"),
        ("ms,exit_code", "0", "1"),
        ("ms,expected_response", "true", "false"),
        ("ms,was_cancelled", "False", "True"),
        ("ms,exitcode", "0", "255"),
        ("ms,return_code", "0", "137"),
        ("ms,completed", "true", "false"),
        ("ms,result", "ok", "Failed"),
        ("ms,finish_reason", "stop", "abort"),
    ],
)
def test_failed_rows_are_failed_runs(
    run: Run, write: Any, numbers: Any, header: str, good: str, bad: str
) -> None:
    x = numbers(0.02, COUNT)
    write("old", table_of([(s, good) for s in x], header))
    write("new", table_of([(s if i % 2 else 0.0, good if i % 2 else bad) for i, s in enumerate(x)], header))
    arguments = ("compare", "old", "new", "--column", "ms")
    out = run(*arguments, code=3)
    assert out.startswith("inconclusive: 100 of 200 runs failed, 0 of 200 before; the others: equivalent")
    found = json.loads(run(*arguments, "--json", code=3))
    assert found["candidate"]["attempts"] == {"begun": 200, "failed": 100} and found["failures_rose"] is True
    assert "find out why its runs fail" in out and "next" in out and "log" not in out
    assert "100 failed" in run("scan", "new", "--column", "ms", code=0)
    write("plain", lines("ms", (f"{1e3 * s:.3f}" for s in x)))
    assert "100 of 200 runs failed, 0 of 200 before" in run(
        "compare", "plain", "new", "--column", "ms", code=3
    )


@pytest.mark.parametrize(
    ("header", "rest"),
    [
        ("ms,std_error", "0.013"), ("ms,error_rate", "0.5"), ("ms,cache_status", "MISS"), ("ms,country_code", "49"),
        ("ms,timeout", "30"), ("ms,status", "302"), ("ms,code", "0"), ("ms,error", "none"),
        ("ms,error", "No error"), ("ms,return_code", "200"), ("ms,max_error", "2"), ("ms,error_bytes", "9"),
        ("ms,success_ms", "0"), ("ms,failed_requests", "1"), ("ms,result", "it failed"), ("ms,result", "3.5"),
    ],
)  # fmt: skip
def test_other_columns_are_no_failures(run: Run, write: Any, numbers: Any, header: str, rest: str) -> None:
    write("a", table_of([(s, rest) for s in numbers(0.02, COUNT)], header))
    out = run("compare", "a", "a", "--column", "ms", "--json", code=0)
    assert json.loads(out)["candidate"]["runs"] == COUNT


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
def test_rows_of_several_series_are_refused_and_where_picks_one(
    run: Run, write: Any, numbers: Any, kind: str
) -> None:
    layout, where = SERIES[kind]
    write("old", layout(numbers(0.02, COUNT)))
    write("slow", layout(numbers(0.024, COUNT, seed=2)))
    column = ("--column", "value") if kind in ("long table", "quantiles", "units") else ()
    for arguments in (("compare", "old", "slow"), ("scan", "slow")):
        line = run(*arguments, *column, code=2)
        assert "--where" in line and where.partition("=")[0] in line
    assert "regressed +" in run("compare", "old", "slow", *column, "--where", where, code=1)
    line = run("compare", "old", "slow", *column, "--where", where.partition("=")[0] + "=none", code=2)
    assert "none" in line or "0 fit" in line


def test_where_is_repeatable_and_refused_without_columns(
    run: Run, write: Any, numbers: Any, journal: Any
) -> None:
    x = numbers(0.02, COUNT)
    rows = [(s * (1 + i % 4), f"{'ab'[i % 2]},{'xy'[i // 2 % 2]}") for i, s in enumerate(x)]
    write("t", table_of(rows, "ms,label,zone"))
    both = ("--where", "label=b", "--where", "zone=x")
    assert json.loads(run("scan", "t", "--column", "ms", *both, "--json", code=0))["runs"] == 50
    either = ("--where", "label=a", "--where", "label=b")
    assert (
        json.loads(run("compare", "t", "t", "--column", "ms", *either, "--json", code=3))["candidate"]["runs"]
        == 200
    )
    write("n", x)
    write("j", json.dumps(x))
    journal("journal", [0.02])
    for path, said in (
        ("n", "leave --where out"),
        ("j", "leave --where out"),
        ("journal", "leave --where out"),
    ):
        assert said in run("scan", path, "--where", "a=b", code=2)
    assert "give COLUMN=VALUE" in run("scan", "t", "--where", "label", code=2)
    assert "no column `q`" in run("scan", "t", "--column", "ms", "--where", "q=1", code=2)


def test_labels_with_several_values_give_one_short_note(run: Run, write: Any, numbers: Any) -> None:
    x = numbers(0.02, COUNT)
    rows = [
        (s, f"http://h/items/{i}/{'x' * 100},{'infer' if i % 2 else 'search'},GET") for i, s in enumerate(x)
    ]
    write("t", table_of(rows, "ms,url,label,method"))
    result = json.loads(run("scan", "t", "--column", "ms", "--json", code=0))
    assert len(result["notes"]) == 1 and "--where label=VALUE" in result["notes"][0]
    assert (
        "infer" in result["notes"][0] and "method" not in result["notes"][0] and len(result["notes"][0]) < 500
    )


SWAPPED = str.maketrans(",.", ".,")
FORMS = {
    "a header behind #": lambda x: lines("# timestamp,latency_ms", (f"1.7e9,{1e3 * s:.3f}" for s in x)),
    "# beside a header": lambda x: lines("# made by x\nt,latency_ms", (f"{i},{1e3 * s:.3f}" for i, s in enumerate(x))),
    "Excel": lambda x: lines("sep=;", ["t;latency_ms", *(f"10:00;{1e3 * s:.3f}".replace(".", ",") for s in x)], "\r\n"),
    "sep above numbers": lambda x: lines("sep=;", (f"{1e3 * s:.3f}" for s in x)),
    "sep with another sign": lambda x: lines("sep=|", ["t|latency_ms", *(f"10:00|{1e3 * s:.3f}" for s in x)]),
    "UTF-16": lambda x: lines("t,latency_ms", (f"{i},{1e3 * s:.3f}" for i, s in enumerate(x))).encode("utf-16"),
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
@pytest.mark.parametrize("column", [(), ("--column", "latency_ms")])
def test_forms_that_people_have(run: Run, write: Any, numbers: Any, form: str, column: Any) -> None:
    write("old", FORMS[form](numbers(0.02, COUNT)))
    write("slow", FORMS[form](numbers(0.024, COUNT, seed=2)))
    if form == "sep above numbers":
        assert "regressed +" in run("compare", "old", "slow", code=1)
    elif form == "one of two arrays" and not column:
        assert "--column one of: t (200), latency_ms (200)" in run("compare", "old", "slow", code=2)
    elif form.startswith(("# beside", "UTF-16", "units", "thousands")) and not column:
        assert "which column? Give --column one of: t, latency_ms" in run("compare", "old", "slow", code=2)
    else:
        assert "regressed +" in run("compare", "old", "slow", *column, code=1)


@pytest.mark.parametrize(
    "record",
    [
        {"error": "cancelled"}, {"latency_ms": None, "cancelled": True}, {"latency_ms": None},
        {"latency_ms": 0, "ok": False}, {"id": 7}, {"status": 503, "latency_ms": 0.4},
    ],
)  # fmt: skip
@pytest.mark.parametrize("position", [0, 50, 150])
def test_one_cancelled_record_does_not_refuse_the_file(
    run: Run, write: Any, numbers: Any, record: dict[str, object], position: int
) -> None:
    records: list[dict[str, object]] = [
        {"id": i, "latency_ms": 1e3 * s} for i, s in enumerate(numbers(count=COUNT))
    ]
    write("old", json_lines(records))
    records.insert(position, record)
    write("new", json_lines(records))
    out = run("compare", "old", "new", "--column", "latency_ms", code=0)
    assert "1 of 201 runs failed" in out or "1 record without `latency_ms` left out" in out


def test_a_failed_request_of_each_tool_is_no_run(run: Run, write: Any, numbers: Any) -> None:
    x = numbers(0.02, COUNT)
    ok = serving(x)
    failed = json.loads(ok)
    for i in range(0, COUNT, 2):
        failed["ttfts"][i], failed["itls"][i], failed["errors"][i] = 0.0, [], "ClientError"
    pairs = {
        "serving": (ok, json.dumps(failed)),
        "vegeta": (vegeta_csv(x), re.sub(r",200,(\d+)", lambda m: ",0,0" if int(m[1]) % 2 else m[0], vegeta_csv(x))),
        "k6": (k6_csv(x), re.sub("true,200", "false,503", k6_csv(x), count=COUNT * 2)),
        "jmeter": (jmeter(x), jmeter(x).replace("true", "false", COUNT // 2)),
        "aiperf": (aiperf(x), aiperf(x).replace('"error": null', '"error": {"code": 499, "type": "t"}', COUNT // 2)),
        "hyperfine": (hyperfine(x), hyperfine(x).replace("        0,", "        null,", COUNT // 2)),
    }  # fmt: skip
    for name, (old, new) in pairs.items():
        write(f"{name}.old", old)
        write(f"{name}.new", new)
        assert " runs failed, 0 of 200 before; the others: equivalent" in run(
            "compare", f"{name}.old", f"{name}.new", code=3
        )


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
        numbers_of("f", text.encode())


def test_a_candidate_whose_requests_all_fail_is_inconclusive(run: Run, write: Any, numbers: Any) -> None:
    x = numbers(0.02, COUNT)
    stream = json.loads(serving(x))
    dead = {**stream, "ttfts": [0.0] * COUNT, "itls": [[]] * COUNT, "errors": ["refused"] * COUNT}
    records = [{"latency_ms": s, "error": None} for s in x]
    cancelled = {
        "metadata": {"benchmark_phase": "profiling", "worker_id": "w"},
        "metrics": {},
        "error": {"code": 499},
    }
    pairs = {
        "stream": (serving(x), json.dumps(dead), ()),
        "records": (
            json_lines(records),
            json_lines([{"error": "refused"}] * COUNT),
            ("--column", "latency_ms"),
        ),
        "csv": (
            table_of([(s, "200") for s in x], "ms,code"),
            "ms,code\n" + ",503\n" * COUNT,
            ("--column", "ms"),
        ),
        "aiperf": (aiperf(x), json_lines([cancelled] * COUNT), ()),
        "jmeter": (jmeter(x), jmeter(x).replace("true", "false"), ()),
    }
    for name, (old, new, options) in pairs.items():
        write(f"{name}.old", old)
        write(f"{name}.new", new)
        out = run("compare", f"{name}.old", f"{name}.new", *options, code=3)
        assert "200 of 200 runs failed, 0 of 200 before" in out and "find out why its runs fail" in out


def test_files_of_different_columns_are_not_compared(run: Run, write: Any, numbers: Any) -> None:
    write("stream", serving(numbers(0.02, COUNT)))
    write("oha", oha(numbers(0.02, COUNT)))
    assert "holds one series of numbers, and stream ttfts, itls" in run("compare", "stream", "oha", code=2)
    run("compare", "oha", write("hey", hey(numbers(0.02, COUNT, seed=2))), code=0)
