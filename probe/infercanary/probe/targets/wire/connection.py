"""One HTTP/1.1 connection. Exchanges are timed part by part, and each is bounded as a whole in time and in bytes.

``http.client`` reads the answers from a socket of ours: its own time-out is for each read, so that a server that sends
a byte a second would never be too slow.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from email.message import Message
from time import perf_counter
from typing import TYPE_CHECKING

from infercanary.probe.deadline import one_line
from infercanary.probe.targets import Failure, Reason
from infercanary.probe.timing import Phase

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PIECE = 65536


def untimed(_: str) -> nullcontext[None]:
    """A phase that nobody times.

    Returns:
        A context manager that does nothing.
    """
    return nullcontext()


class Connection:
    """A connection to one server, made when it is needed and kept for the next exchange, as clients in production do.

    Any :class:`Failure` closes the connection.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        seconds: float,
        most_bytes: int,
        keep_alive: bool = True,
    ) -> None:
        """Connect to nothing yet.

        Args:
            host: Name or address.
            port: TCP port.
            tls: None for plain HTTP.
            seconds: What each exchange may take, from its first step to the last byte.
            most_bytes: How large an answer may be, with its head.
            keep_alive: Whether the connection is used for more than one exchange.
        """
        self._host, self._port, self._tls = host, port, tls
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._keep_alive = keep_alive
        self._socket: socket.socket | None = None
        self._asked = False  # and the answer not read to its end
        self._at = f"{f'[{host}]' if ':' in host else host}:{port}"

    def open(self, phase: Phase = untimed) -> None:
        """Connect, unless there is an idle connection; without ``keep_alive`` each exchange makes its own instead.

        Args:
            phase: Times the part ``connect``.

        Raises:
            Failure: The server cannot be connected to.
        """
        if self._keep_alive and not self._is_alive():
            with phase("connect"):
                self._connect(perf_counter() + self._seconds)

    def reach(self) -> None:
        """Connect also without ``keep_alive``; the connection is then closed again.

        Raises:
            Failure: The server cannot be connected to.
        """
        if not self._is_alive():
            self._connect(perf_counter() + self._seconds)
        if not self._keep_alive:
            self.close()

    def ask(
        self,
        method: str,
        request: bytes,
        phase: Phase = untimed,
        wait: str = "wait",
        receive: str = "receive",
    ) -> Response:
        """Send a request and read the head of its answer; the caller reads the body.

        Args:
            method: The request's.
            request: All of its bytes.
            phase: Marks ``connect`` (only where a connection is made), ``send``, and the next two.
            wait: The phase of waiting for the first byte.
            receive: The phase of reading the head.

        Returns:
            The answer.

        Raises:
            Failure: Anything goes wrong.
        """
        deadline = perf_counter() + self._seconds
        while True:
            with phase("send"):
                reused = self._is_alive()
            if not reused:
                with phase("connect"):
                    self._connect(deadline)
            try:
                return self._exchange(method, request, phase, wait, receive, deadline)
            except Failure as failure:
                self.close()
                # A server may close an idle connection at the very moment in which it is used again. Any client then
                # makes another (RFC 9112, section 9.3.1): a canary's inference may be asked for twice.
                if not (reused and failure.reason == "unreachable"):
                    raise
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._asked = False
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None

    def read_to_the_end(self, will_close: bool) -> None:
        """Note that the answer is read: the connection is used again, or closed.

        Args:
            will_close: Whether the server closes the connection after this answer.
        """
        self._asked = False
        if will_close or not self._keep_alive:
            self.close()

    def _exchange(
        self, method: str, request: bytes, phase: Phase, wait: str, receive: str, deadline: float
    ) -> Response:
        connected = self._socket
        assert connected is not None
        self._asked = True
        with (
            phase("send"),
            self.failing_as("unreachable", "closed the connection while the request was sent"),
        ):
            unsent = memoryview(request)
            while unsent:
                connected.settimeout(_left(deadline))
                unsent = unsent[connected.send(unsent) :]
            received = _Received(connected, deadline, self._most_bytes)
            response = http.client.HTTPResponse(_Opened(received), method=method)  # type: ignore[arg-type]
        try:
            while True:
                with phase(wait), self.failing_as("unreachable", "closed the connection without an answer"):
                    if not response.fp.peek(1):
                        raise ConnectionResetError
                with phase(receive), self.failing_as("incomplete", "broke off in the head of its answer"):
                    response.begin()
                    if not 100 <= response.status < 200 or response.status == 101:
                        return Response(self, response)
                    # An interim answer (RFC 9110, section 15.2), such as 103 Early Hints; the final one follows.
                    response.headers = None  # type: ignore[assignment]  # or begin() reads no other head
        except BaseException:
            response.close()
            raise

    def _is_alive(self) -> bool:
        """Say whether the connection is idle: nothing was asked, so whatever can be read is its end."""
        if self._socket is not None and not self._asked:
            try:
                self._socket.settimeout(0)
                self._socket.recv(1)
            except (BlockingIOError, ssl.SSLWantReadError):
                return True
            except OSError:
                pass
        self.close()
        return False

    def _connect(self, deadline: float) -> None:
        """Connect to the first of the host's addresses that accepts. Looking up the name has no deadline of ours."""
        error: Exception | None = None
        try:
            addresses = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as unknown:
            why = getattr(unknown, "strerror", None) or one_line(unknown)
            raise Failure("unreachable", f"the host `{self._host}` is not found: {why}") from None
        for tried, (family, kind, protocol, _, address) in enumerate(addresses):
            try:
                made = socket.socket(family, kind, protocol)
            except OSError as failed:  # such as IPv6 that is switched off
                error = failed
                continue
            try:
                # A network may drop what goes to one of them, as to IPv6: the others have their share of the time.
                made.settimeout(_left(deadline) / (len(addresses) - tried))
                made.connect(address)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._tls is not None:
                    made.settimeout(_left(deadline))
                    made = self._tls.wrap_socket(made, server_hostname=self._host)
            except BaseException as failed:
                made.close()
                if not isinstance(failed, (OSError, ValueError)):
                    raise
                error = failed
            else:
                self._socket = made
                return
        raise Failure("unreachable", f"no connection to {self._at}: {_why(error)}")

    @contextmanager
    def failing_as(self, broken: Reason, how: str) -> Iterator[None]:
        """Raise what goes wrong inside as a :class:`Failure`.

        Args:
            broken: The reason where the connection breaks.
            how: What then happened, for the message: it follows the server's address.

        Yields:
            Nothing.

        Raises:
            Failure: ``timed_out``, ``malformed``, or ``broken``.
        """
        try:
            yield
        except (TimeoutError, ssl.SSLWantReadError):
            raise Failure(
                "timed_out", f"{self._at} gave no whole answer within {self._seconds:g} s (timeout_seconds)"
            ) from None
        except http.client.IncompleteRead:
            raise Failure(broken, f"{self._at} {how}") from None
        except OSError as error:
            # A reset, or the end of a TLS connection, has no text: `how` says it already.
            why = f" ({error.strerror})" if error.strerror else ""
            raise Failure(broken, f"{self._at} {how}{why}") from None
        except (http.client.HTTPException, ValueError) as error:
            raise Failure("malformed", f"{self._at} does not speak HTTP/1.1: {one_line(error)}") from None


