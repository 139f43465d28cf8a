"""A real exporter on a real socket, with test servers in place of probes and Docker."""

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from infercanary.contract.report import (
    LADDER,
    LATENCY,
    SCHEMA_VERSION,
    HistogramValue,
    Report,
    encode,
)
from infercanary.exporter import app, collect
from infercanary.exporter.app import create_app
from infercanary.exporter.config import ExporterConfig, check
from infercanary.exporter.discovery.static import StaticProbe
from infercanary.exporter.judging import worker


class Exporter:
    def __init__(self, url, session):
        self.url = url
        self.session = session

    async def get(self, path="/metrics", method="GET", **asked):
        async with self.session.request(method, self.url + path, **asked) as response:
            return response.status, await response.text()

    async def page(self):
        return (await self.get("/"))[1]

    async def found(self, name, **labels):
        status, text = await self.get()
        assert status == 200
        return [
            (one.labels, one.value)
            for family in text_string_to_metric_families(text)
            for one in family.samples
            if one.name == name and labels.items() <= one.labels.items()
        ]

    async def value(self, name, **labels):
        found = await self.found(name, **labels)
        assert len(found) <= 1, found
        return found[0][1] if found else None

    async def labels(self, name):
        return [labels for labels, _ in await self.found(name)]

    async def each(self, name):
        return {labels["container"]: value for labels, value in await self.found(name)}

    async def becomes(self, expected, name, **labels):
        await eventually(lambda: self.value(name, **labels), lambda value: value == expected)

    async def reaches(self, least, name, **labels):
        await eventually(lambda: self.value(name, **labels), lambda value: (value or 0) >= least)

    async def appears(self, name, **labels):
        await eventually(lambda: self.value(name, **labels))

    async def shows(self, *sentences):
        await eventually(self.page, lambda page: all(sentence in page for sentence in sentences))


async def eventually(ask, holds=bool, seconds=15.0):
    """Repeat the question until its answer satisfies ``holds``, and return the answer."""
    deadline = time.monotonic() + seconds
    while not holds(answer := await ask()):
        assert time.monotonic() < deadline, f"{answer!r} after {seconds} s"
        await asyncio.sleep(0.03)
    return answer


@asynccontextmanager
async def serving(application):
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def serve():
    async with AsyncExitStack() as stack:
        yield lambda application: stack.enter_async_context(serving(application))


@pytest.fixture
async def listen():
    """Serve raw bytes on a free port by a handler of (reader, writer): no HTTP library would send such answers."""
    async with AsyncExitStack() as stack:

        async def start(handler):
            async def handle(reader, writer):
                try:
                    await reader.readuntil(b"\r\n\r\n")
                    await handler(reader, writer)
                except (ConnectionError, asyncio.IncompleteReadError):
                    pass  # expected: the exporter closed the connection
                finally:
                    writer.close()

            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            stack.callback(server.close)
            return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

        yield start


@pytest.fixture
def exporter():
    """Run the exporter with a config, or with a config file, until the block ends."""

    @asynccontextmanager
    async def run(config=None, path=None):
        created = create_app(app.Exporter(config or check(path), path))
        async with serving(created) as url, aiohttp.ClientSession() as session:
            yield Exporter(url, session)

    return run


class GoodProbe:
    """A working probe. A test sets its report, and each poll makes the report longer."""

    def __init__(self):
        self.status = 200
        self.boot_id = "boot-1"
        self.polls = 0
        self.cursors = []
        self.families = []
        self.environment = {"torch": "2.7.1"}
        self.lost_runs = 0
        self.runs = []

    def report(self, since=""):
        self.polls += 1
        counts = (0,) * 20 + (self.polls,) + (0,) * (len(LADDER) - 20)
        histogram = HistogramValue(counts, 0.0016 * self.polls)
        start = int(since.partition(":")[2]) if since.startswith(f"{self.boot_id}:") else 0
        latency = LATENCY.family({("resnet18",): histogram})
        return Report(
            SCHEMA_VERSION,
            self.boot_id,
            time.time(),
            f"{self.boot_id}:{len(self.runs)}",
            self.lost_runs,
            (latency, *self.families),
            self.environment,
            tuple(self.runs[start:]),
        )

    async def answer(self, request):
        since = request.query.get("since", "")
        self.cursors.append(since)
        return web.Response(
            body=encode(self.report(since)), status=self.status, content_type="application/json"
        )

    def app(self):
        app = web.Application()
        app.router.add_get("/report", self.answer)
        return app


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(collect, "_LEAST_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(worker, "_TURN_SECONDS", 0.2)


def config(*probes, **changes):
    listed = tuple(StaticProbe(url=url, service="resnet", container=name) for name, url in probes)
    return ExporterConfig(**{"poll_seconds": 0.1, "discovery": "none", "probes": listed, **changes})


@pytest.fixture
def watch(exporter, serve, listen):
    """Run the exporter with these probes (container → URL, probe, or handler of raw bytes)."""

    async def address(source):
        if isinstance(source, str):
            return source
        return await (serve(source.app()) if isinstance(source, GoodProbe) else listen(source))

    @asynccontextmanager
    async def run(probes=None, **changes):
        urls = [(name, await address(source)) for name, source in (probes or {}).items()]
        async with exporter(config(*urls, **changes)) as running:
            yield running

    return run


@pytest.fixture(name="config")
def config_fixture():
    return config


@pytest.fixture(name="eventually")
def eventually_fixture():
    return eventually


@pytest.fixture
def good_probe():
    return GoodProbe()
