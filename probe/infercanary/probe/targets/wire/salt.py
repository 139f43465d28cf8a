"""Makes each prompt new to a server, so that what is timed is its work and not its prefix cache.

A server of language models keeps what it computed for the beginning of a prompt, and a prompt that it knows costs it
next to nothing (https://docs.vllm.ai/en/latest/features/automatic_prefix_caching.html). The salt is the first text of
the request, since such caches share the beginnings of prompts.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from infercanary.command.settings import UsageError

DIGITS = 12
"""Of a salt. Of 10,000 prompts that a cache may hold, two have the same one in 1 of 20,000 cases."""

_PLACE = "-".join("s" * DIGITS)
_FIX = "or set `salt: false`, which times the server's prefix cache"


def salt() -> bytes:
    """Return digits with blanks between them, such as ``3 1 4 1 5 9 2 6 5 3 5 8``, that are new.

    A digit after a blank is one token, or two, whatever stands beside it: tokenizers split text at blanks before they
    merge. So every salt has as many tokens, which a word or a long number would not have.

    Returns:
        ASCII, always of the same length.
    """
    return " ".join(f"{secrets.randbelow(10**DIGITS):0{DIGITS}}").encode()


class SaltedRequest:
    """A request in which a salt can be exchanged without making it anew.

    Args:
        request: All its bytes; they hold what :func:`placed` put into the body.
    """

    def __init__(self, request: bytes) -> None:
        self._head, _, self._tail = request.partition(_PLACE.encode())
        assert self._tail, "placed() comes first"

    def new(self) -> bytes:
        """Return the request with a new salt; its length is always the same."""
        return b"".join((self._head, salt(), self._tail))


def placed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a completion with a place for the salt, before all text of its prompt.

    Args:
        body: With ``prompt``, or with ``messages`` as the API has them.

    Returns:
        A body that is the same otherwise.

    Raises:
        UsageError: Its prompt has no text at its beginning.
    """
    if "messages" not in body:
        if not isinstance(body.get("prompt"), str):
            raise UsageError(
                f"salt: body.prompt is no text, which a salt could stand before; make it text, {_FIX}"
            )
        return {**body, "prompt": _before(body["prompt"])}
    messages = body["messages"]
    first: Any = messages[0] if isinstance(messages, list) and messages else None
    content = first.get("content") if isinstance(first, dict) else None
    if isinstance(content, str):
        content = _before(content)
    elif isinstance(content, list):
        content = [{"type": "text", "text": _before("")}, *content]
    else:
        raise UsageError(
            f"salt: the first message has no content, which a salt could stand before; add it, {_FIX}"
        )
    return {**body, "messages": [{**first, "content": content}, *messages[1:]]}


def _before(text: str) -> str:
    return f"{_PLACE}\n{text}"
