"""The targets that ask a server: what goes over the wire, connection by connection, and what must never show."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from faulty import INPUT, OUTPUT, Faulty, full_backlog
from server_targets import http_target, kserve_target, openai_target
from watching import fetch, until

from infercanary.command.settings import UsageError
from infercanary.probe import HostClock
from infercanary.probe.targets import Failure, openai
from infercanary.probe.targets.wire import completion
from infercanary.probe.targets.wire.connection import Connection
from infercanary.probe.targets.wire.events import Event
from infercanary.probe.targets.wire.server import Server, ServerOptions
from infercanary.probe.timing import Timing

QUICK: dict[str, Any] = {"timeout_seconds": 5, "ready_seconds": 0}


def opened(target: Any) -> Any:
    target.open()
    target.prepare()
    return target


def measured(target: Any) -> tuple[Timing, Any]:
    return HostClock().measure(target.run)


def inferences(server: Faulty) -> list[tuple[str, dict[str, str], bytes]]:
    return [request for request in server.requests if request[0].startswith("POST")]


# The connection -----------------------------------------------------------------------------------------------------


def test_one_connection_is_kept_and_made_before_what_is_timed(server: Faulty) -> None:
    target = opened(kserve_target(server.url, "double", **QUICK))
    timings = [measured(target)[0] for _ in range(5)]
    target.prepare()
    timings.append(measured(target)[0])
    assert server.connections == 1
    assert all(list(timing.phases) == ["send", "wait", "receive"] for timing in timings)
    assert all(sum(timing.phases.values()) <= timing.wall for timing in timings)


def test_parsing_after_the_last_byte_is_in_no_latency(
    server: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = opened(http_target(f"{server.url}/score", **QUICK))
    read_event = Connection._next_event

    def read_slowly(connection: Connection) -> object:
        time.sleep(0.1)
        return read_event(connection)

    monkeypatch.setattr(Connection, "_next_event", read_slowly)
    timing, _ = target.clock.measure(target.run)
    assert 0 <= sum(timing.phases.values()) <= timing.wall < 0.1
    assert timing.phases["receive"] == 0, "its head and its body come in one packet"


def test_without_keep_alive_each_repeat_connects(server: Faulty) -> None:
    target = opened(http_target(server.url, keep_alive=False, **QUICK))
    for _ in range(3):
        assert set(measured(target)[0].phases) == {"connect", "send", "wait", "receive"}
    assert server.connections == 4, "and one to see that the server is there"
    assert all(headers["connection"] == "close" for _, headers, _ in server.requests)


def test_an_address_from_which_nothing_comes_back_leaves_time_for_the_next(
    server: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that drops IPv6: a listener whose backlog is full drops what asks for a connection."""
    with full_backlog() as dead:
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", address)
            for address in (("127.0.0.1", dead), ("127.0.0.1", server.port))
        ]
        really = socket.getaddrinfo

        def look_up(host: str, *more: Any, **options: Any) -> Any:
            return found if host == "two-addresses" else really(host, *more, **options)

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        target = opened(http_target("http://two-addresses/score", **QUICK | {"timeout_seconds": 2}))
        assert measured(target)[1].startswith(b"{")
        target.close()


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("openssl makes the certificate")
    pem = folder / "server.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key.pem"), "-out", str(pem)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, folder / "key.pem")
    return pem, context


def test_tls_with_a_certificate_that_is_trusted_or_is_not(server: Faulty, tmp_path: Path) -> None:
    pem, context = certificate(tmp_path)
    with Faulty(tls=context) as trusted:
        target = opened(kserve_target(trusted.url, "double", ca_file=str(pem), **QUICK))
        for _ in range(3):
            timing, result = measured(target)
            assert "connect" not in timing.phases
            assert len(target.values(result)) == 4
        assert trusted.connections == 1
        fresh = opened(http_target(trusted.url, ca_file=str(pem), keep_alive=False, **QUICK))
        assert "connect" in measured(fresh)[0].phases
        with pytest.raises(Failure, match=r"its certificate is not trusted \(.*; ca_file\)") as failure:
            http_target(trusted.url, **QUICK).open()
        assert failure.value.reason == "unreachable"
    with pytest.raises(UsageError, match=r"ca_file: `/no/such\.pem` cannot be read"):
        http_target("https://127.0.0.1:1", ca_file="/no/such.pem", **QUICK).open()


