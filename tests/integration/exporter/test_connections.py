"""Who is let in to the exporter, and for how long: real sockets against its own way of accepting them."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import gc
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from infercanary.exporter import connections as own
from infercanary.exporter import scrape
from infercanary.exporter.connections import Connections

BIG = b"x" * (8 << 20)  # more than the kernel takes for a reader that does not read
ASK = b"GET %s HTTP/1.1\r\nHost: x\r\n"


@asynccontextmanager
async def served(context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Connections, int]]:
    """One page that is big, and its port."""
    found = Connections()

    async def page(request: web.Request) -> web.StreamResponse:
        return await scrape.send(request, [BIG], "text/plain")

    async def slow(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.5)
        return web.Response()

    app = web.Application(middlewares=[found.middleware])

    async def faulty(_request: web.Request) -> web.StreamResponse:
        raise ConnectionRefusedError("a fault of the exporter")

    app.add_routes([web.get("/", page), web.get("/slow", slow), web.get("/faulty", faulty)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    with socket.create_server(("127.0.0.1", 0)) as sock:
        found.start(runner.server, sock, lambda: context)
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


async def test_an_error_keeps_no_memory_until_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its traceback has frames, these have what was read and what was to be sent; collections are rare."""

    def kept() -> int:
        kinds = (own.Connection, asyncio.sslproto.SSLProtocol)
        return sum(issubclass(type(thing), kinds) for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        async with served() as (found, port):
            _, writer = await ask(port)
            await until(lambda: any(connection.writing_paused for connection in found.open))
            writer.transport.abort()
            reader, garbage = await asyncio.open_connection("127.0.0.1", port)
            garbage.write(bytes(1 << 20))
            with suppress(ConnectionError):
                await reader.read()
            garbage.close()
            await until(lambda: not found.open)
        async with served(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)) as (found, port):
            reader, garbage = await asyncio.open_connection("127.0.0.1", port)
            garbage.write(b"\x00 no TLS\r\n\r\n")
            with suppress(ConnectionError):
                await reader.read()
            garbage.close()
            await until(lambda: found.refused == {"malformed": 1})
            assert not found.open
        await until(lambda: not kept())
    finally:
        gc.enable()


async def test_silence_instead_of_tls_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "HEADER_SECONDS", 0.2)
    async with served(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)) as (found, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        assert found.refused == {"no_request": 1} and not found.open
        writer.close()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: bool(found.open))
        writer.close()
        await until(lambda: not found.open)


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
        assert await asyncio.wait_for(reader.read(), 5) == b""
        assert found.refused == {"no_request": 1}
        writer.close()


async def test_a_reader_past_its_deadline_is_cut_and_one_within_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own, "ANSWER_SECONDS", 0.5)
    async with served() as (found, port):
        late, writer = await ask(port)
        scraper, other = await ask(port)
        assert await read(scraper) >= len(BIG)
        await until(lambda: found.refused["late_reader"] == 1)
        assert await read(late) < len(BIG)
        other.write(ASK % b"/" + b"\r\n")
        assert await read(scraper) >= len(BIG), "who took its answer stays"
        writer.close()
        other.close()


async def test_an_idle_connection_is_closed_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "IDLE_SECONDS", 0.2)
    async with served() as (found, port):
        reader, writer = await ask(port, path=b"/nowhere")
        assert b" 404 " in await reader.readline()
        await asyncio.wait_for(reader.read(), 5)
        assert not found.refused
        writer.close()


async def test_a_client_that_leaves_keeps_its_place_until_its_request_is_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own, "CONNECTIONS_OF_ADDRESS", 2)
    async with served() as (found, port):
        for _ in range(2):
            _, writer = await ask(port, path=b"/slow")
            await until(lambda: any(connection.handles for connection in found.open))
            writer.close()
        await asyncio.sleep(0.1)
        reader, writer = await ask(port)
        assert await read(reader) <= 0
        assert found.refused == {"refused": 1}
        await until(lambda: not found.open)
        reader, last = await ask(port)
        assert await read(reader) >= len(BIG)
        for each in (writer, last):
            each.close()
        monkeypatch.setattr(own, "ANSWER_SECONDS", 0.1)
        _, writer = await ask(port, path=b"/slow")
        await until(lambda: any(connection.handles for connection in found.open))
        begin = asyncio.get_running_loop().time()
        writer.close()
        await until(lambda: not found.open)
        assert asyncio.get_running_loop().time() - begin < 0.4, "no longer than it may take"


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
        await until(lambda: len(found.open) == 2)
        full += [await ask(port, address=f"127.0.0.{n}") for n in (3, 3, 4, 4)]
        await until(lambda: len(found.open) == 6)
        full.append(await ask(port, address="127.0.0.5"))
        await until(lambda: found.refused["refused"] == 11)
        for _, writer in full:
            writer.close()
        await until(lambda: not found.open)
        newest, last = await ask(port, address="127.0.0.2")
        assert await read(newest) >= len(BIG)
        last.close()


async def test_an_idle_connection_gives_its_place_to_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "CONNECTIONS_OF_ADDRESS", 2)
    async with served() as (found, port):
        reader, idle = await ask(port, path=b"/slow")
        await reader.readuntil(b"\r\n\r\n")
        _, busy = await ask(port)  # it takes no answer
        await until(lambda: [connection.is_idle for connection in found.open] == [True, False])
        newest, last = await ask(port)
        assert await read(newest) >= len(BIG)
        assert await asyncio.wait_for(reader.read(), 10) == b"" and not found.refused
        for writer in (idle, busy, last):
            writer.close()


async def test_what_is_no_http_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (found, port):
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x00 no HTTP\r\n\r\n")
            assert b" 400 " in await reader.readline()
            writer.close()
        assert found.refused == {"malformed": 5}
    assert "Traceback" not in caplog.text


async def test_a_fault_of_the_exporter_is_an_error_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (found, port):
        reader, writer = await ask(port, path=b"/faulty")
        assert b" 500 " in await reader.readline()
        assert not found.refused
        writer.close()
    assert "a fault of the exporter" in caplog.text
