"""Verdict API for rollouts, described in docs/schemas/verdict-api.v1.yaml.

Answers come from memory, not from the store. Without a verdict that counts, the answer is `unknown`, which pauses the
rollout. An error would make Argo Rollouts abort the rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias

import msgspec
from aiohttp import web

from infercanary.command import settings
from infercanary.command.settings import UsageError
from infercanary.contract.text import all_printable
from infercanary.exporter.rollout import ABORTS, PROMOTES, Question, ServiceState, Verdict, answer
from infercanary.judge.model import ServiceKey

PARAMETERS = Question.__struct_fields__
MOST_BODY = 64 << 10
"""Maximum size of a webhook's body in bytes, for aiohttp's ``client_max_size``."""
Memory: TypeAlias = Callable[[ServiceKey], ServiceState]


class Call(msgspec.Struct, frozen=True):
    """Body of Flagger's webhooks; other keys are ignored."""

    name: str
    namespace: str
    metadata: dict[str, str] | None = None


def routes(memory: Memory) -> list[web.RouteDef]:
    """Make the routes of the API: a query, and Flagger's webhooks `confirm-promotion` and `rollback`."""
    return [
        web.get("/api/v1/verdict", partial(_answer, memory, ())),
        web.post("/api/v1/gate", partial(_answer, memory, PROMOTES)),
        web.post("/api/v1/rollback", partial(_answer, memory, ABORTS)),
    ]


async def _answer(memory: Memory, passes: Collection[Verdict], request: web.Request) -> web.Response:
    """Answer with status 200, or with 412 if this is a webhook whose verdict is not in ``passes``."""
    try:
        question = parse(await _posted(request) if passes else request.query)
    except UsageError as error:
        return web.Response(status=400, text=f"{error}\n")
    found = answer(question, memory(ServiceKey(question.namespace, question.service)))
    plain = all_printable(msgspec.to_builtins(found, enc_hook=float))  # float() converts numpy's numbers
    status = 412 if passes and found.verdict not in passes else 200
    return web.Response(status=status, body=msgspec.json.encode(plain), content_type="application/json")


async def _posted(request: web.Request) -> dict[str, str]:
    """Return the parameters in a webhook's body."""
    try:
        call = msgspec.json.decode(await request.read(), type=Call)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"body: {error}; send a webhook body in Flagger's format") from None
    return {"service": call.name, "namespace": call.namespace, **(call.metadata or {})}


def parse(given: Mapping[str, str]) -> Question:
    """Convert the parameters of a query or webhook to a question. An empty parameter counts as missing."""
    if unknown := [name for name in given if name not in PARAMETERS]:
        raise UsageError(settings.unknown_key(unknown[0], PARAMETERS))
    if len(given) > len({*given}):
        raise UsageError(f"a parameter is given twice; give each of {', '.join(given)} once")
    return settings.convert({name: value for name, value in given.items() if value}, Question, "parameters")
