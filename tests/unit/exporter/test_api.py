"""Verdict API: for any findings and any question, the answer follows the schema."""

import json
import re
from typing import Any, cast

import aiohttp
import msgspec
import numpy as np
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker
from multidict import MultiDict

from infercanary.command.settings import UsageError
from infercanary.contract.bounds import LATEST
from infercanary.contract.vocabulary import CAUSES
from infercanary.exporter import api
from infercanary.exporter.judging.findings import NOTHING, Finding, Sides
from infercanary.exporter.rollout import ABORTS, PROMOTES, WORST_FIRST, Answer, ServiceState
from infercanary.judge.model import Generation, ServiceKey
from infercanary.judge.result import STATES, Causes, Result
from tests.programs import ROOT
from tests.scenarios import cases

OPENAPI = cast("dict[str, Any]", yaml.safe_load((ROOT / "docs/schemas/verdict-api.v1.yaml").read_text()))
SCHEMAS = OPENAPI["components"]["schemas"]
PARAMETERS = {
    each["name"]: each["schema"]["$ref"].rpartition("/")[2]
    for each in OPENAPI["paths"]["/api/v1/verdict"]["get"]["parameters"]
}
FORMATS = FormatChecker([])


@FORMATS.checks("date-time")
def _is_time(value):
    return not isinstance(value, str) or bool(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:[\d.]+Z", value))


def validator(name):
    schema = {"$ref": f"#/components/schemas/{name}", "components": OPENAPI["components"]}
    return Draft202012Validator(schema, format_checker=FORMATS)


ANSWER, CALL = validator("Answer"), validator("Call")


class Client:
    def __init__(self, session, known):
        self.session, self.known = session, known

    async def get(self, query):
        return await self.ask("GET", "verdict", params=query)

    async def post(self, path, body):
        return await self.ask("POST", path, data=body)

    async def ask(self, method, path, **asked):
        async with self.session.request(method, f"/api/v1/{path}", **asked) as response:
            return response.status, await response.text()


@pytest.fixture
async def client():
    app, known = web.Application(client_max_size=api.MOST_BODY), dict[ServiceKey, ServiceState]()
    app.add_routes(api.routes(lambda service: known.get(service, ServiceState(NOTHING, ()))))
    async with TestServer(app) as server, aiohttp.ClientSession(server.make_url("/")) as session:
        yield Client(session, known)


several = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

TEXT = st.text(max_size=30)
NUMBER = st.none() | st.floats(min_value=-1) | st.just(float("nan")) | st.floats(-1, 9).map(np.float64)
BOOTS = [("a", "1"), ("b", "1"), ("x", "1"), ("y", "1")]
JUDGEMENTS = st.builds(
    Result,
    state=st.sampled_from(STATES),
    upgraded_at=st.none() | st.floats(min_value=0, max_value=LATEST),
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
        {
            name: Finding(result=result, sentence=said, sides=sides)
            for name, (result, said, sides) in canaries.items()
        },
        running,
        silent,
    ),
    CANARIES,
    st.lists(st.sampled_from(STARTS)),
    st.lists(TEXT, max_size=9),
)
ALLOWED = {
    "Name": st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=256),
    "Image": st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=512),
    "Time": st.datetimes().map(lambda at: f"{at.replace(year=1970 + at.year % 200):%Y-%m-%dT%H:%M:%SZ}"),
}
ASKED = st.fixed_dictionaries(
    {"service": st.just("s") | ALLOWED["Name"]},
    optional={name: ALLOWED[schema] for name, schema in PARAMETERS.items() if name != "service"},
)


@given(known=KNOWN, asked=ASKED)
@several
async def test_every_question_that_is_described_has_an_answer_that_is(client, known, asked):
    asked = {"namespace": "n", **asked}
    client.known |= {ServiceKey(asked["namespace"], "s"): known}
    status, text = await client.get(asked)
    assert status == 200, text
    answer = json.loads(text)
    ANSWER.validate(answer)
    assert (answer["service"], answer["namespace"]) == (asked["service"], asked["namespace"])
    # The same question in Flagger's form: name and namespace as keys, the rest as metadata
    call = {"name": asked.pop("service"), "namespace": asked.pop("namespace"), "metadata": asked}
    CALL.validate(call)
    for path, passes in (("gate", PROMOTES), ("rollback", ABORTS)):
        status, text = await client.post(path, json.dumps(call))
        assert json.loads(text) == answer
        assert status == (200 if answer["verdict"] in passes else 412)


