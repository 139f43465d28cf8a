"""One HTTP/1.1 connection, parsed by h11. Each exchange is timed by phase, and has limits in time and in bytes."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Generator
from contextlib import nullcontext
from functools import cache
from time import perf_counter
from typing import NamedTuple

import h11

from infercanary.probe.deadline import one_line
from infercanary.probe.targets import Failure
from infercanary.probe.timing import Phase

_PIECE_BYTES = 65536
_MAX_HEAD_BYTES = 65536


def untimed(_: str) -> nullcontext[None]:
    """Phase marker for exchanges that are not timed."""
    return nullcontext()


class Response(NamedTuple):
    """Head of an answer: status and headers."""

    status: int
    phrase: str
    headers: dict[str, str]
    """Lower-case name → value; the last value of a repeated header."""

    @property
    def encoding(self) -> str:
        """Compression of the body, such as ``gzip``; empty if uncompressed."""
        encoding = self.headers.get("content-encoding", "").lower()
        return "" if encoding == "identity" else encoding


class Connection:
    """A connection to one server. It is made when needed and kept for the next exchange.

    Every :class:`Failure` closes the connection.
    """

    def __init__(self, host: str, port: int, seconds: float, max_bytes: int, keep_alive: bool) -> None:
        """Keep the limits of an exchange, but do not connect yet.

        Args:
            host: Name or address.
            port: TCP port.
            seconds: Time limit of an exchange, from connecting to the last byte.
            max_bytes: Size limit of an answer, including its head.
            keep_alive: True to use a connection for more than one exchange.
        """
        self.host, self.port = host, port
        self._address = f"{f'[{host}]' if ':' in host else host}:{port}"
        self._seconds, self._max_bytes, self._keep_alive = seconds, max_bytes, keep_alive
        self._tls: ssl.SSLContext | None = None
        self._socket: socket.socket | None = None
        self._is_free = False  # True if no request is pending and the last answer was read completely
        self._deadline = 0.0
        self.received_at = 0.0
        """Time of the last received bytes, by ``perf_counter``."""

    def connect(self) -> None:
        """Connect, unless a connection is free. Without ``keep_alive``, close the connection afterwards."""
        self._deadline = perf_counter() + self._seconds
        if not self._is_usable():
            self._connect()
        if not self._keep_alive:
            self.close()

    def ask(
        self, method: str, request: bytes, phase: Phase, wait: str = "wait", receive: str = "receive"
    ) -> Response:
        """Send a request and read the head of its answer. The caller must read the body before the next request.

        Args:
            method: Method of the request.
            request: All bytes of the request.
            phase: Times ``connect`` (only if a connection is made), ``send``, and the two phases below.
            wait: Name of the phase until the first byte of the final answer.
            receive: Name of the phase for the rest of the head.
        """
        self._deadline = perf_counter() + self._seconds
        with phase("send"):
            is_reused = self._is_usable()
        while True:
            if self._socket is None:
                with phase("connect"):
                    self._connect()
            try:
                with phase("send"):
                    self._send(request)
                return self._read_head(method, phase, wait, receive)
            except Failure as failure:
                self.close()
                # A server may close an idle connection at the moment when a client uses it again. Clients then make a
                # new connection (RFC 9112, section 9.3.1).
                if not is_reused or failure.reason != "unreachable":
                    raise
                is_reused = False

    def pieces(self) -> Generator[bytes, None, None]:
        """Yield the body of the answer as it arrives, without chunk framing."""
        try:
            while not isinstance(event := self._next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Data):
                    yield bytes(event.data)
                else:
                    self._receive()
            has_ended = self._parser.their_state is h11.DONE and not self._parser.trailing_data[0]
            self._is_free = self._keep_alive and has_ended
        finally:
            if not self._is_free:
                self.close()

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _is_usable(self) -> bool:
        """True if the connection is free: still open, and without unexpected data from the server."""
        if self._socket is not None and self._is_free:
            try:
                self._socket.settimeout(0)
                self._socket.recv(1)
            except (BlockingIOError, ssl.SSLWantReadError):
                return True
            except OSError:
                pass
        self.close()
        return False

    def _connect(self) -> None:
        """Connect to the first of the host's addresses that accepts. This deadline does not cover the name lookup."""
        try:
            # A network may drop packets to one address, for example over IPv6. Leave time for the next address.
            connected = socket.create_connection((self.host, self.port), self._seconds_left() / 2)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connected.settimeout(self._seconds_left())
                connected = self._tls.wrap_socket(connected, server_hostname=self.host)
        except (OSError, ValueError) as error:  # an impossible host name raises ValueError
            raise Failure("unreachable", f"no connection to {self._address}: {explain(error)}") from None
        self._socket, self._is_free = connected, True

    def _send(self, request: bytes) -> None:
        assert self._socket is not None
        self._is_free = False
        self._size, self._part, self._has_ended = 0, "head", False
        unsent = memoryview(request)
        try:
            while unsent:
                self._socket.settimeout(self._seconds_left())
                unsent = unsent[self._socket.send(unsent) :]
        except OSError as error:
            raise self._failure(error) from None

    def _read_head(self, method: str, phase: Phase, wait: str, receive: str) -> Response:
        with phase(wait):  # the server computes in this phase
            self._parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
            self._parser.send(_sent(method))  # h11 needs the method to parse the answer
            self._parser.send(h11.EndOfMessage())
        while True:
            with phase(receive if self._parser.trailing_data[0] else wait):
                self._receive()
            with phase(receive):
                event = self._next_event()
                # informational answers, such as 103 Early Hints, come before the final answer
                while isinstance(event, h11.InformationalResponse):
                    event = self._next_event()
                if isinstance(event, h11.Response):
                    self._part = "body"
                    headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
                    return Response(event.status_code, event.reason.decode("latin-1"), headers)

    def _receive(self) -> None:
        """Receive the next bytes and pass them to the parser."""
        assert self._socket is not None
        try:
            self._socket.settimeout(self._seconds_left())
            received = self._socket.recv(_PIECE_BYTES)
        except OSError as error:
            raise self._failure(error) from None
        self.received_at = perf_counter()
        self._size += len(received)
        if self._size > self._max_bytes:
            raise Failure(
                "too_large", f"the answer is larger than {self._max_bytes} bytes (max_response_bytes)"
            )
        self._has_ended = not received
        self._parser.receive_data(received)

    def _next_event(self) -> object:
        try:
            return self._parser.next_event()
        except h11.RemoteProtocolError as error:
            if self._has_ended:
                raise self._failure(None) from None
            raise Failure("malformed", f"{self._address} does not speak HTTP/1.1: {error}") from None

    def _failure(self, error: OSError | None) -> Failure:
        """Return the failure for a connection that ends at this point of the exchange."""
        if isinstance(error, (TimeoutError, ssl.SSLWantReadError, ssl.SSLWantWriteError)):
            limit = f"within {self._seconds:g} s (timeout_seconds)"
            return Failure("timed_out", f"{self._address} gave no complete answer {limit}")
        why = f" ({error.strerror})" if error is not None and error.strerror else ""
        if self._size == 0:
            return Failure("unreachable", f"{self._address} closed the connection without an answer{why}")
        return Failure(
            "incomplete", f"{self._address} closed the connection in the {self._part} of its answer{why}"
        )

    def _seconds_left(self) -> float:
        left = self._deadline - perf_counter()
        if left <= 0:
            raise TimeoutError
        return left


@cache
def _sent(method: str) -> h11.Request:
    return h11.Request(method=method, target="/", headers=[("Host", "server")])


def explain(error: Exception) -> str:
    """Return the cause of a connection or file error in a few words."""
    if isinstance(error, TimeoutError):
        return "time-out (timeout_seconds)"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message}; ca_file)"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(error)
