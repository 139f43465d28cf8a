"""Targets of servers: sent bytes, connections, and secrets that must never appear in any text."""

import json
import re
import shutil
import socket
import ssl
import struct
import time
from typing import Any

import pytest
from faulty import INPUT, OUTPUT, Faulty, full_backlog
from server_targets import fails, http_target, kserve_target, measured, openai_target, opened, values_of

from infercanary.command.settings import UsageError
from infercanary.probe.targets import Failure
from infercanary.probe.targets.wire import completion
from infercanary.probe.targets.wire.connection import Connection
from tests.integration.exporter.processes import certificate

QUICK = {"timeout_seconds": 5, "ready_seconds": 0}


def kserve(server, **options):
    return opened(kserve_target(server.url, "double", **QUICK | options))


def openai(server, **options):
    said = {} if "messages" in options else {"prompt": "Say it"}
    return opened(openai_target(server.url, "m", **QUICK | said | options))


def asked(server):
    return [json.loads(body) for line, _, body in server.requests if line.startswith("POST")]


def reported(target):
    return {reading.labels: reading.value for reading in target.readings()}


# Connections --------------------------------------------------------------------------------------------------------


def test_one_connection_is_kept_and_made_before_what_is_timed(server):
    target = kserve(server)
    timings = [measured(target)[0] for _ in range(5)]
    target.prepare()
    timings.append(measured(target)[0])
    assert server.connections == 1
    assert {(*timing.phases,) for timing in timings} == {("send", "wait", "receive")}
    assert all(sum(timing.phases.values()) <= timing.wall for timing in timings)
    each = opened(http_target(server.url, keep_alive=False, **QUICK))
    for _ in range(3):
        assert set(measured(each)[0].phases) == {"connect", "send", "wait", "receive"}
    assert server.connections == 1 + 4, "four inferences and one check of the server"
    assert all(headers["connection"] == "close" for _, headers, _ in server.requests[-3:])


def test_parsing_after_the_last_byte_is_in_no_latency(server, monkeypatch):
    target, read_event = opened(http_target(f"{server.url}/score", **QUICK)), Connection._next_event

    def read_slowly(connection):
        time.sleep(0.1)
        return read_event(connection)

    monkeypatch.setattr(Connection, "_next_event", read_slowly)
    timing, _ = target.clock.measure(target.run)
    assert 0 <= sum(timing.phases.values()) <= timing.wall < 0.1
    assert timing.phases["receive"] == 0, "head and body arrive in one packet"


def test_an_address_from_which_nothing_comes_back_leaves_time_for_the_next(server, monkeypatch):
    """Simulates a network that drops IPv6: the listener's queue is full, so the kernel drops new connections."""
    with full_backlog() as dead:
        ports, really = (dead, server.port), socket.getaddrinfo
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)) for port in ports]

        def look_up(host, *more, **options):
            return found if host == "two-addresses" else really(host, *more, **options)

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        target = opened(http_target("http://two-addresses/score", timeout_seconds=2))
        assert measured(target)[1].startswith(b"{")
        target.close()


