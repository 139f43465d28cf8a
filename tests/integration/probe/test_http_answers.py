"""Odd and hostile answers over HTTP, byte by byte: each is read as RFC 9112 has it, or refused in words, in bounds."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from server_targets import http_target

from infercanary.probe.targets import Failure

BODY = b'{"scores":[1.0,2.0,3.0]}'
GOOD = [1.0, 2.0, 3.0]
MAX_BYTES = 200_000
GOOD_ANSWER = "$ok~$json~$length~~$body"

# A name, what comes of it, and the answer. It is read, and the connection used again (`kept`) or not (`anew`: the
# server goes on, `closes` it, or closes it `on reuse`); or it is refused for a reason, with these words. In an answer
# `~` is the end of a line, `#` the length of what follows the head, `...` a pause between two packets, and what follows
# `>>` is sent again and again.
CASES = r"""
good | kept | $ok~$json~$length~~$body
early hints | kept | HTTP/1.1 103 Early Hints~Link: </a.css>; rel=preload~~...$ok~$json~$length~~$body
interim at once | kept | HTTP/1.1 199 New~~HTTP/1.1 100 Continue~~$ok~$json~$length~~$body
switching | malformed HTTP/1.1 | HTTP/1.1 101 Switching~Upgrade: h2c~~
http10 | closes | HTTP/1.0 200 OK~$json~~$body
until closed | closes | $ok~$json~~$body
no reason | kept | HTTP/1.1 200~$json~$length~~$body
http2 preface | malformed does not speak HTTP/1.1 | \0\0\x12\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0
mail | malformed does not speak HTTP/1.1 | 220 mail.example.org ESMTP~
trailers | kept | $ok~$json~$chunked~Trailer: X-T~~18;ext=1~$body~0~X-T: 1~~
small chunks | kept | $ok~$chunked~~1~{~17~"scores":[1.0,2.0,3.0]}~0~~
close | closes | $ok~$json~$length~Connection: close~~$body
closes unannounced | closes | $ok~$json~$length~~$body
closes on reuse | on reuse | $ok~$json~$length~~$body
two encodings | malformed compressed (deflate, gzip) | $ok~Content-Encoding: deflate~Content-Encoding: gzip~#~~$gzip
identity | kept | $ok~Content-Encoding: identity~$length~~$body
extra | anew | $ok~$json~$length~~$body~
another answer | anew | $ok~$json~$length~~$body$ok~$length~~{"scores":[9.0,9.0,9.0]}
another answer later | anew | $ok~$json~$length~~$body...$ok~$length~~{"scores":[9.0,9.0,9.0]}
same length twice | kept | $ok~$json~$length~$length~~$body
two lengths | malformed HTTP/1.1 | $ok~$length~Content-Length: 9~~$body
negative length | malformed HTTP/1.1 | $ok~Content-Length: -1~~$body
length and chunked | kept | $ok~$json~Content-Length: 9999~$chunked~~18~$body~0~~
limited | rate_limited 429 Too Many Requests | HTTP/1.1 429 Too Many Requests~Retry-After: 30~#~~
overloaded | rate_limited 503 | HTTP/1.1 503 Busy~Retry-After: 5~#~~
unavailable | error_answer 503 Busy | HTTP/1.1 503 Busy~#~~
moved | error_answer to /b; | HTTP/1.1 307 Moved~Location: /b~#~~
no content | error_answer 204 No Content | HTTP/1.1 204 No Content~~
byte order mark | kept | $ok~#~~\xef\xbb\xbf$body
folded | kept | $ok~$json~X-A: 1~  2~$length~~$body
line feeds only | kept | HTTP/1.1 200 OK\nContent-Length: 24\n\n$body
many headers | kept | $ok~$many$length~~$body
header in UTF-8 | kept | $ok~$json~X-Name: caf\xc3\xa9~$length~~$body
two packets | kept | $ok~$json~$length~~...$body
many packets | kept | HTTP/1....1 ...2...00... OK~Co...nte...nt-Length:... 24...~...~{...$rest
strings | wrong_shape /scores | $ok~#~~{"scores":["0.1","0.9"]}
lines | malformed JSON | $ok~#~~$body\n$body
large | too_large max_response_bytes | $ok~#~~[$large]
endless body | too_large | $ok~$chunked~~>>1000~$kilobytes~
endless head | malformed | $ok~>>X: $kilobytes~
endless line | malformed | HTTP/1.1 200 >>xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
endless chunk size | malformed | $ok~$chunked~~1;>>xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
endless trailer | malformed | $ok~$chunked~~0~>>X: $kilobytes~
endless interim | too_large | >>HTTP/1.1 100 Continue~X: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx~~
slow head | timed_out | $ok~X: >>...x
slow body | timed_out | $ok~Content-Length: 9999~~>>...\x20
silent | timed_out | >>...
half a head | incomplete head | $ok~X:\x20
half a body | incomplete body | $ok~Content-Length: 1000~~$body
half a chunk | incomplete body | $ok~$chunked~~400~$body
nothing | unreachable without an answer | $nothing
"""
WORDS = {
    "$ok": b"HTTP/1.1 200 OK",
    "$json": b"Content-Type: application/json",
    "$length": b"Content-Length: %d" % len(BODY),
    "$chunked": b"Transfer-Encoding: chunked",
    "$body": BODY,
    "$rest": BODY[1:],
    "$gzip": gzip.compress(BODY),
    "$many": b"X-A: a\r\n" * 150,
    "$large": b"1," * MAX_BYTES,
    "$nothing": b"",
    "$kilobytes": bytes(4096),
}


def wire(text: str) -> bytes:
    """The bytes of an answer, or of a part of one."""
    raw = text.encode().decode("unicode_escape").encode("latin-1").replace(b"~", b"\r\n")
    for word, meant in WORDS.items():
        raw = raw.replace(word.encode(), meant)
    head, _, body = raw.partition(b"\r\n\r\n")
    return raw.replace(b"#", b"Content-Length: %d" % len(body), 1) if b"#" in head else raw


class Scripted:
    """Gives one answer to each request."""

    answer = GOOD_ANSWER
    closes = False
    closes_on_reuse = False

    def __init__(self) -> None:
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
                requests += 1
                if self.closes_on_reuse and requests > 1:
                    return
                once, is_endless, again = self.answer.partition(">>")
                self._send(connected, once)
                while is_endless and not self._ends.is_set():
                    self._send(connected, again)
                if self.closes:
                    return

    def _send(self, connected: socket.socket, answer: str) -> None:
        first, *packets = answer.split("...")
        connected.sendall(wire(first))
        for packet in packets:
            self._ends.wait(0.02)
            connected.sendall(wire(packet))

    def stop(self) -> None:
        self._ends.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.stop()


@pytest.mark.parametrize("case", CASES.strip("\n").splitlines())
def test_an_answer_is_read_or_refused_in_words_and_in_bounds(scripted: Scripted, case: str) -> None:
    name, outcome, answer = case.split(" | ")
    reason, _, words = outcome.partition(" ")
    is_read = reason in ("kept", "anew", "closes", "on")
    # Endless answers must end by their size, slow ones by the time.
    options: dict[str, Any] = {"ready_seconds": 0, "timeout_seconds": 1 if reason == "timed_out" else 20}
    target = http_target(
        scripted.url, json={"a": 1}, expect={"values": "/scores"}, max_response_bytes=MAX_BYTES, **options
    )
    target.open()
    scripted.answer = answer
    scripted.closes = reason in ("closes", "incomplete", "unreachable")
    scripted.closes_on_reuse = outcome == "on reuse"
    begin = time.monotonic()
    for _ in range(3):
        target.prepare()
        if is_read:
            timing, result = target.clock.measure(target.run)
            assert target.values(result) == GOOD
            assert sum(timing.phases.values()) <= timing.wall
        else:
            with pytest.raises(Failure) as failure:
                target.values(target.clock.measure(target.run)[1])
            assert (failure.value.reason, words in str(failure.value)) == (reason, True), str(failure.value)
        if name == "another answer later":
            time.sleep(0.1)
    assert time.monotonic() - begin < 15
    assert not is_read or scripted.connections == (1 if reason == "kept" else 3)
    scripted.answer, scripted.closes, scripted.closes_on_reuse = GOOD_ANSWER, False, False
    target.prepare()
    assert target.values(target.clock.measure(target.run)[1]) == GOOD, "a broken connection is not used again"
    target.close()
