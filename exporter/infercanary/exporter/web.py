"""TLS, passwords and connections: the exporter's own port.

The settings file is the one of Prometheus' own exporters:
https://prometheus.io/docs/prometheus/latest/configuration/https/
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import os
import re
import resource
import secrets
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import bcrypt
import msgspec
import structlog
from aiohttp import BasicAuth, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware
from aiohttp.web_protocol import RequestHandler

from infercanary.command.settings import UsageError, load
from infercanary.contract.address import counted_as
from infercanary.contract.report import Family, Metric
from infercanary.exporter.watch import WATCH

log = structlog.get_logger(__name__)

Reason = Literal["no_request", "late_reader", "refused", "malformed"]

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
IDLE_SECONDS = 330.0  # Prometheus itself closes after five minutes
ANSWER_SECONDS = 10.0  # Prometheus' default scrape_timeout, for a client that names none
LONGEST_ANSWER_SECONDS = 60.0
SERVER_SETTINGS: Final[dict[str, Any]] = {"lingering_time": 0, "max_headers": 48}
"""Arguments of aiohttp's server. A line of a header may have 8 KiB, and a browser behind two proxies sends 25."""
_WATCH_SECONDS = 0.1
_COLLECT_CLOSED = 32
_COLLECT_ALL_SECONDS = 1.0  # with 1,000 containers it takes 18 ms
_LOG_SECONDS = 60.0
_BACKLOG = 4096  # a client that the kernel refuses for a full queue tries again only after a second
_SEND_BUFFER = 128 << 10  # bytes in the kernel, which doubles them; they count in the container's memory
_NO_FILE_SECONDS = 0.1
_PIECE_BYTES = 16 << 10  # a TLS record

_PASSWORD_BYTES = 72  # bcrypt ignores the rest
_REMEMBERED_PASSWORDS = 100
_PENDING_PASSWORDS = 16  # of one address
_HIGHEST_COST = 14  # about a second
_FILE_BYTES = 1 << 20
_REALM = {hdrs.WWW_AUTHENTICATE: 'Basic realm="infercanary"'}


class Connection:
    """One open connection. Times are of the event loop's clock."""

    def __init__(self, sock: socket.socket, address: str, now: float) -> None:
        self.sock = sock
        self.address = address
        self.deadline = now + HEADER_SECONDS
        self.asked = False
        """True from the first whole request header on."""
        self.answering = False
        self.handled = False
        """True once the handler of the request returned; the reader may still have to take the answer."""
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def begin(self, now: float, seconds: float) -> None:
        """Start the time of an answer: a whole request header is here."""
        self.asked, self.answering, self.handled, self.deadline = True, True, False, now + seconds

    def late(self, now: float) -> Reason | None:
        """Reason to close it now; None while it may stay."""
        if self.handled and self.transport is not None and not unsent_bytes(self.transport):
            self.answering, self.handled, self.deadline = False, False, now + IDLE_SECONDS
        if now <= self.deadline:
            return None
        return "late_reader" if self.answering else "no_request"

    def end(self) -> None:
        """Close it immediately."""
        if self.transport is not None:
            self.transport.abort()
        elif self.task is not None:
            self.task.cancel()  # in its TLS handshake


