"""The probe's HTTP server on a TCP port or a UNIX socket. It answers only GET /report, and makes no outgoing calls.

A separate thread answers, instead of the process's event loop. Connections have limits: number, time, header size and
CPU time (``callers.py``, docs/adr/0034-the-probes-port.md).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import select
import socket
import ssl
import struct
import sys
import termios
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from select import POLLERR, POLLHUP, POLLIN, POLLOUT
from typing import Any

from infercanary.command.settings import UsageError
from infercanary.contract.address import counted_as, in_url, listen_place, listening_socket
from infercanary.contract.report import PATH
from infercanary.probe.access import Access
from infercanary.probe.callers import Callers

_CONNECTIONS, _CONNECTIONS_OF_ADDRESS = 8, 4
_HEAD_BYTES = 8 << 10  # an exporter's request head has 300 bytes, plus a token of up to 4,096 bytes
_HEAD_END = re.compile(rb"\n\r?\n")
_REQUEST = re.compile(rb"GET %b(?:\?(?:since=([\w.]*))?\S*)? HTTP/1\.\d\r?\n" % re.escape(PATH.encode()))
_TOKEN = re.compile(rb"^authorization:[ \t]*(.*?)\s*$", re.IGNORECASE | re.MULTILINE)
_HEAD_SECONDS, _ANSWER_SECONDS = 2.0, 5.0  # seconds for TLS handshake and request head, and for the answer
_BACKLOG = 1024
"""Length of the queue of waiting connections. With this length, an exporter succeeds even among 1,000 callers that
reconnect immediately.
"""
_ACCEPTED_AT_ONCE, _REFUSED_SECONDS = 128, 0.4
"""Connections accepted together, and the pause after a refusal. Among 1,000 callers that reconnect, an exporter waits
3 s at most. Batches save switches between this thread and the threads of an inference server that runs Python code.
"""
_EXCESS_SECONDS = 0.001
"""CPU time charged to an address for each connection above the limits. An attacker's budget is then soon used up."""
# buffers that use the container's memory; the kernel doubles these sizes
_RECEIVE_BYTES, _SEND_BYTES = 8 << 10, 128 << 10
_LOOK_MILLISECONDS = 100
"""Time between two checks of open connections for exceeded deadlines and for callers that have received the whole
answer.
"""

_libc = ctypes.PyDLL(None)
"""The C library, called without releasing the GIL. Python's own ``accept`` releases the GIL for each connection."""

Steps = Generator[int, None, Any]  # yields the event of ``poll`` to wait for, or 0 to wait for the next check


