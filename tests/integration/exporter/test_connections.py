"""Connection limits of the exporter, on real sockets."""

import asyncio
import asyncio.sslproto
import gc
import socket
import ssl
import tracemalloc
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from infercanary.exporter import connections as own
from infercanary.exporter import scrape
from infercanary.exporter.connections import Connections
from tests.integration.exporter.processes import comes_true
from tests.scenarios import cases

BIG = b"x" * (8 << 20)  # more than the kernel buffers for a client that does not read
ASK = b"GET %s HTTP/1.1\r\nHost: x\r\n"
TLS = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


class Client:
    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    def send(self, data):
        self._writer.write(data)

    async def line(self):
        return await self._reader.readline()

    async def read(self):
        """Read until the end or until the connection is cut; return the number of bytes."""
        count = 0
        try:
            while count < len(BIG) and (piece := await asyncio.wait_for(self._reader.read(1 << 20), 10)):
                count += len(piece)
        except ConnectionError:
            return -1
        return count

    async def send_much(self, piece):
        with suppress(ConnectionError):
            for _ in range(64):
                self.send(piece)
                await self._writer.drain()

    def close(self):
        self._writer.transport.abort()


class Server:
    def __init__(self, port, connections):
        self.connections = connections
        self.clients = []
        self._port = port

    @property
    def refused(self):
        return {**self.connections.refused}

    async def connect(self, path=None, header=b"\r\n", host=1):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self._port, limit=4096, local_addr=(f"127.0.0.{host}", 0)
        )
        if path is not None:
            writer.write(ASK % path + header)
        self.clients.append(Client(reader, writer))
        return self.clients[-1]

    async def until(self, condition):
        await comes_true(lambda: condition(self.connections))

    async def until_empty(self):
        await self.until(lambda found: not found.open)


