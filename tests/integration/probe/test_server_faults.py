"""Faults of a server, for each target: every fault has its own reason, and no fault blocks the probe."""

import signal
import subprocess
import sys
import threading
import time

import pytest
from faulty import GOOD, MAX_BYTES, Faulty, full_backlog
from ports import free_port
from server_targets import fails, http_target, kserve_target, openai_target, opened, values_of
from watching import MODULES, fetch, in_state, until

from infercanary.probe.load import Load, Measured, Measurement, Missing
from infercanary.probe.targets.wire.server_target import REASONS
from tests.targets import opened as opened_canary

QUICK = {"timeout_seconds": 0.6, "ready_seconds": 0, "max_response_bytes": MAX_BYTES}


def made(kind, server, **options):
    if kind == "kserve":
        return kserve_target(server.url, "double", **QUICK | options)
    if kind == "openai":
        return openai_target(f"{server.url}/v1", "m", prompt="Say it", **QUICK | options)
    expect = {"json": {"score": 0.5}, "values": "/more"}
    return http_target(f"{server.url}/score?a=b", json={"n": 1}, expect=expect, **QUICK | options)


def once(target):
    target.prepare()
    found = values_of(target)
    target.readings()
    return found


FAULTS = """
kserve openai: error error_answer 500 Status
kserve openai: limited rate_limited 429 Status
kserve openai: overloaded error_answer 503 Status
kserve openai: redirect error_answer 307 Moved: http://elsewhere/v2
kserve openai: slow timed_out 0.6 s (timeout_seconds)
kserve openai: reset unreachable Connection reset by peer
kserve openai: compressed malformed (gzip)
kserve: half_body incomplete body
kserve http: bad_json malformed JSONDecodeError
kserve http: deep_json malformed RecursionError
kserve: other_json malformed protocol
kserve: not_ready not_ready `double` is not ready: 503 Status
kserve: wrong_shape wrong_shape `y` is FP32 [1, 3], but FP32 [1, 4]
kserve: wrong_rank wrong_shape `y` is FP32 [1, 4, 1], but FP32 [1, 4]
kserve: wrong_length wrong_shape `y`
kserve: wrong_dtype wrong_shape `y` is FP64 [1, 4], but FP32 [1, 4]
kserve: missing_output wrong_shape lacks outputs (y)
kserve: other_output wrong_shape `z`
kserve: error_body wrong_shape the model fell over
kserve: wrong_size wrong_shape `y`
http: wrong_answer wrong_answer not as expected: {
http: other_json wrong_answer not as expected: [
openai: error_in_stream error_answer out of memory
openai: stream_ends incomplete ended
openai: stream_breaks incomplete body
openai: bad_json malformed application/json
"""
ROWS = [line.partition(": ") for line in FAULTS.strip().splitlines()]
CASES = [(kind, *said.split(" ", 2)) for kinds, _, said in ROWS for kind in kinds.split()]