class Connections:
    """Accepts connections up to the limits, and closes those that take too long."""

    def __init__(self) -> None:
        self.refused: Counter[Reason] = Counter()
        self._open: dict[object, Connection] = {}  # by aiohttp's protocol
        self._most = CONNECTIONS
        self._tasks: list[asyncio.Task[None]] = []
        self._logged_at: dict[Reason, float] = {}
        self._closed = 0
        self._collected_at = 0.0

    def start(
        self,
        server: web.Server,
        sock: socket.socket,
        context: Callable[[], Awaitable[ssl.SSLContext | None]] | None,
    ) -> None:
        """Accept connections until :meth:`stop`.

        Args:
            server: Makes the handler of a connection.
            sock: A listening socket.
            context: Gives the TLS context of each connection; None without TLS.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        if (
            soft != resource.RLIM_INFINITY
        ):  # three quarters of all descriptors are for polls, store and Docker
            self._most = min(CONNECTIONS, max(8, soft // 4))
        sock.setblocking(False)
        sock.listen(_BACKLOG)
        self._tasks = [
            WATCH.task("accept", partial(self._accept, server, sock, context)),
            WATCH.task("connections", self._watch),
        ]

    async def stop(self) -> None:
        """Accept no more connections; the server ends the open ones."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def families(self) -> list[Family]:
        """Refused connections, without labels of a container."""
        return [REFUSED.family({(reason,): float(count) for reason, count in sorted(self.refused.items())})]

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Limit the time of an answer."""
        connection = self._open.get(request.protocol)
        if connection is None:  # a server of another kind, in tests
            return await handler(request)
        connection.begin(asyncio.get_running_loop().time(), _named_seconds(request) or ANSWER_SECONDS)
        try:
            return await handler(request)
        except ConnectionError:
            if request.transport is not None:
                raise
            return web.Response()  # the reader left; aiohttp would log it as an error of ours
        finally:
            connection.handled = True

    async def _accept(
        self,
        server: web.Server,
        sock: socket.socket,
        context: Callable[[], Awaitable[ssl.SSLContext | None]] | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(sock)
            except OSError as error:  # too many open files, or a client that left
                log.warning("a connection was not accepted", error=str(error))
                await asyncio.sleep(_NO_FILE_SECONDS)
                continue
            address = address_of(peer)
            self._forget_closed()
            of_address = sum(connection.address == address for connection in self._open.values())
            if of_address >= min(CONNECTIONS_OF_ADDRESS, self._most // 2) or len(self._open) >= self._most:
                self._count("refused", address)
                accepted.close()
                await asyncio.sleep(0)
                continue
            with suppress(OSError):
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            protocol = server()
            connection = self._open[protocol] = Connection(accepted, address, loop.time())
            connection.task = asyncio.create_task(self._connect(protocol, connection, context))
            await asyncio.sleep(0)  # open connections get their turn

    async def _connect(
        self,
        protocol: RequestHandler,
        connection: Connection,
        context: Callable[[], Awaitable[ssl.SSLContext | None]] | None,
    ) -> None:
        try:
            connection.transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Feed(protocol),
                connection.sock,
                ssl=await context() if context else None,
                ssl_handshake_timeout=HEADER_SECONDS if context else None,
            )
        except (OSError, asyncio.TimeoutError) as error:  # no TLS, or not ours; or the client left
            is_late = isinstance(error, asyncio.TimeoutError) or "handshake is taking longer" in str(error)
            self._count("no_request" if is_late else "malformed", connection.address)
            connection.sock.close()
        except asyncio.CancelledError:
            connection.sock.close()
            raise

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
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
                if (reason := connection.late(now)) is not None:
                    if reason == "late_reader" or not connection.asked:
                        self._count(reason, connection.address)
                    connection.end()

    def _forget_closed(self) -> None:
        closed = [protocol for protocol, connection in self._open.items() if connection.sock.fileno() < 0]
        self._closed += len(closed)
        for protocol in closed:
            del self._open[protocol]

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
        """Logger for aiohttp's server: a request that is not HTTP is counted, and is no traceback in the log."""
        quiet = logging.getLogger("infercanary.exporter.server")
        quiet.filters = [self._is_ours]
        quiet.setLevel(logging.DEBUG)  # as which aiohttp logs some of what is not HTTP
        return quiet

    def _is_ours(self, record: logging.LogRecord) -> bool:
        """True for a fault of ours; a request that cannot be read is its sender's."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            given = record.args[0] if isinstance(record.args, tuple) and record.args else ""
            self._count("malformed", counted_as(str(given)))
        return not isinstance(error, (HttpProcessingError, ConnectionError))


class Feed(asyncio.BufferedProtocol):
    """Bounded reads between a connection and aiohttp: small pieces, and nothing after what is not HTTP.

    aiohttp reads a quarter of a megabyte at once, and keeps what is no HTTP in an error, again and again: 64 clients
    that send nothing but zeros took 4 GB in 14 seconds.
    """

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._buffer = bytearray(_PIECE_BYTES)
        self._has_failed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End; ``exc`` is None where either side closed it."""
        self._handler.connection_lost(exc)

    def eof_received(self) -> None:
        """Note that nothing follows."""
        self._handler.eof_received()

    def pause_writing(self) -> None:
        """Note that the client does not take what is sent."""
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Note that the client takes it again."""
        self._handler.resume_writing()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Buffer for the next piece: always the same one."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on a piece of ``nbytes``."""
        if not self._has_failed:
            self._handler.data_received(bytes(self._buffer[:nbytes]))
            messages = self._handler._messages  # aiohttp offers no other way
            # An error instead of a request.
            self._has_failed = bool(messages) and not hasattr(messages[-1][0], "method")


