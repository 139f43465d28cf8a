"""Formats of the server targets: tensors, streams of events, JSON pointers; and readings and failures of any target."""

from __future__ import annotations

import json
import math
import struct
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.contract.report import Metric
from infercanary.probe.canary import Canary
from infercanary.probe.canary_metrics import FAILURES, CanaryMetrics
from infercanary.probe.histogram import Tally
from infercanary.probe.result import RunResult
from infercanary.probe.targets import REASONS, Failure, Reading, Target
from infercanary.probe.targets.http import _missing, _numbers, _parsed
from infercanary.probe.targets.wire.events import events
from infercanary.probe.targets.wire.server import Server, ServerOptions, retry_after
from infercanary.probe.targets.wire.tensors import (
    DTYPES,
    KserveInput,
    drawn,
    encoded,
    from_bytes,
    from_json,
    sampled,
)
from infercanary.probe.targets.wire.timing_headers import header_readings, header_times
from infercanary.probe.timing import HostClock, Phase

# Tensors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_a_drawn_tensor_comes_back_from_both_encodings(dtype: str) -> None:
    spec = KserveInput(high=100)
    tensor = drawn("x", dtype, (3, 7), spec, 5, "inputs[0]")
    tensor = tensor._replace(values=list(tensor.values))  # drawn while they are read, once
    sent = [float(value) for value in tensor.values]
    assert len(set(sent)) > (1 if dtype == "BOOL" else 10)
    binary = from_bytes("x", dtype, (3, 7), b"".join(encoded(tensor, True)))
    precision = {"FP16": 1e-3, "BF16": 1e-2, "FP32": 1e-6}.get(dtype, 0)
    assert [float(value) for value in binary.values] == pytest.approx(sent, rel=precision)
    flat = json.loads(b"[%b]" % b"".join(encoded(tensor, False)))
    nested = [flat[i : i + 7] for i in range(0, 21, 7)]
    found = from_json("x", dtype, (3, 7), json.loads(json.dumps(nested)))
    assert [float(value) for value in found.values] == sent


def test_integers_fit_their_type() -> None:
    assert max(drawn("x", "INT8", (5000,), KserveInput(high=10**9), 0, "").values) == 127
    assert max(drawn("x", "UINT8", (5000,), KserveInput(high=10**9), 0, "").values) == 255


def test_texts() -> None:
    tensor = drawn("x", "BYTES", (2,), KserveInput(data=["ä", ""]), 0, "")
    assert b"".join(encoded(tensor, True)) == b"\x02\0\0\0\xc3\xa4\0\0\0\0"
    assert list(from_bytes("x", "BYTES", (2,), b"".join(encoded(tensor, True))).values) == ["ä".encode(), b""]
    assert json.loads(b"[%b]" % b"".join(encoded(tensor, False))) == ["ä", ""]
    assert sampled([from_json("x", "BYTES", (1,), ["a"])]) == sampled(
        [from_bytes("x", "BYTES", (1,), b"\1\0\0\0a")]
    )
    assert sampled([from_json("x", "BYTES", (1,), ["a"])]) != sampled([from_json("x", "BYTES", (1,), ["b"])])


@pytest.mark.parametrize(
    ("dtype", "data"),
    [("FP32", b"\0" * 7), ("FP7", b"\0" * 8),
     ("BYTES", b"\x05\0\0\0abc"), ("BYTES", b"\x05\0"), ("BYTES", b"\0\0\0\0")],
)  # fmt: skip
def test_bytes_that_are_no_such_tensor(dtype: str, data: bytes) -> None:
    with pytest.raises(Failure) as failure:
        from_bytes("y", dtype, (2,), data)
    assert failure.value.reason == "wrong_shape"


@given(st.binary(max_size=64), st.sampled_from(DTYPES), st.integers(0, 9))
def test_no_bytes_break_it(data: bytes, dtype: str, count: int) -> None:
    try:
        found = sampled([from_bytes("y", dtype, (count,), data)])
    except Failure:
        return
    assert len(found) == count


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)


@given(st.lists(_JSON, max_size=4), st.sampled_from(DTYPES), st.integers(0, 5))
def test_no_json_breaks_it(data: list[Any], dtype: str, count: int) -> None:
    try:
        found = sampled([from_json("y", dtype, (count,), data)])
    except Failure:
        return
    assert len(found) == count


def test_places_are_spread_over_all_outputs_and_tell_of_all_that_is_not_finite() -> None:
    first, second = [float(i) for i in range(3000)], [float(-i) for i in range(3000)]
    tensors = [from_json("a", "FP32", (3000,), first), from_json("b", "FP32", (30, 100), second)]
    found = sampled(tensors)
    assert len(found) == 1000 and found[:2] == [0.0, 6.0] and found[500:502] == [0.0, -6.0]
    second[7] = math.inf  # at no place that is chosen
    assert math.isnan(sampled([tensors[0], from_json("b", "FP32", (3000,), second)])[-1])
    huge = from_json("c", "FP64", (1,), [10**400])
    assert math.isnan(sampled([huge])[-1])