@pytest.mark.parametrize(("kind", "fault", "reason", "words"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_each_fault_has_its_reason_and_an_end(server, kind, fault, reason, words):
    target = opened(made(kind, server))
    good = once(target)
    server.fault = fault
    begin = time.monotonic()
    with fails(reason, words):
        once(target)
    assert time.monotonic() - begin < 10, "the deadline is for the whole exchange"
    server.fault = ""
    assert once(target) == good, "a broken connection must not be reused"


# Odd and hostile answers, byte by byte: name, result, and the answer in the form of faulty.py. The target
# reads a valid answer by RFC 9112, and reuses its connection (`kept`) or not (`anew`; `closes`: the server
# closes it; `on reuse`: the server closes it at the next request). It refuses any other answer for a reason,
# with these words.
ANSWERS = r"""
good | kept | $ok~$json~$length~~$body
early hints | kept | HTTP/1.1 103 Early Hints~Link: </a.css>; rel=preload~~...$ok~$json~$length~~$body
interim at once | kept | HTTP/1.1 199 New~~HTTP/1.1 100 Continue~~$ok~$json~$length~~$body
switching | malformed HTTP/1.1 | HTTP/1.1 101 Switching~Upgrade: h2c~~
http10 | closes | HTTP/1.0 200 OK~$json~~$body
until closed | closes | $ok~$json~~$body
no reason | kept | HTTP/1.1 200~$json~$length~~$body
http2 preface | malformed HTTP/1.1 | \0\0\x12\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0
trailers | kept | $ok~$json~$chunked~Trailer: X-T~~18;ext=1~$body~0~X-T: 1~~
small chunks | kept | $ok~$chunked~~1~{~17~"scores":[1.0,2.0,3.0]}~0~~
close | closes | $ok~$json~$length~Connection: close~~$body
closes unannounced | closes | $ok~$json~$length~~$body
closes on reuse | on reuse | $ok~$json~$length~~$body
two encodings | malformed (gzip) | $ok~Content-Encoding: deflate~Content-Encoding: gzip~#~~$gzip
identity | kept | $ok~Content-Encoding: identity~$length~~$body
extra | anew | $ok~$json~$length~~$body~
another answer | anew | $ok~$json~$length~~$body$ok~$length~~{"scores":[9.0,9.0,9.0]}
another answer later | anew | $ok~$json~$length~~$body...$ok~$length~~{"scores":[9.0,9.0,9.0]}
same length twice | kept | $ok~$json~$length~$length~~$body
two lengths | malformed HTTP/1.1 | $ok~$length~Content-Length: 9~~$body
negative length | malformed HTTP/1.1 | $ok~Content-Length: -1~~$body
length and chunked | kept | $ok~$json~Content-Length: 9999~$chunked~~18~$body~0~~
limited | rate_limited 429 Too Many Requests | HTTP/1.1 429 Too Many Requests~Retry-After: 30~#~~
overloaded | rate_limited 503 | HTTP/1.1 503 Busy~Retry-After: 5~#~~
unavailable | error_answer 503 Busy | HTTP/1.1 503 Busy~#~~
moved | error_answer Moved: /b | HTTP/1.1 307 Moved~Location: /b~#~~
no content | error_answer 204 No Content | HTTP/1.1 204 No Content~~
byte order mark | kept | $ok~#~~\xef\xbb\xbf$body
folded | kept | $ok~$json~X-A: 1~  2~$length~~$body
line feeds only | kept | HTTP/1.1 200 OK\nContent-Length: 24\n\n$body
many headers | kept | $ok~$many$length~~$body
header in UTF-8 | kept | $ok~$json~X-Name: caf\xc3\xa9~$length~~$body
two packets | kept | $ok~$json~$length~~...$body
many packets | kept | HTTP/1....1 ...2...00... OK~Co...nte...nt-Length:... 24...~...~{...$rest
strings | wrong_shape /scores | $ok~#~~{"scores":["0.1","0.9"]}
lines | malformed JSON | $ok~#~~$body\n$body
large | too_large max_response_bytes | $ok~#~~[$large]
endless body | too_large | $ok~$chunked~~>>1000~$kilobytes~
endless head | malformed | $ok~>>X: $kilobytes~
endless line | malformed | HTTP/1.1 200 >>xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
endless chunk size | malformed | $ok~$chunked~~1;>>xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
endless trailer | malformed | $ok~$chunked~~0~>>X: $kilobytes~
endless interim | too_large | >>HTTP/1.1 100 Continue~X: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx~~
slow head | timed_out | $ok~X: >>...x
slow body | timed_out | $ok~Content-Length: 9999~~>>...\x20
silent | timed_out | >>...
half a head | incomplete head | $ok~X:\x20!
half a body | incomplete body | $ok~Content-Length: 1000~~$body!
half a chunk | incomplete body | $ok~$chunked~~400~$body!
nothing | unreachable | $nothing!
"""


@pytest.mark.parametrize("case", ANSWERS.strip("\n").splitlines())
def test_an_answer_is_read_or_refused_in_bounds(server, case):
    name, outcome, answer = case.split(" | ")
    reason, _, words = outcome.partition(" ")
    is_read = reason in ("kept", "anew", "closes", "on")
    # The size limit must end endless answers, and the deadline must end slow ones.
    seconds = 0.5 if reason == "timed_out" else 20
    target = opened(
        http_target(
            f"{server.url}/score",
            **QUICK | {"timeout_seconds": seconds},
            json={},
            expect={"values": "/scores"},
        )
    )
    server.script = answer + "!" * (reason == "closes")
    server.answers_once = outcome == "on reuse"
    begin = time.monotonic()
    for _ in range(3):
        if is_read:
            assert once(target) == [1.0, 2.0, 3.0]
        else:
            with fails(reason, words):
                once(target)
        if name == "another answer later":
            time.sleep(0.1)
    assert time.monotonic() - begin < 15
    assert not is_read or server.connections == (1 if reason == "kept" else 3)
    server.script, server.answers_once = GOOD, False
    assert once(target) == [1.0, 2.0, 3.0], "a broken connection must not be reused"


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("127.0.0.1", "Connection refused"),
        ("no-such-host.invalid", "no connection to no-such-host.invalid:"),
        ("full", "(timeout_seconds)"),
    ],
)
def test_no_connection(host, words):
    with full_backlog() as full:
        address = f"127.0.0.1:{full}" if host == "full" else f"{host}:{free_port()}"
        begin = time.monotonic()
        with fails("unreachable", words):
            http_target(f"http://{address}", **QUICK).open()
        assert host.endswith(".invalid") or time.monotonic() - begin < 5


