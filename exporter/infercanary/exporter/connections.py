"""Connections to the exporter's port: how many are accepted, and how long each may take.

A flood is kept out by a proxy, a network policy or loopback (docs/security.md).
"""

from __future__ import annotations

import asyncio
import math
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler

from infercanary.contract.address import counted_as
from infercanary.contract.report import Family, Metric
from infercanary.exporter.watch import WATCH

log = structlog.get_logger(__name__)

Reason = Literal["no_request", "late_reader", "refused", "malformed"]
Context = Callable[[], ssl.SSLContext | None]
"""Gives the TLS context of the next connection; None without TLS."""

REFUSED = Metric(
    "infercanary_connections_refused_total",
    "counter",
    "Connections that the exporter closed or did not accept, by reason.",
    ("reason",),
    reading="A steady increase is an attack, a broken client (`malformed`, `late_reader`) or one that opens too many "
    "connections (`refused`) or holds them (`no_request`); the log names its address.",
)
METRICS = (REFUSED,)

CONNECTIONS = 128
CONNECTIONS_OF_ADDRESS = 16
"""Of one IPv4 address, or one /64 of IPv6: a pair of Prometheus servers, and people."""
HEADER_SECONDS = 10.0
ANSWER_SECONDS = 30.0  # three times Prometheus' default scrape_timeout
IDLE_SECONDS = 330.0  # Prometheus itself closes after five minutes
BACKLOG = 4096  # a client that the kernel refuses for a full queue tries again only after a second
SEND_BYTES = 128 << 10  # in the kernel, which doubles them; they count in the container's memory
_PIECE = memoryview(bytearray(16 << 10))  # a TLS record; what is read into it is copied out at once
_LOG_SECONDS = 60.0


class Connection(RequestHandler, asyncio.BufferedProtocol):
    """One open connection.

    It reads small pieces, and nothing after what is not HTTP. aiohttp alone reads a quarter of a megabyte at once and
    keeps what is not HTTP in errors: 64 clients that send nothing but zeros took 4 GB in 14 seconds.
    """

    def __init__(self, connections: Connections, server: web.Server, address: str) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # aiohttp takes it, as everywhere, for no log
            lingering_time=0,
            max_headers=48,  # of 8 KiB each; a browser behind two proxies sends 25
        )
        self.address = address
        self.handles = self.is_idle = False
        """True while a handler works for it, also if the client has left; and while it waits for another request."""
        self._connections = connections
        self._deadline = loop.call_later(HEADER_SECONDS, self._end, "no_request")

    def allow(self, seconds: float, reason: Reason | None) -> None:
        """Set the time from now until it is closed, which is counted unless the reason is None."""
        self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._end, reason)

    def leave(self) -> None:
        """Give up its place, unless a handler still works for it."""
        if not self.handles:
            self._deadline.cancel()
            self._connections.open.pop(self, None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End; ``exc`` is None where either side closed it."""
        super().connection_lost(exc)
        self.leave()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Buffer for the next piece."""
        return _PIECE

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on a piece of ``nbytes``."""
        self.data_received(bytes(_PIECE[:nbytes]))
        if self._messages and not hasattr(self._messages[-1][0], "method"):  # an error instead of a request
            self.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer after an error; only a fault of ours is logged."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        self._connections.count("malformed", self.address)
        exc.__traceback__ = None  # it keeps the piece, in a cycle
        response = web.Response(status=status, text=message)
        response.force_close()
        return response

    def _end(self, reason: Reason | None) -> None:
        if self.transport is None:  # its TLS handshake ends now, or its client left and its handler hangs
            self._connections.open.pop(self, None)
            return
        if reason is not None:
            self._connections.count(reason, self.address)
        self.transport.abort()


class Connections:
    """Accepts connections up to the limits.

    A connection counts until its last request is handled: clients that ask and leave cannot pile up work.
    """

    def __init__(self) -> None:
        self.refused: Counter[Reason] = Counter()
        self.open: dict[Connection, None] = {}
        """In the order in which they came."""
        self._logged_at: dict[Reason, float] = {}
        self._accepting: asyncio.Task[None] | None = None

    def start(self, server: web.Server, sock: socket.socket, context: Context) -> None:
        """Accept connections on a listening socket until :meth:`stop`."""
        with suppress(OSError, ValueError):  # a thousand polls may be open at once
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        sock.setblocking(False)
        self._accepting = WATCH.task("accept", partial(self._accept, server, sock, context))

    async def stop(self) -> None:
        """Accept no more connections; the server ends the open ones."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)

    def families(self) -> list[Family]:
        """Refused connections, without labels of a container."""
        return [REFUSED.family({(reason,): float(count) for reason, count in sorted(self.refused.items())})]

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Limit the time of an answer."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.handles, connection.is_idle = True, False
        connection.allow(ANSWER_SECONDS, "late_reader")
        try:
            return await handler(request)
        except ConnectionError as error:
            if connection.transport is not None and not connection.transport.is_closing():
                raise
            error.__traceback__ = None  # the client left; aiohttp would log it as an error of ours
            return web.Response()
        finally:
            connection.handles = False
            if connection.transport is None:
                connection.leave()
            else:
                connection.is_idle = True
                connection.allow(IDLE_SECONDS, None)

    def count(self, reason: Reason, address: str) -> None:
        """Count a connection that was refused or closed, and log one a minute for each reason."""
        self.refused[reason] += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at.get(reason, -math.inf) >= _LOG_SECONDS:
            self._logged_at[reason] = now
            log.warning(
                "a connection was closed; infercanary_connections_refused_total counts those that follow",
                reason=reason, address=address, open=len(self.open),
            )  # fmt: skip

    async def _accept(self, server: web.Server, sock: socket.socket, context: Context) -> None:
        loop = asyncio.get_running_loop()
        connecting: set[asyncio.Task[None]] = set()
        while True:
            try:
                accepted, peer = await loop.sock_accept(sock)
            except OSError as error:  # too many open files, or a client that left
                log.warning("a connection was not accepted", error=str(error))
                await asyncio.sleep(0.1)
                continue
            address = counted_as(peer[0])
            crowd = [connection for connection in self.open if connection.address == address]
            if len(crowd) < CONNECTIONS_OF_ADDRESS:
                crowd = [*self.open] if len(self.open) >= CONNECTIONS else []
            idle = next((connection for connection in crowd if connection.is_idle), None)
            if crowd and idle is None:
                self.count("refused", address)
                accepted.close()
            else:
                if idle is not None:  # a client that keeps it asks by another one
                    idle.leave()
                    idle.force_close()
                task = asyncio.create_task(self._connect(server, accepted, address, context))
                connecting.add(task)
                task.add_done_callback(connecting.discard)
            await asyncio.sleep(0)  # the new one counts before the next, and open ones get their turn

    async def _connect(self, server: web.Server, sock: socket.socket, address: str, context: Context) -> None:
        connection = Connection(self, server, address)
        self.open[connection] = None
        try:
            tls = context()
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, ssl=tls, ssl_handshake_timeout=HEADER_SECONDS if tls else None
            )
        except OSError as error:  # no TLS, or not ours
            is_late = isinstance(error, ConnectionAbortedError)  # asyncio's of a handshake
            self.count("no_request" if is_late else "malformed", address)
            error.__traceback__ = None  # it keeps the buffers of TLS, in a cycle
        finally:
            if connection.transport is None:
                connection.connection_lost(None)