def test_deep_lists_are_flattened_without_recursion() -> None:
    deep: list[Any] = [1.0]
    for _ in range(100_000):
        deep = [deep]
    assert list(from_json("y", "FP32", (1,), deep).values) == [1.0]
    while deep and isinstance(deep[0], list):  # nor is it freed by recursion
        deep = deep[0]


def test_bf16_is_the_upper_half_of_a_float() -> None:
    assert list(from_bytes("y", "BF16", (2,), struct.pack("<HH", 0x3F80, 0xC040)).values) == [1.0, -3.0]


# Events -------------------------------------------------------------------------------------------------------------


STREAM = (
    b": hello\n\ndata: one\n\nevent: x\r\nid: 7\r\ndata:two\r\ndata: lines\r\n\r\n\n\n"
    b'data: \xc3\xa4\n\ndata: {"a":'
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_are_the_same_however_the_stream_is_cut(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(ends)]
    assert list(events(pieces)) == [("one", ""), ("two\nlines", "x"), ("ä", "")]


@pytest.mark.parametrize("piece", [b"x" * 65536, b"data: " + b"x" * 60000 + b"\n"], ids=["line", "event"])
def test_an_endless_event(piece: bytes) -> None:
    with pytest.raises(Failure) as failure:
        list(events([piece] * 100))
    assert failure.value.reason == "too_large"


# JSON ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pointer", "found"),
    [("/a/0", [1.0]), ("/a", [1.0, 2.0, 3.0]), ("/b~1c/~0", [4.0]), ("", None), ("/a/3", None), ("/a/-1", None),
     ("/a/00000000000000000000", [1.0]), ("/t", None), ("/big", [math.inf])],
)  # fmt: skip
def test_pointers(pointer: str, found: list[float] | None) -> None:
    document = {"a": [1, [2, 3]], "b/c": {"~": 4}, "t": "text", "big": 10**400}
    if found is None:
        with pytest.raises(Failure) as failure:
            list(_numbers(document, _parsed(pointer)))
        assert failure.value.reason == "wrong_shape"
    else:
        assert list(_numbers(document, _parsed(pointer))) == found


@pytest.mark.parametrize(
    ("expected", "found", "place"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, None),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 2, "d": 3}]}}, None),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "/a/b"),
        ({"a": 1}, {}, "/a"),
        ([1, 2], [1, 2, 3], "/"),
        ({"a": True}, {"a": 1}, "/a"),
        ({"a": None}, {"a": None}, None),
        ({1: "x"}, {"1": "x"}, None),
        (1, 1.0, None),
    ],
)
def test_a_part_of_json(expected: Any, found: Any, place: str | None) -> None:
    assert _missing(expected, found) == place


# Requests -----------------------------------------------------------------------------------------------------------


def server(url: str, **headers: Any) -> Server:
    made = Server(ServerOptions(url=url, headers=headers))
    made.open()
    return made


@pytest.mark.parametrize(
    ("url", "host"),
    [("http://h:8000", "h:8000"), ("http://h/", "h"), ("https://h", "h"), ("https://h:444", "h:444"),
     ("http://[::1]:8", "[::1]:8")],
)  # fmt: skip
def test_a_request_names_its_host(url: str, host: str) -> None:
    head = server(url).request("GET", "/v2").decode()
    assert (
        head
        == f"GET /v2 HTTP/1.1\r\nHost: {host}\r\nUser-Agent: infercanary\r\nAccept-Encoding: identity\r\n\r\n"
    )


def test_the_users_headers_come_first() -> None:
    head = server("http://h", **{"host": "model.example.org", "CONTENT-TYPE": "text/x"}).request(
        "POST", "/", b"ab", {"Content-Type": "application/json"}
    )
    lines = head.decode().split("\r\n")
    assert lines[-2:] == ["", "ab"] and set(lines[1:-2]) == {
        "CONTENT-TYPE: text/x", "host: model.example.org", "User-Agent: infercanary", "Accept-Encoding: identity",
        "Content-Length: 2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("30", 30), ("0", 0), ("1.5", 1.5), ("9" * 20, 3600), ("-5", None), ("soon", None),
     ("Sat, 28 Nov 2026 10:01:30 GMT", None)],
)  # fmt: skip
def test_how_long_a_server_asks_to_be_left_alone(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value}) == seconds


@pytest.mark.parametrize(
    ("name", "value", "is_hidden"),
    [
        ("Authorization", "Bearer sk-1234567890", True),
        ("X-Key", "sk-1234567890", True),
        ("X-Key", "sk-12", False),  # so short that it may be a word
        ("X-Tenant", "sk-1234567890", False),
    ],
)
def test_a_secret_that_a_server_repeats_is_hidden(name: str, value: str, is_hidden: bool) -> None:
    """Before the text is cut, or its first half would show."""
    said = server("http://h", **{name: value}).excerpt(b"no key sk-1234567890", 12)
    assert said.startswith("no key ***" if is_hidden else "no key sk-12")


# What any target may raise and report -------------------------------------------------------------------------------


