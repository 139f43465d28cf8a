"""One poll of one probe: the download, and the reading of what came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import aiohttp
import msgspec

from infercanary.client import lookups
from infercanary.client.accept import Accepted, accept, is_boot_id
from infercanary.client.access import NO_ACCESS, ProbeAccess
from infercanary.client.limits import Limits
from infercanary.client.wire import Meter, Metered, TooCostly, TooLarge, Turns
from infercanary.command.settings import UsageError
from infercanary.contract.bounds import LATEST
from infercanary.contract.report import PATH, SCHEMA_VERSION, Report, decode

Failure = Literal[
    "unreachable",
    "timeout",
    "http_status",
    "redirect",
    "too_large",
    "too_costly",
    "closed_early",
    "malformed",
    "schema",
    "no_address",
    "server_gone",
    "label",
    "internal",
]
Unpolled = Literal["no_address", "server_gone", "label"]
"""Of these, where nothing can be polled."""

_BYTES_OF_A_PART = 20  # at least, of an honest report: most of them are numbers of 17 digits
_MAX_CURSOR = 512  # characters


class PollError(Exception):
    """A poll that gave no valid report: the reason for the metric, and the rest for people.

    Args:
        reason: A word of the metric's label.
        detail: One line.
    """

    def __init__(self, reason: Failure, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Received(msgspec.Struct, frozen=True):
    """A report that was read and checked."""

    report: Report
    accepted: Accepted


def read(body: bytes, limits: Limits, reserved: Collection[str] = ()) -> Received:
    """The report in ``body``, checked.

    Args:
        body: What the probe answered.
        limits: How much of it is accepted.
        reserved: Base names of families that no probe may use.

    Returns:
        The report as it came, and its sound part.

    Raises:
        PollError: It is no report at all.
    """
    if (parts := body.count(b",")) > limits.report_bytes // _BYTES_OF_A_PART:
        # "1," takes 32 bytes once it is read: two million of them would take 400 MB.
        raise PollError("too_large", f"the report has {parts} parts (limits.report_bytes)")
    try:
        report = decode(body)
    except msgspec.DecodeError as error:
        _check_schema(body)
        raise PollError("malformed", f"the answer is not a report: {error}") from None
    if report.schema_version > SCHEMA_VERSION:
        _check_schema(body)
    if not 0 <= report.lost_runs <= 2**53:
        raise PollError("malformed", f"lost_runs is {report.lost_runs}")
    if not 0 <= report.started_at <= LATEST:
        raise PollError("malformed", f"started_at is {report.started_at}")
    if not (is_boot_id(report.boot_id) and len(report.cursor) <= _MAX_CURSOR and report.cursor.isprintable()):
        raise PollError("malformed", "boot_id or cursor is too long or not printable")
    return Received(report, accept(report, limits, reserved))


class _Schema(msgspec.Struct):
    schema_version: int


def _check_schema(body: bytes) -> None:
    """Raise :class:`PollError` if a newer schema is why ``body`` is not understood."""
    with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        version = msgspec.json.decode(body, type=_Schema).schema_version
        if version > SCHEMA_VERSION:
            raise PollError(
                "schema",
                f"the report has schema {version}, this exporter knows {SCHEMA_VERSION}; upgrade the exporter",
            )


def open_session(url: str, limit: int, meter: Meter | None = None) -> aiohttp.ClientSession:
    """A session for the probe at ``url`` alone: it shares no connection, cookie or name look-up with others.

    Args:
        url: ``http://…``, or ``unix://`` and the path of a socket.
        limit: Bytes of an answer at most.
        meter: Of the CPU time that its answers take; None for one that shares turns with no other probe.

    Returns:
        An open session, which the caller closes; it must be called within a running event loop.
    """
    connector: aiohttp.BaseConnector = (
        aiohttp.UnixConnector(url.removeprefix("unix://"), force_close=True)
        if url.startswith("unix://")
        else lookups.connector(force_close=True)
    )
    metered: Any = partial(Metered, asyncio.get_running_loop(), limit, meter or Meter(Turns()))
    connector._factory = metered  # aiohttp offers no other way
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # asked for as it is, so what comes packed is a mistake or a bomb
        headers={"Accept": "application/json", "Accept-Encoding": "identity"},
    )


async def fetch(
    session: aiohttp.ClientSession,
    url: str,
    cursor: str,
    timeout_seconds: float,
    limit: int,
    access: ProbeAccess = NO_ACCESS,
    may_hold: Callable[[int], bool] = lambda _size: True,
) -> bytes:
    """The body of one answer of a probe.

    Args:
        session: The probe's own.
        url: Where it answers.
        cursor: Up to where its runs are known; empty at first.
        timeout_seconds: For the whole answer.
        limit: Bytes of it at most.
        access: What is shown to the probe.
        may_hold: Asked, as it comes in, whether so many bytes of it may be kept.

    Raises:
        PollError: There is no whole answer.
    """
    try:
        async with session.get(
            ("http://probe" if url.startswith("unix://") else url.rstrip("/")) + PATH,
            params={"since": cursor} if cursor else None,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            **access.request(url),
        ) as response:
            if 300 <= response.status < 400:
                raise PollError("redirect", f"HTTP {response.status}: a probe does not redirect")
            if response.status == 401:
                raise PollError("http_status", "HTTP 401: the probe wants its token; set probe_token_file")
            if response.status == 404:
                raise PollError("http_status", "HTTP 404: another server than a probe is on this port")
            if response.status != 200:
                raise PollError("http_status", f"HTTP {response.status}")
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if not may_hold(len(body)):
                    raise PollError("too_large", "too many answers as large as this one come at once")
            return bytes(body)
    except UsageError as error:  # a file of ours that was renewed half
        raise PollError("unreachable", str(error)) from None
    except asyncio.TimeoutError:
        raise PollError("timeout", f"no whole answer in {timeout_seconds:g} s") from None
    except aiohttp.ClientConnectorError as error:
        raise PollError("unreachable", _why(error)) from None
    except TooLarge:
        raise PollError("too_large", f"the report is over {limit} bytes (limits.report_bytes)") from None
    except TooCostly as error:
        raise PollError("too_costly", str(error)) from None
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, aiohttp.ClientOSError):
        raise PollError("closed_early", "the connection closed before the whole answer") from None
    except aiohttp.ClientError as error:
        raise PollError("malformed", f"not HTTP: {error}") from None


def _why(error: aiohttp.ClientConnectorError) -> str:
    """Why there is no connection. asyncio says "Connect call failed" and the address, which is known already."""
    if isinstance(error.os_error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    return error.strerror or str(error)
