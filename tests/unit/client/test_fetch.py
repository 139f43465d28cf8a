"""An answer that is not a report gives a reason, and costs no more memory or event-loop time than a report."""

import asyncio
import socket
import tracemalloc
from contextlib import ExitStack, suppress

import pytest

from infercanary.client import fetch as module
from infercanary.client.accept import read
from infercanary.client.fetch import PollError, fetch
from infercanary.contract.report import Report, Run, encode
from tests.scenarios import cases

WHOLE = encode(
    Report(1, "boot", 1.0, "c", 0, (), {"torch": "2.13"}, (Run(1, "resnet18", 1.0, 1.0, "ok", (0.1,)),))
)
OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"Content-Length: %d\r\n\r\n" % len(WHOLE)


async def ask(pieces, pause=0.0, timeout=10.0, *, closes=True):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause)
            if not closes:
                await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        try:
            return await fetch(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "a b", timeout)
        finally:
            await ended.wait()


@cases(
    [
        ([OK, LENGTH[:20], LENGTH[20:], *(WHOLE[n : n + 9] for n in range(0, len(WHOLE), 9))], True),
        ([OK + LENGTH.lower() + WHOLE], True),
        ([OK + b"\r\n" + WHOLE], True),  # no Content-Length
        ([OK + LENGTH + WHOLE + OK + LENGTH + WHOLE], True),  # two answers
        ([OK, LENGTH + WHOLE], False),
    ],
)
async def test_a_whole_answer_is_read_however_it_comes(pieces, closes):
    assert await ask(pieces, 0.001, closes=closes) == WHOLE


async def test_a_refusal_needs_no_end_of_the_connection():
    with pytest.raises(PollError) as raised:
        await ask([b"HTTP/1.1 404 Not Found\r\n\r\n"], closes=False)
    assert raised.value.reason == "http_status"


async def test_the_next_address_of_a_name_is_asked(monkeypatch):
    """The first address drops all packets, as some networks do with IPv6: its queue of connections is full."""
    loop = asyncio.get_running_loop()
    real, addresses = loop.getaddrinfo, ["127.0.0.1", "127.0.0.2"]
    with ExitStack() as stack:
        silent, *full = [stack.enter_context(socket.socket()) for _ in range(4)]
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        port = silent.getsockname()[1]
        for one in full:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))

        async def found(host, *given, **more):
            if not host.startswith("two"):
                return await real(host, *given, **more)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, port)) for at in addresses]

        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK + LENGTH + WHOLE)
            writer.close()

        monkeypatch.setattr(loop, "getaddrinfo", found)
        async with await asyncio.start_server(serve, addresses[1], port):
            for name in ("two.test", f"two-{'a' * 58}", "two.bücher.test"):
                assert await fetch(f"http://{name}:{port}", "", 5) == WHOLE
        addresses[0] = "127.0.0.3"
        with pytest.raises(PollError, match="connection refused: no server listens at this address"):
            await fetch(f"http://two.test:{port}", "", 5)


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
ANSWERS = {
    "a head of 1 MB": (OK + b"X-More: %b\r\n" % (b"x" * 8_000) * 127, "malformed"),
    "interim answers": (b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000, "http_status"),
    "chunks": (OK + CHUNKED + b"1\r\n \r\n" * 100_000, "malformed"),
    "a long body": (OK + b"Content-Length: 9999999\r\n\r\n" + b" " * 9_999_999, "too_large"),
    "a body without a length": (OK + b"\r\n" + b"[" * 9_999_999, "too_large"),
    "less than its length": (OK + LENGTH + WHOLE[:-1], "closed_early"),
    "more than its length": (OK + b"Content-Length: 1\r\n\r\n{}", "malformed"),
    "half a head": (OK, "closed_early"),
    "nothing": (b"", "closed_early"),
    "no HTTP": (b"SSH-2.0\r\n\r\n", "malformed"),
    "packed": (OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08", "malformed"),
    "a redirection": (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "http_status"),
    "a failure": (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "http_status"),
}


@cases(ANSWERS.values(), ids=[*ANSWERS])
async def test_an_answer_that_is_no_report_takes_little_memory(answer, reason):
    pieces = [answer[start : start + 65_536] for start in range(0, len(answer), 65_536)]
    tracemalloc.start()
    try:
        with pytest.raises(PollError) as raised:
            read(await ask(pieces))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert raised.value.reason == reason
    assert most < (600 << 10) + 3 * min(len(answer), module.REPORT_BYTES)


async def test_many_small_packets_leave_the_event_loop_to_others(monkeypatch):
    received = module._Answer.data_received
    calls = 0

    def counted(self, data):
        nonlocal calls
        calls += 1
        received(self, data)

    monkeypatch.setattr(module._Answer, "data_received", counted)
    with pytest.raises(PollError, match=r"in 0\.5 s"):
        await ask([OK + b"\r\n", *(b" " for _ in range(100_000))], 0.0001, timeout=0.5)
    assert 5 < calls <= 52  # one call every 10 ms
