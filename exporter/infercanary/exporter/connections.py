"""Connection limits: total, per address, and time allowed for a request header and for an answer.

To stop a flood of connections, use a proxy, a network policy or loopback (docs/security.md).
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
"""Function that returns the TLS context of the next connection; None without TLS."""

REFUSED = Metric(
    "infercanary_connections_refused_total",
    "counter",
    "Connections that the exporter closed or did not accept, by reason.",
    ("reason",),
    reading="A steady increase: an attack, a broken client (`malformed`, `late_reader`), or a client with too many "
    "connections (`refused`) or without requests (`no_request`). The log has the client's address.",
)
METRICS = (REFUSED,)

CONNECTIONS = 128
CONNECTIONS_OF_ADDRESS = 16
"""Limit for one IPv4 address, or one /64 of IPv6: enough for a pair of Prometheus servers and some browsers."""
HEADER_SECONDS = 10.0
ANSWER_SECONDS = 30.0  # three times Prometheus' default scrape_timeout
IDLE_SECONDS = 330.0  # Prometheus closes an idle connection after five minutes
BACKLOG = 4096  # the kernel drops a connection if this queue is full; clients retry after a second
SEND_BYTES = 128 << 10  # send buffer; the kernel doubles it, and counts it in the container's memory
# Buffer of one TLS record. All connections share the buffer, because each piece is copied before the next is read.
_PIECE = memoryview(bytearray(16 << 10))
_LOG_SECONDS = 60.0


class Connection(RequestHandler, asyncio.BufferedProtocol):
    """One open connection.

    The connection reads small pieces, and stops reading after data that is not HTTP. aiohttp itself reads a quarter of
    a megabyte at once, and keeps such data in its errors: 64 clients that sent only zeros took 4 GB in 14 seconds.
    """

    def __init__(self, connections: Connections, server: web.Server, address: str) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # aiohttp also accepts None
            lingering_time=0,
            max_headers=48,  # 8 KiB each; a browser behind two proxies sends 25
        )
        self.address = address
        self.handles = self.is_idle = False
        """``handles``: True while a handler works for the connection, even if the client has left. ``is_idle``: True
        while the connection waits for another request.
        """
        self._connections = connections
        self._deadline = loop.call_later(HEADER_SECONDS, self._end, "no_request")

    def allow(self, seconds: float, reason: Reason | None) -> None:
        """Set a deadline for closing the connection. The closing is counted unless ``reason`` is None."""
        self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._end, reason)

    def leave(self) -> None:
        """Free the connection's place unless a handler still works for the connection."""
        if not self.handles:
            self._deadline.cancel()
            self._connections.open.pop(self, None)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Free the place of a closed connection; ``exc`` is None if the connection was closed without an error."""
        super().connection_lost(exc)
        self.leave()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _PIECE

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_PIECE[:nbytes]))
        # aiohttp's parser puts an error among the messages, in place of a request.
        if self._messages and not hasattr(self._messages[-1][0], "method"):
            self.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer after an error. A malformed request is counted; aiohttp logs any other error."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        self._connections.count("malformed", self.address)
        exc.__traceback__ = None  # the traceback would keep the piece in a reference cycle
        response = web.Response(status=status, text=message)
        response.force_close()
        return response

    def _end(self, reason: Reason | None) -> None:
        # The transport is missing during the TLS handshake, and after the client left a running handler.
        if self.transport is None:
            self._connections.open.pop(self, None)
            return
        if reason is not None:
            self._connections.count(reason, self.address)
        self.transport.abort()


class Connections:
    """Accepts connections up to the limits.

    A connection counts until its last request is handled. So a client that sends a request and leaves cannot pile up
    work.
    """

    def __init__(self) -> None:
        self.refused: Counter[Reason] = Counter()
        self.open: dict[Connection, None] = {}
        """Open connections in order of arrival."""
        self._logged_at: dict[Reason, float] = {}
        self._accepting: asyncio.Task[None] | None = None

    def start(self, server: web.Server, sock: socket.socket, context: Context) -> None:
        """Accept connections on a listening socket until :meth:`stop`."""
        with suppress(OSError, ValueError):  # a thousand polls may be open at the same time
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        sock.setblocking(False)
        self._accepting = WATCH.task("accept", partial(self._accept, server, sock, context))

    async def stop(self) -> None:
        """Stop accepting connections; the server ends open connections."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)

    def families(self) -> list[Family]:
        """Return the number of refused connections, without container labels."""
        return [REFUSED.family({(reason,): float(count) for reason, count in sorted(self.refused.items())})]

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Limit the time for an answer."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.handles, connection.is_idle = True, False
        connection.allow(ANSWER_SECONDS, "late_reader")
        try:
            return await handler(request)
        except ConnectionError as error:
            if connection.transport is not None and not connection.transport.is_closing():
                raise
            # the client closed the connection; aiohttp would log an exporter error
            error.__traceback__ = None
            return web.Response()
        finally:
            connection.handles = False
            if connection.transport is None:
                connection.leave()
            else:
                connection.is_idle = True
                connection.allow(IDLE_SECONDS, None)

    def count(self, reason: Reason, address: str) -> None:
        """Count a connection that was refused or closed, and log one connection a minute for each reason."""
        self.refused[reason] += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at.get(reason, -math.inf) >= _LOG_SECONDS:
            self._logged_at[reason] = now
            log.warning(
                "a connection was closed; infercanary_connections_refused_total has the number",
                reason=reason, address=address, open=len(self.open),
            )  # fmt: skip

    async def _accept(self, server: web.Server, sock: socket.socket, context: Context) -> None:
        loop = asyncio.get_running_loop()
        connecting: set[asyncio.Task[None]] = set()
        while True:
            try:
                accepted, peer = await loop.sock_accept(sock)
            except OSError as error:  # too many open files, or the client closed the connection
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
                if idle is not None:  # the oldest idle connection makes room for the new connection
                    idle.leave()
                    idle.force_close()
                task = asyncio.create_task(self._connect(server, accepted, address, context))
                connecting.add(task)
                task.add_done_callback(connecting.discard)
            # Give the loop a turn to count the new connection and to serve open connections.
            await asyncio.sleep(0)

    async def _connect(self, server: web.Server, sock: socket.socket, address: str, context: Context) -> None:
        connection = Connection(self, server, address)
        self.open[connection] = None
        try:
            tls = context()
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, ssl=tls, ssl_handshake_timeout=HEADER_SECONDS if tls else None
            )
        except OSError as error:  # the client does not speak TLS, or does not trust this certificate
            is_late = isinstance(error, ConnectionAbortedError)  # error of asyncio after a handshake time-out
            self.count("no_request" if is_late else "malformed", address)
            error.__traceback__ = None  # the traceback would keep TLS buffers in a reference cycle
        finally:
            if connection.transport is None:
                connection.connection_lost(None)
