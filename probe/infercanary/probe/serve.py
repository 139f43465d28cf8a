"""The probe's HTTP server: one GET on a TCP port or a UNIX socket. It never calls out.

The probe is a guest in another process, so one thread with a loop of its own answers, whatever event loop the process
has. Number, time, header and CPU time (``callers.py``) of connections are bounded (decision 34).
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import socket
import ssl
import stat
import struct
import termios
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from http import HTTPStatus
from pathlib import Path
from select import POLLIN, POLLOUT
from typing import Any
from urllib.parse import parse_qs

from infercanary.command.settings import UsageError
from infercanary.contract.address import counted_as, in_url, listen_place, listening_socket
from infercanary.contract.report import PATH
from infercanary.probe.access import Access
from infercanary.probe.callers import Callers

_CONNECTIONS = 8
_CONNECTIONS_OF_ADDRESS = 4
_HEAD_BYTES = 8 << 10  # an exporter's has 300, of which a token may be 4,096
_HEAD_END = re.compile(rb"\n\r?\n")
_REQUEST = re.compile(rb"GET (%b|/-/healthy)(?:\?(\S*))? HTTP/1\.\d\r?\n" % re.escape(PATH.encode()))
_TOKEN = re.compile(rb"^authorization:[ \t]*(.*?)\s*$", re.IGNORECASE | re.MULTILINE)
_HEAD_SECONDS = 2.0
"""For the TLS handshake and the request's head."""
_ANSWER_SECONDS = 5.0
_BACKLOG = 1024
"""Connections that wait to be accepted or closed: an exporter gets in among 1,000 that reconnect immediately."""
_ACCEPTED_AT_ONCE = 64
_RECEIVE_BYTES, _SEND_BYTES = 8 << 10, 128 << 10
"""In the kernel, which doubles them; the container's memory has them."""
_REST = 9
"""Times the CPU time of a turn that the loop sleeps after it: a tenth of a CPU at most, also in a burst."""
_LONGEST_REST_SECONDS = 0.25
_UNREAD_SECONDS = 0.05
"""Between looks whether a caller has received its whole answer."""
_IDLE_SECONDS = 60.0
"""Longest wait for an event."""
_TCP_CLOSE = 7  # include/net/tcp_states.h

Answering = Callable[[str], bytes]
"""The caller's cursor ("" for none) → the report as JSON."""
Steps = Generator[int, None, Any]
"""Yields the event of ``poll`` to wait for; 0 to be called again after ``_UNREAD_SECONDS``."""


