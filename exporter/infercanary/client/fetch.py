"""Download of one probe's report by a small HTTP client.

A probe is untrusted, and all polls share the event loop with the scrapes. So this module collects bytes at most every
10 ms, and parses only the parts of HTTP that a probe needs. Many small packets or lines then cost no more CPU time than
one large packet. A chunked body is refused.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable
from typing import Literal
from urllib.parse import quote, urlsplit

from infercanary.client.access import NO_ACCESS, ProbeAccess
from infercanary.command.settings import UsageError
from infercanary.contract.report import PATH

Failure = Literal[
    "unreachable",
    "timeout",
    "http_status",
    "too_large",
    "closed_early",
    "malformed",
    "schema",
    "no_address",
    "server_gone",
    "label",
    "internal",
]
Unpolled = Literal["no_address", "server_gone", "label"]
"""Reasons why the probe of a container cannot be polled."""

REPORT_BYTES = 4 << 20
"""Maximum size of a report; an honest report of 2,048 runs has 1 MB."""
_HEAD_BYTES = 16 << 10  # a probe's head has about 200 bytes
_PAUSE_SECONDS = 0.01
_PROTOCOL = b"HTTP/1."
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*(?:\r|$)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_ADDRESS = re.compile(r"[\d.]+|.*:.*")
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_STATUSES = {
    401: ": the probe requires a token; set probe_token_file",
    404: ": a server other than a probe listens on this port",
}


class PollError(Exception):
    """A poll failed: no valid report was received.

    Args:
        reason: Value of the metric's label ``reason``.
        detail: One line for users.
    """

    def __init__(self, reason: Failure, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


async def fetch(
    url: str,
    cursor: str,
    timeout_seconds: float,
    access: ProbeAccess = NO_ACCESS,
    may_hold: Callable[[int], bool] = lambda _size: True,
) -> bytes:
    """Download the report of a probe.

    Args:
        url: ``http://…``, ``https://…``, or ``unix://`` and the path of a socket.
        cursor: The report contains only runs after this cursor; empty at first.
        timeout_seconds: Time limit for the whole answer.
        access: Credentials for the probe.
        may_hold: Called with the number of bytes received so far; returns False if these bytes are too many.

    Raises:
        PollError: No complete answer was received.
    """
    try:
        return await asyncio.wait_for(_ask(url, cursor, access, may_hold), timeout_seconds)
    except asyncio.TimeoutError:
        raise PollError("timeout", f"no complete answer within {timeout_seconds:g} s") from None
    except (OSError, ValueError, UsageError) as error:
        text = getattr(error, "strerror", None) or str(error)
        # asyncio reports one errno for each address of the host name.
        if {*_ERRNO.findall(str(error))} == {str(errno.ECONNREFUSED)}:
            text = "connection refused: no server listens at this address"
        raise PollError("unreachable", text) from None


async def _ask(url: str, cursor: str, access: ProbeAccess, may_hold: Callable[[int], bool]) -> bytes:
    parts, loop = urlsplit(url), asyncio.get_running_loop()
    answer = _Answer(may_hold)
    if parts.scheme == "unix":
        host, path = "probe", ""
        transport, _ = await loop.create_unix_connection(lambda: answer, parts.path)
    else:
        host = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
        path = quote(parts.path.rstrip("/"), safe="/%")
        name, tls = parts.hostname or "", access.context() if parts.scheme == "https" else None
        transport, _ = await loop.create_connection(
            lambda: answer,
            name,
            parts.port or (443 if tls else 80),
            ssl=tls,
            server_hostname=(access.name or name) if tls else None,
            # After 0.25 s without an answer, also try the host name's next address.
            happy_eyeballs_delay=None if _ADDRESS.fullmatch(name) else 0.25,
        )
    request = (
        f"GET {path}{PATH}?since={quote(cursor, safe='')} HTTP/1.1\r\n"
        f"Host: {host}\r\nUser-Agent: infercanary\r\nAccept: application/json\r\n"
        f"Connection: close\r\n{access.header(parts.scheme)}\r\n"
    )
    try:
        transport.write(request.encode("ascii"))
        return await answer.body
    finally:
        transport.abort()


class _Answer(asyncio.Protocol):
    """One answer: collects bytes until the body is complete or the probe closes the connection."""

    transport: asyncio.Transport

    def __init__(self, may_hold: Callable[[int], bool]) -> None:
        self.body: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._data = bytearray()
        self._may_hold = may_hold

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        self.transport.pause_reading()
        asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._look, False)

    def connection_lost(self, _error: Exception | None) -> None:
        self._look(is_closed=True)

    def _look(self, is_closed: bool) -> None:
        if self.body.done():
            return
        try:
            if not self._may_hold(len(self._data)):
                raise PollError("too_large", "too many large answers arrive at the same time")
            if (body := _body(self._data, is_closed)) is not None:
                self.body.set_result(body)
            elif not self.transport.is_closing():
                self.transport.resume_reading()
        except PollError as error:
            self.body.set_exception(error)
            # Read the error once. Otherwise asyncio logs the error if no task waits for the future.
            self.body.exception()
        if self.body.done():
            self._data.clear()  # free memory now: an error keeps this object until a garbage collection


def _body(answer: bytearray, is_closed: bool) -> bytes | None:
    """Return the body of an answer; None if more bytes may follow.

    Raises:
        PollError: The answer is an error, invalid, too large, or cut off.
    """
    if not answer.startswith(_PROTOCOL[: len(answer)]):
        raise PollError("malformed", "not HTTP: no status line")
    end = answer.find(b"\r\n\r\n", 0, _HEAD_BYTES)
    if end < 0 and len(answer) >= _HEAD_BYTES:
        raise PollError("malformed", f"the header is longer than {_HEAD_BYTES} bytes")
    if end >= 0:
        head = bytes(answer[:end])
        status, length = _STATUS.match(head), _LENGTH.search(head)
        if status is None:
            raise PollError("malformed", "not HTTP: no status line")
        if status[1] != b"200":
            code = int(status[1])
            raise PollError("http_status", f"HTTP {code}{_STATUSES.get(code, '')}")
        if _CHUNKED.search(head):
            raise PollError("malformed", "the answer is chunked; a probe sends a Content-Length")
        begin, there = end + 4, len(answer) - end - 4
        size = int(length[1]) if length else there
        if max(size, there) > REPORT_BYTES:
            raise PollError("too_large", f"the report is larger than {REPORT_BYTES} bytes")
        if there >= size and (length or is_closed):
            return bytes(memoryview(answer)[begin : begin + size])
    if is_closed:
        raise PollError("closed_early", "the connection was closed before the answer was complete")
    return None
