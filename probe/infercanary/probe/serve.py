"""The probe's HTTP server: one GET on a TCP port or a UNIX socket. It never calls out.

It is the standard library's server, in a daemon thread: the probe runs in other people's processes, with any event loop
or none. What a caller controls is bounded: how long a connection lasts, how many there are (one of whoever has most is
closed, the oldest that has not asked: a proper caller needs milliseconds), the CPU time that answers to one address
take, and, by ``http.server``, the sizes of lines and headers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import ssl
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from infercanary.command.settings import UsageError
from infercanary.contract.report import PATH
from infercanary.probe.access import Access
from infercanary.probe.callers import Callers

_MAX_CONNECTIONS = 8
_BACKLOG = 128
_REFUSED_SECONDS = (
    0.002  # of not accepting, after each connection that is refused: the process has other work
)
_SECONDS = 5.0
_POLL_SECONDS = 0.25

Answering = Callable[[str], bytes]
"""The caller's cursor ("" for none) → the report as JSON."""


class ReportServer:
    """Serves reports from when it is made until :meth:`close`.

    Port 0 takes a free one; ``address`` shows which.
    """

    def __init__(self, listen: str, answer: Answering, access: Access | None = None) -> None:
        """Listen.

        Args:
            listen: ``host:port`` or ``unix:///path``.
            answer: Gives the report.
            access: Who may ask, and over what; None for everybody over plain HTTP.

        Raises:
            UsageError: It cannot listen there.
        """
        self._path: Path | None = None
        access = access or Access()
        handler = type("Handler", (_Handler,), {"answer": staticmethod(answer), "access": access})
        try:
            where = parse(listen)
            if isinstance(where, Path):
                _clear_stale(where)
                self._server: _Server = _UnixServer(str(where), handler)
                # The exporter runs as another user, in another container, and only reads.
                where.chmod(0o666)
                self._path = where
                self.address = listen
            else:
                host, port = where
                self._server = (_Ipv6Server if ":" in host else _Server)((host, port), handler)
                scheme = "http" if access.context() is None else "https"
                self.address = f"{scheme}://{listen.rpartition(':')[0]}:{self._server.server_address[1]}"
        except OSError as error:
            reason = error.strerror or str(error)
            remedy = (
                f"make {Path(listen.removeprefix('unix://')).parent} writable for this user (uid {os.getuid()})"
                if isinstance(error, PermissionError) and listen.startswith("unix:")
                else "free it or choose another"
            )
            raise UsageError(f"listen: cannot listen on {listen} ({reason}); {remedy}") from None
        self._server.access = access
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": _POLL_SECONDS},
            name="infercanary-serve",
            daemon=True,
        )
        self._thread.start()

    @property
    def cpu_seconds(self) -> float:
        """CPU time that answers took."""
        return self._server.cpu_seconds

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_SECONDS)
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def parse(listen: str) -> Path | tuple[str, int]:
    """Read where to listen.

    Args:
        listen: ``host:port`` (``[::]:9798`` for IPv6), or ``unix:///path``.

    Returns:
        The socket's path, or host (without brackets) and port.

    Raises:
        UsageError: It is neither.
    """
    if listen.startswith("unix:///"):
        return Path(listen.removeprefix("unix://"))
    host, _, port = listen.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        raise UsageError(f"listen: `{listen}` is neither host:port (0.0.0.0:9798) nor unix:///path")
    return host.strip("[]"), int(port)


def _clear_stale(path: Path) -> None:
    """Remove a socket that nobody listens on any more. Of any other file, bind reports that it is in the way."""
    if not os.path.exists(path) or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)


class _Open:
    def __init__(self, address: str, since: float) -> None:
        self.address, self.since, self.asked = address, since, False


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = _BACKLOG
    access: Access

    def __init__(self, *args: Any) -> None:
        self.cpu_seconds = 0.0
        self._open: dict[Any, _Open] = {}  # by its socket, the oldest first
        self._callers = Callers()
        self._lock = threading.Lock()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        address, now = str(client_address[0]), time.monotonic()
        with self._lock:
            admitted = self._callers.admits(address, now)
        if not admitted:
            self.shutdown_request(request)
            time.sleep(_REFUSED_SECONDS)
            return
        if (context := self.access.context()) is not None:
            request.settimeout(_SECONDS)
            request = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._open[request] = _Open(address, now)
            if len(self._open) > _MAX_CONNECTIONS:
                self._end(self._least())
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if isinstance(request, ssl.SSLSocket):
                with contextlib.suppress(OSError):
                    request.do_handshake()
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
                self.cpu_seconds += (cpu := time.thread_time())
                self._callers.charge(str(client_address[0]), cpu, time.monotonic())

    def asked(self, request: Any) -> None:
        """Note that its header is whole."""
        with self._lock:
            if request in self._open:
                self._open[request].asked = True

    def _least(self) -> Any:
        """The one that gives way: of the address that has most, the oldest that has not asked, else the oldest."""
        counts = Counter(found.address for found in self._open.values())
        most = max(counts, key=lambda address: counts[address])
        of_most = [request for request, found in self._open.items() if found.address == most]
        return min(of_most, key=lambda request: (self._open[request].asked, self._open[request].since))

    def service_actions(self) -> None:
        """Called between polls: a time-out on each read would let a caller drip bytes for ever."""
        now = time.monotonic()
        with self._lock:
            for request in [r for r, found in self._open.items() if now - found.since > _SECONDS]:
                self._end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing into the host's output: a caller that goes away is no error."""

    def _end(self, request: Any) -> None:
        """End its thread's read or write immediately, and so the thread."""
        del self._open[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class _Ipv6Server(_Server):
    address_family = socket.AF_INET6


class _UnixServer(_Server):
    address_family = socket.AF_UNIX

    def get_request(self) -> tuple[Any, Any]:
        request, _ = super().get_request()
        return request, ("unix", 0)


class _Handler(BaseHTTPRequestHandler):
    answer: Answering
    access: Access
    server: _Server
    timeout = _SECONDS
    server_version = "infercanary-probe"
    sys_version = ""

    def do_GET(self) -> None:
        self.server.asked(self.request)
        url = urlsplit(self.path)
        if url.path == PATH:
            if not self.access.allows(self.headers.get("Authorization", "")):
                self._send(401, "text/plain", b"a token is needed: Authorization: Bearer ...\n")
                return
            since = parse_qs(url.query).get("since", [""])[-1]
            self._send(200, "application/json", type(self).answer(since))
        elif url.path == "/-/healthy":
            self._send(200, "text/plain", b"ok\n")
        else:
            self._send(404, "text/plain", f"the report is at {PATH}\n".encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """No access log in the host's output."""
