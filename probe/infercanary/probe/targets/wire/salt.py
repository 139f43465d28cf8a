"""Makes each prompt new to a server, so that the prefix cache does not shorten the timed work.

A server of language models caches its results for the beginning of a prompt, so a known prompt costs almost no time
(https://docs.vllm.ai/en/latest/features/automatic_prefix_caching.html). The salt is the first text of the request,
because prompts share cached results only up to their first difference.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from infercanary.command.settings import UsageError

DIGITS = 12
"""Number of digits in a salt. In a cache with 10,000 prompts, two salts are equal with a probability of 1 in 20,000."""

_PLACE = "-".join("s" * DIGITS)


def new_salt() -> bytes:
    """Return random digits separated by blanks, such as ``3 1 4 1 5 9 2 6 5 3 5 8``.

    A digit after a blank is always one token, or always two, because tokenizers split text at blanks before they
    merge characters. So every salt has the same number of tokens, unlike words or a long number.
    """
    return " ".join(f"{secrets.randbelow(10**DIGITS):0{DIGITS}}").encode()


def with_new_salt(request: bytes) -> bytes:
    """Put a new salt into a request with a body from :func:`salted`. The length does not change."""
    return request.replace(_PLACE.encode(), new_salt(), 1)


def salted(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a completion with a place for the salt before all text of the prompt.

    Args:
        body: Body with ``prompt``, or with ``messages`` in the API's format.

    Raises:
        UsageError: The prompt has no text at its beginning.
    """
    content: str | list[Any]
    match body:
        case {"messages": [{"content": str(text)} as first, *rest]}:
            content = _before(text)
        case {"messages": [{"content": list(parts)} as first, *rest]}:
            content = [{"type": "text", "text": _before("")}, *parts]
        case {"prompt": str(text)}:
            return {**body, "prompt": _before(text)}
        case _:
            raise UsageError(
                "salt: the prompt, or the first message, has no text, so there is no place for a salt; add text, or "
                "set `salt: false`, which times the server's prefix cache"
            )
    return {**body, "messages": [{**first, "content": content}, *rest]}


def _before(text: str) -> str:
    return f"{_PLACE}\n{text}"
