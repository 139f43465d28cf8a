"""Discovery with the real Docker SDK, against a server that speaks the five calls it may use, over a unix socket."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from infercanary.exporter.app import Exporter, create_app
from infercanary.exporter.discovery import base
from infercanary.exporter.discovery import docker as docker_discovery

# docker-py leaves the socket of a refused connection to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

ALLOWED = re.compile(r"(/v1\.\d+)?/(_ping|version|events|containers/json|images/json)")


class FakeDocker:
    """The daemon's API as Docker 20.10 answers it, and a proxy's allow-list: what is not allowed is a failure."""

    def __init__(self, path: Path) -> None:
        self.path = path
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


def entry(number: int, port: int, image: int = 1, name: str = "app-resnet-1") -> dict[str, Any]:
    return {
        "Id": f"{number:064x}",
        "Names": [f"/{name}"],
        "Image": f"registry.example/resnet:{image}",
        "ImageID": f"sha256:{image:064x}",
        "Labels": {
            "infercanary.enable": "true",
            "infercanary.port": str(port),
            "com.docker.compose.service": "resnet",
            "com.docker.compose.config-hash": "c0ffee",
        },
        "HostConfig": {"NetworkMode": "app_default"},
        "NetworkSettings": {"Networks": {"app_default": {"IPAddress": "127.0.0.1", "GlobalIPv6Address": ""}}},
    }


def image(number: int) -> dict[str, Any]:
    return {"Id": f"sha256:{number:064x}", "RepoDigests": [f"registry.example/resnet@sha256:{number:02d}"]}


@pytest.fixture(autouse=True)
def collect_garbage_here() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
async def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeDocker]:
    fake = FakeDocker(tmp_path / "docker.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{fake.path}")
    await fake.start()
    yield fake
    await fake.stop()
    assert fake.forbidden == [], "only what the socket proxy lets pass"


@pytest.fixture
async def port(serve: Any, good_probe: Any) -> int:
    return int((await serve(good_probe.app())).rpartition(":")[2])


def changed(path: str, value: Any) -> dict[str, Any]:
    """An entry without a label of ours, with another value at a place."""
    odd = {
        **entry(7, 1, name="odd"),
        "Labels": {"a": "b"},
        "State": "running",
        "Ports": [],
        "Created": 1,
        "Mounts": [],
    }
    *folders, last = path.split(".")
    place: Any = odd
    for step in folders:
        place = place[step]
    place[last] = value
    return odd


FIELDS = (
    "Id", "Names", "Image", "ImageID", "Created", "Labels", "Labels.a", "State", "Ports", "Mounts", "HostConfig",
    "HostConfig.NetworkMode", "NetworkSettings", "NetworkSettings.Networks", "NetworkSettings.Networks.app_default",
    "NetworkSettings.Networks.app_default.IPAddress", "NetworkSettings.Networks.app_default.GlobalIPv6Address",
)  # fmt: skip


async def test_odd_entries_cost_no_other_container(
    docker: FakeDocker, port: int, exporter: Any, config: Any, eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Null, or a value of a wrong type, in any place of an entry, an image and an event."""
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(base.log, "warning", lambda event, **more: lines.append({"event": event, **more}))
    docker.images = [{**image(1), "Id": None}, {**image(3), "RepoDigests": 5}, image(1)]
    docker.listing = [entry(1, port), "nothing", None]  # type: ignore[list-item]
    values: list[Any] = [None, 5, "text", [[]], "\ud800"]
    docker.listing += [changed(field, value) for field in FIELDS for value in values]
    odd: list[dict[str, Any]] = [{"Actor": None}, {"Actor": 5}, {"timeNano": "now"}]
    monkeypatch.setattr(docker_discovery, "_RELIST_SECONDS", 0.1)
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_up", container="app-resnet-1"))
        assert await run.value("infercanary_discovery_up") == 1
        assert [found["image_digest"] for found in await run.labels("infercanary_container_info")] == [
            "sha256:01"
        ]
        for each in odd:
            await docker.event("oom", **each)
        await docker.ends(1, "oom", "die 137")
        await eventually(lambda: run.value("infercanary_container_oom_kills_total", container="app-resnet-1"))
        listings = docker.listings
        await eventually(lambda: asyncio.sleep(0, docker.listings > listings + 1))
    left_out = [line for line in lines if "left out" in line["event"]]
    entries = [line["entry"] for line in left_out]
    assert "nothing" in entries and sum("'Names': ['/odd']" in entry for entry in entries) > 1
    assert len(entries) == len(set(entries)), "each is said once"


