"""Verdict API for rollouts; docs/schemas/verdict-api.yaml describes it.

Every answer is made from memory. A verdict that does not count yet gets an answer that pauses a rollout: an error would
abort Argo Rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
from aiohttp import web

from infercanary.command import settings
from infercanary.command.settings import UsageError
from infercanary.contract.text import all_printable
from infercanary.exporter.rollout import ABORTS, PROMOTES, Question, ServiceState, answer
from infercanary.judge.model import ServiceKey

SERVICE_STATE: web.AppKey[Callable[[ServiceKey], ServiceState]] = web.AppKey("service state")
PARAMETERS = Question.__struct_fields__
MOST_BODY = 64 << 10  # bytes

routes = web.RouteTableDef()


class Call(msgspec.Struct, frozen=True):
    """Body of Flagger's webhooks; other keys are passed over."""

    name: str
    namespace: str
    metadata: dict[str, str] | None = None


@routes.get("/api/v1/verdict")
async def verdict(request: web.Request) -> web.Response:
    """Return the verdict on a service with status 200, or 400 with the mistake in the query."""
    return _answer(request, request.query)


@routes.post("/api/v1/gate")
async def gate(request: web.Request) -> web.Response:
    """Flagger's webhook `confirm-promotion`: 200 if nothing became slower, else 412."""
    return await _webhook(request, PROMOTES)


@routes.post("/api/v1/rollback")
async def rollback(request: web.Request) -> web.Response:
    """Flagger's webhook `rollback`: 200 if the service regressed, else 412."""
    return await _webhook(request, ABORTS)


async def _webhook(request: web.Request, passes: Collection[str]) -> web.Response:
    # aiohttp's own 413 keeps the body until Python's next full collection, which is rare.
    if not 0 < (request.content_length or 0) <= MOST_BODY:
        return web.Response(status=413, text=f"body: it needs a Content-Length of 1 to {MOST_BODY}\n")
    try:
        call = msgspec.json.decode(await request.read(), type=Call)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return web.Response(status=400, text=f"body: {error}; post what Flagger posts\n")
    given = {"service": call.name, "namespace": call.namespace, **(call.metadata or {})}
    return _answer(request, given, passes)


def _answer(
    request: web.Request, given: Mapping[str, str], passes: Collection[str] | None = None
) -> web.Response:
    try:
        question = parse(given)
    except UsageError as error:
        return web.Response(status=400, text=f"{error}\n")
    found = answer(question, request.app[SERVICE_STATE](ServiceKey(question.namespace, question.service)))
    plain = all_printable(msgspec.to_builtins(found, enc_hook=_number))
    status = 200 if passes is None or found.verdict in passes else 412
    return web.Response(status=status, body=msgspec.json.encode(plain), content_type="application/json")


def parse(given: Mapping[str, str]) -> Question:
    """Convert parameters; an empty one counts as missing."""
    if unknown := [name for name in given if name not in PARAMETERS]:
        raise UsageError(settings.unknown_key(unknown[0], PARAMETERS))
    return settings.convert({name: value for name, value in given.items() if value}, Question, "question")


def _number(number: Any) -> Any:
    """Convert a number of numpy."""
    return number.item()
