"""The target for any other server over HTTP: one fixed request, and what its answer must be."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from infercanary.command.settings import UsageError, convert
from infercanary.probe.targets import Failure, Reading, register
from infercanary.probe.targets.wire.connection import Response
from infercanary.probe.targets.wire.server import ServerOptions, ServerTarget, document, without_secrets
from infercanary.probe.targets.wire.timing_headers import header_readings, recent_headers
from infercanary.probe.timing import Phase

_MAX_VALUES = 1024
_MAX_BODY_BYTES = 64 << 20


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the answer must be."""

    status: Annotated[int, Meta(ge=200, le=599)] = 200
    body: str | None = None
    """The whole body, exactly."""
    json: Any | UnsetType = UNSET
    """A part of the JSON in the body: the keys of a mapping that are given here, and every entry of a list."""
    values: str | tuple[str, ...] = ()
    """JSON pointers (RFC 6901) to numbers, or to lists of numbers: those that the output check compares."""


class HttpOptions(ServerOptions, frozen=True, kw_only=True):
    """The options of ``target: http``; ``url`` is the whole address."""

    method: str | None = None
    """POST where there is a body, else GET."""
    body: str | None = None
    """The body as text; at most one of this, ``body_file`` and ``json``."""
    body_file: str | None = None
    """A file that holds the body."""
    json: Any | UnsetType = UNSET
    """What is sent as JSON."""
    expect: Mapping[str, Any] | None = None
    """What the answer must be: see :class:`Expect`; by default a status of 200."""


