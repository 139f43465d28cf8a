"""Docker: containers with the label ``infercanary.enable=true`` on this host.

The Docker SDK blocks, so each call runs in a thread. A socket proxy can forbid all but five calls: GET of /version,
/events, /containers/json and /images/json (and /_ping for the proxy's own health check). Memory kills are read from the
events. An inspect call also has ``OOMKilled``, but would expose secrets in environment variables.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import docker
import docker.types
import docker.utils
import msgspec
import requests

from infercanary.client.docker_api import DirectClient
from infercanary.contract.vocabulary import ENABLE_LABEL
from infercanary.exporter.discovery.base import Container, MemoryKill, convert_each
from infercanary.exporter.discovery.docker_listing import (
    ListedContainer,
    ListedImage,
    Listing,
    own_ids,
    read_entry,
)

# Health checks send `exec_*` events every few seconds from every container, so these are left out. Podman says `died`
# instead of `die`.
_EVENTS = ["start", "oom", "die", "died", "rename"]
_PREFIX = ENABLE_LABEL.removesuffix("enable")
_CALL_SECONDS = 10
_SETTLE_SECONDS = 0.5  # a burst of events causes one listing
_RELIST_SECONDS = 30.0
_TOGETHER_SECONDS = 10.0
"""Longest time between two related events. Docker sends `oom` (something in the container was killed for memory) and
`die` (the container ended) within milliseconds, in either order. If only a worker is killed and its server goes
on, no `die` follows.
"""


class _Actor(msgspec.Struct):
    id: str = msgspec.field(name="ID")
    attributes: dict[str, str] = msgspec.field(name="Attributes")
    """Labels of the container, and other facts."""


class _Event(msgspec.Struct):
    """Fields used from an entry of GET /events."""

    action: str = msgspec.field(name="Action")
    actor: _Actor = msgspec.field(name="Actor")
    nanoseconds: int = msgspec.field(name="timeNano")


_decode_event = msgspec.json.Decoder(_Event).decode


class DockerSource:
    """The containers of one Docker daemon, at DOCKER_HOST or by default at unix:///var/run/docker.sock."""

    name = "Docker"

    def __init__(self) -> None:
        self.kills: list[MemoryKill] = []
        self._failed: set[str] = set()
        self._read_until = time.time()
        """Unix time of the last event, by Docker's clock."""
        self._taken: deque[int] = deque(maxlen=256)
        """Hashes of the last events, as many as Docker keeps. Docker sends events again if its clock was set back."""
        self._listed: dict[str, Container] = {}
        self._listed_before: dict[str, Container] = {}
        self._ends: dict[str, _Event] = {}
        """Last `oom` or `die` of a container, kept while the matching event may follow."""
        self._own_ids = own_ids(socket.gethostname(), _read("/proc/self/mountinfo"))

    async def watch(self) -> AsyncGenerator[list[Container], None]:
        """List the containers at the start, after each event, and every 30 s.

        The thread of a call hangs if a broken Docker daemon never answers.

        Yields:
            All containers with a probe.

        Raises:
            Exception: Docker does not answer.
        """
        client = await asyncio.to_thread(self._client)
        changed = asyncio.Event()
        events = asyncio.create_task(self._follow_events(client, changed))
        try:
            while True:
                changed.clear()
                containers = await asyncio.to_thread(self._list, client)
                self._listed_before = self._listed
                self._listed = {id_: container for container in containers for id_ in container.ids}
                yield containers
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), _RELIST_SECONDS)
                await asyncio.sleep(_SETTLE_SECONDS)
                if events.done():
                    await events
        finally:
            events.cancel()
            await asyncio.gather(events, return_exceptions=True)
            client.close()

    def _client(self) -> docker.APIClient:
        return DirectClient(**docker.utils.kwargs_from_env(), version="auto", timeout=_CALL_SECONDS)

    def _list(self, client: docker.APIClient) -> list[Container]:
        entries = convert_each(client.containers(), partial(read_entry, kind=ListedContainer), self._failed)
        images = convert_each(client.images(all=True), partial(read_entry, kind=ListedImage), self._failed)
        listing = Listing(entries, images, self._own_ids)
        return [*filter(None, convert_each(entries, listing.container, self._failed))]

    async def _follow_events(self, client: docker.APIClient, changed: asyncio.Event) -> None:
        """Process each event once. Docker keeps its last 256 events, so no event between two streams is lost."""
        try:
            while True:
                events = await asyncio.to_thread(self._open_events, client)
                try:
                    while line := await asyncio.to_thread(next, events, b""):
                        if self._take(line):
                            changed.set()
                finally:
                    with suppress(OSError, AttributeError):  # the stream may already have ended
                        events.close()
                await asyncio.sleep(_SETTLE_SECONDS)
        finally:
            changed.set()

    def _open_events(self, client: docker.APIClient) -> docker.types.CancellableStream[bytes]:
        """Open a stream of new events with a plain GET: ``client.events()`` has no time-out."""
        response = client.get(
            f"{client.base_url}/v{client.api_version}/events",
            params={
                "filters": docker.utils.convert_filters({"type": "container", "event": _EVENTS}),
                "since": f"{self._read_until + 1e-6:.6f}",
            },
            stream=True,
            timeout=(_CALL_SECONDS, _RELIST_SECONDS),
        )
        response.raise_for_status()
        return docker.types.CancellableStream(_lines(response), response)

    def _take(self, line: bytes) -> bool:
        """Process an event; return True if the event's container has one of our labels.

        A known container was killed for memory if it has an `oom` and a `die`, in either order.
        """
        try:
            event = _decode_event(line)
        except msgspec.MsgspecError:
            return False
        if hash(line) in self._taken:
            return False
        self._taken.append(hash(line))
        self._read_until = at = event.nanoseconds / 1e9
        id_, attributes = event.actor.id, event.actor.attributes
        container = (self._listed_before | self._listed).get(id_)
        is_end = event.action == "oom" or (event.action == "die" and attributes.get("exitCode") != "0")
        if container is not None and is_end:
            earlier = self._ends.pop(id_, event)
            is_late = at - earlier.nanoseconds / 1e9 > _TOGETHER_SECONDS
            if earlier.action == event.action or is_late:
                self._ends[id_] = event
            else:
                self.kills.append(MemoryKill(container, id_, at))
        return any(name.startswith(_PREFIX) for name in attributes)


def _lines(response: requests.Response) -> Iterator[bytes]:
    """Yield the lines of a stream, until the stream ends or is silent for :data:`_RELIST_SECONDS`."""
    with suppress(requests.RequestException):
        yield from response.iter_lines()


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""  # no procfs: this process is in no container