# Headers ------------------------------------------------------------------------------------------------------------


def test_a_token_comes_from_its_file_at_each_run_and_shows_nowhere(
    server: Faulty, tmp_path: Path, started: Any, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text("first-token-4711\n")
    headers = {"Authorization": {"file": str(token), "prefix": "Bearer "}, "X-Tenant": "search"}
    server.extensions = []
    with caplog.at_level(logging.DEBUG):
        probe = started({"c": kserve_target(server.url, "double", headers=headers, **QUICK)})
        until(lambda: fetch(probe.address).state("c") == "steady")
        assert inferences(server)[-1][1]["authorization"] == "Bearer first-token-4711"
        assert inferences(server)[-1][1]["x-tenant"] == "search"
        token.write_text("wrong-token-4711")
        seen = until(lambda: fetch(probe.address).state("c") == "failing" and fetch(probe.address))
        probe.stop()
    (detail,) = {run.detail for run in seen.report.runs if run.outcome == "raised"}
    assert detail.endswith('401 Status: {"error": "no user has Bearer ***"}')
    token.write_text("second-token-4711")
    target = opened(http_target(server.url, headers=headers, expect={"status": 404}, **QUICK))
    with pytest.raises(Failure):
        measured(target)
    reported = repr(target.environment()) + caplog.text + json.dumps([run.detail for run in seen.report.runs])
    assert "token-4711" not in reported


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"cannot be read \(No such file or directory\)"),
        ("", "does not hold one line with a value"),
        ("a\nb", "does not hold one line with a value"),
        ("x" * 70_000, "is larger than 65536 bytes"),
    ],
    ids=["missing", "empty", "lines", "large"],
)
def test_a_file_that_holds_no_token(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    target = http_target("http://127.0.0.1:1", headers={"Authorization": {"file": str(path)}}, **QUICK)
    with pytest.raises(UsageError, match=rf"^headers.Authorization: `{path}` {words}"):
        target.open()


# Open Inference Protocol --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [True, False, None])
def test_tensors_go_and_come_in_either_encoding(server: Faulty, binary: bool | None) -> None:
    target = opened(kserve_target(server.url, "double", binary=binary, seed=3, **QUICK))
    _, result = measured(target)
    line, headers, body = inferences(server)[-1]
    assert line == "POST /v2/models/double/infer HTTP/1.1"
    if binary is False:
        (given,) = json.loads(body)["inputs"]
        sent = given["data"]
        assert given == {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": sent}
        assert headers["content-type"] == "application/json"
    else:
        head = json.loads(body[: int(headers["inference-header-content-length"])])
        assert head["parameters"] == {"binary_data_output": True}
        sent = list(struct.unpack("<4f", body[-16:]))
    assert target.values(result) == pytest.approx([2 * value for value in sent], rel=1e-6)
    assert target.environment() == {
        "kserve_server": "faulty 1", "kserve_platform": "test", "kserve_model_versions": "1",
        "kserve_tensors": "json" if binary is False else "binary",
    }  # fmt: skip


def test_a_server_behind_a_path_with_a_version_and_an_odd_name(server: Faulty) -> None:
    target = opened(kserve_target(f"{server.url}/gate/", "a b/ü", version=7, **QUICK))
    measured(target)
    assert inferences(server)[-1][0] == "POST /gate/v2/models/a%20b%2F%C3%BC/versions/7/infer HTTP/1.1"


def test_the_servers_own_times_are_those_of_the_run(server: Faulty) -> None:
    target = opened(kserve_target(server.url, "double", **QUICK))
    for _ in range(3):
        measured(target)
    reported = {reading.labels: reading.value for reading in target.readings()}
    assert reported == {("queue",): pytest.approx(1e-6), ("compute_infer",): pytest.approx(5e-6)}
    target.prepare()
    assert target.readings() == [], "nothing was asked meanwhile"
    server.fault = "no_stats"
    target.prepare()
    assert measured(target)[1] and target.readings() == [], "the run is as good without them"


def test_what_a_server_says_of_its_model_and_how_it_serves_it(server: Faulty) -> None:
    server.model = {**server.model, "versions": None}
    kserve = opened(kserve_target(server.url, "double", **QUICK))
    assert kserve.identity() == "server: double faulty 1", "without versions of the model, the server's own"
    assert "kserve_instances" not in kserve.environment()
    server.extensions = [*server.extensions, "model_configuration"]
    assert "kserve_instances" not in opened(kserve_target(server.url, "double", **QUICK)).environment()
    server.model = {**server.model, "versions": ["2", "3"]}
    server.config = {
        "max_batch_size": 8, "instance_group": [{"count": 2, "kind": "KIND_CPU"}, {"count": 1, "kind": "KIND_GPU"}],
        "dynamic_batching": {"max_queue_delay_microseconds": 500},
    }  # fmt: skip
    kserve = opened(kserve_target(server.url, "double", **QUICK))
    assert kserve.identity() == "server: double version 2 3"
    found = kserve.environment()
    assert [found[f"kserve_{name}"] for name in ("instances", "max_batch_size", "batching")] == [
        "2 CPU + 1 GPU", "8", "waits 500 µs",
    ]  # fmt: skip
    del server.config["dynamic_batching"]
    assert opened(kserve_target(server.url, "double", **QUICK)).environment()["kserve_batching"] == "off"


def test_what_a_list_of_models_says_of_the_one_that_is_asked(server: Faulty) -> None:
    target = opened(openai_target(f"{server.url}/v1", "m", prompt="Hello", **QUICK))
    assert target.identity() == "", "it is not in the list"
    listed = {"id": "m", "root": "/models/m-7b", "created": 1, "meta": {"n_params": 7, "size": 9, "n_ctx": 1}}
    for created in (1, 2):  # of the request, in most servers
        server.models = [{"id": "other"}, {**listed, "created": created}]
        assert target.identity() == "server: m, root /models/m-7b, n_params 7, size 9"
    server.models = [{"id": "m", "root": "m", "meta": None}]
    assert target.identity() == "server: m"
    server.fault = "loading"
    with pytest.raises(Failure, match="503"):
        target.identity()


@pytest.mark.parametrize("kind", ["http", "kserve"])
def test_the_servers_own_times_in_the_heads_of_its_answers(server: Faulty, kind: str) -> None:
    server.extensions = ["binary_tensor_data"]
    server.heads = ['Server-Timing: queue;dur=1.5, model;desc="a, b";dur=20', "x-inference-time: 18"]
    url = f"{server.url}/score"
    target = opened(
        http_target(url, **QUICK) if kind == "http" else kserve_target(server.url, "double", **QUICK)
    )
    for milliseconds in (4, 2, 3):
        server.heads[1] = f"x-inference-time: {milliseconds}"
        measured(target)
    reported = {reading.labels: reading.value for reading in target.readings()}
    assert reported == {("queue",): 0.0015, ("model",): 0.02, ("inference",): 0.003}
    target.prepare()
    assert target.readings() == []
    target.close()


@pytest.mark.parametrize(
    ("inputs", "model", "words"),
    [
        (None, {"inputs": []}, r"inputs: the server does not report those of `double`; give name, shape and dtype"),
        (None, {"inputs": [INPUT | {"shape": [-1, 4]}]},
         r"inputs\[0\].shape: the server reports \[-1, 4\] of `x`; give all sizes"),
        ([{"dtype": "float32"}], {}, r"inputs\[0\].dtype: `float32` is no type of the protocol; it has BYTES, BOOL, "),
        ([{}], {"inputs": [INPUT | {"datatype": "FP7"}]}, r"inputs\[0\].dtype: `FP7` is no type of the protocol"),
        ([{}], {"inputs": [INPUT | {"datatype": "BYTES"}]}, r"inputs\[0\]: text cannot be drawn; give `data`"),
        ([{"name": "z"}], {}, r"inputs\[0\].name: the model has no input `z`; it has x"),
        ([{}, {}], {}, r"inputs\[1\]: it needs a `name`; the server reports 1 inputs"),
        ([{"name": "x", "shape": [2]}], {"inputs": None}, r"inputs\[0\].dtype: the server does not report that of `x`"),
        ([{"data": [1, 2, 3]}], {}, r"inputs\[0\].data: 3 values do not fill the shape \[1, 4\]; give 4"),
        ([{"data": [1, 2, 3, "four"]}], {}, r"inputs\[0\].data: not all of it is FP32"),
        ([{"data": [1, 2, 3, 300], "dtype": "UINT8"}], {}, r"inputs\[0\].data: not all of it is UINT8"),
        ([{"shape": [4096, 4097]}], {}, r"inputs\[0\].shape: 16781312 elements are too many"),
    ],
)  # fmt: skip
def test_inputs_that_cannot_be_made(server: Faulty, inputs: Any, model: dict[str, Any], words: str) -> None:
    server.model |= model
    with pytest.raises(UsageError, match=f"^{words}"):
        kserve_target(server.url, "double", inputs=inputs, **QUICK).open()


def test_inputs_that_the_user_gives(server: Faulty) -> None:
    server.model |= {"inputs": [INPUT | {"shape": [-1, 4]}], "outputs": [OUTPUT | {"shape": [-1, -1]}]}
    inputs = [{"shape": [1, 4], "data": [[1.5, 2], [3, 4]], "parameters": {"content_type": "np"}}]
    target = opened(kserve_target(server.url, "double", inputs=inputs, binary=False, **QUICK))
    assert target.values(measured(target)[1]) == [3.0, 4.0, 6.0, 8.0]
    (given,) = json.loads(inferences(server)[-1][2])["inputs"]
    assert given["parameters"] == {"content_type": "np"}
    server.fault = "wrong_shape"  # which the metadata leaves open, and the first answer does not
    with pytest.raises(
        Failure, match=r"is FP32 \[1, 3\], and FP32 \[1, 4\] in the metadata or the first answer"
    ):
        target.values(measured(target)[1])


def test_once_shows_them_too(server: Faulty, tmp_path: Path) -> None:
    (tmp_path / "probe.yaml").write_text(
        f"canaries: {{c: {{target: kserve, options: {{url: '{server.url}', model: double}}}}}}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "infercanary", "probe", "--once", "--config", "probe.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reported = " ".join(done.stdout.split())
    assert " server queue 1 µs, compute infer 5 µs " in reported
    assert "inference server faulty 1" in reported
    server.fault = "error"
    (tmp_path / "probe.yaml").write_text(
        f"canaries: {{c: {{target: http, options: {{url: '{server.url}', ready_seconds: 0}}}}}}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "infercanary", "probe", "--once", "--config", "probe.yaml"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "cannot be opened: the answer is not 200: 500 Status: " in " ".join(done.stdout.split())


# OpenAI -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("has_usage", [True, False])
def test_a_stream_is_timed_to_its_first_token_and_between_tokens(
    server: Faulty, api: Any, has_usage: bool
) -> None:
    server.has_usage = has_usage
    options = {"prompt": "Say it", "api": api, "max_tokens": 4, "seed": 7, "salt": False}
    target = opened(openai_target(server.url, "m", **options, **QUICK))
    timing, completion = measured(target)
    assert (completion.text, completion.tokens) == ("Once upon a time", 4)
    assert set(timing.phases) == {"send", "first_token", "tokens"}
    assert sum(timing.phases.values()) <= timing.wall
    # The server waits 2 ms before each event; how much of it passes before `send` has returned, the kernel decides.
    assert timing.phases["send"] + timing.phases["first_token"] >= 0.002 * (2 if api == "chat" else 1)
    assert timing.wall >= 0.002 * (6 if api == "chat" else 5)
    assert 0 < completion.between <= (timing.wall - timing.phases["send"]) / 3
    reported = {(reading.metric.name, *reading.labels): reading.value for reading in target.readings()}
    assert target.output_tokens == 4
    assert reported == {
        ("infercanary_between_tokens_seconds",): completion.between,
        ("infercanary_first_token_seconds", "plain"): completion.first,
    }  # fmt: skip
    parts = timing.phases["send"] + timing.phases["first_token"]
    assert completion.first == pytest.approx(parts, rel=0.2, abs=0.001)
    assert target.environment() == {}
    line, _, body = inferences(server)[-1]
    asked = json.loads(body)
    prompt = {"messages": [{"role": "user", "content": "Say it"}]} if api == "chat" else {"prompt": "Say it"}
    assert line == f"POST /v1/{'chat/' if api == 'chat' else ''}completions HTTP/1.1"
    assert asked == {
        "model": "m", **prompt, "max_tokens": 4, "temperature": 0, "seed": 7, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


@pytest.mark.parametrize("words", [["Twice", " upon", " a", " time"], ["Once", " upon", " a time"]])
def test_another_text_or_another_count_is_another_output(
    server: Faulty, started: Any, words: list[str]
) -> None:
    """The second is the same text in fewer tokens."""
    probe = started({"c": openai_target(server.url, "m", prompt="Say it", **QUICK)})
    until(lambda: fetch(probe.address).value("infercanary_output_error_ratio", "c") == 0.0)
    seen = fetch(probe.address)
    assert seen.report.runs[-1].measures["output"] == 4
    server.words = words
    seen = until(lambda: fetch(probe.address).value("infercanary_tagged_runs_total", "c", "output_changed")
                 and fetch(probe.address))  # fmt: skip
    assert seen.value("infercanary_output_error_ratio", "c") > 0.1
    assert seen.value("infercanary_run_failures_total", "c", "wrong_answer") >= 1


def test_more_keys_and_messages_of_a_request(server: Faulty) -> None:
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Say it"}]
    more = {"messages": messages, "body": {"ignore_eos": True}, "salt": False}
    target = opened(openai_target(server.url, "m", **more, **QUICK))
    measured(target)
    asked = json.loads(inferences(server)[-1][2])
    assert (asked["messages"], asked["ignore_eos"]) == (messages, True)


def spoken(text: Any, end: Any = None, index: int = 0) -> str:
    """An event of a chat, as a stream has it."""
    choice = {"index": index, "delta": {} if text is None else {"content": text}, "finish_reason": end}
    return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"


def framed(frame: Any) -> str:
    return f"data: {json.dumps(frame)}\n\n"


TWO = spoken("Once") + spoken(" upon")
DONE = "data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("stream", "text", "tokens"),
    [
        *((TWO + spoken(None, end) + DONE, "Once upon", 2) for end in sorted(completion._ENDS)),
        (TWO + spoken("", "stop"), "Once upon", 2),
        (TWO + DONE, "Once upon", 2),
        *((TWO + DONE.rstrip("\n") + end, "Once upon", 2) for end in ("", "\n", "\r\n")),
        (TWO + spoken(None, "stop").rstrip("\n"), "Once upon", 2),
        (spoken("Once", "") + spoken(" upon", "null") + DONE, "Once upon", 2),
        (TWO + spoken(None, "stop") + framed({"choices": None, "usage": {"completion_tokens": 9}}), "Once upon", 9),
        (TWO + spoken(None, "stop") + framed({"choices": [], "usage": {"completion_tokens": 9.0}}), "Once upon", 9),
        (TWO + framed({"error": None, "error_code": 0, "choices": []}) + DONE, "Once upon", 2),
        (TWO + "event: ping\n\n" + framed({"type": "ping"}) + spoken(None, "stop"), "Once upon", 2),
        (spoken("B", None, 1) + spoken("A") + spoken(None, "stop", 1) + spoken(None, "length") + DONE, "AB", 2),
    ],
)  # fmt: skip
def test_a_stream_that_is_whole(server: Faulty, stream: str, text: str, tokens: int) -> None:
    server.streams = stream
    _, completion = measured(opened(openai_target(server.url, "m", prompt="Say it", salt=False, **QUICK)))
    assert (completion.text, completion.tokens) == (text, tokens)


@pytest.mark.parametrize(
    ("stream", "reason", "words"),
    [
        *((TWO + spoken(None, end) + DONE, "incomplete", f"finish_reason is `{end}`")
          for end in ("abort", "error", "cancelled", "None", 0, {"type": "abort"})),
        (TWO, "incomplete", "ended before the completion did"),
        (TWO + spoken(None, "stop")[:-9], "incomplete", "ended before the completion did"),
        (TWO + 'event: error\ndata: {"message": "cache exhausted"}', "error_answer", "cache exhausted"),
        (spoken("Once", "") + spoken(" upon", ""), "incomplete", "ended before the completion did"),
        (spoken("Once", "null") + spoken(" upon", "null"), "incomplete", "ended before the completion did"),
        (TWO + spoken("B", None, 1) + spoken(None, "stop") + DONE, "incomplete", "ended before the completion did"),
        (TWO + 'event: error\ndata: {"message": "cache exhausted"}\n\n' + DONE, "error_answer", "cache exhausted"),
        (TWO + "event: error\n\n" + DONE, "error_answer", "broke off with an error"),
        (TWO + framed({"object": "error", "message": "fell over"}) + DONE, "error_answer", "fell over"),
        (TWO + framed({"text": "try later", "error_code": 50001}) + DONE, "error_answer", "50001"),
        (TWO + framed({"errors": ["no memory"]}) + spoken(None, "stop"), "error_answer", "no memory"),
        (TWO + framed({"detail": "no memory", "code": 500}) + DONE, "error_answer", "no memory"),
        (TWO + framed({"choices": [{"error": {"code": 502}}]}) + DONE, "error_answer", "502"),
        (TWO + framed("overloaded") + DONE, "error_answer", "overloaded"),
        (DONE + TWO, "wrong_answer", "holds no text"),
        (spoken("", "stop") + DONE, "wrong_answer", "holds no text"),
        (TWO + framed({"choices": [], "usage": {"completion_tokens": 2.5}}) + DONE, "malformed", "completion_tokens"),
    ],
)  # fmt: skip
def test_a_stream_that_broke_off_is_a_failed_run(
    server: Faulty, stream: str, reason: str, words: str
) -> None:
    target = opened(openai_target(server.url, "m", prompt="Say it", salt=False, **QUICK))
    server.streams = stream
    with pytest.raises(Failure) as failure:
        measured(target)
    assert (failure.value.reason, words in str(failure.value)) == (reason, True), str(failure.value)


SALT = re.compile(r"\d( \d){11}\n")


def prompts(server: Faulty) -> list[str]:
    """What the completions so far were asked for, in order; of messages, the first text of the first one."""
    found = []
    for *_, body in inferences(server):
        asked = json.loads(body)
        content = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
        found.append(content if isinstance(content, str) else content[0].get("text", ""))
    return found


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_each_prompt_is_new_to_the_server_and_the_plain_one_is_beside_it(server: Faulty, api: Any) -> None:
    target = opened(openai_target(server.url, "m", prompt="Say it", api=api, **QUICK))
    for number in range(2):
        if number:
            target.prepare()
        for _ in range(3):
            measured(target)
    asked = prompts(server)
    # The first plain one of all only fills the server's cache.
    assert [text == "Say it" for text in asked] == [True, True, *[False] * 3, True, *[False] * 3]
    salts = [match[0] for text in asked if (match := SALT.match(text))]
    assert len(set(salts)) == 6, "no two are alike"
    assert {text.removeprefix(salt) for text, salt in zip(filter(SALT.match, asked), salts, strict=True)} == {
        "Say it"
    }
    lengths = {headers["content-length"] for _, headers, _ in inferences(server)}
    assert len(lengths) == 2, "of a plain one and of a salted one"
    found = {
        reading.labels: reading.value for reading in target.readings() if reading.metric is openai.FIRST_TOKEN
    }
    assert found.keys() == {("salted",), ("plain",)} and all(0 < value < 1 for value in found.values())
    assert target.environment() == {"openai_prompt": "salted"}


def test_the_output_check_is_of_the_plain_prompt(server: Faulty) -> None:
    """A salted one may have any answer."""
    target = opened(openai_target(server.url, "m", prompt="Say it", **QUICK))
    before = target.values(measured(target)[1])
    server.words = ["Something", " else"]
    assert target.values(measured(target)[1]) == before
    target.prepare()
    assert target.values(measured(target)[1]) != before, "the plain one was asked for anew"


def test_a_salt_stands_before_all_that_is_said(server: Faulty) -> None:
    said = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Say it"}]
    target = opened(openai_target(server.url, "m", messages=said, **QUICK))
    measured(target)
    asked = json.loads(inferences(server)[-1][2])["messages"]
    assert SALT.sub("", asked[0]["content"]) == "Be brief" and asked[1:] == said[1:]
    shown = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    target = opened(openai_target(server.url, "m", messages=shown, **QUICK))
    measured(target)
    assert SALT.fullmatch(prompts(server)[-1])
    for wrong in (
        {"prompt": "x", "api": "completions", "body": {"prompt": [1, 2, 3]}},
        {"messages": [{"role": "assistant", "tool_calls": []}]},
    ):
        with pytest.raises(UsageError, match=r"^salt: .*, or set `salt: false`, which times"):
            openai_target(server.url, "m", **wrong, **QUICK)
        assert openai_target(server.url, "m", **wrong, salt=False, **QUICK)


# Any other ----------------------------------------------------------------------------------------------------------


EXACT = '{"score": 0.5, "labels": ["a", "b"], "more": [[1, 2], [3]]}'
EXPECTATIONS: list[tuple[str, str, dict[str, Any], list[float] | tuple[str, str]]] = [
    ("", "/score?k=1", {"json": {"labels": ["a", "b"]}, "values": ["/more", "/score"]}, [1.0, 2.0, 3.0, 0.5]),
    ("", "/score", {}, []),
    ("", "/score", {"body": EXACT}, [200.0]),
    ("", "/score", {"values": "/none"}, ("wrong_shape", "nothing at `/none`")),
    ("", "/score", {"values": "/labels"}, ("wrong_shape", "something else than numbers at `/labels`")),
    ("", "/score", {"status": 400}, ("error_answer", "not 400")),
    ("wrong_answer", "/score", {"body": EXACT}, ("wrong_answer", 'but: {"score": 0.9')),
    ("error", "/score", {"status": 500}, []),
    ("", "/v2/models/m", {"values": "/scores"}, [1.0, math.nan, math.nan]),
]


@pytest.mark.parametrize(("fault", "path", "expect", "outcome"), EXPECTATIONS)
def test_an_answer_is_what_is_expected_or_a_failed_run(
    server: Faulty, fault: str, path: str, expect: dict[str, Any], outcome: Any
) -> None:
    server.fault, server.model = fault, {"scores": [1.0, None, 3.0]}
    target = opened(http_target(f"{server.url}{path}", expect=expect, **QUICK))
    if isinstance(outcome, list):
        assert target.values(measured(target)[1]) == pytest.approx(outcome, nan_ok=True)
        assert server.requests[-1][0] == f"GET {path} HTTP/1.1"
        return
    with pytest.raises(Failure) as failure:
        target.values(measured(target)[1])
    assert failure.value.reason == outcome[0] and outcome[1] in str(failure.value)


def test_a_body_comes_from_its_file(server: Faulty, tmp_path: Path) -> None:
    body = tmp_path / "request.bin"
    body.write_bytes(bytes(range(256)))
    measured(opened(http_target(server.url, body_file=str(body), **QUICK)))
    assert server.requests[-1][::2] == ("POST / HTTP/1.1", bytes(range(256)))


def reasoned(shows: bool, tokens: int, hidden: int | None) -> float | None:
    """Seconds between tokens of a text in four pieces, one each second, of ``tokens`` as the server counts them."""
    stream = completion.Stream(Server(ServerOptions(url="http://h:1")))
    for number in range(4):
        delta = {"reasoning_content": "hm"} if shows and number < 2 else {"content": "word"}
        stream.take(Event(json.dumps({"choices": [{"delta": delta}]})), 1.0 + number)
    details = {} if hidden is None else {"completion_tokens_details": {"reasoning_tokens": hidden}}
    stream.take(Event(json.dumps({"choices": [], "usage": {"completion_tokens": tokens, **details}})), 5.0)
    stream.take(Event("[DONE]"), 6.0)
    reported = stream.completion()
    assert reported.tokens == tokens
    return reported.between


@pytest.mark.parametrize(
    ("shows", "tokens", "hidden", "between"),
    [
        (False, 4, None, 1.0),
        (False, 4, 0, 1.0),
        (False, 504, 500, 1.0),  # it thought before the first piece, and showed none of it
        (True, 7, 4, 0.5),  # what it thought came as text
        (False, 4, 4, None),  # a count that cannot be: nothing is said of the time between
    ],
)
def test_tokens_that_a_server_keeps_to_itself_are_not_between_two(
    shows: bool, tokens: int, hidden: int | None, between: float | None
) -> None:
    assert reasoned(shows, tokens, hidden) == between