class Response:
    """The head of an answer, and its body. Only after that is read to its end is the connection used again.

    Args:
        connection: Where it came from.
        response: One whose head was read.
    """

    def __init__(self, connection: Connection, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.phrase = response.reason
        self.headers: Message = response.headers
        encodings = ", ".join(response.headers.get_all("Content-Encoding", ())).strip().lower()
        self.encoding = "" if encodings == "identity" else encodings
        """How the body is compressed, such as ``gzip``; empty for not at all."""
        self._connection = connection
        self._response = response

    def pieces(self) -> Generator[bytes, None, None]:
        """Yield the body as it comes.

        Yields:
            Bytes, without the framing of chunks; pieces of any size above 0.

        Raises:
            Failure: It breaks off, is late or too large.
        """
        try:
            with self._connection.failing_as("incomplete", "broke off in the body of its answer"):
                yield from self._chunks() if self._response.chunked else self._bytes()
            self._connection.read_to_the_end(self._response.will_close)
        finally:
            self._response.close()

    def read(self) -> bytes:
        """Read the whole body.

        Returns:
            Bytes; empty for an answer without a body.

        Raises:
            Failure: It breaks off, is late or too large.
        """
        return b"".join(self.pieces())

    def close(self) -> None:
        """Leave the rest unread; the connection is then not used again."""
        self._response.close()

    def _chunks(self) -> Iterator[bytes]:
        while piece := self._response.read1(_PIECE):
            yield piece

    def _bytes(self) -> Iterator[bytes]:
        # Not HTTPResponse.read1(): before Python 3.13 it does not know where a body of known length ends.
        left = self._response.length
        while left != 0:
            piece = self._response.fp.read1(_PIECE if left is None else min(_PIECE, left))
            if not piece:
                if left is not None:
                    raise http.client.IncompleteRead(b"", left)
                return
            yield piece
            if left is not None:
                left -= len(piece)


class _Received(io.RawIOBase):
    """What a socket receives, up to a deadline and a number of bytes."""

    def __init__(self, connected: socket.socket, deadline: float, most_bytes: int) -> None:
        super().__init__()
        self._socket = connected
        self._deadline = deadline
        self._most_bytes = most_bytes
        self._bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._socket.settimeout(_left(self._deadline))
        count = self._socket.recv_into(buffer)
        self._bytes += count
        if self._bytes > self._most_bytes:
            raise Failure(
                "too_large", f"the answer is larger than {self._most_bytes} bytes (max_response_bytes)"
            )
        return count


class _Opened:
    """What ``HTTPResponse`` takes as a socket: it only calls ``makefile``."""

    def __init__(self, received: _Received) -> None:
        self._received = received

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._received, _PIECE)


def _left(deadline: float) -> float:
    left = deadline - perf_counter()
    if left <= 0:
        raise TimeoutError
    return left


def _why(error: Exception | None) -> str:
    if isinstance(error, TimeoutError):
        return "it timed out (timeout_seconds)"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}; ca_file)"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(error) if error is not None else "it has no address"
