"""Verdict API for rollouts; docs/schemas/verdict-api.yaml describes it.

Every answer is made from memory. A verdict that does not count yet gets an answer that pauses a rollout: an error would
abort Argo Rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, TypeAlias

import msgspec
from aiohttp import web

from infercanary.command import settings
from infercanary.command.settings import UsageError
from infercanary.contract.text import all_printable
from infercanary.exporter.rollout import ABORTS, PROMOTES, Question, ServiceState, answer
from infercanary.judge.model import ServiceKey

PARAMETERS = Question.__struct_fields__
MOST_BODY = 64 << 10  # bytes
Memory: TypeAlias = Callable[[ServiceKey], ServiceState]


class Call(msgspec.Struct, frozen=True):
    """Body of Flagger's webhooks; other keys are passed over."""

    name: str
    namespace: str
    metadata: dict[str, str] | None = None


def routes(memory: Memory) -> list[web.RouteDef]:
    """Make the routes of the API: a query, and Flagger's webhooks `confirm-promotion` and `rollback`."""
    return [
        web.get("/api/v1/verdict", partial(_answer_query, memory)),
        web.post("/api/v1/gate", partial(_answer_webhook, memory, PROMOTES)),
        web.post("/api/v1/rollback", partial(_answer_webhook, memory, ABORTS)),
    ]


async def _answer_query(memory: Memory, request: web.Request) -> web.Response:
    return _answer(memory, request.query)


async def _answer_webhook(memory: Memory, passes: Collection[str], request: web.Request) -> web.Response:
    """Answer 200 to a verdict that passes, and 412 to all others."""
    # aiohttp's own 413 keeps the body until Python's next full collection, which is rare.
    if not 0 < (request.content_length or 0) <= MOST_BODY:
        return web.Response(status=413, text=f"body: it needs a Content-Length of 1 to {MOST_BODY}\n")
    try:
        call = msgspec.json.decode(await request.read(), type=Call)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return web.Response(status=400, text=f"body: {error}; post what Flagger posts\n")
    given = {"service": call.name, "namespace": call.namespace, **(call.metadata or {})}
    return _answer(memory, given, passes)


def _answer(memory: Memory, given: Mapping[str, str], passes: Collection[str] | None = None) -> web.Response:
    try:
        question = parse(given)
    except UsageError as error:
        return web.Response(status=400, text=f"{error}\n")
    found = answer(question, memory(ServiceKey(question.namespace, question.service)))
    plain = all_printable(msgspec.to_builtins(found, enc_hook=_number))
    status = 200 if passes is None or found.verdict in passes else 412
    return web.Response(status=status, body=msgspec.json.encode(plain), content_type="application/json")


def parse(given: Mapping[str, str]) -> Question:
    """Convert the parameters of a question; an empty one counts as missing."""
    if unknown := [name for name in given if name not in PARAMETERS]:
        raise UsageError(settings.unknown_key(unknown[0], PARAMETERS))
    return settings.convert({name: value for name, value in given.items() if value}, Question, "question")


def _number(number: Any) -> Any:
    """Convert a number of numpy."""
    return number.item()