def test_a_failure_is_one_printable_line_with_a_reason() -> None:
    failure = Failure("not_ready", "a\nb\x1b[31m" + "x" * 1000)
    assert str(failure).startswith("a b [31mxxx") and len(str(failure)) == 400
    with pytest.raises(ValueError, match="`broken` is no reason of a failure; there are raised, "):
        Failure("broken", "")  # type: ignore[arg-type]


def counted(tally: Tally, metric: Metric) -> dict[tuple[str, ...], Any]:
    (family,) = (family for family in tally.families() if family.name == metric.name)
    return {point.labels: point.value for point in family.points}


def test_each_failure_is_counted_once() -> None:
    tally = Tally()
    record = CanaryMetrics("c", tally, ("not_ready",))
    assert set(counted(tally, FAILURES)) == {("c", reason) for reason in (*REASONS[:7], "not_ready")}
    for done in (
        RunResult("raised", reason="not_ready"), RunResult("raised", reason="too_large"), RunResult("raised"),
        RunResult("busy"),
        RunResult("timed_out"), RunResult("timed_out", reason="timed_out"),
    ):  # fmt: skip
        record.run(done)
    expected = {
        "not_ready": 1,
        "too_large": 1,
        "raised": 1,
        "timed_out": 2,
        "not_finite": 0,
        "wrong_answer": 0,
        "out_of_memory": 0,
        "no_libraries": 0,
        "version_mismatch": 0,
    }
    assert counted(tally, FAILURES) == {("c", reason): count for reason, count in expected.items()}
    assert {labels[1] for labels in counted(tally, FAILURES)} <= set(REASONS)


PACE = Metric("pace", "gauge", "X.", ("canary", "part"))


class Reporting(Target):
    """A target with readings, as anybody may write it."""

    def __init__(self, *readings: Any) -> None:
        self.clock = HostClock()
        self.calls: list[str] = []
        self._readings = readings

    def open(self) -> None: ...

    def prepare(self) -> None:
        self.calls.append("prepare")

    def run(self, phase: Phase) -> None:
        self.calls.append("run")

    def values(self, result: None) -> list[float]:
        return [1.0]

    def readings(self) -> list[Any]:
        self.calls.append("readings")
        return list(self._readings)


def test_readings_are_taken_around_a_run() -> None:
    target = Reporting(*(Reading(PACE, i, (str(i),)) for i in range(100)))
    canary = Canary("c", target, Tally(), 10.0, 10.0)
    canary.open(10)
    target.calls.clear()
    done = canary.round(3)
    canary.close(1)
    assert done is not None and target.calls == ["prepare", "run", "run", "run", "readings"]
    assert len(done.readings) == 64


@pytest.mark.parametrize(
    "reading",
    [
        Reading(Metric("m", "counter", "X.", ("canary",)), 1.0),
        Reading(Metric("m", "gauge", "X.", ("other",)), 1.0),
        Reading(PACE, 1.0),
        Reading(PACE, math.nan, ("a",)),
    ],
)
def test_a_reading_that_would_break_the_report_fails_the_run(reading: Reading) -> None:
    canary = Canary("c", Reporting(reading), Tally(), 10.0, 10.0)
    canary.open(10)
    done = canary.round(1)
    canary.close(1)
    assert done is not None and done.outcome == "raised" and "ValueError: the reading " in done.detail


# What a server says of its own time -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ({}, {}),
        ({"Server-Timing": "db;dur=53, app;dur=47.2"}, {"db": 0.053, "app": 0.0472}),
        ({"Server-Timing": 'cache;desc="Cache, read";dur=23.2, miss'}, {"cache": 0.0232}),
        ({"Server-Timing": 'a;dur="5" ; desc=x,b ; DUR = 7'}, {"a": 0.005, "b": 0.007}),
        ({"Server-Timing": "a;dur=-5, b;dur=1e9, c;dur=nan, d;dur=, ;dur=4, e;duration=3"}, {}),
        ({"Server-Timing": "Total-Time!;dur=1, ___;dur=2"}, {"total_time": 0.001, "unnamed": 0.002}),
        ({"Server-Timing": f"a;dur={'9' * 12}"}, {}),  # a day at most
        ({"x-queue-time": "3", "X-Inference-Time": "40", "x-compute-characters": "9"},
         {"queue": 0.003, "inference": 0.04}),
        ({"x-envoy-upstream-service-time": "12", "x-total-time": "12ms"}, {"upstream": 0.012}),
    ],
)  # fmt: skip
def test_the_times_in_a_head(lines: dict[str, str], expected: dict[str, float]) -> None:
    assert header_times({name.lower(): value for name, value in lines.items()}) == pytest.approx(expected)


@given(st.text(max_size=300))
def test_whatever_a_head_says_is_no_error(text: str) -> None:
    assert all(0 <= seconds <= 86_400 for seconds in header_times({"server-timing": text}).values())


def test_parts_are_those_of_all_answers_and_few() -> None:
    heads = []
    for number in range(3):
        parts = ", ".join(f"p{n};dur={number}" for n in range(20))
        heads.append({"server-timing": f"{parts}, only{number};dur=1"})
    found = header_readings(heads)
    assert len(found) == 8 and {reading.value for reading in found} == {0.001}
    assert header_readings([]) == header_readings([*heads, {}]) == []
