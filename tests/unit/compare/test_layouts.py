"""Files of load generators and benchmarks: single runs, or for a summary the option that writes single runs."""

import json
import re
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.command.settings import UsageError
from infercanary.compare.recording import Attempts
from infercanary.compare.rows import File
from infercanary.compare.table import numbers
from tests.scenarios import cases, scenarios, typed

COUNT = 120  # number of rows, more than the reader needs to find the columns
HALF = COUNT // 2
X = [0.02 + 1e-5 * (i * 37 % 100) for i in range(COUNT)]

# The text in « » is repeated for each run, without the comma at the end of the last run.
LAYOUTS = {
    "hyperfine": '{"results": [{\n"command": "./a b", "mean": 1.0, "times": [«%(s)r,»], "exit_codes": [«0,»]}]}',
    "pytest-benchmark": '{"machine_info": {},\n"benchmarks": [{"group": null, "name": "test_a[1]", "stats":'
    ' {"min": 1, "data": [«%(s)r,»]}, "fullname": "t.py::test_a[1]"}]}',
    "google_benchmark": '{"context": {"num_cpus": 2},\n"benchmarks": [«{"name": "BM_a/8", "run_name": "BM_a/8",'
    ' "time_unit": "us", "cpu_time": 1.0, "threads": 1, "run_type": "iteration", "real_time": %(us)r}, »{"name":'
    ' "BM_a/8_mean", "run_name": "BM_a/8", "time_unit": "us", "cpu_time": 1.0, "run_type": "aggregate",'
    ' "real_time": 1e9, "aggregate_name": "mean"}]}',
    "google_benchmark csv": "name,iterations,real_time,cpu_time,time_unit,bytes_per_second,items_per_second,label,"
    'error_occurred,error_message\n«"BM_a",10,%(ns)r,not read,ns,,,,,\n»"BM_a_mean",10,9e9,1,ns,,,,,\n',
    "vegeta json": '«{"attack": "", "seq": %(i)d, "code": 200, "timestamp": "2026-01-01T00:00:00Z", "latency":'
    ' %(ns).0f, "bytes_out": 0, "bytes_in": 4, "error": "", "body": null}\n»',
    "vegeta csv": "«17600000000000%(i)05d,200,%(ns).0f,0,4,,,,%(i)d,GET,http://h/%(i)d,SGk=\n»",
    "k6 csv": "metric_name,timestamp,metric_value,check,error,error_code,expected_response,status,url,extra_tags\n"
    "«http_reqs,17,1,,,,true,200,http://h/,\nhttp_req_duration,17,%(ms).6f,,,,true,200,http://h/,\n"
    "vus,17,10,,,,true,200,http://h/,\n»",
    "k6 json": '{"type": "Metric", "metric": "http_req_duration", "data": {"type": "trend", "contains": "time"}}\n'
    '«{"type": "Point", "metric": "http_req_blocked", "data": {"time": "t", "value": 0, "tags": {"status": "200"}}}\n'
    '{"type": "Point", "metric": "http_req_duration", "data": {"time": "t", "value": %(ms)r, "tags":'
    ' {"expected_response": "true", "status": "200"}}}\n»',
    "jmeter": "timeStamp,elapsed,label,responseCode,responseMessage,threadName,success,failureMessage,Latency\r\n"
    '«%(i)d,%(ms).1f,infer,200,"O,K",T 1-%(i)d,true,,1\r\n»',
    "jmeter without header": "«17600000000%(digits)s,%(ms).1f,infer,200,OK,T 1-1,text,true,,9,9,1,1,u,1,0,0\n»",
    "hey": "response-time,DNS+dialup,DNS,Request-write,Response-delay,Response-read,status-code,offset\n"
    "«%(s).6f,0.0,0.0,0.0,0.1,0.0,200,0.5\n»",
    "oha": "request-start,DNS,DNS+dialup,Response-delay,request-duration,bytes,status\n«%(i)d,0,0,0.01,%(s)r,11,200\n»",
    "ghz": '{"count": 9, "details": [«{"latency": %(ns).0f, "error": "", "status": "OK"},»]}',
    # vLLM and SGLang: times to the first token, and gaps between tokens
    "serving": '{"backend": "vllm", "mean_ttft_ms": 1.0, "request_rate": Infinity, "completed": 9,'
    ' "input_lens": [8], "ttfts": [«%(s)r,»], "itls": [«[%(s)r, %(s)r],»], "errors": [«"",»], "output_lens": [«3,»]}',
    "aiperf": '{"metadata": {"benchmark_phase": "warmup", "was_cancelled": false}, "metrics": {"request_latency":'
    ' {"value": 9e3, "unit": "ms"}}, "error": null}\n«{"metadata": {"id": "r", "benchmark_phase": "profiling",'
    ' "was_cancelled": false}, "metrics": {"request_latency": {"value": %(ms)r, "unit": "ms"}, "osl": {"value": 9,'
    ' "unit": "tokens"}}, "error": null}\n»',
    # Prometheus returns NaN for a time without requests
    "query_range": '{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {"job": "a",'
    ' "status": "500"}, "values": [[7, "NaN"],«[%(i)d, "%(s)r"],»]}]}}',
    "perf_analyzer": '{"experiments": [{"experiment": {"mode": "concurrency", "value": 1}, "requests": ['
    '«{"timestamp": 1000000000000, "response_timestamps": [1000000000005, 1%(ns)012d]},»]}]}',
    "ab": "starttime\tseconds\tctime\tdtime\tttime\twait\n«a\t1\t0\t1\t%(ms).2f\t2\n»",
    "durations": "«%(duration)s\n»",
}  # fmt: skip


