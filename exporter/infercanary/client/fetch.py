"""Download of one probe's report over a small HTTP client.

A probe is untrusted, and all polls share the event loop with the scrapes. So bytes are only collected here, at most
every 10 ms, and nothing of HTTP is taken apart that a probe does not need: an answer of many small packets or lines
costs no more than one of few. A body in chunks is refused.
"""

from __future__ import annotations

import asyncio
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
"""Failures of a container whose probe cannot be polled."""

REPORT_BYTES = 4 << 20
"""Longest report; an honest one of 2,048 runs has 1 MB."""
_HEAD_BYTES = 16 << 10  # a probe's head has 200
_PAUSE_SECONDS = 0.01
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*(?:\r|$)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_STATUSES = {
    401: ": the probe wants its token; set probe_token_file",
    404: ": another server than a probe is on this port",
}


class PollError(Exception):
    """A poll that gave no valid report: the reason for the metric, and the rest for people.

    Args:
        reason: A word of the metric's label.
        detail: One line.
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
    """Ask a probe for its report.

    Args:
        url: ``http://…``, ``https://…``, or ``unix://`` and the path of a socket.
        cursor: Runs up to this one are known; empty at first.
        timeout_seconds: For the whole answer.
        access: Credentials for the probe.
        may_hold: Returns False if so many bytes of the answer may not be kept; called as they arrive.

    Raises:
        PollError: There is no whole answer.
    """
    try:
        return _body(await asyncio.wait_for(_ask(url, cursor, access, may_hold), timeout_seconds))
    except asyncio.TimeoutError:
        raise PollError("timeout", f"no whole answer in {timeout_seconds:g} s") from None
    except ConnectionRefusedError:
        raise PollError("unreachable", "connection refused: nothing listens there") from None
    except (OSError, ValueError, UsageError) as error:
        raise PollError("unreachable", getattr(error, "strerror", None) or str(error)) from None


async def _ask(url: str, cursor: str, access: ProbeAccess, may_hold: Callable[[int], bool]) -> bytes:
    parts, loop = urlsplit(url), asyncio.get_running_loop()
    answer = _Answer(may_hold)
    if parts.scheme == "unix":
        host, path = "probe", ""
        transport, _ = await loop.create_unix_connection(lambda: answer, parts.path)
    else:
        host, path = parts.netloc.rpartition("@")[2], quote(parts.path.rstrip("/"), safe="/%")
        name, tls = parts.hostname or "", access.context() if parts.scheme == "https" else None
        transport, _ = await loop.create_connection(
            lambda: answer,
            name,
            parts.port or (443 if tls else 80),
            ssl=tls,
            server_hostname=(access.name or name) if tls else None,
        )
    request = (
        f"GET {path}{PATH}?since={quote(cursor, safe='')} HTTP/1.1\r\n"
        f"Host: {host}\r\nAccept: application/json\r\nConnection: close\r\n{access.header(url)}\r\n"
    )
    try:
        transport.write(request.encode("ascii"))
        await answer.ended
    finally:
        transport.abort()
    return bytes(answer.data)


class _Answer(asyncio.Protocol):
    """Bytes of one answer, collected until the probe closes the connection."""

    transport: asyncio.Transport

    def __init__(self, may_hold: Callable[[int], bool]) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self.data = bytearray()
        self._may_hold = may_hold

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        if self.ended.done():
            return
        if len(self.data) > REPORT_BYTES + _HEAD_BYTES:
            self.ended.set_exception(PollError("too_large", f"the report is over {REPORT_BYTES} bytes"))
        elif not self._may_hold(len(self.data)):
            self.ended.set_exception(
                PollError("too_large", "too many answers as large as this one come at once")
            )
        else:
            self.transport.pause_reading()
            self.ended.get_loop().call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _body(answer: bytes) -> bytes:
    """Cut the body out of an answer.

    Raises:
        PollError: It is not a whole report.
    """
    head, end, body = answer.partition(b"\r\n\r\n")
    status, length = _STATUS.match(head), _LENGTH.search(head)
    if not end:
        raise PollError("closed_early", "the connection closed before the whole answer")
    if status is None:
        raise PollError("malformed", "not HTTP: no status line")
    if (code := int(status[1])) != 200:
        raise PollError("http_status", f"HTTP {code}{_STATUSES.get(code, '')}")
    if _CHUNKED.search(head):
        raise PollError("malformed", "the answer comes in chunks; a probe gives its length")
    size = int(length[1]) if length else len(body)
    if len(body) < size:
        raise PollError("closed_early", "the connection closed before the whole answer")
    return body[:size]
