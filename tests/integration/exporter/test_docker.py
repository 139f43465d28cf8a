"""Discovery with the real Docker SDK, and a server that implements the five permitted calls of Docker on a unix
socket.
"""

import asyncio
import gc
import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from infercanary.exporter.app import Exporter, create_app
from infercanary.exporter.discovery import base
from infercanary.exporter.discovery import docker as docker_discovery
from tests.integration.exporter.processes import comes_true
from tests.scenarios import cases
from tests.unit.exporter.test_docker_listing import listed

# docker-py leaves the socket of a refused connection open until the garbage collection.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

INFO, KILLS, UP = "infercanary_container_info", "infercanary_container_oom_kills_total", "infercanary_up"
DISCOVERY = "infercanary_discovery_up"
ALLOWED = re.compile(r"(/v1\.\d+)?/(_ping|version|events|containers/json|images/json)")
FIRST, SECOND = {"container": "app-resnet-1"}, {"container": "app-resnet-2"}


class FakeDocker:
    """The daemon's API as of Docker 20.10, behind a proxy's allow-list: any other call fails the test."""

    def __init__(self, path):
        self.path = path
        self.probe_port = 0
        self.watched: Callable[[], Any]
        """Runs an exporter that discovers at this server."""
        self.listing = []
        self.forbidden = []
        self.listings = 0
        self.ahead = 0.0
        """Seconds by which the clock was set forward."""
        self.hang = False
        self.refused = ""
        """A list that the proxy refuses."""
        self.kept = []
        """Latest events."""
        self._streams = []
        self._runner: web.AppRunner | None = None

    async def start(self):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.path)).start()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()  # the port of a socket proxy
        self.port = int(self._runner.addresses[-1][1])

    async def stop(self):
        """Stop like a dead daemon: connections break, and the socket refuses new ones."""
        if self._runner is not None:
            await self.cut_events()
            await self._runner.cleanup()
            self._runner = None
        self.path.unlink(missing_ok=True)

    async def cut_events(self):
        for request, _ in self._streams:
            if request.transport is not None:
                request.transport.abort()
        await asyncio.sleep(0)

    async def event(self, action="start", number=0, **attributes):
        """Send a container's event with the fields of Docker 20.10 after `docker run -m` with cgroup v1."""
        action, _, code = action.partition(" ")
        known = {"image": "x", "infercanary.enable": "true"} | ({"exitCode": code} if code else {})
        event = {
            "Type": "container", "Action": action,
            "Actor": {"ID": f"{number:064x}", "Attributes": attributes or known},
            "timeNano": time.time_ns() + int(self.ahead * 1e9),
        }  # fmt: skip
        self.kept.append(event)
        for request, stream in list(self._streams):
            await self._send(request, stream, event)

    async def ends(self, number, *actions):
        for action in actions:
            await self.event(action, number)

    async def has(self, *numbers):
        self.listing = [self.entry(number) for number in numbers]
        await self.event()

    async def lists_again(self):
        last = self.listings
        await comes_true(lambda: self.listings > last and self._streams)

    def entry(self, number, port=0, **given):
        """Return a container with the good probe's address, or with another port of this host."""
        port = port or self.probe_port
        return listed(number, "app_default=127.0.0.1", given=given, port=f"{port}")

    async def _send(self, request, stream, event):
        if event["Action"] in json.loads(request.query["filters"])["event"]:
            with suppress(ConnectionError):
                await stream.write(json.dumps(event).encode() + b"\n")

    async def _answer(self, request):
        if request.method != "GET" or not (match := ALLOWED.fullmatch(request.path)):
            self.forbidden.append(f"{request.method} {request.path}")
            return web.Response(status=403)
        if self.hang:
            await asyncio.sleep(60)
        if match[2] == self.refused:
            return web.json_response({"message": "no"}, status=403)
        if match[2] == "events":
            return await self._stream(request)
        self.listings += match[2] == "containers/json"
        images = [{"Id": id_, "RepoDigests": [f"registry.example:5000/team/resnet@{id_}"]} for id_ in IMAGES]
        answers = {"version": {"ApiVersion": "1.41"}, "images/json": images, "containers/json": self.listing}
        return web.json_response(answers.get(match[2], {}))

    async def _stream(self, request):
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        opened = (request, response)
        self._streams.append(opened)
        for event in self.kept:
            if event["timeNano"] >= 1e9 * float(request.query["since"]):
                await self._send(request, response, event)
        try:
            await asyncio.sleep(60)
        finally:
            self._streams.remove(opened)
        return response