def unsent_bytes(transport: asyncio.Transport) -> int:
    """Bytes in this process that the reader has yet to take.

    From Python 3.11 on, the size that TLS gives leaves out what it handed to the transport below.
    """
    below = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    size: int = transport.get_write_buffer_size()
    return size + (below.get_write_buffer_size() if below is not None else 0)


def address_of(peer: object) -> str:
    """Address that a socket's peer is counted as; empty where there is none."""
    return counted_as(peer[0]) if isinstance(peer, tuple) else ""


def _named_seconds(request: web.Request) -> float | None:
    """Time that Prometheus gives itself for this scrape; a page that is read for longer would be an old one."""
    if request.path != "/metrics":
        return None
    try:
        seconds = float(request.headers.get("X-Prometheus-Scrape-Timeout-Seconds", ""))
    except ValueError:
        return None
    return min(seconds, LONGEST_ANSWER_SECONDS) if seconds > 0 else None


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``tls_server_config``; paths are relative to the folder of the settings file."""

    cert_file: str
    key_file: str
    client_ca_file: str = ""
    client_auth_type: Literal["NoClientCert", "RequireAndVerifyClientCert"] = "NoClientCert"
    min_version: Literal["TLS12", "TLS13"] = "TLS12"


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings file. Other keys of the exporter-toolkit are refused: an ignored key would protect nothing."""

    tls_server_config: Tls | None = None
    basic_auth_users: dict[str, str] = {}
    """User → bcrypt hash of the password."""