@register("http")
class HttpTarget(ServerTarget):
    """Sends one fixed request. Phases: ``connect``, ``send``, ``wait``, ``receive``."""

    options_type = HttpOptions

    def __init__(self, options: HttpOptions) -> None:
        """Check the options.

        Args:
            options: As in the settings.

        Raises:
            UsageError: An option cannot be meant so.
        """
        super().__init__(options)
        method, body, body_file, json = options.method, options.body, options.body_file, options.json
        if sum(given not in (None, UNSET) for given in (body, body_file, json)) > 1:
            raise UsageError("body: give one of body, body_file and json")
        for key, value in {"body": body, "body_file": body_file}.items():
            if not isinstance(value, (str, type(None))):
                raise UsageError(f"{key}: `{value}` is not text; put it in quotes, or use json")
        has_body = body is not None or body_file is not None or json is not UNSET
        self._method = ("POST" if has_body else "GET") if method is None else method
        if not isinstance(self._method, str) or not re.fullmatch(r"[A-Z]{1,16}", self._method):
            raise UsageError(f"method: `{method}` is none; there are GET, POST, PUT, …")
        if self._method in ("CONNECT", "TRACE"):
            raise UsageError(f"method: `{method}` asks for no answer of the server's; use GET or POST")
        self._text, self._file, self._json = body, body_file, json
        self._expect = convert({} if options.expect is None else options.expect, Expect, "expect")
        values = self._expect.values
        self._pointers = [_parsed(pointer) for pointer in ((values,) if isinstance(values, str) else values)]
        self._reads_body = (
            bool(self._pointers) or self._expect.body is not None or self._expect.json is not UNSET
        )
        self._request = self._body = b""
        self._headers = recent_headers()

    def open(self) -> None:
        """Read the body, and wait until the server can be connected to.

        Raises:
            UsageError: A file cannot be read.
            Failure: The server cannot be reached, or is not ready in time.
        """
        self._body = self._read_body()
        self._server.open()
        self._server.until_ready(self._server.connection.reach)
        self._make_request()

    def prepare(self) -> None:
        """Read tokens again, and connect if the server closed the connection; before each run."""
        self._headers = recent_headers()
        self._server.refresh()
        self._make_request()
        self._server.connection.open()

    def run(self, phase: Phase) -> bytes:
        """Make one request; return the body of its answer."""
        answer: Response = self._server.connection.ask(self._method, self._request, phase)
        with phase("receive"):
            body = answer.read()
        if answer.status != self._expect.status:
            self._server.refuse(f"the answer is not {self._expect.status}", answer, body)
        if self._reads_body:
            self._server.require_plain(answer)
        self._headers.append(answer.headers)
        return body

    def check(self, result: bytes) -> None:
        """Require what ``expect`` says."""
        self.values(result)

    def values(self, result: bytes) -> list[float]:
        """Return the numbers that ``expect.values`` points to; without it the status, if a body is expected."""
        expect = self._expect
        if expect.body is not None and result != expect.body.encode():
            said = self._server.excerpt(result, 100)
            raise Failure("wrong_answer", f"the body is not the expected one, but: {said}")
        if expect.json is UNSET and not self._pointers:
            return [] if expect.body is None else [float(expect.status)]
        answer = document(result, Any, "the answer")
        if expect.json is not UNSET and (place := _missing(expect.json, answer)) is not None:
            raise Failure("wrong_answer", f"the answer is not as expected at `{place}`")
        numbers = [number for pointer in self._pointers for number in _numbers(answer, pointer)]
        if not self._pointers:
            return [float(expect.status)]
        chosen = numbers[:: max(1, -(-len(numbers) // _MAX_VALUES))]
        if chosen and not all(map(math.isfinite, numbers)):
            chosen[-1] = math.nan
        return chosen

    def readings(self) -> list[Reading]:
        """Return the server's own times, where its answers' headers report them."""
        return header_readings(self._headers)

    def environment(self) -> dict[str, str]:
        """Report nothing: which server answers is not known."""
        return {}

    def settings(self) -> dict[str, object]:
        """List the request. Its query is left out: it may hold a key."""
        body: object = sha256(self._body).hexdigest()
        if self._json is not UNSET:
            body = without_secrets(self._json)
        path = self._server.path.partition("?")[0]
        return {"method": self._method, "path": path, "body": body}

    def close(self) -> None:
        """Close the connection."""
        self._server.close()
        self._request = self._body = b""

    def _read_body(self) -> bytes:
        if self._json is not UNSET:
            return json.dumps(self._json).encode()
        if self._file is None:
            return (self._text or "").encode()
        try:
            with Path(self._file).open("rb") as file:
                found = file.read(_MAX_BODY_BYTES + 1)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "no path"
            raise UsageError(
                f"body_file: `{self._file}` cannot be read ({why}); check the path (it starts at {Path.cwd()})"
            ) from None
        if len(found) > _MAX_BODY_BYTES:
            raise UsageError(f"body_file: `{self._file}` is larger than {_MAX_BODY_BYTES} bytes; send less")
        return found

    def _make_request(self) -> None:
        headers = {"Content-Type": "application/json"} if self._json is not UNSET else {}
        self._request = self._server.request(self._method, self._server.path, self._body, headers)


def _parsed(pointer: str) -> list[str]:
    """Split a JSON pointer into its steps (https://www.rfc-editor.org/rfc/rfc6901)."""
    if pointer and not pointer.startswith("/"):
        raise UsageError(
            f"expect.values: `{pointer}` is no JSON pointer; it begins with `/`, as in /outputs/0"
        )
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _numbers(document: Any, steps: list[str]) -> Iterator[float]:
    """Yield the numbers that a pointer leads to; anything else is a failure."""
    shown = "/" + "/".join(steps)
    at = document
    for step in steps:
        if isinstance(at, dict) and step in at:
            at = at[step]
        elif isinstance(at, list) and step.isascii() and step.isdigit() and int(step[:9]) < len(at):
            at = at[int(step[:9])]
        else:
            raise Failure("wrong_shape", f"the answer has nothing at `{shown}`")
    stack = [at]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(reversed(value))
        elif value is None:  # how JSON has NaN, where a server is strict
            yield math.nan
        elif isinstance(value, (int, float)):
            yield float(value) if abs(value) < 1e300 else math.inf
        else:
            raise Failure("wrong_shape", f"the answer has something else than numbers at `{shown}`")


def _missing(expected: Any, answer: Any, place: str = "") -> str | None:
    """Return the place where the answer does not hold what is expected, as a JSON pointer; None where it does."""
    if isinstance(expected, dict) and isinstance(answer, dict):
        for key, value in expected.items():
            below = f"{place}/{key}"
            if str(key) not in answer:
                return below
            if (found := _missing(value, answer[str(key)], below)) is not None:
                return found
        return None
    if isinstance(expected, list) and isinstance(answer, list) and len(expected) == len(answer):
        for i, (value, its) in enumerate(zip(expected, answer, strict=True)):
            if (found := _missing(value, its, f"{place}/{i}")) is not None:
                return found
        return None
    same = expected == answer and isinstance(expected, bool) == isinstance(answer, bool)
    return None if same else place or "/"