def layout(tool, latencies=X):
    def repeated(section):
        return "".join(section[1] % values for values in runs).rstrip(",")

    runs = [
        {"i": i, "digits": f"{i % 100:02d}", "s": s, "ms": 1e3 * s, "us": 1e6 * s, "ns": 1e9 * s,
         "duration": f"{1e3 * s:.2f}ms" if i % 2 else f"{1e6 * s:.0f} µs"}
        for i, s in enumerate(latencies)
    ]  # fmt: skip
    return re.sub("«(.*?)»", repeated, LAYOUTS.get(tool, tool), flags=re.DOTALL)


def read(text, column="", *where):
    notes = []
    pairs = [(name, value) for name, _, value in (pair.partition("=") for pair in where)]
    return numbers(File("f", notes, column, pairs), text.encode()), "".join(notes)


def refused(text, *options):
    with pytest.raises(UsageError) as raised:
        read(text, *options)
    line = str(raised.value)
    assert line.startswith("f")
    assert "\n" not in line
    assert len(line) < 500
    return line


@pytest.mark.parametrize("tool", LAYOUTS)
def test_single_runs_are_read_in_seconds_without_an_option(tool):
    text = layout(tool)
    for end in ("", "\n"):
        found, _ = read(text.rstrip("\r\n") + end)
        assert [*found] == (["ttfts", "itls"] if tool == "serving" else [""])
        for series in found.values():
            assert series.every.tolist() == pytest.approx(X, abs=6e-5)
            assert series.in_seconds


COLUMNS = """
real_time  | [0.009, 0.009] | true
cpu_time   | [0.009, 0.009] | false
iterations | [9, 9]         | false
"""


@cases(typed(COLUMNS))
def test_a_row_names_the_unit_of_its_times_alone(column, latencies, in_seconds):
    text = "name,iterations,real_time,cpu_time,time_unit\nB,9,9,9,ms\nB,9,9000,9000,us\n"
    series = read(text, column)[0][""]
    assert series.every.tolist() == pytest.approx(latencies)
    assert series.in_seconds == in_seconds