async def test_a_container_appears_dies_and_is_recreated_with_a_new_image(
    docker: FakeDocker, port: int, exporter: Any, config: Any, eventually: Any, good_probe: Any
) -> None:
    """At the speed of events: the periodic listing is far away."""
    docker.images = [image(1)]
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_discovery_up"))
        assert await run.value("infercanary_discovered_containers") == 0

        docker.listing = [entry(1, port)]
        await docker.event()
        await eventually(lambda: run.value("infercanary_up"))
        assert await run.labels("infercanary_container_info") == [
            {
                "service": "resnet",
                "container": "app-resnet-1",
                "image": "registry.example/resnet:1",
                "image_id": f"sha256:{1:064x}",
                "image_digest": "sha256:01",
                "container_id": f"{1:064x}",
            }
        ]

        docker.listing = []
        await docker.event()

        async def gone() -> bool:
            return 'container="app-resnet-1"' not in (await run.get())[1]

        await eventually(gone)

        asked = len(good_probe.cursors)
        docker.listing, docker.images = [entry(2, port, image=2)], [image(1), image(2)]
        await docker.event()
        await eventually(lambda: run.value("infercanary_up", service="resnet", container="app-resnet-1"))
        assert [i["image_digest"] for i in await run.labels("infercanary_container_info")] == ["sha256:02"]
        assert good_probe.cursors[asked] == "", "another container: nothing of the old one is taken over"


async def test_a_replaced_container_between_two_listings_is_another_one(
    docker: FakeDocker, port: int, exporter: Any, config: Any, eventually: Any
) -> None:
    docker.listing = [entry(1, 1)]
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_poll_failures_total"))
        docker.listing = [entry(2, port)]
        await docker.event()
        await eventually(lambda: run.value("infercanary_up"))
        assert await run.labels("infercanary_poll_failures_total") == []


@pytest.mark.parametrize("refused", ["images/json", "events"])
async def test_a_proxy_that_forbids_a_list_is_said(
    docker: FakeDocker, exporter: Any, config: Any, eventually: Any, refused: str
) -> None:
    docker.refused = refused
    async with exporter(config(discovery="docker")) as run:

        async def refuses() -> bool:
            return await run.value("infercanary_discovery_up") == 0

        await eventually(refuses)
        docker.refused = ""
        await eventually(lambda: run.value("infercanary_discovery_up"))


async def test_what_the_kernel_ended_is_counted_also_where_the_container_is_gone(
    docker: FakeDocker, port: int, exporter: Any, config: Any, eventually: Any
) -> None:
    docker.listing = [entry(1, port), entry(2, port, name="app-resnet-2")]
    name = "infercanary_container_oom_kills_total"
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_up", container="app-resnet-2"))
        assert await run.value(name, container="app-resnet-1") == 0
        # A worker of the one is killed, and its server goes on; somebody kills the other, which is no news of memory.
        await docker.ends(1, "oom")
        await docker.ends(2, "die 137")
        docker.listing = [entry(1, port)]
        await docker.ends(1, "die 0")
        await asyncio.sleep(1.0)
        assert await run.value(name, container="app-resnet-1") == 0
        assert await run.value(name, container="app-resnet-2") is None, "it is gone"

        docker.listing = []
        await docker.ends(1, "oom", "die 137")

        async def counted() -> bool:
            return await run.value(name, container="app-resnet-1", service="resnet") == 1

        await eventually(counted)
        assert await run.value("infercanary_up", container="app-resnet-1") is None
        page = (await run.get("/"))[1]
        assert "app-resnet-1</span>" not in page
        assert "app-resnet-1 (resnet) does not run: killed for memory once, last" in page

        # It is started again, and ends again: its count goes on.
        docker.listing = [entry(1, port)]
        await docker.event()
        await eventually(lambda: run.value("infercanary_up"))
        await docker.ends(1, "oom", "die 137", "start")

        async def twice() -> bool:
            words = '<p class="trouble">killed for memory 2 times, last'
            return await run.value(name, container="app-resnet-1") == 2 and words in (await run.get("/"))[1]

        await eventually(twice)


