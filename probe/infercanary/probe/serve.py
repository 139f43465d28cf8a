"""The probe's HTTP server: one GET on a TCP port or a UNIX socket. It never calls out.

Threads answer, one for each connection: the probe runs in other people's processes, with any event loop or none. What a
caller controls is bounded: bytes of a request's head (counted before they are parsed), number and time of connections
with their threads and buffers in the kernel, and the CPU time that all callers together take (``callers.py``).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import socket
import stat
import struct
import termios
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from infercanary.command.settings import UsageError
from infercanary.contract.address import counted_as, in_url, listening_socket
from infercanary.contract.report import PATH
from infercanary.probe.access import Access
from infercanary.probe.callers import Callers

_MAX_CONNECTIONS = 8
"""And as many threads, and reports in memory."""
_MAX_OF_ADDRESS = 4
_HEAD_BYTES = 8 << 10  # an exporter's has 300, of which a token may be 4,096
_HEAD_READS = 32
_HEAD_END = re.compile(rb"\n\r?\n")
_BACKLOG = 1024
"""Connections that wait to be accepted or closed: an exporter gets in among 1,000 that reconnect immediately."""
_ACCEPTED_AT_ONCE = 64
_RECEIVE_BYTES, _SEND_BYTES = (
    8 << 10,
    128 << 10,
)  # in the kernel, which doubles them; the container's memory has them
_SECONDS = 5.0
_POLL_SECONDS = 0.25
_GIVE_WAY_SECONDS = 0.1
_ANSWER_SECONDS = 1.0
_TCP_CLOSE = 7  # include/net/tcp_states.h

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
        try:
            where = parse(listen)
            if isinstance(where, Path):
                _clear_stale(where)
                sock = _listen_on_path(where)
                self._path = where
                self.address = listen
            else:
                sock = listening_socket(
                    *where, backlog=_BACKLOG, receive_bytes=_RECEIVE_BYTES, send_bytes=_SEND_BYTES
                )
                scheme = "http" if access.context() is None else "https"
                host, port = where[0], sock.getsockname()[1]
                if ":" in host:  # 0.0.0.0 of [::], where the kernel has no IPv6
                    host = sock.getsockname()[0]
                self.address = f"{scheme}://{in_url(host)}:{port}"
        except OSError as error:
            reason = error.strerror or str(error)
            remedy = (
                f"make {Path(listen.removeprefix('unix://')).parent} writable for this user (uid {os.getuid()})"
                if isinstance(error, PermissionError) and listen.startswith("unix:")
                else "free it or choose another"
            )
            raise UsageError(f"listen: cannot listen on {listen} ({reason}); {remedy}") from None
        self._sock = sock
        self._server = _Server(sock, answer, access)
        _servers.add(self._server)
        self._thread = threading.Thread(target=self._server.run, name="infercanary-serve", daemon=True)
        self._thread.start()

    @property
    def cpu_seconds(self) -> float:
        """CPU time that callers took."""
        return self._server.cpu_seconds

    def close(self) -> None:
        """Stop listening."""
        self._server.stop()
        self._thread.join(_SECONDS)
        self._sock.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


_servers: weakref.WeakSet[_Server] = weakref.WeakSet()


def _close_in_child() -> None:
    """After a fork, close what the child has of the parent's servers, which cannot answer there."""
    for server in list(_servers):
        server.close_in_child()
    _servers.clear()


os.register_at_fork(after_in_child=_close_in_child)


def parse(listen: str) -> Path | tuple[str, int]:
    """Read where to listen.

    Args:
        listen: ``host:port`` (``[::]:9798`` for every address of both kinds), or ``unix:///path``.

    Returns:
        The socket's path, or host (without brackets) and port.

    Raises:
        UsageError: It is neither.
    """
    if listen.startswith("unix:///"):
        return Path(listen.removeprefix("unix://"))
    host, _, port = listen.rpartition(":")
    if not host or "/" in host or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        raise UsageError(f"listen: `{listen}` is neither host:port ([::]:9798) nor unix:///path")
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