SUMMARIES = r"""
k6 run --out csv=FILE        | {"root_group": {},\n"metrics": {"http_req_duration": {"avg": 1, "p(95)": 2}}}
oha --output-format csv      | {"summary": {"successRate": 1}, "responseTimeHistogram": {}}
oha --output-format csv      | Summary:\n  Success rate:\t100.00%\n
hey -o csv                   | \nSummary:\n  Total:\t1.0 secs\n
vegeta encode --to csv       | {"latencies": {"mean": 1}, "bytes_in": {}, "status_codes": {}}
--save-detailed              | {"mean_ttft_ms": 1.5, "p99_ttft_ms": 2.5}
events.request               | Type,Name,Request Count,Failure Count,Median Response Time\n"GET",/,9,0,12\n
events.request               | Timestamp,User Count,Type,Name,50%\n1,10,,Aggregated,N/A\n
hey -o csv                   |        Value     Percentile TotalCount 1/(1-Percentile)\n\n 1.1 0.0 1 1.0\n
oha --output-format csv      | Running 30s test @ http://h/\n  2 threads and 100 connections\n
--profile-export-file        | Concurrency,Inferences/Second,Client Send,p50 latency\n1,50,1,2\n
hyperfine --export-json      | command,mean,stddev,median,user\nls,1,1,1,1\n
--export-json FILE           | {"results": [{"command": "ls", "mean": 1.0, "exit_codes": [0, 0]}]}
--benchmark-save-data        | {\n"benchmarks": [{"name": "a", "stats": {"mean": 1.0}}]}
aggregates_only=false        | {"context": {}, "benchmarks": [{"name": "a", "run_type": "aggregate", "real_time": 1}]}
profile_export.jsonl         | {"request_latency": {"unit": "ms", "avg": 1}, "input_config": {}}
output_format=csv            | <?xml version="1.0"?>\n<testResults version="1.2">\n
"""


@cases(SUMMARIES)
def test_a_summary_is_refused_with_the_option_that_writes_runs(option, text):
    line = refused(text)
    assert option in line
    assert re.search("without (single r|a run)|in XML", line)


def table_of(header, rows):
    return f"{header}\n" + "".join(f"{1e3 * s:.3f},{more}\n" for s, more in rows)


OUTCOMES = """
success              | true            | false
ok                   | 1               | 0
error                |                 | connection refused
responseCode,success | 404,true        | 200,false
status               | 200             | 503
status               | 200             | 0
status               | HTTP/1.1 200 OK | HTTP/1.1 404 Not Found
status               | 2xx             | 5xx
status               | OK              | Unavailable
status               | OK              | Odd
http_code            | 204             | 500
exit_code            | 0               | 1
exitcode             | 0               | 255
return_code          | 0               | 137
expected_response    | true            | false
was_cancelled        | False           | True
result               | ok              | Failed
finish_reason        | stop            | abort
"""


@cases(OUTCOMES)
def test_failed_rows_are_failed_runs(column, good, bad):
    """A failed row may have any latency; only a successful row needs a valid latency."""
    rows = [(s if i % 2 else 0.0, good if i % 2 else bad) for i, s in enumerate(X)]
    series = read(table_of(f"ms,{column}", rows), "ms")[0][""]
    assert series.every.tolist() == pytest.approx([1e3 * s for s in X[1::2]], abs=1e-3)
    assert series.attempts == Attempts(COUNT, HALF)
    assert series.left_out["failed"]
    is_told_at_the_end = column == "status" and bad in ("0", "Odd")
    assert is_told_at_the_end or series.failure.startswith(f"f:{COUNT}: {column.split(',')[0]} ")


NO_OUTCOMES = """
std_error | 0.013
error_rate | 0.5
cache_status | MISS
country_code | 49
timeout | 30
status | 302
code | 0
error | none
error | No error
return_code | 200
max_error | 2
error_bytes | 9
success_ms | 0
failed_requests | 1
result | it failed
result | 3.5
"""


@cases(NO_OUTCOMES)
def test_other_columns_are_no_failures(column, cell):
    assert read(table_of(f"ms,{column}", [(s, cell) for s in X]), "ms")[0][""].runs == COUNT


def alternating(header, *names):
    return table_of(header, ((s, names[i % 2]) for i, s in enumerate(X)))


TWO_COMMANDS = (
    '{"results": [{\n"command": "ls", "times": [«%(s)r,»]}, {"command": "cat a=b", "times": [«%(s)r,»]}]}'
)
TWO_PODS = (
    '{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {"pod": "p"}, "values":'
    ' [«[%(i)d, "%(s)r"],»]}, {"metric": {"pod": "q"}, "values": [«[%(i)d, "%(s)r"],»]}]}}'
)
BENCHMARK_DATA = '"stats": {"data": [«%(s)r,»]}}'
TWO_BENCHMARKS = (
    f'{{"benchmarks": [{{"name": "test_a", {BENCHMARK_DATA}, {{"name": "test_b", {BENCHMARK_DATA}]}}'
)