NAMES = [*PARAMETERS, "imgae", ""]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT | st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=5,
)
CALLS = st.dictionaries(st.sampled_from(["name", "namespace", "metadata", "canaryWeight"]), JSON)


@given(query=st.dictionaries(st.sampled_from(NAMES), st.text(max_size=600)), call=CALLS | JSON)
@several
async def test_any_question_is_answered_or_refused_in_one_line(client, query, call):
    status, text = await client.get(
        {key: value.encode("utf-8", "replace").decode() for key, value in query.items()}
    )
    answers = [(status, 200, text)]
    status, text = await client.post("gate", json.dumps(call))
    answers.append((status, 412, text))
    assert status == 400 or CALL.is_valid(call)
    for status, good, text in answers:
        if status == good:
            ANSWER.validate(json.loads(text))
        else:
            assert status == 400 and re.fullmatch(r"[^\n]+\n", text) and text[:-1].isprintable(), text


@cases([
        ({}, "parameters: the required key `service` is missing"),
        ({"service": "s", "imgae": "x"}, "unknown key `imgae`; did you mean `image`? known keys: service, namespace,"),
        ({"service": "s", "image": "a b"}, "parameters: image: expected text matching regex"),
        ({"service": "s", "since": "2026-11-25T14:05:00"}, "parameters: since: expected `datetime` with a timezone"),
    ],
)  # fmt: skip
async def test_a_mistake_in_a_query_is_named(query, line, client):
    status, text = await client.get(query)
    assert status == 400 and text.startswith(line), text
    call = {"name": "s", "namespace": "n", "metadata": query}
    if len(query) > 1:
        assert await client.post("gate", json.dumps(call)) == (400, text)


def test_a_parameter_given_twice_is_a_mistake():
    with pytest.raises(UsageError, match="a parameter is given twice; give each of service once"):
        api.parse(MultiDict([("service", "a"), ("service", "b")]))


async def chunks():
    for _ in range(65):
        yield b" " * 1024


@cases([
        (b"{", 400, "body: Input data was truncated; send a webhook body in Flagger's format"),
        (b"\xff", 400, "body: JSON is malformed: invalid character (byte 0); send"),
        (b'{"namespace": "n"}', 400, "body: Object missing required field `name`; send"),
        (b" " * (1 << 20), 413, "Maximum request body size 65536 exceeded"),
        (chunks, 413, "Maximum request body size 65536 exceeded"),
    ],
)  # fmt: skip
async def test_a_mistake_in_a_body_is_named(body, status, line, client):
    found, text = await client.post("rollback", body() if callable(body) else body)
    assert found == status and text.startswith(line) and text.count("\n") <= 1, text


async def test_requests_of_flagger(client):
    """The requests have Flagger's keys (CanaryWebhookPayload in pkg/apis/flagger/v1beta1/canary.go), and a
    future key.
    """
    posted = {"name": "search", "namespace": "ml", "phase": "WaitingPromotion", "checksum": "85d557f47b"}
    for call in (posted, {**posted, "metadata": None}, {**posted, "metadata": {}, "buildId": 7}):
        CALL.validate(call)
        status, text = await client.post("gate", json.dumps(call))
        assert status == 412
        assert json.loads(text)["sentence"].startswith("unknown: the service is unknown")


def test_the_description_has_the_words_of_the_code():
    Draft202012Validator.check_schema(SCHEMAS["Answer"])
    assert SCHEMAS["Verdict"]["enum"] == [*WORST_FIRST]
    assert SCHEMAS["Answer"]["properties"]["cause"]["enum"] == [*CAUSES, None]
    fields = list(msgspec.structs.fields(Answer))
    assert [*SCHEMAS["Answer"]["properties"]] == SCHEMAS["Answer"]["required"] == [f.name for f in fields]
    assert (
        tuple(PARAMETERS) == api.PARAMETERS == tuple(SCHEMAS["Call"]["properties"]["metadata"]["properties"])
    )
    served = {(route.method.lower(), route.path) for route in api.routes(lambda _: ServiceState(NOTHING, ()))}
    assert served == {(method, path) for path, each in OPENAPI["paths"].items() for method in each}
