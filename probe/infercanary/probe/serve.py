"""The probe's HTTP server: one GET on a TCP port or a UNIX socket. It never calls out.

It is the standard library's server, in a daemon thread: the probe runs in other people's processes, with any event loop
or none. What a caller controls is bounded: how long a connection lasts, how many there are (the oldest is closed, since
a proper caller needs milliseconds), and, by ``http.server``, the sizes of lines and headers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import socketserver
import stat
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from infercanary.command.settings import UsageError
from infercanary.contract.report import PATH

_MAX_CONNECTIONS = 8
_SECONDS = 5.0
_POLL_SECONDS = 0.25

Answering = Callable[[str], bytes]
"""The caller's cursor ("" for none) → the report as JSON."""


class ReportServer:
    """Serves reports from when it is made until :meth:`close`.

    Port 0 takes a free one; ``address`` shows which.
    """

    def __init__(self, listen: str, answer: Answering) -> None:
        """Listen.

        Args:
            listen: ``host:port`` or ``unix:///path``.
            answer: Gives the report.

        Raises:
            UsageError: It cannot listen there.
        """
        self._path: Path | None = None
        handler = type("Handler", (_Handler,), {"answer": staticmethod(answer)})
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
                self.address = f"http://{listen.rpartition(':')[0]}:{self._server.server_address[1]}"
        except OSError as error:
            reason = error.strerror or str(error)
            remedy = (
                f"make {Path(listen.removeprefix('unix://')).parent} writable for this user (uid {os.getuid()})"
                if isinstance(error, PermissionError) and listen.startswith("unix:")
                else "free it or choose another"
            )
            raise UsageError(f"listen: cannot listen on {listen} ({reason}); {remedy}") from None
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


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, *args: Any) -> None:
        self.cpu_seconds = 0.0
        self._open: dict[Any, float] = {}  # connection → since when, the oldest first
        self._lock = threading.Lock()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = time.monotonic()
            if len(self._open) > _MAX_CONNECTIONS:
                self._end(next(iter(self._open)))
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)
                self.cpu_seconds += time.thread_time()

    def service_actions(self) -> None:
        """Called between polls: a time-out on each read would let a caller drip bytes for ever."""
        now = time.monotonic()
        with self._lock:
            for request in [r for r, since in self._open.items() if now - since > _SECONDS]:
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
    timeout = _SECONDS
    server_version = "infercanary-probe"
    sys_version = ""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == PATH:
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