IMAGES = ["sha256:" + number * 64 for number in "12"]


@pytest.fixture(autouse=True)
def collect_garbage_here():
    yield
    gc.collect()


@pytest.fixture
async def docker(tmp_path, monkeypatch, serve, watch, good_probe):
    monkeypatch.setattr(base, "_MAX_PAUSE_SECONDS", 0.3)
    monkeypatch.setattr(docker_discovery, "_SETTLE_SECONDS", 0.2)
    fake = FakeDocker(tmp_path / "docker.sock")
    fake.probe_port = int((await serve(good_probe.app())).rpartition(":")[2])
    fake.watched = partial(watch, discovery="docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{fake.path}")
    await fake.start()
    yield fake
    await fake.stop()
    assert fake.forbidden == []  # a call that the socket proxy forbids


async def test_a_container_appears_dies_and_is_recreated_with_a_new_image(docker, good_probe):
    """The test waits only for Docker's events: the periodic listing would take much longer."""
    async with docker.watched() as run:
        await run.appears(DISCOVERY)
        assert await run.value("infercanary_discovered_containers") == 0
        docker.listing = [docker.entry(3, port=1, Names=["/app-resnet-1"])]
        await docker.event()
        await run.appears("infercanary_poll_failures_total")

        await docker.has(1)
        await run.appears(UP, service="resnet", **FIRST)
        # a new container starts without the failures of the old one
        assert await run.labels("infercanary_poll_failures_total") == []
        [info] = await run.labels(INFO)
        assert info == {
            "service": "resnet", "container": "app-resnet-1", "image": "registry.example:5000/team/resnet:2",
            "image_id": IMAGES[0], "image_digest": IMAGES[0], "container_id": f"{1:064x}",
        }  # fmt: skip

        await docker.has()
        await run.becomes(None, UP)
        assert 'container="app-resnet-1"' not in (await run.get())[1]

        asked = len(good_probe.cursors)
        docker.listing = [docker.entry(2, Names=["/app-resnet-1"], ImageID=IMAGES[1])]
        await docker.event()
        await run.appears(UP, **FIRST)
        assert [info["image_digest"] for info in await run.labels(INFO)] == IMAGES[1:]
        assert good_probe.cursors[asked] == ""  # a new container has no old cursor
        docker.listing = []
        await docker.event("died")  # Podman's name of this action
        await run.becomes(None, UP)


@cases(["images/json", "events"])
async def test_a_proxy_that_forbids_a_list_is_said(refused, docker):
    docker.refused = refused
    async with docker.watched() as run:
        await run.becomes(0, DISCOVERY)
        docker.refused = ""
        await run.appears(DISCOVERY)


async def test_memory_kills_are_counted_even_if_the_container_is_gone(docker):
    docker.listing = [docker.entry(1), docker.entry(2)]
    async with docker.watched() as run:
        await run.appears(UP, **SECOND)
        assert await run.value(KILLS, **FIRST) == 0
        # In the first container, the kernel kills a worker and the server continues. In the second one, a
        # user kills the server, which is no memory kill.
        await docker.ends(1, "oom")
        await docker.ends(2, "die 137")
        docker.listing.pop()
        await docker.ends(1, "die 0")
        await run.becomes(None, UP, **SECOND)
        assert await run.each(KILLS) == {"app-resnet-1": 0}

        docker.listing = []
        await docker.ends(1, "oom", "die 137")
        await run.becomes(1, KILLS, service="resnet", **FIRST)
        await run.becomes(None, UP, **FIRST)
        page = await run.page()
        assert "app-resnet-1</span>" not in page
        assert "app-resnet-1 (resnet) does not run: killed for memory once, last" in page

        # The container is restarted and killed again: its count continues.
        await docker.has(1)
        await run.appears(UP)
        await docker.ends(1, "oom", "die 137", "start")
        await run.becomes(2, KILLS, **FIRST)
        await run.shows('<p class="trouble">killed for memory 2 times, last')