class ReportServer:
    """Serves reports from when it is made until :meth:`close`.

    Port 0 takes a free one; ``address`` shows which.
    """

    def __init__(self, listen: str, answer: Answering, access: Access | None = None) -> None:
        """Listen.

        Args:
            listen: See :func:`infercanary.contract.address.listen_place`.
            answer: Gives the report.
            access: Who may ask, and over what; None for everybody over plain HTTP.

        Raises:
            UsageError: It cannot listen there.
        """
        self.cpu_seconds = 0.0
        """CPU time that the server took."""
        self._answer = answer
        self._access = access or Access()
        where = listen_place(listen)
        self._path = where if isinstance(where, Path) else None
        try:
            self._sock = _listen_on_path(where) if isinstance(where, Path) else _listen_on_port(*where)
        except OSError as error:
            raise UsageError(
                f"listen: cannot listen on {listen} ({error.strerror or error}); free it, choose another, or make its "
                f"folder writable for this user (uid {os.getuid()})"
            ) from None
        self.address = listen if isinstance(where, Path) else self._url(where[0])
        self._sock.setblocking(False)
        self._open: list[_Connection] = []
        self._callers = Callers(time.monotonic())
        self._accept_at = 0.0
        self._closing = False
        _servers.add(self)
        self._thread = threading.Thread(target=self._run, name="infercanary-serve", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and end open connections."""
        self._closing = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the loop
        self._thread.join(_ANSWER_SECONDS)
        self.close_sockets()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def close_sockets(self) -> None:
        """Close this process's copy of each socket; after a fork, the parent's go on."""
        for sock in (self._sock, *(connection.sock for connection in self._open)):
            sock.close()

    def _url(self, host: str) -> str:
        bound, port = self._sock.getsockname()[:2]
        if bound == "0.0.0.0":  # noqa: S104 - stands for [::] where the kernel has no IPv6
            host = bound
        return f"{'https' if self._access.context() is not None else 'http'}://{in_url(host)}:{port}"

    def _run(self) -> None:
        while not self._closing:
            before = self.cpu_seconds
            with suppress(Exception):  # out of memory; nothing goes to the host's output
                self._turn()
            self._take_cpu_time()
            time.sleep(min(_REST * (self.cpu_seconds - before), _LONGEST_REST_SECONDS))

    def _turn(self) -> None:
        """Wait for an event; serve the open connections, and accept new ones."""
        waiting, now = select.poll(), time.monotonic()
        ends = [now + _IDLE_SECONDS, *(connection.deadline for connection in self._open)]
        if now < self._accept_at:
            ends.append(self._accept_at)
        else:
            waiting.register(self._sock, POLLIN)
        for connection in self._open:
            if connection.event:
                waiting.register(connection.sock, connection.event)
            else:
                ends.append(now + _UNREAD_SECONDS)
        ready = {number for number, _ in waiting.poll(max(0.0, min(ends) - now) * 1000 + 1)}
        now = time.monotonic()
        for connection in list(self._open):
            goes_on = now <= connection.deadline
            if not connection.event or connection.sock.fileno() in ready:
                goes_on &= self._step(connection, now)
            if not goes_on:
                self._end(connection)
        if self._sock.fileno() in ready:
            self._accept(now)

    def _step(self, connection: _Connection, now: float) -> bool:
        """Say whether the connection goes on."""
        try:
            connection.event = next(connection.steps)
        except Exception:  # it is finished (StopIteration), or its caller left
            return False
        finally:
            self._callers.spend(connection.address, self._take_cpu_time(), now)
        return self._callers.may_spend(connection.address, now)

    def _accept(self, now: float) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, peer = self._sock.accept()
            except OSError:  # none is left, or out of descriptors
                break
            address = counted_as(peer[0]) if peer else "unix"
            count = sum(connection.address == address for connection in self._open)
            is_full = len(self._open) >= _CONNECTIONS or count >= _CONNECTIONS_OF_ADDRESS
            if is_full or not self._callers.may_spend(address, now):
                sock.close()
                continue
            sock.setblocking(False)
            self._open.append(_Connection(sock, address, now + _HEAD_SECONDS, self._speak))
        self._accept_at = now + self._callers.accepted(self._take_cpu_time(), now)

    def _take_cpu_time(self) -> float:
        """Seconds since the last call."""
        before, self.cpu_seconds = self.cpu_seconds, time.thread_time()
        return self.cpu_seconds - before

    def _end(self, connection: _Connection) -> None:
        self._open.remove(connection)
        with suppress(OSError):
            if _has_unread(connection.sock):  # discard it: the kernel would keep it for minutes
                connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sock.close()

    def _speak(self, connection: _Connection) -> Steps:
        if (context := self._access.context()) is not None:
            connection.sock = context.wrap_socket(
                connection.sock, server_side=True, do_handshake_on_connect=False
            )
            yield from _when_ready(POLLIN, connection.sock.do_handshake)
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
        connection.sock.shutdown(socket.SHUT_WR)
        while _has_unread(connection.sock):
            yield 0

    def _respond(self, head: bytes) -> bytes:
        request, token = _REQUEST.match(head), _TOKEN.search(head)
        if request is None:
            return _response(HTTPStatus.NOT_FOUND, f"there is only GET {PATH}\n".encode())
        if request[1] == b"/-/healthy":
            return _response(HTTPStatus.OK, b"ok\n")
        if not self._access.allows(token[1] if token else b""):
            return _response(HTTPStatus.UNAUTHORIZED, b"a token is needed: Authorization: Bearer ...\n")
        since = parse_qs((request[2] or b"").decode("latin-1")).get("since", [""])[-1]
        return _response(HTTPStatus.OK, self._answer(since), "application/json")


_servers: weakref.WeakSet[ReportServer] = weakref.WeakSet()


def _close_in_child() -> None:
    """After a fork, close what the child has of the parent's servers, which cannot answer there."""
    for server in list(_servers):
        server.close_sockets()
    _servers.clear()


os.register_at_fork(after_in_child=_close_in_child)


class _Connection:
    def __init__(
        self, sock: socket.socket, address: str, deadline: float, speak: Callable[[_Connection], Steps]
    ) -> None:
        self.sock, self.address, self.deadline = sock, address, deadline
        self.event = POLLIN
        self.steps = speak(self)


def _when_ready(event: int, call: Callable[..., Any], *arguments: object) -> Steps:
    """Repeat a call until it no longer has to wait for ``event``, or what TLS waits for."""
    while True:
        try:
            return call(*arguments)
        except ssl.SSLWantReadError:
            yield POLLIN
        except ssl.SSLWantWriteError:
            yield POLLOUT
        except BlockingIOError:
            yield event


def _has_unread(sock: socket.socket) -> bool:
    """Say whether the kernel has bytes that the caller, if it is still there, has not received."""
    if sock.family == socket.AF_UNIX:  # the reader's memory
        return False
    if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE:
        return False
    return any(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))


def _response(status: HTTPStatus, body: bytes, kind: str = "text/plain") -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _listen_on_port(host: str, port: int) -> socket.socket:
    return listening_socket(
        host, port, backlog=_BACKLOG, receive_bytes=_RECEIVE_BYTES, send_bytes=_SEND_BYTES
    )


def _listen_on_path(path: Path) -> socket.socket:
    """Replace a socket that nobody listens on any more. Of any other file, bind reports that it is in the way."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        with suppress(FileNotFoundError), closing(socket.socket(socket.AF_UNIX)) as caller:
            caller.settimeout(1)
            try:
                caller.connect(str(path))
            except ConnectionRefusedError:
                if stat.S_ISSOCK(path.stat().st_mode):
                    path.unlink(missing_ok=True)
        sock.bind(str(path))
        # The exporter runs as another user, in another container, and only reads.
        path.chmod(0o666)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
