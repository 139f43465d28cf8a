"""Odd and hostile answers over HTTP, byte by byte: each is read as RFC 9112 has it, or refused in words, in bounds."""

from __future__ import annotations

import gzip
import math
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from server_targets import http_target

from infercanary.probe.targets import Failure

BODY = b'{"scores":[1.0,2.0,3.0]}'
OTHER = b'{"scores":[9.0,9.0,9.0]}'
JSON = b"Content-Type: application/json"
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
PAUSE = None
GOOD = [1.0, 2.0, 3.0]
MAX_BYTES = 200_000


def head(*lines: bytes, status: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([status, *lines, b"", b""])


def sized(body: bytes, *lines: bytes) -> bytes:
    return head(*lines, b"Content-Length: %d" % len(body)) + body


class Case(NamedTuple):
    answer: bytes | Sequence[bytes | None]
    """Pieces that are sent apart."""
    values: Sequence[float] = ()
    failure: tuple[str, str] = ("", "")
    """Its reason, and words of its text."""
    is_kept: bool = True
    """Whether the connection is used again."""
    closes: bool = False
    """Whether the server closes it after the answer."""
    closes_on_reuse: bool = False
    """Whether the server closes it when the second request comes, as one whose idle time is over."""
    is_endless: bool = False
    """Whether the last piece is sent again and again."""


FINAL = head(JSON, LENGTH) + BODY
GZIP = gzip.compress(BODY)
CASES = {
    "good": Case(FINAL, GOOD),
    "early_hints": Case([b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n", PAUSE, FINAL], GOOD),
    "processing": Case([b"HTTP/1.1 102 Processing\r\n\r\n", PAUSE, FINAL], GOOD),
    "continue": Case([b"HTTP/1.1 100 Continue\r\n\r\n", PAUSE, FINAL], GOOD),
    "interim_at_once": Case(2 * b"HTTP/1.1 199 New\r\n\r\n" + FINAL, GOOD),
    "switching": Case(head(b"Upgrade: h2c", status=b"HTTP/1.1 101 Switching"), failure=("malformed", "HTTP/1.1")),
    "http10": Case(head(JSON, status=b"HTTP/1.0 200 OK") + BODY, GOOD, is_kept=False, closes=True),
    "until_closed": Case(head(JSON) + BODY, GOOD, is_kept=False, closes=True),
    "no_reason": Case(head(JSON, LENGTH, status=b"HTTP/1.1 200") + BODY, GOOD),
    "http2_preface": Case(b"\x00\x00\x12\x04" + bytes(20), failure=("malformed", "does not speak HTTP/1.1")),
    "mail": Case(b"220 mail.example.org ESMTP\r\n", failure=("malformed", "does not speak HTTP/1.1")),
    "trailers": Case(head(JSON, CHUNKED, b"Trailer: X-T") + b"18;ext=1\r\n%b\r\n0\r\nX-T: 1\r\n\r\n" % BODY, GOOD),
    "one_byte_chunks": Case(head(CHUNKED) + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n", GOOD),
    "close": Case(head(JSON, LENGTH, b"Connection: close") + BODY, GOOD, is_kept=False, closes=True),
    "closes_unannounced": Case(FINAL, GOOD, is_kept=False, closes=True),
    "closes_on_reuse": Case(FINAL, GOOD, is_kept=False, closes_on_reuse=True),
    "gzip": Case(sized(GZIP, b"Content-Encoding: gzip"), failure=("malformed", "compressed (gzip)")),
    "two_encodings": Case(
        sized(GZIP, b"Content-Encoding: deflate", b"Content-Encoding: gzip"),
        failure=("malformed", "compressed (deflate, gzip)"),
    ),
    "identity": Case(sized(BODY, b"Content-Encoding: identity"), GOOD),
    "extra": Case(FINAL + b"\r\n", GOOD, is_kept=False),
    "another_answer": Case(FINAL + sized(OTHER, JSON), GOOD, is_kept=False),
    "another_answer_later": Case([FINAL, PAUSE, sized(OTHER, JSON)], GOOD, is_kept=False),
    "same_length_twice": Case(head(JSON, LENGTH, LENGTH) + BODY, GOOD),
    "two_lengths": Case(head(LENGTH, b"Content-Length: 9") + BODY, failure=("malformed", "HTTP/1.1")),
    "negative_length": Case(head(b"Content-Length: -1") + BODY, failure=("malformed", "HTTP/1.1")),
    "length_and_chunked": Case(
        head(JSON, b"Content-Length: 9999", CHUNKED) + b"18\r\n%b\r\n0\r\n\r\n" % BODY, GOOD
    ),
    "limited": Case(
        head(b"Retry-After: 30", b"Content-Length: 0", status=b"HTTP/1.1 429 Too Many Requests"),
        failure=("rate_limited", "429 Too Many Requests"),
    ),
    "overloaded": Case(
        head(b"Retry-After: 5", b"Content-Length: 0", status=b"HTTP/1.1 503 Busy"), failure=("rate_limited", "503")
    ),
    "unavailable": Case(
        head(b"Content-Length: 0", status=b"HTTP/1.1 503 Busy"), failure=("error_answer", "503 Busy")
    ),
    "moved": Case(
        head(b"Location: /b", b"Content-Length: 0", status=b"HTTP/1.1 307 Moved"), failure=("error_answer", "to /b;")
    ),
    "no_content": Case(head(status=b"HTTP/1.1 204 No Content"), failure=("error_answer", "204 No Content")),
    "bom": Case(sized(b"\xef\xbb\xbf" + BODY), GOOD),
    "folded": Case(head(JSON, b"X-A: 1\r\n  2", LENGTH) + BODY, GOOD),
    "lf_only": Case(head(JSON, LENGTH).replace(b"\r\n", b"\n") + BODY, GOOD),
    "many_headers": Case(head(JSON, LENGTH, *[b"X-%d: a" % i for i in range(150)]) + BODY, GOOD),
    "utf8_header": Case(head(JSON, LENGTH, "X-Name: café 中".encode()) + BODY, GOOD),
    "two_packets": Case([head(JSON, LENGTH), PAUSE, BODY], GOOD),
    "byte_by_byte": Case([bytes([byte]) for byte in FINAL], GOOD),
    "nan": Case(sized(b'{"scores":[NaN,1]}'), [math.nan, math.nan]),
    "strings": Case(sized(b'{"scores":["0.1","0.9"]}'), failure=("wrong_shape", "/scores")),
    "lines": Case(sized(BODY + b"\n" + BODY), failure=("malformed", "JSON")),
    "large": Case(sized(b"[%b]" % (b"1," * MAX_BYTES)), failure=("too_large", "max_response_bytes")),
    "endless_body": Case([head(CHUNKED), b"1000\r\n%b\r\n" % bytes(4096)], failure=("too_large", ""), is_endless=True),
    "endless_head": Case([head()[:-2], b"X: %b\r\n" % (b"x" * 999)], failure=("malformed", ""), is_endless=True),
    "endless_line": Case([b"HTTP/1.1 200 ", b"x" * 999], failure=("malformed", ""), is_endless=True),
    "endless_chunk_size": Case([head(CHUNKED) + b"1;", b"x" * 999], failure=("malformed", ""), is_endless=True),
    "endless_trailer": Case(
        [head(CHUNKED) + b"0\r\n", b"X: %b\r\n" % (b"x" * 999)], failure=("malformed", ""), is_endless=True
    ),
    "endless_interim": Case(
        [b"HTTP/1.1 100 Continue\r\nX: %b\r\n\r\n" % (b"x" * 999)], failure=("too_large", ""), is_endless=True
    ),
    "slow_head": Case([head()[:-2] + b"X: ", PAUSE, b"x"], failure=("timed_out", ""), is_endless=True),
    "slow_body": Case([head(b"Content-Length: 9999"), PAUSE, b" "], failure=("timed_out", ""), is_endless=True),
    "silent": Case([PAUSE], failure=("timed_out", ""), is_endless=True),
    "half_head": Case(b"HTTP/1.1 200 OK\r\nX: ", failure=("incomplete", "head"), closes=True),
    "half_body": Case(head(b"Content-Length: 1000") + BODY, failure=("incomplete", "body"), closes=True),
    "half_chunk": Case(head(CHUNKED) + b"400\r\n" + BODY, failure=("incomplete", "body"), closes=True),
    "nothing": Case(b"", failure=("unreachable", "without an answer"), closes=True),
}  # fmt: skip


class Scripted:
    """Gives one answer to each request."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.connections = 0
        self._ends = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/score"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._ends.is_set():
                connected, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError), connected:
            requests = 0
            while connected.recv(65536):
                case, requests = self.case, requests + 1
                if case.closes_on_reuse and requests > 1:
                    return
                pieces = [case.answer] if isinstance(case.answer, bytes) else case.answer
                self._send(connected, pieces)
                while case.is_endless and not self._ends.is_set():
                    self._send(connected, pieces[-2:] if None in pieces else pieces[-1:])
                if case.closes:
                    return

    def _send(self, connected: socket.socket, pieces: Sequence[bytes | None]) -> None:
        for piece in pieces:
            if piece is None:
                self._ends.wait(0.02)
            else:
                connected.sendall(piece)

    def stop(self) -> None:
        self._ends.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted(CASES["good"])
    yield server
    server.stop()


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_read_or_refused_in_words_and_in_bounds(scripted: Scripted, name: str) -> None:
    case = CASES[name]
    # Endless answers must end by their size, slow ones by the time.
    is_slow = case.failure[0] == "timed_out"
    options: dict[str, Any] = {"ready_seconds": 0, "timeout_seconds": 0.5 if is_slow else 20}
    target = http_target(
        scripted.url, json={"a": 1}, expect={"values": "/scores"}, max_response_bytes=MAX_BYTES, **options
    )
    target.open()
    scripted.case = case
    begin = time.monotonic()
    for _ in range(3):
        target.prepare()
        if case.values:
            timing, result = target.clock.measure(target.run)
            assert target.values(result) == pytest.approx(case.values, nan_ok=True)
            assert sum(timing.phases.values()) <= timing.wall
        else:
            with pytest.raises(Failure) as failure:
                target.values(target.clock.measure(target.run)[1])
            reason, words = case.failure
            assert (failure.value.reason, words in str(failure.value)) == (reason, True), str(failure.value)
        if name == "another_answer_later":
            time.sleep(0.1)
    assert time.monotonic() - begin < 15
    if case.values:
        assert scripted.connections == (1 if case.is_kept else 3)
    scripted.case = CASES["good"]
    target.prepare()
    assert target.values(target.clock.measure(target.run)[1]) == GOOD, "a broken connection is not used again"
    target.close()
