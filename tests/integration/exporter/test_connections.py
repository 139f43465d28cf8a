"""Who is let in to the exporter, and for how long: real sockets against its own way of accepting them."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from infercanary.exporter import web as own
from infercanary.exporter.web import Connections, address_of

BIG = b"x" * (8 << 20)  # more than the kernel takes for a reader that does not read
ASK = b"GET %s HTTP/1.1\r\nHost: x\r\n"


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Connections, int]]:
    """One page that is big, and its port."""
    found = Connections()

    async def page(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=BIG)

    app = web.Application(middlewares=[found.middleware])
    app.add_routes([web.get("/", page), web.get("/metrics", page)])
    runner = web.AppRunner(
        app, access_log=None, shutdown_timeout=0.1, logger=found.logger(), **own.SERVER_SETTINGS
    )
    await runner.setup()
    assert runner.server is not None
    with socket.create_server(("127.0.0.1", 0)) as sock:
        found.start(runner.server, sock, None)
        try:
            yield found, sock.getsockname()[1]
        finally:
            await found.stop()
            await runner.cleanup()


async def ask(
    port: int, header: bytes = b"", address: str = "127.0.0.1", path: bytes = b"/"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096, local_addr=(address, 0))
    writer.write(ASK % path + header + b"\r\n")
    return reader, writer


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 10
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


async def read(reader: asyncio.StreamReader) -> int:
    """Bytes that come until the end, or until the connection is cut."""
    count = 0
    try:
        while count < len(BIG) and (piece := await reader.read(1 << 20)):
            count += len(piece)
    except ConnectionError:
        return -1
    return count


async def test_what_is_no_http_takes_little_memory() -> None:
    zeros = bytes(64 << 10)
    async with served() as (found, port):
        tracemalloc.start()
        try:
            for _ in range(4):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                with suppress(ConnectionError):
                    for _ in range(64):
                        writer.write(zeros)
                        await writer.drain()
                writer.close()
            await until(lambda: found.refused["malformed"] > 0)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < 2 << 20


async def test_a_header_of_half_a_megabyte_is_refused_before_it_is_whole() -> None:
    async with served() as (found, port):
        reader, writer = await ask(port, b"".join(b"X-%d: %s\r\n" % (n, b"x" * 8_000) for n in range(40)))
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        reader, writer = await ask(port, b"".join(b"X-%d: %s\r\n" % (n, b"x" * 8_000) for n in range(60)))
        assert b" 400 " in await reader.readline()
        assert found.refused["malformed"] == 1
        writer.close()


async def test_a_connection_that_sends_no_whole_header_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "HEADER_SECONDS", 0.3)
    async with served() as (found, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK % b"/")
        assert await reader.read() == b""
        assert found.refused == {"no_request": 1}
        writer.close()


async def test_a_reader_past_its_deadline_is_cut_and_one_within_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own, "ANSWER_SECONDS", 0.3)
    async with served() as (found, port):
        late, writer = await ask(port)
        named = b"X-Prometheus-Scrape-Timeout-Seconds: 8\r\n"
        late_page, third = await ask(port, named)  # a reader of the page may not name a time
        scraper, other = await ask(port, named, path=b"/metrics")
        await until(lambda: found.refused["late_reader"] == 2)
        assert await read(late) < len(BIG) and await read(late_page) < len(BIG)
        third.close()
        assert await read(scraper) >= len(BIG)
        writer.close()
        other.close()


async def test_connections_beyond_the_limit_of_an_address_are_refused_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own, "CONNECTIONS", 6)
    monkeypatch.setattr(own, "CONNECTIONS_OF_ADDRESS", 2)
    async with served() as (found, port):
        full = [await ask(port, address="127.0.0.2") for _ in range(12)]
        await until(lambda: found.refused["refused"] == 10)
        scraper, its = await ask(port)
        assert await read(scraper) >= len(BIG)
        its.close()
        await until(lambda: len(found._open) == 2)
        full += [await ask(port, address=f"127.0.0.{n}") for n in (3, 3, 4, 4)]
        await until(lambda: len(found._open) == 6)
        full.append(await ask(port, address="127.0.0.5"))
        await until(lambda: found.refused["refused"] == 11)
        for _, writer in full:
            writer.close()
        await until(lambda: not found._open)
        newest, last = await ask(port, address="127.0.0.2")
        assert await read(newest) >= len(BIG)
        last.close()


async def test_what_is_no_http_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (found, port):
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x00 no HTTP\r\n\r\n")
            assert b" 400 " in await reader.readline()
            writer.close()
        assert found.refused == {"malformed": 5}
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("::ffff:192.0.2.1", 5, 0, 0), "192.0.2.1"),
        (("2001:db8:1:2:3::4", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        ("", ""),
    ],
)
def test_an_address_is_what_one_host_may_have(peer: object, address: str) -> None:
    assert address_of(peer) == address
