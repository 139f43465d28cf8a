"""What a server does wrong, at each target: every fault has its own reason, and an end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from faulty import Faulty, full_backlog
from server_targets import http_target, kserve_target, openai_target, opened, values_of
from watching import MODULES, Seen, fetch, until

from infercanary.probe.load import Load, Measured, Measurement, Missing
from infercanary.probe.targets import Failure
from infercanary.probe.targets.wire.server_target import REASONS

QUICK: dict[str, Any] = {"timeout_seconds": 0.6, "ready_seconds": 0, "max_response_bytes": 200_000}


def made(kind: str, server: Faulty, **options: Any) -> Any:
    if kind == "kserve":
        return kserve_target(server.url, "double", **QUICK | options)
    if kind == "openai":
        return openai_target(f"{server.url}/v1", "m", prompt="Say it", **QUICK | options)
    expect = {"json": {"score": 0.5}, "values": "/more"}
    return http_target(f"{server.url}/score?a=b", json={"n": 1}, expect=expect, **QUICK | options)


def once(target: Any) -> list[float]:
    """A run as the probe has it, with one repeat."""
    target.prepare()
    found = values_of(target)
    target.readings()
    return found


FAULTS = """
kserve openai: error error_answer 500 Status
kserve openai: limited rate_limited 429 Status
kserve openai: overloaded error_answer 503 Status
kserve openai: redirect error_answer 307 Moved: it leads to http://elsewhere/v2; redirects are not followed
kserve openai: slow timed_out within 0.6 s (timeout_seconds)
kserve openai: reset unreachable closed the connection without an answer (Connection reset by peer)
kserve openai: compressed malformed compressed (gzip)
kserve: half_body incomplete broke off in the body of its answer
kserve http: bad_json malformed JSONDecodeError
kserve http: deep_json malformed RecursionError
kserve: other_json malformed is not what the protocol has there
kserve: not_ready not_ready the model `double` is not ready: 503 Status
kserve: says_not_ready not_ready it says so
kserve: wrong_shape wrong_shape the output `y` is FP32 [1, 3], and FP32 [1, 4] in
kserve: wrong_rank wrong_shape the output `y` is FP32 [4], and FP32 [1, 4] in
kserve: wrong_length wrong_shape the output `y` has 12 bytes for FP32 [1, 4]
kserve: wrong_dtype wrong_shape the output `y` is FP64 [1, 4], and FP32 [1, 4] in
kserve: missing_output wrong_shape the output `y` is missing
kserve: other_output wrong_shape an output `z`, which the metadata has not
kserve: error_body error_answer the model fell over
kserve: wrong_size malformed the output `y` ends after the answer does
http: wrong_answer wrong_answer the answer is not as expected at `/score`
http: other_json wrong_answer the answer is not as expected at `/`
openai: error_in_stream error_answer the stream broke off with an error:
openai: stream_ends incomplete the stream ended before the completion did
openai: stream_breaks incomplete broke off in the body of its answer
openai: bad_json malformed its type is application/json
"""  # the rest of http: test_http_answers.py
ROWS = [line.partition(": ") for line in FAULTS.strip().splitlines()]
CASES = [(kind, *said.split(" ", 2)) for kinds, _, said in ROWS for kind in kinds.split()]


@pytest.mark.parametrize(("kind", "fault", "reason", "words"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES])
def test_each_fault_has_its_reason_and_an_end(
    server: Faulty, kind: str, fault: str, reason: str, words: str
) -> None:
    target = opened(made(kind, server))
    good = once(target)
    server.fault = fault
    begin = time.monotonic()
    with pytest.raises(Failure, match=f"^[^\n]*{re.escape(words)}[^\n]*$") as failure:
        once(target)
    assert time.monotonic() - begin < 10, "the deadline is for the whole exchange"
    assert failure.value.reason == reason
    server.fault = ""
    assert once(target) == good, "a broken connection is not used again"


@pytest.mark.parametrize(("fault", "binary"), [("not_finite", True), ("not_finite", False), ("null", False)])
def test_what_is_not_finite_is_seen_whatever_the_encoding(server: Faulty, fault: str, binary: bool) -> None:
    target = opened(made("kserve", server, binary=binary))
    server.fault = fault
    *_, last = once(target)
    assert last != last


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("127.0.0.1", "no connection to 127.0.0.1:{port}: Connection refused"),
        ("no-such-host.invalid", "the host `no-such-host.invalid` is not found"),
        ("full", "it timed out (timeout_seconds)"),
    ],
)
def test_no_connection(host: str, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with full_backlog() as full:
        begin, url = (
            time.monotonic(),
            f"http://127.0.0.1:{full}" if host == "full" else f"http://{host}:{port}",
        )
        with pytest.raises(Failure, match=re.escape(words.format(port=port))) as failure:
            http_target(url, **QUICK).open()
        assert host.endswith(".invalid") or time.monotonic() - begin < 5
    assert failure.value.reason == "unreachable"


def test_opening_waits_for_a_server_that_is_not_ready_yet(server: Faulty) -> None:
    server.fault = "not_ready"
    ready = threading.Timer(0.5, setattr, (server, "fault", ""))
    ready.start()
    begin = time.monotonic()
    made("kserve", server, ready_seconds=30).open()
    assert 0.4 < time.monotonic() - begin < 10
    ready.join()
    server.fault = "loading"
    with pytest.raises(Failure, match="the server is not ready: 503") as failure:
        made("openai", server).open()
    assert failure.value.reason == "not_ready"


@pytest.mark.parametrize("keep_alive", [True, False])
def test_opening_waits_until_something_listens(keep_alive: bool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    late: list[Faulty] = []
    ready = threading.Timer(0.5, lambda: late.append(Faulty(port=port)))
    ready.start()
    options = QUICK | {"ready_seconds": 30, "keep_alive": keep_alive, "expect": {"values": "/score"}}
    target = opened(http_target(f"http://127.0.0.1:{port}/", **options))
    assert once(target) == [0.5]
    target.close()
    ready.join()
    late[0].stop()


def test_an_answer_without_outputs_is_none(server: Faulty) -> None:
    server.model = {}
    target = opened(made("kserve", server, inputs=[{"name": "x", "shape": [1, 4], "dtype": "FP32"}]))
    for fault, words in (
        ("missing_output", "has no outputs"),
        ("", ""),
        ("missing_output", "`y` is missing"),
    ):
        server.fault = fault
        if not fault:
            once(target)
            continue
        with pytest.raises(Failure, match=words):
            once(target)


OF_FORM = [("kserve", "missing_output"), ("http", "wrong_answer"), ("openai", "stream_ends")]


@pytest.mark.parametrize(("kind", "fault"), OF_FORM)
def test_a_sweep_has_no_numbers_of_broken_answers(server: Faulty, kind: str, fault: str) -> None:
    target = opened(made(kind, server))
    for concurrency in (1, 2):
        server.fault = fault
        found = Measurement("c", target, Load(1, concurrency), 1.0, None).measure()
        assert isinstance(found, Missing) and found.reason == "raised"
        server.fault = ""
        assert isinstance(Measurement("c", target, Load(1, concurrency), 1.0, None).measure(), Measured)


# In a probe ---------------------------------------------------------------------------------------------------------


def failures(seen: Seen) -> dict[str, Any]:
    family = seen.families["infercanary_run_failures_total"]
    return {p.labels[1]: p.value for p in family.points if p.labels[0] == "c" and p.value}


def watch(probe: Any, condition: Callable[[Seen], Any]) -> Seen:
    """The first report for which the condition holds."""
    seen: Seen = until(lambda: condition(s := fetch(probe.address)) and s)
    return seen


COUNTED = {
    "error": "error_answer", "slow": "timed_out", "reset": "unreachable", "half_body": "incomplete",
    "not_ready": "not_ready", "wrong_shape": "wrong_shape", "junk": "malformed", "endless": "too_large",
    "not_finite": "not_finite", "wrong_answer": "wrong_answer", "limited": "rate_limited",
}  # fmt: skip


def test_each_fault_is_counted_under_its_reason_and_is_over_with_the_fault(
    started: Any, server: Faulty
) -> None:
    assert set(COUNTED.values()) == {*REASONS, "timed_out", "not_finite", "wrong_answer"}
    probe = started({"c": made("kserve", server)}, timeout_seconds=20)
    before = failures(watch(probe, lambda s: s.value("infercanary_output_error_ratio", "c") == 0.0))
    for fault, reason in COUNTED.items():
        server.fault = fault
        seen = watch(probe, lambda s: failures(s).get(reason, 0) > before.get(reason, 0))  # noqa: B023
        last = [run for run in seen.report.runs if run.canary == "c"][-1]
        if fault == "wrong_answer":
            assert last.outcome == "ok" and "output_changed" in last.tags
        else:
            assert seen.state("c") == "failing" and last.detail
            assert last.outcome == (reason if reason in ("timed_out", "not_finite") else "raised")
        if fault not in ("wrong_answer", "not_finite"):
            assert seen.value("infercanary_run_median_seconds", "c") is None
            assert seen.value("infercanary_server_seconds", "c", "queue") is None
        server.fault = ""
        # The fault may have been met by one more run, in its middle, and not by any other reason.
        before = failures(watch(probe, lambda s: s.state("c") == "steady"))
    watch(probe, lambda s: s.value("infercanary_server_seconds", "c", "queue"))
    assert set(before) <= {*COUNTED.values()}


class Gateway(Faulty):
    """Refuses inferences once ``allowed`` are used up; every third one meets ``broken``."""

    allowed = 10**6
    asked = 0
    broken = ""

    def _answer(self, connected: socket.socket, method: str, *more: Any) -> None:
        self.asked += method == "POST"
        self.allowed -= method == "POST"
        self.fault = "limited" if self.allowed < 0 else self.broken if self.asked % 3 == 0 else ""
        super()._answer(connected, method, *more)


@pytest.mark.parametrize("kind", ["http", "openai"])
def test_a_canary_behind_a_rate_limit_waits_and_then_asks_half_as_often(started: Any, kind: str) -> None:
    def shown(seen: Seen) -> list[str]:
        family = seen.families.get("infercanary_canary_failure_info")
        return [p.labels[2] for p in family.points if p.labels[:2] == ("c", "rate_limited")] if family else []

    with Gateway() as server:
        server.allowed, server.heads = 0, ["Retry-After: 1"]
        probe = started({"c": made(kind, server)}, timeout_seconds=4)
        seen = watch(probe, shown)
        assert seen.state("c") == "failing" and "429" in shown(seen)[0]
        server.allowed = 12  # warm-up ends there, and half of it is what a run makes
        watch(probe, lambda s: s.state("c") in ("warming", "steady"))
        server.allowed = 10**6
        seen = watch(probe, lambda s: s.runs("c", "ok"))
        assert not shown(seen)
        assert 1 <= len(next(run for run in seen.report.runs if run.latencies).latencies) <= 6
        server.allowed = 0
        seen = watch(probe, lambda s: failures(s).get("rate_limited", 0) > 1)
        assert seen.state("c") == "failing" and [r.outcome for r in seen.report.runs][-1] == "raised"
        server.allowed = 10**6
        watch(probe, lambda s: s.state("c") in ("warming", "steady"))


@pytest.mark.parametrize(("kind", "fault"), OF_FORM)
def test_a_run_is_as_good_as_each_of_its_answers(started: Any, kind: str, fault: str) -> None:
    with Gateway() as server:
        probe = started({"c": made(kind, server)}, timeout_seconds=20)
        watch(probe, lambda s: s.state("c") == "steady")
        server.broken = fault
        first = watch(probe, lambda s: s.state("c") == "failing").runs("c", "raised")
        seen = watch(probe, lambda s: s.runs("c", "raised") > first + 5)
        assert {run.outcome for run in seen.report.runs[-5:]} == {"raised"}
        probe.stop()


def test_a_server_that_is_killed_and_comes_back(started: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, MODULES / "faulty.py", str(port)], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"serves\n"
        process.stdout.close()
        return process

    process = start()
    try:
        probe = started({"c": kserve_target(f"http://127.0.0.1:{port}", "double", **QUICK)})
        watch(probe, lambda s: s.state("c") == "steady")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert set(failures(watch(probe, lambda s: failures(s).get("unreachable")))) == {"unreachable"}
        refused = f"no connection to 127.0.0.1:{port}: Connection refused"
        watch(probe, lambda s: refused in s.report.runs[-1].detail)
        process = start()
        watch(probe, lambda s: s.state("c") == "steady")
    finally:
        process.kill()
        process.wait()


def test_a_server_that_is_there_late_is_asked_again_soon(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for it is no cost: the next attempt must not be as far away as after a model that was loaded in vain."""
    monkeypatch.setattr("infercanary.probe.canary._REOPEN_SECONDS", (0.2, 3600.0))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    probe = started({"c": http_target(f"http://127.0.0.1:{port}/", **QUICK | {"ready_seconds": 1.0})})
    watch(probe, lambda s: failures(s).get("unreachable", 0) >= 2)
    with Faulty(port=port):
        watch(probe, lambda s: s.runs("c", "ok") >= 1)