def test_tls_with_a_certificate_that_is_trusted_or_is_not(server, tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    pem = str(certificate(tmp_path, "server"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, tmp_path / "server.key")
    with Faulty(tls=context) as trusted:
        target = kserve(trusted, ca_file=pem)
        for _ in range(3):
            timing, result = measured(target)
            assert "connect" not in timing.phases
            assert len(target.values(result)) == 4
        assert trusted.connections == 1
        fresh = opened(http_target(trusted.url, ca_file=pem, keep_alive=False, **QUICK))
        assert "connect" in measured(fresh)[0].phases
        with fails("unreachable", "the server's certificate is not trusted (", "; ca_file)"):
            http_target(trusted.url, **QUICK).open()
    with pytest.raises(UsageError, match=r"ca_file: `/no/such\.pem` cannot be read"):
        http_target("https://127.0.0.1:1", ca_file="/no/such.pem").open()


# Headers ------------------------------------------------------------------------------------------------------------


def test_a_token_comes_from_its_file_at_each_run_and_shows_nowhere(server, tmp_path):
    token = tmp_path / "token"
    token.write_text("first-token-4711\n")
    headers = {"Authorization": {"file": str(token), "prefix": "Bearer "}, "X-Tenant": "search"}
    target = kserve(server, headers=headers)
    measured(target)
    sent = server.requests[-1][1]
    assert (sent["authorization"], sent["x-tenant"]) == ("Bearer first-token-4711", "search")
    token.write_text("wrong-token-4711")
    target.prepare()
    with pytest.raises(Failure, match=r"401 Status: .* Bearer \*\*\*") as failure:
        measured(target)
    assert "4711" not in str(failure.value)


@pytest.mark.parametrize(
    "content", [None, "", "a\nb", "x" * 70_000], ids=["missing", "empty", "lines", "large"]
)
def test_a_file_that_holds_no_token(tmp_path, content):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    target = http_target("http://127.0.0.1:1", headers={"Authorization": {"file": str(path)}}, **QUICK)
    with pytest.raises(UsageError, match=rf"^headers.Authorization: `{path}` "):
        target.open()


# Open Inference Protocol --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("binary", [True, False, None])
def test_tensors_go_and_come_in_either_encoding(server, binary):
    target = kserve(server, binary=binary, seed=3)
    values = values_of(target)
    line, headers, body = server.requests[-1]
    assert line == "POST /v2/models/double/infer HTTP/1.1"
    if binary is False:
        sent = json.loads(body)["inputs"][0]["data"]
        assert json.loads(body)["inputs"] == [INPUT | {"data": sent}]
        assert headers["content-type"] == "application/json"
    else:
        head = json.loads(body[: int(headers["inference-header-content-length"])])
        assert head["parameters"] == {"binary_data_output": True}
        sent = list(struct.unpack("<4f", body[-16:]))
    assert values == pytest.approx([2 * value for value in sent], rel=1e-6)
    assert target.environment() == {
        "kserve_server": "faulty 1", "kserve_platform": "test", "kserve_model_versions": "1",
        "kserve_tensors": "json" if binary is False else "binary",
    }  # fmt: skip


def test_a_server_behind_a_path_with_a_version_and_an_odd_name(server):
    measured(opened(kserve_target(f"{server.url}/gate/", "a b/ü", version=7, **QUICK)))
    assert server.requests[-1][0] == "POST /gate/v2/models/a%20b%2F%C3%BC/versions/7/infer HTTP/1.1"


def test_the_servers_own_times_are_those_of_the_run(server):
    target = kserve(server)
    for _ in range(3):
        measured(target)
    assert reported(target) == {("queue",): pytest.approx(1e-6), ("compute_infer",): pytest.approx(5e-6)}
    target.prepare()
    assert target.readings() == [], "no request was sent meanwhile"
    server.fault = "no_stats"
    target.prepare()
    assert measured(target)[1] and target.readings() == [], "the run does not need the readings"


def test_what_a_server_says_of_its_model_and_how_it_serves_it(server):
    server.model["versions"] = None
    assert kserve(server).identity() == "server: double faulty 1", (
        "without a model version, the server's version is used"
    )
    server.extensions.append("model_configuration")
    assert "kserve_instances" not in kserve(server).environment()
    server.model["versions"] = ["2", "3"]
    server.config = {
        "max_batch_size": 8, "instance_group": [{"count": 2, "kind": "KIND_CPU"}, {"count": 1, "kind": "KIND_GPU"}],
        "dynamic_batching": {"max_queue_delay_microseconds": 500},
    }  # fmt: skip
    target = kserve(server)
    assert target.identity() == "server: double version 2 3"
    found = [target.environment()[f"kserve_{name}"] for name in ("instances", "max_batch_size", "batching")]
    assert found == ["2 CPU + 1 GPU", "8", "waits 500 µs"]
    del server.config["dynamic_batching"]
    assert kserve(server).environment()["kserve_batching"] == "off"


def test_identity_from_a_list_of_models(server):
    target = openai(server)
    assert target.identity() == "", "the model is not in the list"
    listed = {"id": "m", "root": "/models/m-7b", "meta": {"n_params": 7, "size": 9, "n_ctx": 1}}
    for created in (1, 2):  # most servers report the time of the request
        server.models = [{"id": "other"}, {**listed, "created": created}]
        assert target.identity() == "server: m, root /models/m-7b, n_params 7, size 9"
    server.models = [{"id": "m", "root": "m", "meta": None}]
    assert target.identity() == "server: m"
    server.fault = "loading"
    with pytest.raises(Failure, match="503"):
        target.identity()


@pytest.mark.parametrize("kind", ["http", "kserve"])
def test_the_servers_own_times_in_the_heads_of_its_answers(server, kind):
    server.extensions = ["binary_tensor_data"]
    server.heads = ["x-queue-time: 1.5", "x-inference-time: 18"]
    target = opened(http_target(f"{server.url}/score", **QUICK)) if kind == "http" else kserve(server)
    for milliseconds in (4, 2, 3):
        server.heads[1] = f"x-inference-time: {milliseconds}"
        measured(target)
    assert reported(target) == {("queue",): 0.0015, ("inference",): 0.003}
    target.prepare()
    assert target.readings() == []


# Inputs in the settings, inputs declared by the server (`X` is INPUT), and the message
NO_INPUTS = r"""
null | [] | inputs: the server does not report the inputs of `double`
null | [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}] | inputs[0].shape: the server reports [-1, 4] of `x`
[{"dtype": "float32"}] | [X] | inputs[0].dtype: `x` needs one of BYTES, BOOL
[{}] | [{"name": "x", "datatype": "FP7", "shape": [4]}] | inputs[0].dtype: `x` needs one of
[{}] | [{"name": "x", "datatype": "BYTES", "shape": [4]}] | inputs[0]: text cannot be drawn
[{"name": "z"}] | [X] | inputs[0].name: `z` is no input of the model, which has x
[{}, {}] | [X] | inputs[1].name: `` is no input
[{"name": "x", "shape": [2]}] | null | inputs[0].dtype: `x` needs one of
[{"data": [1, 2, 3]}] | [X] | inputs[0].data: 3 values
[{"data": [1, 2, 3, "four"]}] | [X] | inputs[0].data: not all values are FP32
[{"data": [1, 2, 3, 300], "dtype": "UINT8"}] | [X] | inputs[0].data: not all values are UINT8
[{"shape": [4096, 4097]}] | [X] | inputs[0].shape: 16781312 elements
"""


@pytest.mark.parametrize("row", NO_INPUTS.strip().splitlines())
def test_inputs_that_cannot_be_made(server, row):
    inputs, declared, words = row.replace("[X]", json.dumps([INPUT])).split(" | ")
    server.model["inputs"] = json.loads(declared)
    with pytest.raises(UsageError, match=f"^{re.escape(words)}"):
        kserve(server, inputs=json.loads(inputs))


def test_inputs_that_the_user_gives(server):
    server.model |= {"inputs": [INPUT | {"shape": [-1, 4]}], "outputs": [OUTPUT | {"shape": [-1, -1]}]}
    given = {"shape": [1, 4], "data": [[1.5, 2], [3, 4]], "parameters": {"content_type": "np"}}
    target = kserve(server, inputs=[given], binary=False)
    assert values_of(target) == [3.0, 4.0, 6.0, 8.0]
    assert asked(server)[-1]["inputs"][0]["parameters"] == {"content_type": "np"}
    server.fault = "wrong_shape"  # the metadata leave the shape open, so the first answer defines the shape
    with fails("wrong_shape", "FP32 [1, 3], but FP32 [1, 4]"):
        values_of(target)


# OpenAI -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("api", "has_usage"), [("chat", True), ("completions", False)])
def test_a_stream_is_timed_to_its_first_token_and_between_tokens(server, api, has_usage):
    server.has_usage = has_usage
    target = openai(server, api=api, max_tokens=4, seed=7, salt=False)
    timing, found = measured(target)
    assert (found.text, found.tokens, target.output_tokens) == ("Once upon a time", 4, 4)
    phases = timing.phases
    assert set(phases) == {"send", "first_token", "tokens"}
    assert sum(phases.values()) <= timing.wall
    # The server waits 2 ms before each event. The kernel decides which part of this wait comes before the end
    # of `send`.
    before, last = (2, 6) if api == "chat" else (1, 5)
    assert phases["send"] + phases["first_token"] >= 0.002 * before
    assert timing.wall >= 0.002 * last
    assert 0 < found.between <= (timing.wall - phases["send"]) / 3
    assert reported(target) == {(): found.between, ("plain",): found.first}
    assert found.first == pytest.approx(phases["send"] + phases["first_token"], rel=0.2, abs=0.001)
    assert target.environment() == {}
    chat = {"messages": [{"role": "user", "content": "Say it"}]}
    assert server.requests[-1][0] == f"POST /v1/{'chat/' * (api == 'chat')}completions HTTP/1.1"
    assert asked(server)[-1] == {
        "model": "m", **(chat if api == "chat" else {"prompt": "Say it"}), "max_tokens": 4, "temperature": 0, "seed": 7,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip


def stream(text):
    """Parse events: ``=stop`` and ``D`` are ends; ``{…}`` is a frame, ``!…`` bytes."""
    made = ""
    for part in text.split("|"):
        said: dict[str, Any] = {"delta": {"content": part}}
        if part.startswith("="):
            said = {"delta": {}, "finish_reason": part[1:]}
        frame = {"object": "chat.completion.chunk", "choices": [said]}
        data = {"D": "[DONE]"}.get(part) or (part if part.startswith(("{", '"')) else json.dumps(frame))
        made += part[1:] if part.startswith("!") else f"data: {data}\n\n"
    return made


# Events as above, then tokens and text of the completion, or the reason of the failure with these words
STREAMS = r"""
Once| upon|=stop => 2 Once upon
Once| upon|D => 2 Once upon
Once| upon|!data: [DONE]\r\n\r\n => 2 Once upon
{"choices": [{"delta": {"content": "Once"}, "finish_reason": ""}]}|{"choices": [{"delta": {"content": "Once"},\
 "finish_reason": "null"}]}|D => 2 OnceOnce
Once| upon|=stop|{"choices": null, "usage": {"completion_tokens": 9}} => 9 Once upon
Once| upon|=stop|{"choices": [], "usage": {"completion_tokens": 9.0}} => 9 Once upon
Once| upon|{"error": null, "error_code": 0, "choices": []}|D => 2 Once upon
Once| upon|!event: ping\n\n|{"type": "ping"}|=stop => 2 Once upon
Once| upon|D|{"choices": [], "usage": {"completion_tokens": 9}} => 2 Once upon
Once| upon|=abort|D => incomplete `abort`
Once| upon|=error|D => incomplete `error`
Once| upon|=None|D => incomplete `None`
Once| upon|{"choices": [{"delta": {}, "finish_reason": {"type": "abort"}}]} => incomplete abort
Once| upon => incomplete ended
Once| upon|!data: {"choices": [{"delta": {}, "finish => incomplete ended
{"choices": [{"delta": {"content": "Once"}, "finish_reason": ""}]} => incomplete ended
Once| upon|!event: error\ndata: {"message": "cache exhausted"} => incomplete ended
Once| upon|!event: error\n\n|D => error_answer error
Once| upon|{"object": "error", "message": "fell over"}|D => error_answer fell over
Once| upon|{"text": "try later", "error_code": 50001}|D => error_answer 50001
Once| upon|{"errors": ["no memory"]}|=stop => error_answer no memory
Once| upon|{"detail": "no memory", "code": 500}|D => error_answer no memory
Once| upon|{"choices": [{"error": {"code": 502}}]}|D => error_answer 502
Once| upon|"overloaded"|D => error_answer overloaded
D|Once| upon => wrong_answer no text
=stop|D => wrong_answer no text
Once| upon|=stop|{"choices": [], "usage": {"completion_tokens": 2.5}} => malformed completion_tokens
"""
ENDS = [f"Once| upon|={end}|D => 2 Once upon" for end in sorted(completion._ENDS)]


@pytest.mark.parametrize("row", [*ENDS, *STREAMS.strip().replace("\\\n", "").splitlines()])
def test_a_stream_is_whole_or_a_failed_run(server, row):
    events, _, outcome = row.partition(" => ")
    first, _, rest = outcome.partition(" ")
    target = openai(server, salt=False)
    server.streams = stream(events.replace(r"\r", "\r").replace(r"\n", "\n"))
    if first.isdigit():
        found = measured(target)[1]
        assert (found.tokens, found.text) == (int(first), rest)
        return
    with fails(first, rest):
        measured(target)


SALT = re.compile(r"\d( \d){11}\n")


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_each_prompt_is_new_to_the_server_and_the_plain_one_is_beside_it(server, api):
    target = openai(server, api=api)
    for number in range(2):
        if number:
            target.prepare()
        for _ in range(3):
            measured(target)
    prompts = [body["messages"][0]["content"] if api == "chat" else body["prompt"] for body in asked(server)]
    # The very first plain prompt only fills the server's cache.
    assert [text == "Say it" for text in prompts] == [True, True, *[False] * 3, True, *[False] * 3]
    salted = [text for text in prompts if SALT.match(text)]
    assert len(set(salted)) == 6, "two salted prompts are equal"
    assert {SALT.sub("", text) for text in salted} == {"Say it"}
    assert len({headers["content-length"] for _, headers, _ in server.requests[-9:]}) == 2, (
        "plain and salted prompts have two lengths"
    )
    found = reported(target)
    assert all(0 < found[prompt,] < 1 for prompt in ("salted", "plain"))
    assert target.environment() == {"openai_prompt": "salted"}


def test_the_output_check_is_of_text_and_count_of_the_plain_prompt(server):
    """Only the plain prompt has a fixed output; the output of a salted prompt may vary."""
    target = openai(server)
    found = [values_of(target)]
    for words in (["Twice", " upon", " a", " time"], ["Twice", " upon", " a time"]):
        server.words = words
        assert values_of(target) == found[-1]
        target.prepare()
        found.append(values_of(target))
    assert found[0] != found[1] != found[2]
    assert target.output_tokens == 3


def test_a_salt_stands_before_all_that_is_said(server):
    said = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Say it"}]
    measured(openai(server, messages=said, body={"ignore_eos": True}))
    messages = asked(server)[-1]["messages"]
    assert SALT.sub("", messages[0]["content"]) == "Be brief"
    assert messages[1:] == said[1:]
    assert asked(server)[-1]["ignore_eos"] is True
    shown = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    measured(openai(server, messages=shown))
    assert SALT.fullmatch(asked(server)[-1]["messages"][0]["content"][0]["text"])
    for wrong in (
        {"prompt": "x", "api": "completions", "body": {"prompt": [1, 2, 3]}},
        {"messages": [{"role": "assistant", "tool_calls": []}]},
    ):
        with pytest.raises(UsageError, match=r"^salt: .*, or set `salt: false`, which times"):
            openai(server, **wrong)
        assert openai_target(server.url, "m", **wrong, salt=False, **QUICK)


# Any HTTP server ----------------------------------------------------------------------------------------------------


EXACT = '{"score": 0.5, "labels": ["a", "b"], "more": [[1, 2], [3]]}'
# Columns: fault of the server, path of the request, expected parts of the latency, and values or reason of failure
EXPECTED = r"""
 | /score?k=1 | {"json": {"labels": ["a", "b"]}, "values": ["/more", "/score"]} | [1.0, 2.0, 3.0, 0.5]
 | /score | {} | []
 | /score | {"body": EXACT} | [200.0]
 | /score | {"values": "/none"} | "wrong_shape"
 | /score | {"values": "/labels"} | "wrong_shape"
 | /score | {"status": 400} | "error_answer"
wrong_answer | /score | {"body": EXACT} | "wrong_answer"
error | /score | {"status": 500} | []
 | /v2/models/m | {"values": "/scores"} | [1.0, NaN, NaN]
"""


@pytest.mark.parametrize("row", EXPECTED.strip("\n").splitlines())
def test_an_answer_is_what_is_expected_or_a_failed_run(server, row):
    server.fault, path, expect, outcome = row.replace("EXACT", json.dumps(EXACT)).split(" | ")
    server.model = {"scores": [1.0, None, 3.0]}
    target = opened(http_target(f"{server.url}{path}", expect=json.loads(expect), **QUICK))
    expected = json.loads(outcome)
    if isinstance(expected, list):
        assert values_of(target) == pytest.approx(expected, nan_ok=True)
        assert server.requests[-1][0] == f"GET {path} HTTP/1.1"
        return
    with fails(expected):
        values_of(target)


def test_a_body_comes_from_its_file(server, tmp_path):
    (tmp_path / "request.bin").write_bytes(bytes(range(256)))
    measured(opened(http_target(server.url, body_file=str(tmp_path / "request.bin"), **QUICK)))
    assert server.requests[-1][::2] == ("POST / HTTP/1.1", bytes(range(256)))
