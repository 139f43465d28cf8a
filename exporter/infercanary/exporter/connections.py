"""Who is connected to the exporter, how many, and for how long: nobody who connects costs others their answers.

A connection is bounded before TLS and before its password: by the time for a whole request header, by the time for an
answer, and by number, in all and from one address. Where there is no room for a new one, one of whoever has most goes:
first who sent no whole request in a second, then who is idle between two, then the reader that took nothing longest.
A scrape within the time that it names (``X-Prometheus-Scrape-Timeout-Seconds``) is never cut.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
import ssl
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler

from infercanary.contract.address import counted_as
from infercanary.contract.report import Family, Metric
from infercanary.exporter.caller import HEADER_SECONDS, Caller, Reason, address_of, first_record
from infercanary.exporter.feed import Feed
from infercanary.exporter.watch import WATCH

log = structlog.get_logger(__name__)

Context = Callable[[], Awaitable["ssl.SSLContext | None"]]
"""For TLS, as it is at each connection."""

REFUSED = Metric(
    "infercanary_connections_refused_total",
    "counter",
    "Connections that the exporter closed or did not accept, by reason.",
    ("reason",),
    reading="A steady increase is an attack, a broken client (`malformed`, `late_reader`) or one that holds "
    "connections open; the log names its address.",
)
METRICS = (REFUSED,)

MOST = 128
MOST_OF_ADDRESS = 64
MOST_ANSWERS = 48
"""At once. An answer that nobody reads holds about 0.4 MiB, with TLS 0.8."""
NAMED_OF_ADDRESS = 4
"""Answers of one address that may hold on to the time that they name: a pair of Prometheis, and another pair."""
OF_SERVER: Final[dict[str, Any]] = {"lingering_time": 0, "max_headers": 48}
"""What aiohttp's server is given. A line of a header may have 8 KiB, and a browser behind two proxies sends 25."""
ANSWER_SECONDS = 10.0  # Prometheus' default scrape_timeout, for who names none
LONGEST_ANSWER_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_TURN_LOOKS = 10
_COLLECT_CLOSED = 32
_COLLECT_ALL_SECONDS = 1.0  # with 1,000 containers it takes 18 ms
_LOG_SECONDS = 60.0
_BACKLOG = 4096  # whom the kernel refuses for a full queue tries again only after a second
_SEND_BUFFER = 128 << 10  # bytes in the kernel, which doubles them; they count in the container's memory
_NO_FILE_SECONDS = 0.1


