"""Formats of server targets: tensors, event streams, JSON pointers; and readings and failures of any target."""

import json
import math
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.report import Metric
from infercanary.probe.canary_metrics import FAILURES, CanaryMetrics
from infercanary.probe.histogram import Tally
from infercanary.probe.result import RunResult
from infercanary.probe.targets import REASONS, Failure, Reading
from infercanary.probe.targets.http import _holds, _numbers, _parsed
from infercanary.probe.targets.wire.events import events
from infercanary.probe.targets.wire.server import Server, ServerOptions, retry_after
from infercanary.probe.targets.wire.tensors import (
    DTYPES,
    KserveInput,
    Output,
    drawn,
    flatten,
    numbers_of,
    request_body,
    spread,
)
from infercanary.probe.targets.wire.timing_headers import header_readings, header_times
from tests.scenarios import scenarios, typed
from tests.targets import Scripted, opened, points

# Tensors ------------------------------------------------------------------------------------------------------------


def sent(dtype, shape, **spec):
    tensor = drawn("x", dtype, shape, KserveInput(**spec), 5, "inputs[0]")
    return tensor._replace(values=list(tensor.values))  # values are drawn while they are read, and only once


def reason_of(work):
    with pytest.raises(Failure) as failure:
        work()
    return failure.value.reason


def read(dtype, shape, data):
    is_binary = isinstance(data, bytes)
    more = {"parameters": {"binary_data_size": len(data)}} if is_binary else {"data": data}
    output = msgspec.convert({"name": "y", "datatype": dtype, "shape": shape} | more, Output)
    return [*numbers_of(output, data if is_binary else b"")]


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_a_drawn_tensor_comes_back_from_both_encodings(dtype):
    tensor = sent(dtype, (3, 7), high=100)
    values = [float(value) for value in tensor.values]
    assert len(set(values)) > (1 if dtype == "BOOL" else 10)
    body, length = request_body([tensor], True)
    precision = {"FP16": 1e-3, "BF16": 1e-2, "FP32": 1e-6}.get(dtype, 0)
    assert read(dtype, (3, 7), bytes(body[length:])) == pytest.approx(values, rel=precision)
    [described] = json.loads(request_body([tensor], False)[0])["inputs"]
    flat = described["data"]
    assert read(dtype, (3, 7), [flat[i : i + 7] for i in range(0, 21, 7)]) == values


def test_integers_are_drawn_within_their_type():
    assert [max(sent(dtype, (5000,), high=10**9).values) for dtype in ("INT8", "UINT8")] == [127, 255]


def test_texts():
    body, length = request_body([sent("BYTES", (2,), data=["ä", ""])], True)
    assert body[length:] == b"\x02\0\0\0\xc3\xa4\0\0\0\0"
    for one, other in ((["a", "b"], ["a", "c"]), (bytes(body[length:]), b"\x02\0\0\0oe\0\0\0\0")):
        assert read("BYTES", (2,), one) == read("BYTES", (2,), one) != read("BYTES", (2,), other)


NO_TENSORS = (
    ("FP32", bytes(7)), ("FP32", bytes(12)), ("FP7", bytes(8)), ("FP32", [1.0]), ("FP32", [1.0, "2"]),
    ("BYTES", [1, "2"]),
)  # fmt: skip


@pytest.mark.parametrize(("dtype", "data"), NO_TENSORS)
def test_values_that_are_no_such_tensor(dtype, data):
    assert reason_of(lambda: read(dtype, (2,), data)) == "wrong_shape"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)


@given(st.binary(max_size=64) | st.lists(_JSON, max_size=4), st.sampled_from(DTYPES), st.integers(0, 9))
def test_neither_bytes_nor_json_break_it(data, dtype, count):
    try:
        found = spread(read(dtype, (count,), data), count)
    except Failure:
        return
    assert len(found) == count


def test_places_are_spread_and_tell_of_all_that_is_not_finite():
    numbers = [float(i) for i in range(6000)]
    assert spread(numbers, 6000) == numbers[::6]
    numbers[7] = math.inf  # not at a sampled position
    assert math.isnan(spread(numbers, 6000)[-1])
    assert math.isnan(read("FP64", (1,), [None])[0])


