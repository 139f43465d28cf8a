"""Docker: containers with the label ``infercanary.enable=true`` on this host.

The Docker SDK blocks and is not thread-safe, so all calls are made in one thread of its own. It needs five of them, so
that a socket proxy can forbid the rest: GET of /version, /events, /containers/json and /images/json (and /_ping for the
proxy's own health check). That the kernel ended a container for memory is read from its events: inspect, which has
``OOMKilled``, would show the secrets of its environment too.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import docker
import docker.errors
import docker.types
import docker.utils
import msgspec
import requests
import structlog

from infercanary.client.docker_api import DirectClient
from infercanary.contract.vocabulary import ENABLE_LABEL, SERVICE_LABEL, WATCHES_LABEL
from infercanary.exporter.discovery.asking import label_text
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.discovery.docker_ends import DIED, Ends
from infercanary.exporter.discovery.docker_listing import (
    ListedContainer,
    ListedImage,
    ambiguous,
    containers,
    own_ids,
    readable,
)
from infercanary.exporter.discovery.kills import MemoryKill
from infercanary.exporter.watch import in_thread

log = structlog.get_logger(__name__)

# Not each exec_* of a health check, which comes every few seconds from every container.
# Podman says `died` and `remove` where Docker says `die` and `destroy`.
_EVENTS = ["create", "start", *DIED, "destroy", "remove", "pause", "unpause", "rename", "update"]
_CALL_SECONDS = 10
_SETTLE_SECONDS = 0.5  # a burst of events costs one listing
_RELIST_SECONDS = 30.0


class DockerSource:
    """The containers of one Docker daemon: DOCKER_HOST, else unix:///var/run/docker.sock."""

    name = "Docker"

    def __init__(self) -> None:
        self._watching = False
        self._is_podman = False
        self._images: list[ListedImage] = []
        self._images_missing = False
        self._several: dict[str, list[str]] = {}
        self._odd: dict[str, str] = {}
        self._ends = Ends(time.time())
        self._ends_read_at = time.monotonic()
        self._ends_missing = False
        self._kills: list[MemoryKill] = []
        self._own_ids = own_ids(socket.gethostname(), _read("/proc/self/mountinfo"))

    def new_kills(self) -> list[MemoryKill]:
        """Containers that the kernel ended for memory since the last call."""
        kills, self._kills = self._kills, []
        return kills

    async def watch(self) -> AsyncGenerator[list[Container], None]:
        """List the containers, again after each event, and every 30 s.

        The stream of events opens before the list, so that what happens meanwhile is not missed. A call that hangs in a
        wedged Docker stays behind in its thread.

        Yields:
            All containers with a probe.

        Raises:
            Exception: Docker does not answer.
        """
        client = await in_thread(self._client)
        try:
            while True:
                events = await in_thread(partial(self._open_events, client))
                try:
                    watching = self._watching
                    yield await in_thread(partial(self._list, client))
                    if watching == self._watching:
                        await in_thread(partial(next, events, None))
                finally:
                    with suppress(OSError, AttributeError):  # it may be ending by itself at this very moment
                        events.close()
                await asyncio.sleep(_SETTLE_SECONDS)
        finally:
            client.close()

    def _client(self) -> docker.APIClient:
        """A client that has asked for the daemon's version."""
        client = DirectClient(**docker.utils.kwargs_from_env(), version="auto", timeout=_CALL_SECONDS)
        self._is_podman = "Podman" in str(client.version().get("Components"))
        return client

    def _labelled(self) -> dict[str, str]:
        """Filter of events. A watched server need not be labelled: with one, every container's events count.

        Podman finds no event by the name of a label without its value, and the value may be written in several ways.
        """
        return {} if self._watching or self._is_podman else {"label": ENABLE_LABEL}

    def _open_events(self, client: docker.APIClient) -> docker.types.CancellableStream[bytes]:
        """Stream of events, as a plain GET, since ``client.events()`` cannot have a time-out."""
        filters = docker.utils.convert_filters({"type": "container", "event": _EVENTS, **self._labelled()})
        response = client.get(
            f"{client.base_url}/v{client.api_version}/events",
            params={"filters": filters},
            stream=True,
            timeout=(_CALL_SECONDS, _RELIST_SECONDS),
        )
        response.raise_for_status()
        return docker.types.CancellableStream(_until_silent(response), response)

    def _list(self, client: docker.APIClient) -> list[Container]:
        listing, odd = readable(msgspec.convert(client.containers(), list[Any]), ListedContainer)
        for name in odd.keys() - self._odd.keys():
            log.warning("a container cannot be read, and is left out", container=name, error=odd[name])
        self._odd = odd
        self._images = self._listed_images(client)
        found = containers(listing, self._images, self._own_ids)
        self._ends.follow(found)
        self._kills += self._ended(client)
        if (several := ambiguous(listing, self._images)) != self._several:
            for service, projects in several.items():
                log.warning(
                    "several Compose projects have this service, and are judged as one: "
                    f"give the containers of one of them another name by the label {SERVICE_LABEL}",
                    service=label_text(service), projects=[*map(label_text, projects)],
                )  # fmt: skip
            self._several = several
        self._watching = any(WATCHES_LABEL in (listed.labels or {}) for listed in listing)
        return found

    def _listed_images(self, client: docker.APIClient) -> list[ListedImage]:
        """For digests; where a proxy refuses the call, containers are found without new ones."""
        try:
            images, _ = readable(msgspec.convert(client.images(all=True), list[Any]), ListedImage)
        except (docker.errors.APIError, requests.Timeout, msgspec.ValidationError) as error:
            if not self._images_missing:
                log.warning("docker does not list images; digests are those known before", error=str(error))
            self._images_missing = True
            return self._images
        self._images_missing = False
        return images

    def _ended(self, client: docker.APIClient) -> list[MemoryKill]:
        """What the kernel ended since the last listing: Docker keeps its last 256 events, so no gap between two streams
        loses one.

        A plain GET with an end, which is answered immediately."""
        until, now = time.time(), time.monotonic()
        since = min(self._ends.since, until - (now - self._ends_read_at))  # the clock may have been set back
        filters = docker.utils.convert_filters(
            {"type": "container", "event": ["oom", *DIED], **self._labelled()}
        )
        try:
            with client.get(
                f"{client.base_url}/v{client.api_version}/events",
                params={"filters": filters, "since": f"{since:.6f}", "until": f"{until:.6f}"},
                timeout=_CALL_SECONDS,
            ) as response:
                response.raise_for_status()
                kills = self._ends.kills(response.content, until)
        except (requests.RequestException, msgspec.DecodeError) as error:
            if not self._ends_missing:
                log.warning(
                    "docker does not give its past events; what ends for memory is not seen", error=str(error)
                )
            self._ends_missing = True
            return []
        self._ends_missing, self._ends_read_at = False, now
        for kill in kills:
            log.warning(
                "the kernel ended a container for memory",
                service=kill.container.service, container=kill.container.name, image=kill.container.image,
            )  # fmt: skip
        return kills


def _until_silent(response: requests.Response) -> Iterator[bytes]:
    """Pieces of a stream, until none came for :data:`_RELIST_SECONDS`."""
    with suppress(requests.RequestException):
        yield from response.iter_content(None)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""  # no procfs here: then this is no container either