def most_connections() -> int:
    """How many connections there may be: three quarters of all descriptors are left to polls, store and Docker.

    Returns:
        At most :data:`MOST`. The limit of descriptors is raised as far as this process may.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return MOST if soft == resource.RLIM_INFINITY else max(8, min(MOST, soft // 4))


class Connections:
    """Lets connections in, and closes those that take too long or too much."""

    def __init__(self) -> None:
        self.refused: Counter[Reason] = Counter()
        self._open: dict[object, Caller] = {}  # by aiohttp's protocol
        self._most = MOST
        self._of_address = MOST_OF_ADDRESS
        self._tasks: list[asyncio.Task[None]] = []
        self._logged_at: dict[Reason, float] = {}
        self._closed = 0
        self._collected_at = 0.0

    def start(self, server: web.Server, sock: socket.socket, context: Context | None) -> None:
        """Let connections in, until :meth:`stop`.

        Args:
            server: Makes what handles a connection.
            sock: One that listens.
            context: For TLS; None without.
        """
        self._most = most_connections()
        self._of_address = max(4, self._most * MOST_OF_ADDRESS // MOST)
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        self._tasks = [
            WATCH.task("accept", partial(self._accept, server, sock, context)),
            WATCH.task("connections", self._watch),
        ]

    async def stop(self) -> None:
        """Let nobody in any more; those that are in stay, for the server to end them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def families(self) -> list[Family]:
        """Connections that were refused.

        Returns:
            Families without labels of a container.
        """
        return [REFUSED.family({(reason,): float(count) for reason, count in sorted(self.refused.items())})]

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Give each answer its time, and bound how many there are at once.

        Args:
            request: Its header is whole; its user is not known yet.
            handler: What answers.

        Returns:
            Its answer, or 503 where too many others wait for theirs to be read.
        """
        connection = self._open.get(request.protocol)
        if connection is None:  # a server of another kind, in tests
            return await handler(request)
        loop = asyncio.get_running_loop()
        seconds = _named_seconds(request)
        of_address = [
            each for each in self._open.values() if each.named and each.address == connection.address
        ]
        named = seconds is not None and len(of_address) < NAMED_OF_ADDRESS
        connection.begin(loop.time(), seconds or ANSWER_SECONDS, named=named)
        try:
            if await self._turn(connection):
                return await handler(request)
            self._count("busy", connection.address)
            return web.Response(
                status=503, text="too many answers are under way\n", headers={"Retry-After": "1"}
            )
        except ConnectionError:
            if request.transport is not None:
                raise
            return web.Response()  # the reader left; aiohttp would log it as an error of ours
        finally:
            connection.handled = True

    async def _turn(self, connection: Caller) -> bool:
        """Whether it can be answered; where too many others are, one of them must give way within a second."""
        for _ in range(_TURN_LOOKS):
            others = [
                each for each in self._open.values() if each.deadline is not None and each is not connection
            ]
            if len(others) < MOST_ANSWERS:
                return True
            # One of the address that has most: who exchanges its own quickly has no old ones, others may.
            (most, _), *_ = Counter(each.address for each in others).most_common(1)
            theirs = [each for each in others if each.address == most]
            if self._make_room(theirs, asyncio.get_running_loop().time()):
                return True
            await asyncio.sleep(_LOOK_SECONDS)
        return False

    async def _accept(self, server: web.Server, sock: socket.socket, context: Context | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(sock)
            except OSError as error:  # too many open files, or a caller that left
                self._make_room(self._open.values(), loop.time())
                log.warning("a connection was not accepted", error=str(error))
                await asyncio.sleep(_NO_FILE_SECONDS)
                continue
            now, address = loop.time(), address_of(peer)
            if not self._room_for(address, now):
                self._count("refused", address)
                accepted.close()
                continue
            with suppress(OSError):
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            protocol = server()
            connection = self._open[protocol] = Caller(accepted, address, now)
            connection.task = asyncio.create_task(self._connect(protocol, connection, context))
            await asyncio.sleep(0)  # those that are in get their turn

    async def _connect(self, protocol: RequestHandler, connection: Caller, context: Context | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            if context is not None:
                await asyncio.wait_for(first_record(connection.sock), HEADER_SECONDS)
                connection.spoke = True
            transport, _ = await loop.connect_accepted_socket(
                lambda: Feed(protocol),
                connection.sock,
                ssl=await context() if context else None,
                ssl_handshake_timeout=HEADER_SECONDS if context else None,
            )
        except (OSError, asyncio.TimeoutError) as error:  # no TLS, or not ours; or the caller left
            reason: Reason = "no_request" if isinstance(error, asyncio.TimeoutError) else "malformed"
            self._count(reason, connection.address)
            connection.sock.close()
            self._open.pop(protocol, None)
            return
        except asyncio.CancelledError:
            connection.sock.close()
            raise
        connection.transport = transport

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = loop.time()
            self._forget_closed()
            if self._closed >= _COLLECT_CLOSED:
                # What asyncio makes for TLS, 256 KiB and more, is a cycle, and so is what aiohttp makes of a request
                # that it refuses: rare collections would let them pile up.
                self._closed = 0
                is_all = now - self._collected_at >= _COLLECT_ALL_SECONDS
                if is_all:
                    self._collected_at = now
                gc.collect(2 if is_all else 1)
            for connection in [*self._open.values()]:
                connection.look(now)
                if (reason := connection.late(now)) is not None:
                    if reason == "late_reader" or not connection.asked:
                        self._count(reason, connection.address)
                    connection.end()

    def _room_for(self, address: str, now: float) -> bool:
        """Whether one more of this address may come in; another one goes for it where that is needed."""
        self._forget_closed()
        by_address: defaultdict[str, list[Caller]] = defaultdict(list)
        for connection in self._open.values():
            by_address[connection.address].append(connection)
        if len(by_address[address]) >= self._of_address:
            return self._make_room(by_address[address], now)
        if len(self._open) >= self._most:
            most = max(by_address, key=lambda each: len(by_address[each]))
            return self._make_room(by_address[most], now)
        return True

    def _make_room(self, among: Iterable[Caller], now: float) -> bool:
        """Close the first of these that gives way; whether one did."""
        ranked = []
        for each in among:
            each.look(now)
            if (rank := each.rank(now)) is not None:
                ranked.append((rank, each))
        if not ranked:
            return False
        _, connection = min(ranked, key=lambda pair: pair[0])
        self._count("crowded", connection.address)
        connection.end()
        self._closed += 1
        self._open = {key: each for key, each in self._open.items() if each is not connection}
        return True

    def _forget_closed(self) -> None:
        for protocol in [key for key, connection in self._open.items() if not connection.open]:
            del self._open[protocol]
            self._closed += 1

    def _count(self, reason: Reason, address: str) -> None:
        self.refused[reason] += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at.get(reason, -_LOG_SECONDS) >= _LOG_SECONDS:
            self._logged_at[reason] = now
            log.warning(
                "a connection was closed; infercanary_connections_refused_total counts those that follow",
                reason=reason,
                address=address,
                open=len(self._open),
            )

    def logger(self) -> logging.Logger:
        """A logger for the server: what is not HTTP is counted, and is no traceback in the log.

        Returns:
            One that passes all else on.
        """
        quiet = logging.getLogger("infercanary.exporter.server")
        quiet.filters = [self._is_ours]
        quiet.setLevel(logging.DEBUG)  # as which aiohttp logs some of what is not HTTP
        return quiet

    def _is_ours(self, record: logging.LogRecord) -> bool:
        """Whether a line is about a fault of ours; a request that cannot be read is its sender's."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, (HttpProcessingError, ConnectionError)):
            return True
        if isinstance(error, HttpProcessingError):
            self._count(
                "malformed", counted_as(str(record.args[0])) if isinstance(record.args, tuple) else ""
            )
        return False


def _named_seconds(request: web.Request) -> float | None:
    """The time that Prometheus gives itself for this scrape."""
    try:
        seconds = float(request.headers.get("X-Prometheus-Scrape-Timeout-Seconds", ""))
    except ValueError:
        return None
    return min(seconds, LONGEST_ANSWER_SECONDS) if seconds > 0 else None