@asynccontextmanager
async def served(context=None):
    connections = Connections()

    async def page(request):
        return await scrape.send(request, [BIG], "text/plain")

    async def slow(_request):
        await asyncio.sleep(0.5)
        return web.Response()

    async def faulty(_request):
        raise ConnectionRefusedError("a fault of the exporter")

    app = web.Application(middlewares=[connections.middleware])
    app.add_routes([web.get("/", page), web.get("/slow", slow), web.get("/faulty", faulty)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    with socket.create_server(("127.0.0.1", 0)) as sock:
        connections.start(runner.server, sock, lambda: context)
        server = Server(sock.getsockname()[1], connections)
        try:
            yield server
        finally:
            for client in server.clients:
                client.close()
            await connections.stop()
            await runner.cleanup()


async def test_invalid_http_takes_little_memory():
    async with served() as server:
        tracemalloc.start()
        try:
            for _ in range(4):
                client = await server.connect()
                await client.send_much(bytes(64 << 10))
                client.close()
            await server.until(lambda found: found.refused["malformed"] > 0)
            assert tracemalloc.get_traced_memory()[1] < 2 << 20
        finally:
            tracemalloc.stop()


async def test_an_error_keeps_no_memory_until_a_collection():
    """A traceback's frames refer to the request and to unsent bytes. Garbage collections are rare, so the frames
    must go.
    """
    kinds = (own.Connection, asyncio.sslproto.SSLProtocol)
    gc.collect()
    gc.disable()
    try:
        async with served() as server:
            client = await server.connect(b"/")
            await server.until(lambda found: any(one.writing_paused for one in found.open))
            client.close()
            garbage = await server.connect(None)
            garbage.send(bytes(1 << 20))
            await garbage.read()
            await server.until_empty()
        async with served(TLS) as server:
            garbage = await server.connect()
            garbage.send(b"\x00 no TLS\r\n\r\n")
            await garbage.read()
            await server.until_empty()
            assert server.refused == {"malformed": 1}
            await server.until(
                lambda _: not any(issubclass(type(thing), kinds) for thing in gc.get_objects())
            )
    finally:
        gc.enable()


@cases([(None, ASK % b"/"), (TLS, b"")])
async def test_a_connection_that_sends_no_whole_header_or_handshake_is_closed(context, said, monkeypatch):
    monkeypatch.setattr(own, "HEADER_SECONDS", 0.3)
    async with served(context) as server:
        client = await server.connect()
        client.send(said)
        assert await client.read() <= 0
        assert server.refused == {"no_request": 1}
        client = await server.connect()
        await server.until(lambda found: found.open)
        client.close()
        await server.until_empty()


async def test_a_header_of_half_a_megabyte_is_refused_before_it_is_whole():
    async with served() as server:
        for lines, status in ((40, b"200"), (60, b"400")):
            header = b"".join(b"X-%d: %s\r\n" % (n, b"x" * 8_000) for n in range(lines))
            client = await server.connect(b"/", header + b"\r\n")
            assert status in await client.line()
            client.close()
        assert server.refused == {"malformed": 1}


async def test_a_reader_past_its_deadline_is_cut_and_one_within_it_is_not(monkeypatch):
    monkeypatch.setattr(own, "ANSWER_SECONDS", 0.5)
    async with served() as server:
        late, scraper = await server.connect(b"/"), await server.connect(b"/")
        assert await scraper.read() >= len(BIG)
        await server.until(lambda found: found.refused["late_reader"] == 1)
        assert await late.read() < len(BIG)
        scraper.send(ASK % b"/" + b"\r\n")
        assert await scraper.read() >= len(BIG)  # A client that reads its answers stays connected.


async def test_a_client_that_leaves_keeps_its_place_until_its_request_is_handled(monkeypatch):
    monkeypatch.setattr(own, "CONNECTIONS_OF_ADDRESS", 2)
    async with served() as server:
        for _ in range(2):
            client = await server.connect(b"/slow")
            await server.until(lambda found: any(one.handles for one in found.open))
            client.close()
        await asyncio.sleep(0.1)
        assert await (await server.connect(b"/")).read() <= 0
        assert server.refused == {"refused": 1}
        await server.until_empty()
        assert await (await server.connect(b"/")).read() >= len(BIG)


async def test_connections_beyond_the_limit_of_an_address_are_refused_and_others_are_answered(monkeypatch):
    monkeypatch.setattr(own, "CONNECTIONS", 6)
    monkeypatch.setattr(own, "CONNECTIONS_OF_ADDRESS", 2)
    async with served() as server:
        full = [await server.connect(b"/", host=2) for _ in range(12)]
        await server.until(lambda found: found.refused["refused"] == 10)
        scraper = await server.connect(b"/")
        assert await scraper.read() >= len(BIG)
        scraper.close()
        await server.until(lambda found: len(found.open) == 2)
        full += [await server.connect(b"/", host=host) for host in (3, 3, 4, 4, 5)]
        await server.until(lambda found: len(found.open) == 6 and found.refused["refused"] == 11)
        for client in full:
            client.close()
        await server.until_empty()
        assert await (await server.connect(b"/", host=2)).read() >= len(BIG)


async def test_an_idle_connection_gives_its_place_to_a_new_one_or_is_closed_later(monkeypatch):
    monkeypatch.setattr(own, "CONNECTIONS_OF_ADDRESS", 2)
    async with served() as server:
        idle = await server.connect(b"/slow")
        assert b" 200 " in await idle.line()
        await server.connect(b"/")
        await server.until(lambda found: [connection.is_idle for connection in found.open] == [True, False])
        monkeypatch.setattr(own, "IDLE_SECONDS", 0.2)
        later = await server.connect(b"/nowhere")
        assert b" 404 " in await later.line()
        await idle.read()
        await later.read()
        assert not server.refused


async def test_invalid_http_is_counted_and_only_faults_of_the_exporter_are_logged(caplog):
    async with served() as server:
        client = await server.connect()
        client.send(b"\x00 no HTTP\r\n\r\n")
        assert b" 400 " in await client.line()
        assert "Traceback" not in caplog.text
        assert b" 500 " in await (await server.connect(b"/faulty")).line()
        assert server.refused == {"malformed": 1}
    assert "a fault of the exporter" in caplog.text