@cases([
        (alternating("value,metric_name", "a", "b"), "value", "metric_name=a"),
        (alternating("value,quantile", "0.5", "0.9"), "value", "quantile=0.5"),
        (alternating("value,unit", "ms", "us"), "value", "unit=ms"),
        (layout("k6 csv").replace("vus", "grpc_req_duration", 1), "", "metric_name=http_req_duration"),
        (layout("google_benchmark").replace("BM_a/8", "BM_b", 1), "", "name=BM_a/8"),
        (layout(TWO_COMMANDS), "", "command=cat a=b"),
        (layout(TWO_BENCHMARKS), "", "name=test_b"),
        (layout(TWO_PODS), "", "pod=q"),
        (f"{layout('serving').replace('Infinity', '1')}\n{layout('serving').replace('Infinity', '4')}\n", "",
         "request_rate=4"),
    ],
    ids=lambda value: value if "=" in value and len(value) < 40 else "",
)  # fmt: skip
def test_rows_of_several_series_are_refused_and_where_picks_one(text, column, where):
    name = where.partition("=")[0]
    line = refused(text, column)
    assert "--where" in line
    assert name in line
    assert all(0 < series.runs <= COUNT for series in read(text, column, where)[0].values())
    line = refused(text, column, f"{name}=none")
    assert "none" in line or "0 results" in line


def test_the_option_where_is_repeatable_and_needs_columns():
    text = table_of("ms,label,zone", [(s, f"{'ab'[i % 2]},{'xy'[i // 2 % 2]}") for i, s in enumerate(X)])
    assert read(text, "ms", "label=b", "zone=x")[0][""].runs == COUNT / 4
    assert read(text, "ms", "label=a", "label=b")[0][""].runs == COUNT
    for numbers_only in ("1\n2\n", "[1, 2]"):
        assert "no column `a`, and there is none to choose; remove --where" in refused(
            numbers_only, "", "a=b"
        )
    assert "no column `q`; name a column in --where: ms, label, zone" in refused(text, "ms", "q=1")


def test_labels_with_several_values_give_one_short_note():
    rows = [
        (s, f"http://h/items/{i}/{'x' * 100},{'infer' if i % 2 else 'search'},GET") for i, s in enumerate(X)
    ]
    _, note = read(table_of("ms,url,label,method", rows), "ms")
    assert "--where label=VALUE" in note
    assert "infer" in note
    assert "method" not in note
    assert len(note) < 500


SWAPPED = str.maketrans(",.", ".,")
FORMS: dict[str, Callable[[float], str] | str] = {
    "# timestamp,latency_ms\n": "«1.7e9,%(ms).3f\n»",
    "# made by x\nt,latency_ms\n": "«%(i)d,%(ms).3f\n»",
    "sep=;\r\nt;latency_ms\r\n": lambda s: f"10:00;{1e3 * s:.3f}\r\n".replace(".", ","),
    "sep=;\n": "«%(ms).3f\n»",
    "sep=|\nt|latency_ms\n": "«10:00|%(ms).3f\n»",
    "t,latency_ms\n": "«%(i)d,%(ms).3f ms\n»",
    "t;latency_ms\n": lambda s: f"1;{1e6 * s:,.2f}\n".translate(SWAPPED),
    "time;latency_ms\n": lambda s: f"x;{1e6 * s:,.0f}\n".replace(",", "\u202f"),
    "time,latency_ms\n": lambda s: f'1,"{1e6 * s:,.1f}"\n',
    "name;latency_ms\n": lambda s: f"x;{1e3 * s:.3f}ms\n".replace(".", ","),
    "name,latency_ms\n": "«x,%(ms).3f,\n»",
    '{"about": {"n": 3},\n': '"latency_ms": [«%(s)r,»]}',
    '{"a": {"rows": [': '«{"id": "x", "latency_ms": %(s)r},»]}}',
    '{"latency_ms": {': '«"%(i)d": %(s)r,»}}',
    '{"t": [': '«%(i)d,»], "latency_ms": [«%(s)r,»]}',
}


