"""The verdict API and its description, held to each other: what the API answers is as described, and what the
description allows is answered, whatever was found and whatever is asked."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
import msgspec
import numpy as np
import pytest
import yaml
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from infercanary.contract.vocabulary import CAUSES
from infercanary.exporter import api
from infercanary.exporter.judging.findings import NOTHING, Findings
from infercanary.exporter.judging.sides import Sides
from infercanary.exporter.rollout import ABORTS, PROMOTES, WORST_FIRST, Answer, ServiceState
from infercanary.judge.model import Generation, ServiceKey
from infercanary.judge.result import STATES, Causes, Result

OPENAPI = cast("dict[str, Any]", yaml.safe_load(api.openapi()))
SCHEMAS = OPENAPI["components"]["schemas"]
PARAMETERS = {
    each["name"]: each["schema"]["$ref"].rpartition("/")[2]
    for each in OPENAPI["paths"]["/api/v1/verdict"]["get"]["parameters"]
}
FORMATS = FormatChecker([])


@FORMATS.checks("date-time")
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or bool(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:[\d.]+Z", value))


def validator(name: str) -> Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": OPENAPI["components"]}
    return Draft202012Validator(schema, format_checker=FORMATS)


ANSWER, CALL = validator("Answer"), validator("Call")


class Memory:
    """What is known; a test sets it."""

    def __init__(self) -> None:
        self.of: dict[ServiceKey, ServiceState] = {}

    def known(self, service: ServiceKey) -> ServiceState:
        return self.of.get(service, ServiceState(NOTHING, ()))

    def services(self) -> list[ServiceKey]:
        return [*self.of]


class Client:
    """The API on a real socket."""

    def __init__(self, url: str, session: aiohttp.ClientSession, memory: Memory) -> None:
        self.url, self.session, self.memory = url, session, memory

    async def get(self, query: str) -> tuple[int, str]:
        async with self.session.get(f"{self.url}/api/v1/verdict?{query}") as response:
            return response.status, await response.text()

    async def post(self, path: str, body: bytes) -> tuple[int, str]:
        async with self.session.post(f"{self.url}/api/v1/{path}", data=body) as response:
            return response.status, await response.text()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    app = web.Application(client_max_size=64 << 10)
    app[api.VERDICTS] = memory = Memory()
    app.add_routes(api.routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        yield Client(f"http://127.0.0.1:{runner.addresses[0][1]}", session, memory)
    await runner.cleanup()


several = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

TEXT = st.text(max_size=30)
NUMBER = st.none() | st.floats(min_value=-1) | st.just(float("nan")) | st.floats(-1, 9).map(np.float64)
BOOTS = [("a", "1"), ("b", "1"), ("x", "1"), ("y", "1")]
JUDGEMENTS = st.builds(
    Result,
    state=st.sampled_from(STATES),
    upgraded_at=st.none() | st.floats(min_value=0, max_value=4e9) | st.floats(),  # a probe may say anything
    shift=NUMBER, low=NUMBER, high=NUMBER,
    baseline_image=TEXT, candidate_image=TEXT,
    causes=st.builds(Causes, cause=st.sampled_from(CAUSES)),
    runs=st.integers(0, 10**6), starts=st.integers(0, 10**4),
)  # fmt: skip
STARTS = [Generation(service="s", container=c, boot_id=b, started_at=0.0, image=f"r/{c}:1") for c, b in BOOTS]
PARTS = st.frozensets(st.sampled_from(BOOTS))
CANARIES = st.dictionaries(
    st.sampled_from(["c", "d", "e é"]), st.tuples(JUDGEMENTS, TEXT, st.builds(Sides, PARTS, PARTS, PARTS))
)
KNOWN = st.builds(
    lambda canaries, running, silent: ServiceState(
        Findings(
            judgements={name: each[0] for name, each in canaries.items()},
            sentences={name: each[1] for name, each in canaries.items()},
            sides={name: each[2] for name, each in canaries.items()},
        ),
        running,
        silent,
    ),
    CANARIES,
    st.lists(st.sampled_from(STARTS)),
    st.lists(TEXT, max_size=9),
)
PRINTABLE = st.characters(categories=["L", "N", "P", "S"])
ALLOWED = {
    "Name": st.text(PRINTABLE, min_size=1, max_size=SCHEMAS["Name"]["maxLength"]),
    "Image": st.from_regex(SCHEMAS["Image"]["pattern"].replace("$", r"\Z"))
    .filter(lambda image: len(image) <= SCHEMAS["Image"]["maxLength"]),
    "Time": st.datetimes().map(lambda at: f"{at.replace(year=1970 + at.year % 200):%Y-%m-%dT%H:%M:%SZ}"),
}  # fmt: skip
ASKED = st.fixed_dictionaries(
    {"service": st.just("s") | ALLOWED["Name"]},
    optional={name: ALLOWED[schema] for name, schema in PARAMETERS.items() if name != "service"},
)


@given(known=KNOWN, asked=ASKED, namespace=st.sampled_from(["", "n"]))
@several
async def test_every_question_that_is_described_has_an_answer_that_is(
    client: Client, known: ServiceState, asked: dict[str, str], namespace: str
) -> None:
    asked = asked if namespace else {name: value for name, value in asked.items() if name != "namespace"}
    client.memory.of = {ServiceKey(asked.get("namespace", ""), "s"): known}
    status, text = await client.get(urlencode(asked))
    assert status == 200, text
    found = json.loads(text)
    ANSWER.validate(found)
    assert (found["service"], found["namespace"]) == (asked["service"], asked.get("namespace", ""))
    # Flagger's form of the same question: a name and a namespace always, and the rest in the metadata.
    rest = {name: value for name, value in asked.items() if name not in ("service", "namespace")}
    in_namespace = asked.get("namespace", "n")
    call = {"name": asked["service"], "namespace": in_namespace, "metadata": rest}
    CALL.validate(call)
    client.memory.of = {ServiceKey(in_namespace, "s"): known}
    for path, passes in (("gate", PROMOTES), ("rollback", ABORTS)):
        status, text = await client.post(path, json.dumps(call).encode())
        shown = json.loads(text)
        ANSWER.validate(shown)
        assert shown["verdict"] == found["verdict"]
        assert status == (200 if shown["verdict"] in passes else 412)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
CALLS = st.dictionaries(
    st.sampled_from(["name", "namespace", "phase", "checksum", "metadata", "canaryWeight"]),
    JSON | st.dictionaries(st.sampled_from([*PARAMETERS, "imgae"]), TEXT | st.just("v:1"), max_size=4),
)


@given(call=CALLS | JSON)
@several
async def test_a_body_that_is_not_described_is_refused_in_one_line(client: Client, call: object) -> None:
    status, text = await client.post("gate", json.dumps(call).encode())
    if status == 412:
        CALL.validate(call)
    else:
        assert status == 400 and re.fullmatch(r"[^\n]+\n", text) and text[:-1].isprintable(), text
    if not CALL.is_valid(call):
        assert status == 400, (call, text)


@given(query=st.dictionaries(st.sampled_from([*PARAMETERS, "imgae", ""]), st.text(max_size=600)))
@several
async def test_any_query_is_answered_or_refused_in_one_line(client: Client, query: dict[str, str]) -> None:
    status, text = await client.get(urlencode(query, errors="surrogatepass"))
    if status == 200:
        ANSWER.validate(json.loads(text))
    else:
        assert status == 400 and re.fullmatch(r"[^\n]+\n", text) and text[:-1].isprintable(), text


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("", "service: it is missing; name the service, as the label `service` of the metrics does"),
        ("service=", "service: it is missing; name the service, as the label `service` of the metrics does"),
        ("service=s&imgae=x", "unknown parameter `imgae`; there are service, namespace, canary, image, since"),
        ("service=s&service=t", "service: it is given twice"),
        ("service=s%0At", r"service: s\nt has characters that cannot be printed"),
        ("service=s&canary=" + "c" * 254, "canary: it has 254 characters; 253 are the most"),
        ("service=s&image=" + "c" * 513, "image: it has 513 characters; 512 are the most"),
        ("service=s&image=a%20b", "image: a b is no reference, digest or id of an image"),
        ("service=s&since=today", "since: today is no time as 2026-11-25T14:05:00Z is one"),
        ("service=s&since=2026-11-25T14:05:00", "since: 2026-11-25T14:05:00 is no time as 2026-11-25T14:05:00Z is one"),
    ],
)  # fmt: skip
async def test_a_mistake_in_a_query_is_named(client: Client, query: str, line: str) -> None:
    assert await client.get(query) == (400, f"{line}\n")


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"", "body: Input data was truncated; it is to be what Flagger posts"),
        (b"{", "body: Input data was truncated; it is to be what Flagger posts"),
        (b"\xff", "body: JSON is malformed: invalid character (byte 0); it is to be what Flagger posts"),
        (b'{"namespace": "n"}', "body: Object missing required field `name`; it is to be what Flagger posts"),
        (b'{"name": "s", "namespace": "n", "deep": ' + b"[" * 5_000,
         "body: maximum recursion depth exceeded while deserializing an object; it is to be what Flagger posts"),
        (b'{"name": 1, "namespace": "n"}',
         "body: Expected `str`, got `int` - at `$.name`; it is to be what Flagger posts"),
        (b'{"name": "s", "namespace": "n", "metadata": {"imgae": "x"}}',
         "unknown parameter `imgae`; there are service, namespace, canary, image, since"),
    ],
)  # fmt: skip
async def test_a_mistake_in_a_body_is_named(client: Client, body: bytes, line: str) -> None:
    assert await client.post("gate", body) == await client.post("rollback", body) == (400, f"{line}\n")


async def test_a_body_is_bounded(client: Client) -> None:
    call = {"name": "s", "namespace": "n", "checksum": "c" * (64 << 10)}
    assert (await client.post("gate", json.dumps(call).encode()))[0] == 413


async def test_a_body_that_is_too_long_takes_no_memory_when_it_was_refused(client: Client) -> None:
    body = b" " * (1 << 20)
    await client.post("gate", body)
    gc.collect()
    gc.disable()  # Python's full collections are minutes apart
    tracemalloc.start()
    try:
        for _ in range(8):
            assert (await client.post("gate", body))[0] == 413
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert kept < 1 << 20


async def test_a_body_that_does_not_come_is_not_waited_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_BODY_SECONDS", 0.05)

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    async with client.session.post(f"{client.url}/api/v1/gate", data=never()) as response:
        assert response.status == 400 and "did not come within" in await response.text()


async def test_what_flagger_posts(client: Client) -> None:
    """Its keys (CanaryWebhookPayload in pkg/apis/flagger/v1beta1/canary.go), and one that a later version may add."""
    posted = {"name": "search", "namespace": "ml", "phase": "WaitingPromotion", "checksum": "85d557f47b"}
    for call in (posted, {**posted, "metadata": None}, {**posted, "metadata": {}, "buildId": 7}):
        CALL.validate(call)
        status, text = await client.post("gate", json.dumps(call).encode())
        assert status == 412 and json.loads(text)["sentence"].startswith(
            "unknown: no such service is known here"
        )


def test_the_description_has_the_words_of_the_code() -> None:
    Draft202012Validator.check_schema(SCHEMAS["Answer"])
    assert SCHEMAS["Verdict"]["enum"] == [*WORST_FIRST]
    assert SCHEMAS["Answer"]["properties"]["cause"]["enum"] == [*CAUSES, None]
    fields = list(msgspec.structs.fields(Answer))
    assert [*SCHEMAS["Answer"]["properties"]] == SCHEMAS["Answer"]["required"] == [f.name for f in fields]
    assert (
        tuple(PARAMETERS) == api.PARAMETERS == tuple(SCHEMAS["Call"]["properties"]["metadata"]["properties"])
    )
    assert SCHEMAS["Name"]["maxLength"] == api.MOST_NAME and SCHEMAS["Image"]["maxLength"] == api.MOST_IMAGE
    served = {(route.method.lower(), route.path) for route in api.routes if isinstance(route, web.RouteDef)}
    described = {(method, path) for path, each in OPENAPI["paths"].items() for method in each}
    assert served - {("get", "/api/v1/openapi.yaml")} == described


async def test_numbers_of_numpy_are_numbers(client: Client) -> None:
    judgement = Result(state="settling", shift=np.float64(0.5), runs=cast("int", np.int64(3)))
    found = Findings(judgements={"c": judgement}, sentences={"c": ""})
    client.memory.of = {ServiceKey("", "s"): ServiceState(found, ())}
    status, text = await client.get("service=s")
    assert status == 200 and (json.loads(text)["shift"], json.loads(text)["runs"]) == (0.5, 3)


async def test_the_description_is_served(client: Client) -> None:
    async with client.session.get(f"{client.url}/api/v1/openapi.yaml") as response:
        assert response.status == 200 and response.content_type == "application/yaml"
        assert yaml.safe_load(await response.text()) == OPENAPI