@pytest.mark.parametrize("action", ["die", "died"])
async def test_a_container_that_ends_goes_by_dockers_word_and_by_podmans(
    docker: FakeDocker, port: int, exporter: Any, config: Any, eventually: Any, action: str
) -> None:
    docker.listing = [entry(1, port) | {"Image": "localhost/app:dev"}]
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_up"))
        [labels] = await run.labels("infercanary_container_info")
        assert labels["image"] == "app:dev", "localhost/ is no registry"
        docker.listing = []

        async def gone() -> bool:
            await docker.event(action)
            return await run.value("infercanary_up") is None

        await eventually(gone)


async def test_what_happens_to_containers_without_a_label_costs_no_listing(
    docker: FakeDocker, exporter: Any, config: Any, eventually: Any
) -> None:
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_discovery_up"))
        listings = docker.listings
        await docker.event(Actor={"ID": "f" * 64, "Attributes": {"image": "x"}})
        await asyncio.sleep(1.2)
        assert docker.listings == listings
        await docker.event()
        await eventually(lambda: asyncio.sleep(0, docker.listings > listings))


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
async def test_neither_docker_nor_a_probe_is_asked_through_a_proxy(
    docker: FakeDocker, port: int, exporter: Any, config: Any, eventually: Any, monkeypatch: Any, scheme: str
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    docker.listing = [entry(1, port)]
    url = f"tcp://127.0.0.1:{docker.port}" if scheme == "tcp" else f"unix://{docker.path}"
    monkeypatch.setenv("DOCKER_HOST", url)
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_up"))
        assert await run.value("infercanary_discovery_up") == 1


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_that_steps_loses_no_kill_and_counts_none_twice(
    docker: FakeDocker, port: int, exporter: Any, config: Any, eventually: Any, monkeypatch: Any, hours: int
) -> None:
    monkeypatch.setattr(docker_discovery, "_RELIST_SECONDS", 1.0)  # also of a stream
    docker.listing = [entry(1, port)]
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_up"))
        for kills in (1, 2):
            # What ends between two streams, just after the clock stepped back, is not in the next one.
            await eventually(lambda: asyncio.sleep(0, bool(docker._streams)))
            await docker.ends(1, "oom", "die 137")

            async def counted(kills: int = kills) -> bool:
                return await run.value("infercanary_container_oom_kills_total") == kills

            await eventually(counted)
            await asyncio.sleep(1.0)
            assert await counted()
            docker.ahead = 3600.0 * hours


async def test_a_kill_between_two_streams_is_counted_once(
    docker: FakeDocker, port: int, exporter: Any, config: Any, eventually: Any
) -> None:
    docker.listing = [entry(1, port)]
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_up"))
        for kills in (1, 2):
            await docker.cut_events()
            await docker.ends(1, "die 137", "oom")

            async def counted(kills: int = kills) -> bool:
                return await run.value("infercanary_container_oom_kills_total") == kills

            await eventually(counted)
        docker.listing = []
        await docker.event()

        async def gone() -> bool:
            return await run.value("infercanary_up") is None

        await eventually(gone)  # a listing goes before the events
        await docker.cut_events()
        await docker.ends(1, "oom", "die 137")
        await eventually(lambda: counted(3))
        await asyncio.sleep(1.0)
        assert await counted(3)


async def test_the_daemon_restarts_and_the_probes_known_are_polled_meanwhile(
    docker: FakeDocker, port: int, exporter: Any, config: Any, eventually: Any, good_probe: Any
) -> None:
    docker.listing = [entry(1, port)]
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_up"))
        await docker.stop()

        async def lost() -> bool:
            return await run.value("infercanary_discovery_up") == 0

        await eventually(lost)
        polls = good_probe.polls
        await asyncio.sleep(0.5)
        assert good_probe.polls > polls
        assert await run.value("infercanary_up") == 1
        docker.listing = [entry(1, port), entry(2, port, name="app-resnet-2")]
        await docker.start()
        await eventually(lambda: run.value("infercanary_up", container="app-resnet-2"))
        assert await run.value("infercanary_discovery_up") == 1
        assert good_probe.cursors.count("") == 2, "the first one was never forgotten"


async def test_an_event_between_two_streams_is_not_missed(
    docker: FakeDocker, port: int, exporter: Any, config: Any, eventually: Any
) -> None:
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_discovery_up"))
        for number in (1, 2, 3):
            await docker.cut_events()
            docker.listing = [entry(n, port, name=f"app-resnet-{n}") for n in range(1, number + 1)]
            await docker.event()
            await eventually(lambda n=number: run.value("infercanary_up", container=f"app-resnet-{n}"))


async def test_what_no_event_shows_is_found_by_listing_again(
    docker: FakeDocker,
    port: int,
    exporter: Any,
    config: Any,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(docker_discovery, "_RELIST_SECONDS", 0.5)
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_discovery_up"))
        docker.listing = [entry(1, port)]
        await eventually(lambda: run.value("infercanary_up"))


async def test_a_burst_of_events_costs_few_listings(
    docker: FakeDocker, exporter: Any, config: Any, eventually: Any
) -> None:
    async with exporter(config(discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_discovery_up"))
        before = docker.listings
        for _ in range(50):
            await docker.event()
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.7)
        assert 1 <= docker.listings - before <= 5


async def test_no_daemon_at_all_is_a_metric_and_the_listed_probes_work(
    exporter: Any, config: Any, eventually: Any, serve: Any, good_probe: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    async with exporter(config(("one", await serve(good_probe.app())), discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_up"))
        assert await run.value("infercanary_discovery_up") == 0
        assert "Docker does not answer" in (await run.get("/"))[1]


async def test_a_daemon_that_hangs_does_not_hold_up_the_end(docker: FakeDocker, config: Any) -> None:
    docker.hang = True
    exporter = Exporter(config(discovery="docker"))
    runner = web.AppRunner(create_app(exporter), shutdown_timeout=0.1)
    await runner.setup()
    await asyncio.sleep(0.3)
    assert not exporter.discoveries[0].tried
    started = time.monotonic()
    await runner.cleanup()
    assert time.monotonic() - started < 3.5


async def test_an_idle_event_stream_does_not_hold_up_the_end(
    docker: FakeDocker, config: Any, eventually: Any
) -> None:
    exporter = Exporter(config(discovery="docker"))
    runner = web.AppRunner(create_app(exporter), shutdown_timeout=0.1)
    await runner.setup()

    async def up() -> bool:
        return exporter.discoveries[0].up

    await eventually(up)
    started = time.monotonic()
    await runner.cleanup()
    assert time.monotonic() - started < 1.0


async def test_the_same_name_in_the_config_goes_first(
    docker: FakeDocker, port: int, exporter: Any, config: Any, eventually: Any
) -> None:
    docker.listing = [entry(1, 1)]
    url = f"http://127.0.0.1:{port}"
    async with exporter(config(("app-resnet-1", url), discovery="docker")) as run:
        await eventually(lambda: run.value("infercanary_discovered_containers"))
        await eventually(lambda: run.value("infercanary_up"))
        assert [info["container_id"] for info in await run.labels("infercanary_container_info")] == [""]