@pytest.mark.parametrize("head", FORMS)
def test_forms_that_people_have(head):
    rows = FORMS[head]
    text = head + (layout(rows) if isinstance(rows, str) else "".join(map(rows, X)))
    latencies = read(text, "" if head == "sep=;\n" else "latency_ms")[0][""].every
    assert latencies / latencies[0] == pytest.approx([x / X[0] for x in X], abs=1e-3)
    if head == '{"t": [' or head.startswith(("# made", "time,")):
        assert "several columns; name a column in --column: t" in refused(text)
    else:
        with suppress(UsageError):  # This may fail, unless the column is the only one with times.
            assert read(text)[0][""].every.tolist() == latencies.tolist()


RECORDS = """
{"error": "cancelled"}                   | 1 |
{"latency_ms": null, "cancelled": true}  | 1 |
{"latency_ms": null}                     | 1 |
{"latency_ms": 0, "ok": false}           | 1 |
{"id": 7}                                | 0 | 1 record without `latency_ms` left out
{"status": 503, "latency_ms": 0.4}       | 1 |
"""


@pytest.mark.parametrize("position", [0, 50, 110])
@pytest.mark.parametrize(("record", "failed", "note"), scenarios(RECORDS))
def test_one_cancelled_record_does_not_refuse_the_file(record, failed, note, position):
    records = layout('«{"id": %(i)d, "latency_ms": %(ms)r}\n»').splitlines()
    records.insert(position, record)
    found, notes = read("\n".join(records), "latency_ms")
    assert (found[""].runs, found[""].attempts) == (COUNT, Attempts(COUNT + int(failed), int(failed)))
    assert note in notes


def serving_that_fails(share):
    failed = json.loads(layout("serving"))
    for i in range(0, COUNT, share):
        failed["ttfts"][i], failed["itls"][i], failed["errors"][i] = 0.0, [], "ClientError"
    return json.dumps(failed)


ABORTED = '{"metadata": {"benchmark_phase": "profiling", "worker_id": "w"}, "metrics": {}, "error": {"code": 499}}\n'


@cases([
        (serving_that_fails(2), "", HALF), (serving_that_fails(1), "", COUNT),
        (ABORTED * COUNT, "", COUNT), ('{"error": "refused"}\n' * COUNT, "latency_ms", COUNT),
        ("ms,code\n" + ",503\n" * COUNT, "ms", COUNT),
        ('{"ms": 5, "status": 200}\n' * HALF + '{"status": 0}\n' * HALF, "ms", HALF),
        ('{"status": "started"}\n{"ms": 5, "status": "ok"}\n' * COUNT, "ms", 0),
    ],
    ids=range(7),
)  # fmt: skip
def test_a_failed_request_is_no_run(text, column, failed):
    for series in read(text, column)[0].values():
        assert (series.attempts, series.runs) == (Attempts(COUNT, failed), COUNT - failed)


# Tool | pattern in its file | replacement | number of replacements (0: all) | failed runs
FAILURES = r"""
vegeta csv | (?m),200,(\\d+)(?=.*[02468],GET) | ,0,0               | 0   | 60
k6 csv     | true,200                         | false,503          | 180 | 60
jmeter     | true                             | false              | 60  | 60
jmeter     | true                             | false              | 0   | 120
aiperf     | "error": null                    | "error": {"code": 499} | 61 | 60
hyperfine  | (?<=\\[|,)0,                     | null,              | 60  | 60
"""


@cases(FAILURES)
def test_a_failed_request_of_each_tool_is_no_run(tool, pattern, replacement, count, failed):
    text = re.sub(pattern, replacement, layout(tool), count=int(count))
    test_a_failed_request_is_no_run(text, "", int(failed))


TOKENS = ["null", "[]", "{}", "1e400", "-1", '"x"', "true", ",", "[1]", '{"a": 1}', "\n", ";", "#", ""]


@given(
    st.sampled_from([*LAYOUTS]),
    st.lists(st.tuples(st.floats(0, 1), st.sampled_from(TOKENS)), min_size=1, max_size=3),
)
def test_a_damaged_file_gives_numbers_or_one_line(tool, damages):
    text = layout(tool, [0.02] * 3)
    for share, token in damages:
        values = [*re.finditer(r"[\[{]|[^\s\[\]{},:]+", text)]
        if values:
            match = values[min(len(values) - 1, int(share * len(values)))]
            text = text[: match.start()] + token + text[match.end() :]
    with suppress(UsageError):
        read(text)