class Secured:
    """TLS and users, read again when the file changes.

    While the file cannot be used, nobody is let in: the users of before may be the ones who were taken out. A file
    without users, where there were some, is such a file, too: editors may empty a file before they write it.

    Args:
        path: The file; None for neither TLS nor users.

    Raises:
        UsageError: One of its settings does not work.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._error: UsageError | None = None
        self._lock = asyncio.Lock()
        self._text = self._read()
        self._config = WebConfig() if path is None else read(path)
        self._is_fixed = path is None or not path.is_file()  # a pipe is read once
        self._logins = ThreadPoolExecutor(1, thread_name_prefix="login")
        self._passwords = Passwords(self._config.basic_auth_users, self._logins)
        server = self._config.tls_server_config
        self._certificates = None if path is None or server is None else Certificates(server, path)

    @property
    def has_tls(self) -> bool:
        """True if connections are TLS, from the start of the exporter to its end."""
        return self._certificates is not None

    async def context(self) -> ssl.SSLContext | None:
        """TLS context of the next connection; None without TLS."""
        await self._refresh()
        return None if self._certificates is None else self._certificates.context()

    @property
    def middlewares(self) -> tuple[Middleware, ...]:
        """Middleware that admits the users of the file: 401 for others, 429 for too many passwords at a time, and 503
        while the file cannot be used."""
        return () if self._path is None else (self._middleware,)

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        await self._refresh()
        if self._error is not None:
            return web.Response(
                status=503, text="the web config cannot be used; the exporter's log says why\n"
            )
        refusal = await self._passwords.refusal(request)
        return await handler(request) if refusal is None else refusal

    def _read(self) -> bytes | None:
        """Text of the file: its time may be the same after two changes within a second."""
        try:
            if self._path is None or not self._path.is_file():  # a pipe may never end
                return None
            with self._path.open("rb") as file:
                return file.read(_FILE_BYTES)
        except OSError:
            return None

    async def _refresh(self) -> None:
        """Use the file as it is now."""
        if self._path is None or self._is_fixed or (self._read() == self._text and not self._lock.locked()):
            return
        async with self._lock:
            if (text := self._read()) == self._text:
                return
            checking = asyncio.get_running_loop().run_in_executor(self._logins, self._checked, self._path)
            try:
                config, passwords = await checking
            except Exception as error:  # a fault of ours must let nobody in
                self._error = (
                    error if isinstance(error, UsageError) else UsageError(f"{self._path}: {error!r}")
                )
                log.error(
                    "the web config cannot be used; nobody is let in until it is fixed",
                    error=str(self._error),
                )
            else:
                self._error, self._config, self._passwords = None, config, passwords
                if (config.tls_server_config is not None) != self.has_tls:
                    log.warning("restart the exporter to apply tls_server_config", config=str(self._path))
                elif self._certificates is not None and config.tls_server_config is not None:
                    self._certificates.config = config.tls_server_config
                log.info("web config reloaded", config=str(self._path))
            self._text = text

    def _checked(self, path: Path) -> tuple[WebConfig, Passwords]:
        """The file's settings; in a thread, since hashes take time on purpose."""
        config = read(path)
        if self._config.basic_auth_users and not config.basic_auth_users:
            raise UsageError(
                f"{path}: basic_auth_users: there are none any more; to let everybody in, restart the exporter"
            )
        return config, Passwords(config.basic_auth_users, self._logins)


def read(path: Path) -> WebConfig:
    """Read the settings in ``path``.

    Raises:
        UsageError: One of them does not work.
    """
    config = load(path, WebConfig)
    for user, hashed in config.basic_auth_users.items():
        place = f"{path}: basic_auth_users.{user}"
        if not user or ":" in user:
            raise UsageError(f"{path}: basic_auth_users: `{user}` is no name; leave the `:` out")
        cost = re.match(r"\$2[abxy]\$(\d\d)\$", hashed)
        if cost is not None and int(cost[1]) > _HIGHEST_COST:
            raise UsageError(f"{place}: a hash of cost {cost[1]} takes too long at each login; 10 is usual")
        try:
            bcrypt.checkpw(b"", hashed.encode())
        except ValueError:
            raise UsageError(
                f"{place}: that is no bcrypt hash; make one with `htpasswd -nBC 10 ''`, which asks for the password"
            ) from None
    if (server := config.tls_server_config) is not None:
        is_asked = server.client_auth_type == "RequireAndVerifyClientCert"
        place = f"{path}: tls_server_config"
        if is_asked and not server.client_ca_file:
            raise UsageError(
                f"{place}.client_ca_file: it is missing; name who signs the clients' certificates"
            )
        if server.client_ca_file and not is_asked:
            raise UsageError(
                f"{place}.client_auth_type: with client_ca_file it is RequireAndVerifyClientCert"
            )
    return config


class Certificates:
    """TLS contexts; renewed certificates are used from the next connection on.

    Args:
        config: Certificate, key and what is asked of clients; it may be replaced.
        path: The settings file: other paths in it are relative to its folder.
    """

    def __init__(self, config: Tls, path: Path) -> None:
        self.config = config
        self._path = path
        self._stamp: object = None
        self._context = _context(config, path)

    def context(self) -> ssl.SSLContext:
        """Context for a server; the one before where a file cannot be used."""
        files = (self.config.cert_file, self.config.key_file, self.config.client_ca_file)
        stamp = self.config, [_stamp(self._path.parent / file) for file in files if file]
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._context = _context(self.config, self._path)
            except UsageError as error:
                log.error("the new certificate is not used; the one before stays", error=str(error))
        return self._context


