"""Discovery with the real Docker SDK, against a server that speaks the five calls it may use, over a unix socket."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from infercanary.exporter.app import Exporter, create_app
from infercanary.exporter.discovery import base
from infercanary.exporter.discovery import docker as docker_discovery

# docker-py leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

INFO, KILLS = "infercanary_container_info", "infercanary_container_oom_kills_total"
ALLOWED = re.compile(r"(/v1\.\d+)?/(_ping|version|events|containers/json|images/json)")


class FakeDocker:
    """The daemon's API as Docker 20.10 answers it, and a proxy's allow-list: what is not allowed is a failure."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.probe_port = 0
        self.watched: Callable[[], Any]
        """Runs an exporter that discovers here."""
        self.listing: list[dict[str, Any]] = []
        self.images: list[dict[str, Any]] = []
        self.forbidden: list[str] = []
        self.listings = 0
        self.ahead = 0.0
        """Seconds by which the clock was set."""
        self.hang = False
        self.refused = ""
        """A list that the proxy forbids."""
        self.kept: list[dict[str, Any]] = []
        """The last events."""
        self._streams: list[tuple[web.Request, web.StreamResponse]] = []
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.path)).start()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()  # as a socket proxy
        self.port = int(self._runner.addresses[-1][1])

    async def stop(self) -> None:
        """As when the daemon dies: connections break, the socket refuses."""
        if self._runner is not None:
            await self.cut_events()
            await self._runner.cleanup()
            self._runner = None
        self.path.unlink(missing_ok=True)

    async def cut_events(self) -> None:
        for request, _ in self._streams:
            if request.transport is not None:
                request.transport.abort()
        await asyncio.sleep(0)

    async def event(self, action: str = "start", number: int = 0, code: str = "", **others: Any) -> None:
        """Send what Docker says of a container, as 20.10 does it after `docker run -m` with cgroup v1."""
        attributes = {"image": "x", "infercanary.enable": "true"} | ({"exitCode": code} if code else {})
        event = {
            "Type": "container",
            "Action": action,
            "Actor": {"ID": f"{number:064x}", "Attributes": attributes},
            "timeNano": time.time_ns() + int(self.ahead * 1e9),
            **others,
        }
        self.kept.append(event)
        for request, stream in list(self._streams):
            await self._send(request, stream, event)

    async def ends(self, number: int, *actions: str) -> None:
        """Send such events of a container as ``die 137``."""
        for action in actions:
            name, _, code = action.partition(" ")
            await self.event(name, number, code)

    async def has(self, *listing: dict[str, Any]) -> None:
        """Let it have these containers, with an event."""
        self.listing = [*listing]
        await self.event()

    async def lists_again(self, times: int = 1) -> None:
        """Wait until it was listed so often from now on, and events are followed."""
        last = self.listings + times
        while self.listings < last or not self._streams:  # noqa: ASYNC110 - a server that another process asks
            await asyncio.sleep(0.02)

    def entry(self, number: int, port: int = 0, image: int = 1, name: str = "app-resnet-1") -> dict[str, Any]:
        """A container of the good probe, or of what is at another port."""
        labels = {"enable": "true", "port": str(port or self.probe_port)}
        compose = {"com.docker.compose.service": "resnet", "com.docker.compose.config-hash": "c0ffee"}
        return {
            "Id": f"{number:064x}",
            "Names": [f"/{name}"],
            "Image": f"registry.example/resnet:{image}",
            "ImageID": f"sha256:{image:064x}",
            "Labels": {f"infercanary.{key}": value for key, value in labels.items()} | compose,
            "HostConfig": {"NetworkMode": "app_default"},
            "NetworkSettings": {
                "Networks": {"app_default": {"IPAddress": "127.0.0.1", "GlobalIPv6Address": ""}}
            },
        }

    def changed(self, path: str, value: Any) -> dict[str, Any]:
        """An entry without a label of ours, with another value at a place."""
        plain = {"Labels": {"a": "b"}, "State": "running", "Ports": [], "Created": 1, "Mounts": []}
        odd = self.entry(7, 1, name="odd") | plain
        *folders, last = path.split(".")
        place: Any = odd
        for step in folders:
            place = place[step]
        place[last] = value
        return odd

    async def _send(self, request: web.Request, stream: web.StreamResponse, event: dict[str, Any]) -> None:
        if event["Action"] in json.loads(request.query["filters"])["event"]:
            with suppress(ConnectionError):  # the exporter is between two streams
                await stream.write(json.dumps(event).encode() + b"\n")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET" or not (match := ALLOWED.fullmatch(request.path)):
            self.forbidden.append(f"{request.method} {request.path}")
            return web.Response(status=403)
        if self.hang:
            await asyncio.sleep(60)
        if match[2] == self.refused:
            return web.json_response({"message": "no"}, status=403)
        if match[2] == "events":
            return await self._stream(request)
        if match[2] == "containers/json":
            self.listings += 1
            return web.json_response(self.listing)
        return web.json_response(
            {"version": {"ApiVersion": "1.41"}, "images/json": self.images}.get(match[2], {})
        )

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        opened = (request, response)
        self._streams.append(opened)
        since = 1e9 * float(request.query["since"])
        for event in self.kept:
            if isinstance(event["timeNano"], int) and event["timeNano"] >= since:
                await self._send(request, response, event)
        try:
            await asyncio.sleep(60)
        finally:
            self._streams.remove(opened)
        return response


