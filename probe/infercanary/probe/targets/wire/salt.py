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


def new_salt() -> bytes:
    """Return digits with blanks between them, such as ``3 1 4 1 5 9 2 6 5 3 5 8``, that are new.

    A digit after a blank is one token, or two, whatever stands beside it: tokenizers split text at blanks before they
    merge. So every salt has as many tokens, which a word or a long number would not have.
    """
    return " ".join(f"{secrets.randbelow(10**DIGITS):0{DIGITS}}").encode()


def with_new_salt(request: bytes) -> bytes:
    """Return a request whose body :func:`salted` made, with a new salt; its length is always the same."""
    return request.replace(_PLACE.encode(), new_salt(), 1)


def salted(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a completion with a place for the salt, before all text of its prompt.

    Args:
        body: With ``prompt``, or with ``messages`` as the API has them.

    Raises:
        UsageError: Its prompt has no text at its beginning.
    """
    prompt, messages = body.get("prompt"), body.get("messages")
    if isinstance(prompt, str) and messages is None:
        return {**body, "prompt": _before(prompt)}
    first: Any = messages[0] if isinstance(messages, list) and messages else None
    content = first.get("content") if isinstance(first, dict) else None
    if isinstance(content, str):
        content = _before(content)
    elif isinstance(content, list):
        content = [{"type": "text", "text": _before("")}, *content]
    else:
        raise UsageError(
            "salt: the prompt, or the first message, has no text which a salt could stand before; add it, or set "
            "`salt: false`, which times the server's prefix cache"
        )
    return {**body, "messages": [{**first, "content": content}, *(messages or ())[1:]]}


def _before(text: str) -> str:
    return f"{_PLACE}\n{text}"