class ReportServer:
    """Serves reports until :meth:`close`. ``answer`` returns the JSON for the caller's cursor ("" for none)."""

    def __init__(self, listen: str, answer: Callable[[str], bytes], access: Access | None = None) -> None:
        self.address = listen
        self.cpu_seconds = 0.0  # CPU time that the server used
        self._answer = answer
        self._access = access or Access()
        self._where = where = listen_place(listen)
        try:
            self._sock = _listen(where)
        except OSError as error:
            raise UsageError(
                f"listen: cannot listen on {listen} ({error.strerror or error}); free this address, choose another, or "
                f"make the socket's folder writable for this user (uid {os.getuid()})"
            ) from None
        if not isinstance(where, Path):
            host, port = self._sock.getsockname()[:2]
            self.address = f"{'http' if self._access.context() is None else 'https'}://{in_url(host)}:{port}"
        self._sock.setblocking(False)
        self._open: list[_Connection] = []
        self._callers = Callers(time.monotonic())
        self._accept_at = 0.0
        self._closing = False
        _servers.add(self)
        self._thread = threading.Thread(target=self._run, name="infercanary-serve", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wake the server's loop
        self._thread.join(_ANSWER_SECONDS)
        self.close_sockets()
        if isinstance(self._where, Path):
            self._where.unlink(missing_ok=True)

    def close_sockets(self) -> None:
        """Close this process's copy of each socket. After a fork, the parent's copies stay open."""
        for sock in (self._sock, *(connection.sock for connection in self._open)):
            sock.close()

    def _run(self) -> None:
        while not self._closing:
            # memory ran out; print nothing, because the output belongs to the server
            with suppress(Exception):
                self._turn()
            before, self.cpu_seconds = self.cpu_seconds, time.thread_time()
            with suppress(OSError):  # a short sleep may fail if libfaketime sets the clock back
                time.sleep(self._callers.rest(self.cpu_seconds - before, time.monotonic()))

    def _turn(self) -> None:
        """Wait for an event, serve the open connections, and accept new connections."""
        waiting = select.poll()
        is_pausing = time.monotonic() < self._accept_at
        if not is_pausing:
            waiting.register(self._sock, POLLIN)
        for connection in self._open:
            waiting.register(connection.sock, connection.event)
        ready = dict(waiting.poll(_LOOK_MILLISECONDS if self._open or is_pausing else None))
        now = time.monotonic()
        for connection in list(self._open):
            if not self._step(connection, ready.get(connection.sock.fileno(), 0), now):
                self._end(connection)
        if self._sock.fileno() in ready:
            self._accept(now)

    def _step(self, connection: _Connection, event: int, now: float) -> bool:
        """Handle one event of the connection; 0 means no event. Return True if the connection stays open."""
        if now > connection.deadline or event & (POLLERR | POLLHUP):
            return False
        if connection.event and not event:
            return True
        begin, event = time.thread_time(), -1
        with suppress(Exception):  # the connection is finished (StopIteration), or the caller left
            connection.event = event = next(connection.steps)
        may_go_on = self._callers.may_go_on(connection.address, time.thread_time() - begin, now)
        return may_go_on and event >= 0

    def _accept(self, now: float) -> None:
        """Accept the waiting connections, or close them. A refusal starts a pause."""
        peer, size = ctypes.create_string_buffer(128), ctypes.c_uint(128)
        for _ in range(_ACCEPTED_AT_ONCE):
            size.value = 128
            fd = _libc.accept4(self._sock.fileno(), peer, ctypes.byref(size), os.O_CLOEXEC | os.O_NONBLOCK)
            if fd < 0:  # no caller waits, or no file descriptor is left
                return
            address = _caller(peer.raw)
            present = [connection.address for connection in self._open]
            is_full = len(present) >= _CONNECTIONS or present.count(address) >= _CONNECTIONS_OF_ADDRESS
            may_begin = self._callers.may_go_on(address, _EXCESS_SECONDS * is_full, now)
            if is_full or not may_begin:
                _libc.close(fd)
                self._accept_at = now + _REFUSED_SECONDS
                continue
            sock = socket.socket(fileno=fd)
            sock.setblocking(False)
            self._open.append(_Connection(sock, address, self._speak))

    def _end(self, connection: _Connection) -> None:
        self._open.remove(connection)
        with suppress(OSError):
            if _has_unread(connection.sock):  # discard unsent bytes, which the kernel would keep for minutes
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sock.close()

    def _speak(self, connection: _Connection) -> Steps:
        if (context := self._access.context()) is not None:
            connection.sock = tls = context.wrap_socket(connection.sock, True, do_handshake_on_connect=False)
            yield from _when_ready(POLLIN, tls.do_handshake)
        head = b""
        while not _HEAD_END.search(head):
            piece = yield from _when_ready(POLLIN, connection.sock.recv, _HEAD_BYTES - len(head))
            head += piece
            if not piece or len(head) == _HEAD_BYTES:
                return
        connection.deadline = time.monotonic() + _ANSWER_SECONDS
        answer = memoryview(self._respond(head))
        while answer:
            sent = yield from _when_ready(POLLOUT, connection.sock.send, answer)
            answer = answer[sent:]
        while _has_unread(connection.sock):
            yield 0

    def _respond(self, head: bytes) -> bytes:
        request, token = _REQUEST.match(head), _TOKEN.search(head)
        if request is None:
            return _response("404 Not Found", f"there is only GET {PATH}\n".encode())
        if not self._access.allows(token[1] if token else b""):
            return _response("401 Unauthorized", b"a token is needed: Authorization: Bearer ...\n")
        return _response("200 OK", self._answer((request[1] or b"").decode()), "application/json")


_servers: weakref.WeakSet[ReportServer] = weakref.WeakSet()


def _close_in_child() -> None:
    """After a fork, close the child's copies of its parent's sockets, because the child cannot answer."""
    for server in list(_servers):
        server.close_sockets()


os.register_at_fork(after_in_child=_close_in_child)


def _caller(peer: bytes) -> str:
    """Return the name under which a caller's connections are counted. ``peer`` is the caller's address in the
    kernel's form.
    """
    family = int.from_bytes(peer[:2], sys.byteorder)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return "unix"
    host = peer[4:8] if family == socket.AF_INET else peer[8:24]
    return counted_as(socket.inet_ntop(family, host))


class _Connection:
    def __init__(self, sock: socket.socket, address: str, speak: Callable[[_Connection], Steps]) -> None:
        self.sock, self.address, self.event, self.steps = sock, address, POLLIN, speak(self)
        self.deadline = time.monotonic() + _HEAD_SECONDS


def _when_ready(event: int, call: Callable[..., Any], *arguments: object) -> Steps:
    """Repeat a call until it needs no wait. Yield the event to wait for: ``event``, or the event that TLS needs."""
    while True:
        try:
            return call(*arguments)
        except ssl.SSLWantWriteError:
            yield POLLOUT
        except (BlockingIOError, ssl.SSLWantReadError) as error:
            yield POLLIN if isinstance(error, ssl.SSLError) else event


def _has_unread(sock: socket.socket) -> bool:
    """True if the kernel still holds bytes that the caller has not received."""
    return any(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))


def _response(status: str, body: bytes, kind: str = "text/plain") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def _listen(where: Path | tuple[str, int]) -> socket.socket:
    if not isinstance(where, Path):
        return listening_socket(
            *where, backlog=_BACKLOG, receive_bytes=_RECEIVE_BYTES, send_bytes=_SEND_BYTES
        )
    if where.is_socket():  # replace a socket that has no listener
        with socket.socket(socket.AF_UNIX) as caller:
            caller.setblocking(False)
            if caller.connect_ex(str(where)) == errno.ECONNREFUSED:
                where.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(str(where))
        where.chmod(0o666)  # the exporter must be able to connect as another user in another container
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
