"""Download of one probe's report over a small HTTP client.

A probe is untrusted, and all polls share the event loop with the scrapes. So bytes are only collected here, at most
every 10 ms, and nothing of HTTP is taken apart that a probe does not need: an answer of many small packets or lines
costs no more than one of few. A body in chunks is refused.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from typing import Literal
from urllib.parse import quote, urlsplit

from infercanary.client import lookups
from infercanary.client.access import NO_ACCESS, ProbeAccess
from infercanary.command.settings import UsageError
from infercanary.contract.report import PATH

Failure = Literal[
    "unreachable",
    "timeout",
    "http_status",
    "redirect",
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
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_STATUSES = {
    401: "the probe wants its token; set probe_token_file",
    404: "another server than a probe is on this port",
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
        return await asyncio.wait_for(_ask(url, cursor, timeout_seconds, access, may_hold), timeout_seconds)
    except asyncio.TimeoutError:
        raise PollError("timeout", f"no whole answer in {timeout_seconds:g} s") from None
    except ConnectionRefusedError:
        raise PollError("unreachable", "connection refused: nothing listens there") from None
    except (OSError, ValueError, UsageError) as error:
        raise PollError("unreachable", getattr(error, "strerror", None) or str(error)) from None


async def _ask(
    url: str, cursor: str, timeout_seconds: float, access: ProbeAccess, may_hold: Callable[[int], bool]
) -> bytes:
    loop = asyncio.get_running_loop()
    answer = _Answer(may_hold)
    if url.startswith("unix://"):
        host, path = "probe", PATH
        await loop.create_unix_connection(lambda: answer, url.removeprefix("unix://"))
    else:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        path = quote(parts.path.rstrip("/"), safe="/%") + PATH
        name = parts.hostname or ""
        tls = access.context() if parts.scheme == "https" else None
        port = parts.port or (443 if tls else 80)
        await _connect(
            answer, await lookups.addresses(name, port), port, timeout_seconds, tls, access.name or name
        )
    query = f"?since={quote(cursor, safe='')}" if cursor else ""
    head = [f"GET {path}{query} HTTP/1.1", f"Host: {host}", "Accept: application/json", "Connection: close"]
    head += [f"{name}: {value}" for name, value in access.headers(url).items()]
    try:
        answer.transport.write("\r\n".join([*head, "", ""]).encode("ascii"))
        await answer.ended
    finally:
        answer.transport.abort()
    return answer.body()


async def _connect(
    answer: _Answer,
    addresses: list[str],
    port: int,
    timeout_seconds: float,
    tls: ssl.SSLContext | None,
    name: str,
) -> None:
    """Connect to the first address that accepts."""
    for address in addresses:
        connecting = asyncio.get_running_loop().create_connection(
            lambda: answer, address, port, ssl=tls, server_hostname=name if tls else None
        )
        try:
            await asyncio.wait_for(connecting, timeout_seconds / len(addresses))
            return
        except (OSError, asyncio.TimeoutError):
            if address == addresses[-1]:
                raise


class _Answer(asyncio.Protocol):
    """Bytes of one answer, as they arrive."""

    transport: asyncio.Transport

    def __init__(self, may_hold: Callable[[int], bool]) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._may_hold = may_hold
        self._bytes = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        if self.ended.done():
            return
        try:
            begin, length = self._frame()
            if len(self._bytes) - begin > REPORT_BYTES or (length or 0) > REPORT_BYTES:
                raise PollError("too_large", f"the report is over {REPORT_BYTES} bytes")
            if not self._may_hold(len(self._bytes)):
                raise PollError("too_large", "too many answers as large as this one come at once")
        except PollError as error:
            self.ended.set_exception(error)
            return
        if begin and length is not None and len(self._bytes) - begin >= length:
            self.ended.set_result(None)
        else:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def body(self) -> bytes:
        """Cut the body out of a whole answer.

        Raises:
            PollError: It is not whole.
        """
        begin, length = self._frame()
        body = bytes(self._bytes[begin:])
        if not begin or len(body) < (length or 0):
            raise PollError("closed_early", "the connection closed before the whole answer")
        return body[:length]

    def _frame(self) -> tuple[int, int | None]:
        """Read the head.

        Returns:
            Where the body begins, 0 while the head is not whole; and the body's length, if the head has it.

        Raises:
            PollError: It is not the head of a report.
        """
        end = self._bytes.find(b"\r\n\r\n", 0, _HEAD_BYTES)
        if end < 0:
            if len(self._bytes) >= _HEAD_BYTES:
                raise PollError("malformed", f"not HTTP: no end of the head in {_HEAD_BYTES} bytes")
            return 0, None
        head = bytes(self._bytes[: end + 2])
        status = _STATUS.match(head)
        if status is None:
            raise PollError("malformed", "not HTTP: no status line")
        code = int(status[1])
        if 300 <= code < 400:
            raise PollError("redirect", f"HTTP {code}: a probe does not redirect")
        if code != 200:
            raise PollError(
                "http_status", f"HTTP {code}: {_STATUSES[code]}" if code in _STATUSES else f"HTTP {code}"
            )
        if _CHUNKED.search(head):
            raise PollError("malformed", "the answer comes in chunks; a probe gives its length")
        length = _LENGTH.search(head)
        return end + 4, int(length[1]) if length else None