def test_deep_lists_are_flattened_without_recursion():
    deep: list[Any] = [1.0]
    for _ in range(100_000):
        deep = [deep]
    assert [*flatten(deep)] == [1.0]
    while deep and isinstance(deep[0], list):  # avoids a recursive deallocation
        deep = deep[0]


# Events -------------------------------------------------------------------------------------------------------------


STREAM = (
    b": hello\n\ndata: one\n\nevent: x\r\nid: 7\r\ndata:two\r\ndata: lines\r\n\r\n\n\n"
    b'data: \xc3\xa4\n\ndata: {"a":'
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_are_the_same_however_the_stream_is_cut(cuts):
    pieces = [STREAM[a:b] for a, b in pairwise([0, *sorted(cuts), len(STREAM)])]
    assert [*events(pieces)] == [("one", ""), ("two\nlines", "x"), ("ä", "")]


@pytest.mark.parametrize("piece", [b"x" * 65536, b"data: " + b"x" * 60000 + b"\n"], ids=["line", "event"])
def test_an_endless_event(piece):
    assert reason_of(lambda: list(events([piece] * 100))) == "too_large"


# JSON ---------------------------------------------------------------------------------------------------------------


POINTERS = """
/a/0                    | [1.0]
/a                      | [1.0, 2.0, 3.0]
/b~1c/~0                | [4.0]
""                      | wrong_shape
/a/3                    | wrong_shape
/a/x                    | wrong_shape
/t                      | wrong_shape
/t/0                    | wrong_shape
"""


@pytest.mark.parametrize(("pointer", "found"), typed(POINTERS))
def test_pointers(pointer, found):
    document = {"a": [1, [2, 3]], "b/c": {"~": 4}, "t": "text"}

    def numbers():
        return [*_numbers(document, _parsed(pointer))]

    assert (reason_of(numbers) if found == "wrong_shape" else numbers()) == found


PARTS = """
{a: {b: [1, {c: 2}]}} | {a: {b: [1, {c: 2, d: 3}]}} | true
{a: {b: 1}}           | {a: {b: 2}}                 | false
{a: 1}                | {}                          | false
[1, 2]                | [1, 2, 3]                   | false
{a: true}             | {a: 1}                      | false
{a: ~}                | {a: ~}                      | true
{1: x}                | {"1": x}                    | true
1                     | 1.0                         | true
"""


@pytest.mark.parametrize(("expected", "found", "is_held"), typed(PARTS))
def test_a_part_of_json(expected, found, is_held):
    assert _holds(expected, found) is is_held


# Requests -----------------------------------------------------------------------------------------------------------


def server(url, **headers):
    made = Server(ServerOptions(url=url, headers=headers))
    made.open()
    return made


HOSTS = """
http://h:8000  | h:8000
http://h/      | h
https://h      | h
https://h:444  | h:444
http://[::1]:8 | [::1]:8
"""


@pytest.mark.parametrize(("url", "host"), scenarios(HOSTS))
def test_a_request_names_its_host(url, host):
    lines = server(url).request("GET", "/v2").decode().split("\r\n")
    more = ["User-Agent: infercanary", "Accept-Encoding: identity", "", ""]
    assert lines == ["GET /v2 HTTP/1.1", f"Host: {host}", *more]


def test_the_users_headers_come_first():
    made = server("http://h", **{"host": "model.example.org", "CONTENT-TYPE": "text/x"})
    lines = made.request("POST", "/", b"ab", {"Content-Type": "application/json"}).decode().split("\r\n")
    assert lines[-2:] == ["", "ab"]
    assert set(lines[1:-2]) == {
        "CONTENT-TYPE: text/x",
        "host: model.example.org",
        "User-Agent: infercanary",
        "Accept-Encoding: identity",
        "Content-Length: 2",
    }


WAITS = """
"30"                          | 30
"0"                           | 0
"1.5"                         | 1.5
"99999999999999999999"        | 3600
"-5"                          | ~
Sat, 28 Nov 2026 10:01:30 GMT | ~
"""


@pytest.mark.parametrize(("value", "seconds"), typed(WAITS))
def test_the_pause_that_a_server_requests(value, seconds):
    assert retry_after({"retry-after": value}) == seconds


# A short value may be a common word.
SECRETS = """
Authorization | Bearer sk-1234567890 | no key ***
X-Key         | sk-1234567890        | no key ***
X-Key         | sk-12                | no key sk-12
X-Tenant      | sk-1234567890        | no key sk-12
"""


@pytest.mark.parametrize(("name", "value", "shown"), scenarios(SECRETS))
def test_a_secret_that_a_server_repeats_is_hidden(name, value, shown):
    """The target hides the secret before it cuts the text. Otherwise the first half of the secret would be visible."""
    assert server("http://h", **{name: value}).excerpt(b"no key sk-1234567890", 12).startswith(shown)


# Failures and readings of any target --------------------------------------------------------------------------------


def test_a_failure_is_one_printable_line_with_a_reason():
    failure = Failure("not_ready", "a\nb\x1b[31m" + "x" * 1000)
    assert str(failure).startswith("a b [31mxxx")
    assert len(str(failure)) == 400
    with pytest.raises(ValueError, match="`broken` is not a reason of a failure; choose one of raised, "):
        Failure("broken", "")  # type: ignore[arg-type]


def test_each_failure_is_counted_once():
    tally = Tally()
    record = CanaryMetrics("c", tally, ("not_ready",))
    zero = {("c", reason): 0 for reason in (*REASONS[:7], "not_ready")}
    assert points(tally, FAILURES) == zero
    for row in ("raised not_ready", "raised too_large", "raised", "busy", "timed_out", "timed_out timed_out"):
        outcome, *reason = row.split()
        record.run(RunResult(outcome, reason=reason[0] if reason else None))  # type: ignore[arg-type]
    counted = {"not_ready": 1, "too_large": 1, "raised": 1, "timed_out": 2}
    assert points(tally, FAILURES) == zero | {("c", reason): count for reason, count in counted.items()}


PACE = Metric("pace", "gauge", "X.", ("canary", "part"))


class Reporting(Scripted):
    shown: tuple[Any, ...] = ()

    def prepare(self):
        self.calls = [self.repeats]

    def readings(self):
        self.calls.append(self.repeats)
        return self.shown


def run_of(*readings):
    canary = opened(target := Reporting(shown=readings))
    before, done = target.repeats, canary.round(3)
    assert target.calls == [before, before + 3]
    assert canary.close(1)
    return done


def test_readings_are_taken_around_a_run():
    assert len(run_of(*(Reading(PACE, i, (str(i),)) for i in range(100))).readings) == 64


@pytest.mark.parametrize(
    "reading",
    [
        Reading(Metric("m", "counter", "X.", ("canary",)), 1.0),
        Reading(Metric("m", "gauge", "X.", ("other",)), 1.0),
        Reading(PACE, 1.0),
        Reading(PACE, math.nan, ("a",)),
    ],
)
def test_a_reading_that_would_break_the_report_fails_the_run(reading):
    done = run_of(reading)
    assert done.outcome == "raised"
    assert "ValueError: the reading " in done.detail


# Times reported by a server -----------------------------------------------------------------------------------------


TIMES = """
""                                                               | {}
"x-queue-time: 3;;x-inference-time: 4.5;;x-compute-characters: 9" | {queue: 0.003, inference: 0.0045}
"x-envoy-upstream-service-time: 12;;x-total-time: 12ms"          | {upstream: 0.012}
"x-total-time: -1;;x-queue-time: nan;;x-compute-time: 1e9"       | {}
"""


@pytest.mark.parametrize(("line", "expected"), typed(TIMES))
def test_the_times_in_a_head(line, expected):
    parts = [header.partition(": ") for header in line.split(";;")]
    assert header_times({name: value for name, _, value in parts}) == pytest.approx(expected)


def test_parts_are_those_of_all_answers():
    heads = [
        {"x-queue-time": str(number), f"x-{part}-time": "1"}
        for number, part in enumerate(("total", "compute"))
    ]
    assert [(reading.labels, reading.value) for reading in header_readings(heads)] == [(("queue",), 0.0005)]
    assert header_readings([]) == header_readings([*heads, {}]) == []