def test_opening_waits_for_a_server_that_is_not_ready_yet(server):
    server.fault = "not_ready"
    ready = threading.Timer(0.5, setattr, (server, "fault", ""))
    ready.start()
    begin = time.monotonic()
    made("kserve", server, ready_seconds=30).open()
    assert 0.4 < time.monotonic() - begin < 10
    ready.join()
    server.fault = "loading"
    with fails("not_ready", "503"):
        made("openai", server).open()


@pytest.mark.parametrize("keep_alive", [True, False])
def test_opening_waits_until_something_listens(keep_alive):
    port, late = free_port(), []
    ready = threading.Timer(0.5, lambda: late.append(Faulty(port)))
    ready.start()
    options = QUICK | {"ready_seconds": 30, "keep_alive": keep_alive, "expect": {"values": "/score"}}
    target = opened(http_target(f"http://127.0.0.1:{port}/", **options))
    ready.join()
    with late[0]:
        assert once(target) == [0.5]
        target.close()


def test_without_metadata_the_first_answer_says_which_outputs_there_are(server):
    server.model = {}
    target = opened(made("kserve", server, inputs=[{"name": "x", "shape": [1, 4], "dtype": "FP32"}]))
    for words in ("lacks outputs ()", "lacks outputs (y)"):
        server.fault = "missing_output"
        with fails("wrong_shape", words):
            once(target)
        server.fault = ""
        once(target)


OF_FORM = [("kserve", "missing_output"), ("http", "wrong_answer"), ("openai", "stream_ends")]


@pytest.mark.parametrize(("kind", "fault"), OF_FORM)
def test_a_sweep_has_no_numbers_of_broken_answers(server, kind, fault):
    target = opened(made(kind, server))
    for concurrency in (1, 2):
        server.fault = fault
        found = Measurement("c", target, Load(1, concurrency), 0.3, None).measure()
        assert isinstance(found, Missing) and found.reason == "raised"
        server.fault, before = "", server.connections
        assert isinstance(Measurement("c", target, Load(1, concurrency), 1.0, None).measure(), Measured)
        assert server.connections == before + concurrency, "each concurrent request has a separate connection"
    size = Measurement("c", target, Load(2, 1), 0.3, None).measure()
    assert isinstance(size, Missing) and size.reason == "unsupported", "a request's size is fixed"


# In a probe ---------------------------------------------------------------------------------------------------------


def failures(seen):
    family = seen.families["infercanary_run_failures_total"]
    return {p.labels[1]: p.value for p in family.points if p.labels[0] == "c" and p.value}


def watch(probe, condition):
    return until(lambda: condition(s := fetch(probe.address)) and s)


COUNTED = {
    "error": "error_answer", "slow": "timed_out", "reset": "unreachable", "half_body": "incomplete",
    "not_ready": "not_ready", "wrong_shape": "wrong_shape", "junk": "malformed", "endless": "too_large",
    "not_finite": "not_finite", "wrong_answer": "wrong_answer", "limited": "rate_limited",
}  # fmt: skip


