"""The verdict API, as openapi.yaml beside this file describes it: for rollouts that wait for a verdict.

Every answer is made of what is in memory. What waits gets an answer that pauses it: an error would abort Argo Rollouts,
and a wrong name would be retried for ever.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Annotated

import msgspec
from aiohttp import web

from infercanary.contract.text import all_printable
from infercanary.exporter.rollout import ABORTS, PROMOTES, Question, Verdict, Verdicts, answer
from infercanary.judge.model import ServiceKey

VERDICTS = web.AppKey("verdicts", Verdicts)

PARAMETERS = ("service", "namespace", "canary", "image", "since")
MOST_NAME, MOST_IMAGE = 253, 512  # characters
MOST_BODY = 64 << 10  # bytes
_LIMITS = {"image": MOST_IMAGE}
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
_BODY_SECONDS = 10.0
_encoder = msgspec.json.Encoder(enc_hook=lambda number: number.item())  # of numpy

routes = web.RouteTableDef()


class Mistake(ValueError):
    """What is wrong with a question, in one line."""


class Call(msgspec.Struct, frozen=True):
    """What Flagger posts, as far as it matters; it has more keys in newer versions."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    namespace: Annotated[str, msgspec.Meta(min_length=1)]
    phase: str = ""
    checksum: str = ""
    metadata: dict[str, str] | None = None


def question(given: Iterable[tuple[str, str]]) -> Question:
    """What is asked, out of a query or of a webhook's metadata.

    Args:
        given: Names of parameters, and their values.

    Returns:
        The question; a parameter that is empty is as one that is missing.

    Raises:
        Mistake: One of them is wrong.
    """
    values: dict[str, str] = {}
    for name, value in given:
        if name not in PARAMETERS:
            raise Mistake(f"unknown parameter `{_shown(name)}`; there are {', '.join(PARAMETERS)}")
        if name in values:
            raise Mistake(f"{name}: it is given twice")
        most = _LIMITS.get(name, MOST_NAME)
        if len(value) > most:
            raise Mistake(f"{name}: it has {len(value)} characters; {most} are the most")
        if not value.isprintable():
            raise Mistake(f"{name}: {_shown(value)} has characters that cannot be printed")
        values[name] = value
    if not values.get("service"):
        raise Mistake("service: it is missing; name the service, as the label `service` of the metrics does")
    image, since = values.get("image", ""), values.get("since", "")
    if image and not _IMAGE.fullmatch(image):
        raise Mistake(f"image: {_shown(image)} is no reference, digest or id of an image")
    return Question(
        ServiceKey(values.get("namespace", ""), values["service"]),
        values.get("canary", ""),
        image,
        _unix(since) if since else None,
    )


@routes.get("/api/v1/verdict")
async def verdict(request: web.Request) -> web.Response:
    """The verdict on a service.

    Args:
        request: Its query says which.

    Returns:
        Status 200 with the answer, whatever it is; 400 with what is wrong with the query.
    """
    try:
        asked = question(request.query.items())
    except Mistake as mistake:
        return _refused(mistake)
    return _answered(request, asked, None)


@routes.post("/api/v1/gate")
async def gate(request: web.Request) -> web.Response:
    """Flagger's webhook `confirm-promotion`.

    Args:
        request: Its body is Flagger's.

    Returns:
        Status 200 if the verdict is that nothing became slower, else 412; 400 with what is wrong with the body.
    """
    return await _webhook(request, PROMOTES)


@routes.post("/api/v1/rollback")
async def rollback(request: web.Request) -> web.Response:
    """Flagger's webhook `rollback`.

    Args:
        request: Its body is Flagger's.

    Returns:
        Status 200 if the service regressed, else 412; 400 with what is wrong with the body.
    """
    return await _webhook(request, ABORTS)


@routes.get("/api/v1/openapi.yaml")
async def description(_request: web.Request) -> web.Response:
    """What describes this API.

    Returns:
        OpenAPI, as YAML.
    """
    return web.Response(text=openapi(), content_type="application/yaml")


@cache
def openapi() -> str:
    """The description of the API, which is part of the package.

    Returns:
        YAML.
    """
    return files(__package__).joinpath("openapi.yaml").read_text(encoding="utf-8")


async def _webhook(request: web.Request, passes: frozenset[Verdict]) -> web.Response:
    try:
        body = await asyncio.wait_for(_body(request), _BODY_SECONDS)
        if len(body) > MOST_BODY:
            return web.Response(status=413, text=f"body: it has more than {MOST_BODY} bytes\n")
        call = msgspec.json.decode(body, type=Call)
        asked = question(_parameters(call).items())
    except asyncio.TimeoutError:
        return _refused(f"the body did not come within {_BODY_SECONDS:g} s")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _refused(f"body: {error}; it is to be what Flagger posts")
    except Mistake as mistake:
        return _refused(mistake)
    return _answered(request, asked, passes)


async def _body(request: web.Request) -> bytes:
    """The body, or so much of it that it is seen to be too long.

    Where it is, aiohttp's ``read()`` raises. That keeps the frame, and so the body, until Python's next full
    collection: a caller who sends a megabyte a thousand times a second would take a gigabyte.
    """
    body = bytearray()
    while len(body) <= MOST_BODY and (piece := await request.content.readany()):
        body += piece[: MOST_BODY + 1]
    return bytes(body)


def _parameters(call: Call) -> Mapping[str, str]:
    """What a webhook asks about: its canary's own name and namespace, unless its metadata say otherwise."""
    return {"service": call.name, "namespace": call.namespace, **(call.metadata or {})}


def _answered(request: web.Request, asked: Question, passes: frozenset[Verdict] | None) -> web.Response:
    found = answer(asked, request.app[VERDICTS])
    status = 200 if passes is None or found.verdict in passes else 412
    body = msgspec.json.encode(all_printable(msgspec.json.decode(_encoder.encode(found))))
    return web.Response(status=status, body=body, content_type="application/json")


def _refused(reason: object) -> web.Response:
    return web.Response(status=400, text=f"{reason}\n")


def _unix(text: str) -> float:
    try:
        at: datetime = msgspec.convert(text, Annotated[datetime, msgspec.Meta(tz=True)])
        return at.timestamp()
    except (msgspec.ValidationError, OverflowError, ValueError):
        raise Mistake(f"since: {_shown(text)} is no time as 2026-11-25T14:05:00Z is one") from None


def _shown(text: str) -> str:
    return repr(text[:40])[1:-1] + ("…" if len(text) > 40 else "")