def _listen_on_path(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(str(path))
        # The exporter runs as another user, in another container, and only reads.
        path.chmod(0o666)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


class _Open:
    def __init__(self, sock: socket.socket, address: str, since: float) -> None:
        self.sock, self.address, self.since, self.asked = sock, address, since, False
        self._ended = False

    def end(self) -> None:
        """End its thread's read or write immediately, and so the thread."""
        self._ended = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Wait until the caller has received its answer. The kernel would keep what is unread, for minutes after."""
        self.sock.shutdown(socket.SHUT_WR)
        if self.sock.family == socket.AF_UNIX:  # the reader's memory
            return
        rest = 0.001
        while self._unread() and not self._ended:
            time.sleep(rest)
            rest = min(2 * rest, _GIVE_WAY_SECONDS / 2)

    def close(self) -> None:
        """Close; discard what is unread."""
        with contextlib.suppress(OSError):
            if self.sock.family != socket.AF_UNIX and self._unread():
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def _unread(self) -> bool:
        """Say whether the kernel has bytes that the caller, if it is still there, has not received."""
        if self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE:
            return False
        return any(fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)))


class _Server:
    """Accepts connections, and answers each in a thread.

    Args:
        sock: One that listens.
        answer: Gives the report.
        access: Who may ask, and over what.
    """

    def __init__(self, sock: socket.socket, answer: Answering, access: Access) -> None:
        self.cpu_seconds = 0.0
        self.answer = answer
        self.access = access
        self._sock = sock
        self._open: list[_Open] = []  # those whose thread has not ended, the oldest first
        self._callers = Callers(time.monotonic())
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._closing = False
        self._starting_seconds = 0.0

    def run(self) -> None:
        """Accept until :meth:`stop`."""
        self._sock.setblocking(False)
        waiting = select.poll()
        waiting.register(self._sock, select.POLLIN)
        cpu = time.thread_time()
        while not self._closing:
            if waiting.poll(_POLL_SECONDS * 1000):
                self._accept()
            before, cpu = cpu, time.thread_time()
            self._pause(cpu - before)

    def _accept(self) -> None:
        """Accept those who wait. Many at once, since resting and waiting cost more than closing one."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, peer = self._sock.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # the caller has gone already
                continue
            except OSError:  # out of descriptors
                time.sleep(_POLL_SECONDS)
                return
            self._take(sock, counted_as(peer[0]) if isinstance(peer, tuple) else "unix")

    def stop(self) -> None:
        """Let :meth:`run` return soon; connections that are open end by themselves."""
        self._closing = True

    def close_in_child(self) -> None:
        """After a fork, in the child: close its copies of the parent's sockets. Its locks may be held for ever."""
        for sock in (self._sock, *(opened.sock for opened in self._open)):
            if (descriptor := sock.detach()) >= 0:
                os.close(descriptor)

    def reported(self, opened: _Open) -> None:
        """Note that it is given a report."""
        with self._lock:
            self._callers.reported(opened.address, time.monotonic())

    def _take(self, sock: socket.socket, address: str) -> None:
        now, before = time.monotonic(), time.thread_time()
        with self._lock:
            admitted = self._callers.admits(address, now) and self._room_for(address)
            if admitted:
                self._open.append(opened := _Open(sock, address, now))
        if not admitted:
            sock.close()
            return
        thread = threading.Thread(target=self._speak, args=(opened,), name="infercanary-answer", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the host is out of threads
            sock.close()
            with self._lock:
                self._open.remove(opened)
        self._starting_seconds += time.thread_time() - before

    def _room_for(self, address: str) -> bool:
        """Say whether one more of this address fits in; another one gives way to it. Holds the lock.

        Of the address that has most, the oldest goes that has not asked, else the oldest. An answer has a second, but
        where whoever comes has a place and its reader has none, or its reader has two more than whoever comes.
        """
        counts = Counter(opened.address for opened in self._open)
        among = self._open
        if counts[address] >= _MAX_OF_ADDRESS:
            among = [opened for opened in self._open if opened.address == address]
        elif len(self._open) < _MAX_CONNECTIONS:
            return True
        now, placed = time.monotonic(), self._callers.has_place
        may_go = [
            opened
            for opened in among
            if not opened.asked
            or now - opened.since > _ANSWER_SECONDS
            or (placed(address) and not placed(opened.address))
            or counts[opened.address] > counts[address] + 1
        ]
        if not may_go:
            return False
        victim = min(may_go, key=lambda o: (-counts[o.address], placed(o.address), o.asked, o.since))
        victim.end()
        return self._ended.wait_for(lambda: victim not in self._open, _GIVE_WAY_SECONDS)

    def _pause(self, cpu_seconds: float) -> None:
        """Look after those that are open, and rest where accepting took too much."""
        now = time.monotonic()
        with self._lock:
            self.cpu_seconds += cpu_seconds
            # To make room and to start a thread are charged to the caller.
            rest = self._callers.accepted(cpu_seconds - self._starting_seconds, now)
            self._starting_seconds = 0.0
            # A time-out on each read would let a caller drip bytes for ever.
            late = [opened for opened in self._open if now - opened.since > _SECONDS]
            for opened in late:
                opened.end()
        if rest:
            time.sleep(min(rest, _POLL_SECONDS))

    def _speak(self, opened: _Open) -> None:
        # Print nothing into the host's output: a caller that goes away is no error.
        with contextlib.suppress(Exception):
            if (context := self.access.context()) is not None:
                opened.sock.settimeout(_SECONDS)
                with self._lock:  # wrapping moves the descriptor
                    opened.sock = context.wrap_socket(
                        opened.sock, server_side=True, do_handshake_on_connect=False
                    )
                opened.sock.do_handshake()
            _Handler(opened, self)
        with contextlib.suppress(OSError):
            opened.finish()
        with self._lock:
            opened.close()
            self._open.remove(opened)
            self.cpu_seconds += (cpu := time.thread_time())
            self._callers.answered(opened.address, cpu, time.monotonic())
            self._ended.notify_all()


class _Handler(BaseHTTPRequestHandler):
    timeout = _SECONDS
    server_version = "infercanary-probe"
    sys_version = ""

    def __init__(self, opened: _Open, server: _Server) -> None:
        self._opened, self._server = opened, server
        super().__init__(opened.sock, (opened.address, 0), server)  # type: ignore[arg-type]

    def setup(self) -> None:
        super().setup()
        self.rfile = BytesIO(self._read_head())

    def _read_head(self) -> bytes:
        """Read the request's head before any of it is parsed; empty where it is too long or never whole."""
        head = bytearray()
        for _ in range(_HEAD_READS):
            piece: bytes = self.connection.recv(_HEAD_BYTES - len(head))
            head += piece
            if _HEAD_END.search(head):
                return bytes(head)
            if not piece or len(head) >= _HEAD_BYTES:
                break
        return b""

    def do_GET(self) -> None:
        self._opened.asked = True
        url = urlsplit(self.path)
        if url.path == PATH:
            if not self._server.access.allows(self.headers.get("Authorization", "")):
                self._send(401, "text/plain", b"a token is needed: Authorization: Bearer ...\n")
                return
            self._server.reported(self._opened)
            since = parse_qs(url.query).get("since", [""])[-1]
            self._send(200, "application/json", self._server.answer(since))
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
