"""Target for any other HTTP server: sends one fixed request, and checks the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta

from infercanary.command.settings import UsageError
from infercanary.probe.targets import Failure, register
from infercanary.probe.targets.wire.server import (
    ServerOptions,
    document,
    read_file,
    without_secrets,
)
from infercanary.probe.targets.wire.server_target import ServerTarget
from infercanary.probe.targets.wire.tensors import flatten, number_of, spread
from infercanary.probe.timing import Phase

_MAX_BODY_BYTES = 64 << 20


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The expected answer."""

    status: Annotated[int, Meta(ge=200, le=599)] = 200
    body: str | None = None
    """Exact text of the whole body."""
    json: Any = None
    """Expected part of the JSON body: a mapping may have more keys than given here; a list must have the same length.
    """
    values: str | tuple[str, ...] = ()
    """JSON pointers (RFC 6901) to the numbers or lists of numbers that the output check compares."""


class HttpOptions(ServerOptions, frozen=True, kw_only=True):
    """Options of ``target: http``; ``url`` is the whole address."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"] | None = None
    """POST if there is a body, else GET."""
    body: str | None = None
    """Body as text. Give at most one of ``body``, ``body_file`` and ``json``."""
    body_file: str | None = None
    """File that holds the body."""
    json: Any = None
    """Body to send as JSON."""
    expect: Expect = Expect()


@register("http")
class HttpTarget(ServerTarget):
    options_type = HttpOptions
    _options: HttpOptions

    def __init__(self, options: HttpOptions) -> None:
        """Check the options.

        Raises:
            UsageError: An option is invalid.
        """
        super().__init__(options)
        options = self._options
        bodies = [body for body in (options.body, options.body_file, options.json) if body is not None]
        if len(bodies) > 1:
            raise UsageError("body: give only one of body, body_file and json")
        self._method = options.method or ("POST" if bodies else "GET")
        if options.json is None:
            self._headers = {}
        values = options.expect.values
        self._pointers = [_parsed(pointer) for pointer in ((values,) if isinstance(values, str) else values)]

    def open(self) -> None:
        """Read the body, and wait until the server accepts connections.

        Raises:
            UsageError: A file cannot be read.
            Failure: The server cannot be reached, or is not ready in time.
        """
        options = self._options
        if options.json is not None:
            self._body = json.dumps(options.json).encode()
        elif options.body_file is not None:
            self._body = read_file("body_file", options.body_file, _MAX_BODY_BYTES)
        else:
            self._body = (options.body or "").encode()
        super().open()

    def run(self, phase: Phase) -> bytes:
        expect = self._options.expect
        return self._ask(phase, expect.status, f"the answer is not {expect.status}")[1]

    def check(self, result: bytes) -> None:
        """Raise a failure if the answer does not match ``expect``."""
        self.values(result)

    def values(self, result: bytes) -> list[float]:
        """Return the numbers at the pointers in ``expect.values``.

        Without pointers: the expected status; nothing if ``expect`` sets neither ``json`` nor ``body``.
        """
        expect = self._options.expect
        needs_json = expect.json is not None or self._pointers
        answer = document(result, Any, "the answer") if needs_json else None
        if (expect.body is not None and result != expect.body.encode()) or (
            expect.json is not None and not _holds(expect.json, answer)
        ):
            raise Failure(
                "wrong_answer", f"the answer is not as expected: {self._server.excerpt(result, 100)}"
            )
        if not self._pointers:
            return [] if expect.body is None and expect.json is None else [float(expect.status)]
        numbers = [number for pointer in self._pointers for number in _numbers(answer, pointer)]
        return spread(numbers, len(numbers))

    def settings(self) -> dict[str, object]:
        """Return the request without its query, because the query may contain a key."""
        body = sha256(self._body).hexdigest()
        if self._options.json is not None:
            body = without_secrets(self._options.json)
        return {"method": self._method, "path": self._path.partition("?")[0], "body": body}


def _parsed(pointer: str) -> list[str]:
    """Split a JSON pointer into its steps (https://www.rfc-editor.org/rfc/rfc6901)."""
    if pointer and not pointer.startswith("/"):
        raise UsageError(
            f"expect.values: `{pointer}` is not a JSON pointer; write a `/` first, as in /outputs/0"
        )
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _numbers(document: Any, steps: list[str]) -> Iterator[float]:
    """Yield the numbers at a pointer. Raise an error if the value is missing or not a number."""
    shown = "/" + "/".join(steps)
    at = document
    try:
        for step in steps:
            at = at[int(step) if isinstance(at, list) else step]
    except (LookupError, TypeError, ValueError):
        raise Failure("wrong_shape", f"the answer has no value at `{shown}`") from None
    for value in flatten([at]):
        if value is not None and not isinstance(value, (int, float)):
            raise Failure("wrong_shape", f"the answer has no numbers at `{shown}`")
        yield number_of(value)


def _holds(expected: Any, answer: Any) -> bool:
    """True if the answer contains the expected part: the given keys of a mapping, all entries of a list."""
    if isinstance(expected, dict) and isinstance(answer, dict):
        return all(_holds(value, answer.get(str(key), UNSET)) for key, value in expected.items())
    if isinstance(expected, list) and isinstance(answer, list):
        return len(expected) == len(answer) and all(map(_holds, expected, answer))
    return bool(expected == answer) and isinstance(expected, bool) == isinstance(answer, bool)