def image(number: int) -> dict[str, Any]:
    return {"Id": f"sha256:{number:064x}", "RepoDigests": [f"registry.example/resnet@sha256:{number:02d}"]}


@pytest.fixture(autouse=True)
def collect_garbage_here() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
async def docker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Any, watch: Any, good_probe: Any
) -> AsyncIterator[FakeDocker]:
    fake = FakeDocker(tmp_path / "docker.sock")
    fake.probe_port = int((await serve(good_probe.app())).rpartition(":")[2])
    fake.watched = partial(watch, discovery="docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{fake.path}")
    await fake.start()
    yield fake
    await fake.stop()
    assert fake.forbidden == [], "only what the socket proxy lets pass"


FIELDS = (
    "Id", "Names", "Image", "ImageID", "Created", "Labels", "Labels.a", "State", "Ports", "Mounts", "HostConfig",
    "HostConfig.NetworkMode", "NetworkSettings", "NetworkSettings.Networks", "NetworkSettings.Networks.app_default",
    "NetworkSettings.Networks.app_default.IPAddress", "NetworkSettings.Networks.app_default.GlobalIPv6Address",
)  # fmt: skip


async def test_odd_entries_cost_no_other_container(
    docker: FakeDocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Null, or a value of a wrong type, in any place of an entry, an image and an event. No event shows the others."""
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(base.log, "warning", lambda event, **more: lines.append({"event": event, **more}))
    monkeypatch.setattr(docker_discovery, "_RELIST_SECONDS", 0.1)
    docker.images = [{**image(1), "Id": None}, {**image(3), "RepoDigests": 5}, image(1)]
    listing: list[Any] = [docker.entry(1), "nothing", None]
    values: list[Any] = [None, 5, "text", [[]], "\ud800"]
    listing += [docker.changed(field, value) for field in FIELDS for value in values]
    odd: list[dict[str, Any]] = [{"Actor": None}, {"Actor": 5}, {"timeNano": "now"}]
    async with docker.watched() as run:
        await run.appears("infercanary_discovery_up")
        docker.listing = listing
        await run.appears("infercanary_up", container="app-resnet-1")
        assert await run.value("infercanary_discovery_up") == 1
        assert [info["image_digest"] for info in await run.labels(INFO)] == ["sha256:01"]
        for each in odd:
            await docker.event("oom", **each)
        await docker.ends(1, "oom", "die 137")
        await run.appears(KILLS, container="app-resnet-1")
        await docker.lists_again(2)
    entries = [line["entry"] for line in lines if "left out" in line["event"]]
    assert "nothing" in entries and sum("'Names': ['/odd']" in entry for entry in entries) > 1
    assert len(entries) == len(set(entries)), "each is said once"


async def test_a_container_appears_dies_and_is_recreated_with_a_new_image(
    docker: FakeDocker, good_probe: Any
) -> None:
    """At the speed of events: the periodic listing is far away."""
    docker.images = [image(1)]
    async with docker.watched() as run:
        await run.appears("infercanary_discovery_up")
        assert await run.value("infercanary_discovered_containers") == 0
        await docker.has(docker.entry(3, port=1))
        await run.appears("infercanary_poll_failures_total")

        await docker.has(docker.entry(1))
        await run.appears("infercanary_up")
        assert await run.labels("infercanary_poll_failures_total") == [], "another container"
        assert await run.labels(INFO) == [
            {
                "service": "resnet",
                "container": "app-resnet-1",
                "image": "registry.example/resnet:1",
                "image_id": f"sha256:{1:064x}",
                "image_digest": "sha256:01",
                "container_id": f"{1:064x}",
            }
        ]

        await docker.has()
        await run.becomes(None, "infercanary_up")
        assert 'container="app-resnet-1"' not in (await run.get())[1]

        asked = len(good_probe.cursors)
        docker.images = [image(1), image(2)]
        await docker.has(docker.entry(2, image=2))
        await run.appears("infercanary_up", service="resnet", container="app-resnet-1")
        assert [info["image_digest"] for info in await run.labels(INFO)] == ["sha256:02"]
        assert good_probe.cursors[asked] == "", "another container: nothing of the old one is taken over"


@pytest.mark.parametrize("refused", ["images/json", "events"])
async def test_a_proxy_that_forbids_a_list_is_said(docker: FakeDocker, refused: str) -> None:
    docker.refused = refused
    async with docker.watched() as run:
        await run.becomes(0, "infercanary_discovery_up")
        docker.refused = ""
        await run.appears("infercanary_discovery_up")


async def test_what_the_kernel_ended_is_counted_also_where_the_container_is_gone(docker: FakeDocker) -> None:
    first, second = docker.entry(1), docker.entry(2, name="app-resnet-2")
    docker.listing = [first, second]
    async with docker.watched() as run:
        await run.appears("infercanary_up", container="app-resnet-2")
        assert await run.value(KILLS, container="app-resnet-1") == 0
        # A worker of the one is killed, and its server goes on; somebody kills the other, which is no news of memory.
        await docker.ends(1, "oom")
        await docker.ends(2, "die 137")
        docker.listing = [first]
        await docker.ends(1, "die 0")
        await run.becomes(None, "infercanary_up", container="app-resnet-2")
        assert await run.each(KILLS) == {"app-resnet-1": 0}

        docker.listing = []
        await docker.ends(1, "oom", "die 137")
        await run.becomes(1, KILLS, container="app-resnet-1", service="resnet")
        await run.becomes(None, "infercanary_up", container="app-resnet-1")
        page = (await run.get("/"))[1]
        assert "app-resnet-1</span>" not in page
        assert "app-resnet-1 (resnet) does not run: killed for memory once, last" in page

        # It is started again, and ends again: its count goes on.
        await docker.has(first)
        await run.appears("infercanary_up")
        await docker.ends(1, "oom", "die 137", "start")
        await run.becomes(2, KILLS, container="app-resnet-1")
        await run.shows('<p class="trouble">killed for memory 2 times, last')


async def test_a_container_that_ends_goes_also_by_podmans_word(docker: FakeDocker) -> None:
    docker.listing = [docker.entry(1) | {"Image": "localhost/app:dev"}]
    async with docker.watched() as run:
        await run.appears("infercanary_up")
        assert [info["image"] for info in await run.labels(INFO)] == ["app:dev"], "localhost/ is no registry"
        docker.listing = []
        await docker.event("died")
        await run.becomes(None, "infercanary_up")


async def test_events_cost_few_listings_and_those_of_containers_without_a_label_none(
    docker: FakeDocker,
) -> None:
    async with docker.watched() as run:
        await run.appears("infercanary_discovery_up")
        before = docker.listings
        await docker.event(Actor={"ID": "f" * 64, "Attributes": {"image": "x"}})
        await asyncio.sleep(1.2)
        assert docker.listings == before
        for _ in range(50):
            await docker.event()
            await asyncio.sleep(0.02)
        await docker.lists_again()
        assert docker.listings - before <= 5


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
async def test_neither_docker_nor_a_probe_is_asked_through_a_proxy(
    docker: FakeDocker, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if scheme == "tcp":
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{docker.port}")
    docker.listing = [docker.entry(1)]
    async with docker.watched() as run:
        await run.appears("infercanary_up")
        assert await run.value("infercanary_discovery_up") == 1


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_that_steps_loses_no_kill_and_counts_none_twice(
    docker: FakeDocker, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    monkeypatch.setattr(docker_discovery, "_RELIST_SECONDS", 1.0)  # also of a stream
    docker.listing = [docker.entry(1)]
    async with docker.watched() as run:
        await run.appears("infercanary_up")
        for kills in (1, 2):
            # What ends between two streams, just after the clock stepped back, is not in the next one.
            await docker.lists_again()
            await docker.ends(1, "oom", "die 137")
            await run.becomes(kills, KILLS)
            await asyncio.sleep(1.0)
            assert await run.value(KILLS) == kills
            docker.ahead = 3600.0 * hours


async def test_what_happens_between_two_streams_is_seen_once(docker: FakeDocker) -> None:
    async with docker.watched() as run:
        await run.appears("infercanary_discovery_up")
        for number in (1, 2):
            await docker.cut_events()
            await docker.has(*(docker.entry(n, name=f"app-resnet-{n}") for n in range(1, number + 1)))
            await run.appears("infercanary_up", container=f"app-resnet-{number}")
        for kills in (1, 2):
            await docker.cut_events()
            await docker.ends(1, "die 137", "oom")
            await run.becomes(kills, KILLS, container="app-resnet-1")
        await docker.has()
        await run.becomes(
            None, "infercanary_up", container="app-resnet-1"
        )  # a listing goes before the events
        await docker.cut_events()
        await docker.ends(1, "oom", "die 137")
        await run.becomes(3, KILLS, container="app-resnet-1")
        await asyncio.sleep(1.0)
        assert await run.value(KILLS, container="app-resnet-1") == 3


async def test_the_daemon_restarts_and_the_probes_known_are_polled_meanwhile(
    docker: FakeDocker, good_probe: Any
) -> None:
    docker.listing = [docker.entry(1)]
    async with docker.watched() as run:
        await run.appears("infercanary_up")
        await docker.stop()
        await run.becomes(0, "infercanary_discovery_up")
        polls = good_probe.polls
        await asyncio.sleep(0.5)
        assert good_probe.polls > polls
        assert await run.value("infercanary_up") == 1
        docker.listing.append(docker.entry(2, name="app-resnet-2"))
        await docker.start()
        await run.appears("infercanary_up", container="app-resnet-2")
        assert await run.value("infercanary_discovery_up") == 1
        assert good_probe.cursors.count("") == 2, "the first one was never forgotten"


@pytest.mark.parametrize("hangs", [True, False])
async def test_neither_a_daemon_that_hangs_nor_an_idle_stream_holds_up_the_end(
    docker: FakeDocker, config: Any, eventually: Any, hangs: bool
) -> None:
    docker.hang = hangs
    exporter = Exporter(config(discovery="docker"))
    runner = web.AppRunner(create_app(exporter), shutdown_timeout=0.1)
    await runner.setup()
    if hangs:
        await asyncio.sleep(0.3)
        assert not exporter.discoveries[0].tried
    else:
        await eventually(lambda: asyncio.sleep(0, exporter.discoveries[0].up))
    await asyncio.wait_for(runner.cleanup(), 20)


async def test_the_same_name_in_the_config_goes_first(
    docker: FakeDocker, watch: Any, good_probe: Any
) -> None:
    docker.listing = [docker.entry(1, port=1)]
    async with watch({"app-resnet-1": good_probe}, discovery="docker") as run:
        await run.appears("infercanary_discovered_containers")
        await run.appears("infercanary_up")
        assert [info["container_id"] for info in await run.labels(INFO)] == [""]