class Passwords:
    """Check of passwords by bcrypt, which is slow on purpose: in a thread of its own, with good ones remembered.

    A check computes a hash of each cost that occurs, so that an unknown user takes as long as a known one.
    A client that gives up does not end its check, so that the next scrape finds the password remembered.

    Args:
        users: Name → bcrypt hash of the password.
        thread: One at a time.
    """

    def __init__(self, users: Mapping[str, str], thread: ThreadPoolExecutor) -> None:
        self._users = users
        self._thread = thread
        self._salt = secrets.token_bytes(16)
        costs = sorted({_cost(hashed) for hashed in users.values()})
        self._decoys = {cost: bcrypt.hashpw(b"", bcrypt.gensalt(cost)).decode() for cost in costs}
        self._good: dict[bytes, None] = {}
        self._pending: Counter[str] = Counter()  # checks by address

    async def refusal(self, request: web.Request) -> web.Response | None:
        """Answer to a request without a user's password; None for a request that has one."""
        if not self._users:
            return None
        try:
            given = BasicAuth.decode(request.headers.get(hdrs.AUTHORIZATION, ""), encoding="utf-8")
        except ValueError:
            return web.Response(status=401, text="a user and a password are needed\n", headers=_REALM)
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        good = await self.is_good(address_of(peer), given.login, given.password.encode())
        if good is None:
            return web.Response(
                status=429, text="too many passwords are tried\n", headers={"Retry-After": "1"}
            )
        return None if good else web.Response(status=401, text="wrong user or password\n", headers=_REALM)

    async def is_good(self, address: str, user: str, password: bytes) -> bool | None:
        """True if this is the user's password; None where too many checks of the address are pending."""
        key = hashlib.blake2b(b"\0".join((user.encode(), password)), key=self._salt).digest()
        if key in self._good:
            return True
        if self._pending[address] >= _PENDING_PASSWORDS:
            return None
        self._pending[address] += 1
        try:
            good = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._matches, user, password
            )
        finally:
            self._pending -= Counter((address,))
        if good:
            self._good[key] = None
            if len(self._good) > _REMEMBERED_PASSWORDS:
                del self._good[next(iter(self._good))]
        return good

    def _matches(self, user: str, password: bytes) -> bool:
        if len(password) > _PASSWORD_BYTES:
            return False
        hashed = self._users.get(user)
        cost = None if hashed is None else _cost(hashed)
        hashes = {**self._decoys, **({} if hashed is None or cost is None else {cost: hashed})}
        matching = {cost for cost, each in hashes.items() if _is_hash_of(each, password)}
        return cost in matching


def _cost(hashed: str) -> int:
    return int(hashed.split("$")[2])


def _is_hash_of(hashed: str, password: bytes) -> bool:
    try:
        return bcrypt.checkpw(password, hashed.encode())
    except ValueError:  # some versions of bcrypt know passwords that cannot be
        return False


def _context(config: Tls, path: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_3 if config.min_version == "TLS13" else ssl.TLSVersion.TLSv1_2
    )
    keys, fix = "cert_file and key_file", "a certificate and its key"
    try:
        context.load_cert_chain(
            path.parent / config.cert_file, path.parent / config.key_file, password=_refuse
        )
        if config.client_ca_file:
            keys, fix = "client_ca_file", "certificates"
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(path.parent / config.client_ca_file)
    except (OSError, ValueError) as error:  # ssl's own is an OSError
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{path}: tls_server_config: {keys} cannot be used ({why}); give {fix} as PEM"
        ) from None
    return context


def _refuse() -> str:
    """Without it, OpenSSL asks for a key's password on the terminal."""
    raise ValueError("the key has a password")


def _stamp(file: Path) -> tuple[int, int]:
    """Time and inode of a file; zeros where there is none."""
    try:
        stat = os.stat(file)
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_ino