def test_each_fault_is_counted_under_its_reason_and_is_over_with_the_fault(started, server):
    assert set(COUNTED.values()) == {*REASONS, "timed_out", "not_finite", "wrong_answer"}
    probe = started({"c": made("kserve", server)}, timeout_seconds=20)
    before = failures(watch(probe, lambda s: s.value("infercanary_output_error_ratio", "c") == 0.0))
    for fault, reason in COUNTED.items():
        server.fault = fault
        seen = watch(probe, lambda s: failures(s).get(reason, 0) > before.get(reason, 0))  # noqa: B023
        last = [run for run in seen.report.runs if run.canary == "c"][-1]
        if fault == "wrong_answer":
            assert last.outcome == "ok"
            assert "output_changed" in last.tags
        else:
            assert seen.state("c") == "failing"
            assert last.detail
            assert last.outcome == (reason if reason in ("timed_out", "not_finite") else "raised")
        if fault not in ("wrong_answer", "not_finite"):
            assert seen.value("infercanary_run_median_seconds", "c") is None
            assert seen.value("infercanary_server_seconds", "c", "queue") is None
        server.fault = ""
        # Another run may have met the fault as well, but no other reason is permitted.
        before = failures(in_state(probe.address, "c", "steady"))
    watch(probe, lambda s: s.value("infercanary_server_seconds", "c", "queue"))
    assert set(before) <= {*COUNTED.values()}


class Gateway(Faulty):
    """Refuses all inferences after the first ``allowed`` ones; every third inference has the fault ``broken``."""

    allowed = 10**6
    asked = 0
    broken = ""

    def _answer(self, connected, method, *more):
        self.asked += method == "POST"
        self.allowed -= method == "POST"
        self.fault = "limited" if self.allowed < 0 else self.broken if self.asked % 3 == 0 else ""
        super()._answer(connected, method, *more)


@pytest.mark.parametrize("kind", ["http", "openai"])
def test_a_canary_behind_a_rate_limit_waits_and_then_asks_half_as_often(started, kind):
    with Gateway() as server:
        server.allowed = 0
        probe = started({"c": made(kind, server)}, timeout_seconds=4)
        seen = watch(probe, lambda s: failures(s).get("rate_limited"))
        [detail] = [p.labels for p in seen.families["infercanary_canary_failure_info"].points]
        assert seen.state("c") == "failing"
        assert detail[1] == "rate_limited"
        assert "429" in detail[2]
        server.allowed = 12  # enough to finish a warm-up with half of a run's repeats
        in_state(probe.address, "c", "warming", "steady")
        server.allowed = 10**6
        seen = watch(probe, lambda s: s.runs("c", "ok"))
        assert not seen.families["infercanary_canary_failure_info"].points
        assert 1 <= len(next(run for run in seen.report.runs if run.latencies).latencies) <= 6
        server.allowed = 0
        seen = watch(probe, lambda s: failures(s).get("rate_limited", 0) > 1)
        assert seen.state("c") == "failing"
        assert seen.report.runs[-1].outcome == "raised"
        server.allowed = 10**6
        in_state(probe.address, "c", "warming", "steady")


@pytest.mark.parametrize(("kind", "fault"), OF_FORM)
def test_a_run_is_as_good_as_each_of_its_answers(kind, fault):
    with Gateway() as server:
        canary = opened_canary(made(kind, server))
        assert canary.round(5).outcome == "ok"
        server.broken = fault
        assert {canary.round(5).outcome for _ in range(5)} == {"raised"}
        assert canary.close(10)


def test_a_server_that_is_there_late_or_killed_is_found_when_it_is_back(started, monkeypatch):
    """Waiting for a server costs nothing, so the next attempt comes earlier than after a failed load of a model."""
    monkeypatch.setattr("infercanary.probe.canary._REOPEN_SECONDS", (0.2, 3600.0))
    port = free_port()
    probe = started(
        {"c": kserve_target(f"http://127.0.0.1:{port}", "double", **QUICK | {"ready_seconds": 1.0})}
    )
    watch(probe, lambda s: failures(s).get("unreachable", 0) >= 2)
    for number in (signal.SIGKILL, signal.SIGTERM):
        with subprocess.Popen([sys.executable, MODULES / "faulty.py", str(port)]) as process:
            try:
                in_state(probe.address, "c", "steady")
            finally:
                process.send_signal(number)
        assert set(failures(in_state(probe.address, "c", "failing"))) == {"unreachable"}
    watch(probe, lambda s: "Connection refused" in s.report.runs[-1].detail)