async def test_events_cost_few_listings_and_those_of_containers_without_a_label_none(docker):
    async with docker.watched() as run:
        await run.appears(DISCOVERY)
        before = docker.listings
        await docker.event(image="x")
        await asyncio.sleep(0.8)
        assert docker.listings == before
        for _ in range(50):
            await docker.event()
            await asyncio.sleep(0.02)
        await comes_true(lambda: docker.listings > before)
        assert docker.listings - before <= 8


@cases(["unix", "tcp"])
async def test_neither_docker_nor_a_probe_is_asked_through_a_proxy(scheme, docker, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if scheme == "tcp":
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{docker.port}")
    docker.listing = [docker.entry(1)]
    async with docker.watched() as run:
        await run.appears(UP)
        assert await run.value(DISCOVERY) == 1


async def test_a_clock_that_steps_loses_no_kill_and_counts_none_twice(docker, monkeypatch):
    monkeypatch.setattr(docker_discovery, "_RELIST_SECONDS", 0.4)  # also limits a stream of events
    docker.listing = [docker.entry(1)]
    async with docker.watched() as run:
        await run.appears(UP)
        for kills, ahead in enumerate((0.0, -3600.0, 3600.0), 1):
            docker.ahead = ahead
            # A container may end between two streams, just after the clock stepped back. The next stream then
            # lacks this event.
            await docker.lists_again()
            await docker.ends(1, "oom", "die 137")
            await run.becomes(kills, KILLS)
            await asyncio.sleep(0.8)
            assert await run.value(KILLS) == kills


async def test_events_between_two_streams_are_seen_once(docker):
    async with docker.watched() as run:
        await run.appears(DISCOVERY)
        for numbers in ([1], [1, 2]):
            await docker.cut_events()
            await docker.has(*numbers)
            await run.appears(UP, container=f"app-resnet-{len(numbers)}")
        for kills, actions in ((1, ("die 137", "oom")), (2, ("oom", "die 137"))):
            if kills == 2:
                await docker.has()
                await run.becomes(None, UP, **FIRST)
            await docker.cut_events()
            await docker.ends(1, *actions)
            await run.becomes(kills, KILLS, **FIRST)
        await asyncio.sleep(0.5)
        assert await run.value(KILLS, **FIRST) == 2


async def test_the_daemon_restarts_and_the_probes_known_are_polled_meanwhile(docker, good_probe):
    docker.listing = [docker.entry(1)]
    async with docker.watched() as run:
        await run.appears(UP)
        await docker.stop()
        await run.becomes(0, DISCOVERY)
        polls = good_probe.polls
        await comes_true(lambda: good_probe.polls > polls)
        assert await run.value(UP) == 1
        docker.listing.append(docker.entry(2))
        await docker.start()
        await run.appears(UP, **SECOND)
        assert await run.value(DISCOVERY) == 1
        assert good_probe.cursors.count("") == 2  # the first container keeps its cursor


@cases([True, False])
async def test_neither_a_daemon_that_hangs_nor_an_idle_stream_holds_up_the_end(hangs, docker, config):
    docker.hang = hangs
    exporter = Exporter(config(discovery="docker"))
    runner = web.AppRunner(create_app(exporter), shutdown_timeout=0.1)
    await runner.setup()
    if hangs:
        await asyncio.sleep(0.3)
        assert not exporter.discoveries[0].tried
    else:
        await comes_true(lambda: exporter.discoveries[0].up)
    await asyncio.wait_for(runner.cleanup(), 20)


async def test_the_same_name_in_the_config_goes_first(docker, watch, good_probe):
    docker.listing = [docker.entry(1, port=1)]
    async with watch({"app-resnet-1": good_probe}, discovery="docker") as run:
        await run.appears("infercanary_discovered_containers")
        await run.appears(UP)
        assert [info["container_id"] for info in await run.labels(INFO)] == [""]
