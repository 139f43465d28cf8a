"""Docker: containers with the label ``infercanary.enable=true`` on this host.

The Docker SDK blocks and is not thread-safe, so all calls are made in one thread of its own. It needs five of them, so
that a socket proxy can forbid the rest: GET of /version, /events, /containers/json and /images/json (and /_ping for the
proxy's own health check). That the kernel ended a container for memory is read from its events: inspect, which has
``OOMKilled``, would show the secrets of its environment too.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any

import docker
import docker.errors
import docker.types
import docker.utils
import msgspec
import requests
import structlog

from infercanary.client.docker_api import DirectClient
from infercanary.contract.report import Family
from infercanary.contract.vocabulary import ENABLE_LABEL, SERVICE_LABEL, WATCHES_LABEL
from infercanary.exporter.discovery.asking import label_text
from infercanary.exporter.discovery.base import FOUND, UP, Container, DiscoveryKind, register
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
from infercanary.exporter.watch import WATCH

log = structlog.get_logger(__name__)

# Not each exec_* of a health check, which comes every few seconds from every container.
# Podman says `died` and `remove` where Docker says `die` and `destroy`.
_EVENTS = ["create", "start", *DIED, "destroy", "remove", "pause", "unpause", "rename", "update"]
_CALL_SECONDS = 10
_SETTLE_SECONDS = 0.5  # a burst of events costs one listing
_STOP_SECONDS = 2.0


class DockerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The section ``docker:``. Without ``url``: DOCKER_HOST, else unix:///var/run/docker.sock."""

    enabled: bool = True
    url: str | None = None
    relist_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 30.0


_EXPECTED = (docker.errors.DockerException, requests.RequestException, OSError, msgspec.ValidationError)


class DockerDiscovery:
    """Follows Docker. ``containers`` and ``up`` belong to the event loop that calls :meth:`start`.

    Args:
        settings: As in the config.
        changed: Called on the event loop after each change of ``containers``.
    """

    source = "Docker"

    def __init__(self, settings: DockerSettings, changed: Callable[[], None]) -> None:
        self.containers: tuple[Container, ...] = ()
        self.up = False
        self.tried = False
        self._settings = settings
        self._changed = changed
        self._stopping = threading.Event()
        self._events: docker.types.CancellableStream[bytes] | None = None
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
        self._thread = WATCH.thread("docker", self._run)
        self._own_ids = own_ids(socket.gethostname(), _read("/proc/self/mountinfo"))

    def start(self) -> None:
        """Begin to follow, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End, within seconds: a call that hangs in a wedged Docker stays behind in its daemon thread."""
        self._stopping.set()
        events = self._events
        if events is not None:
            with suppress(OSError, AttributeError):  # it may be ending by itself at this very moment
                events.close()
        await asyncio.to_thread(self._thread.join, _STOP_SECONDS)

    def families(self) -> list[Family]:
        """Whether Docker answers, and how many containers it lists."""
        return [
            UP.family(float(self.up)),
            FOUND.family(sum(container.is_asked for container in self.containers)),
        ]

    def new_kills(self) -> list[MemoryKill]:
        """The containers that the kernel ended for memory since it was last asked."""
        kills, self._kills = self._kills, []
        return kills

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                with closing(self._client()) as client:
                    self._is_podman = "Podman" in str(client.version().get("Components"))
                    while not self._stopping.is_set():
                        self._round(client)
                        failures = 0
                        self._stopping.wait(_SETTLE_SECONDS)
            except Exception as error:  # whatever Docker answers must not end the search for ever
                if not isinstance(error, _EXPECTED):
                    log.exception("the search for containers failed by a fault of the exporter")
                self._call_in_loop(self._lost, str(error))
                self._stopping.wait(0.5 * 2 ** min(failures, 6))
                failures += 1

    def _client(self) -> docker.APIClient:
        """A client that has asked for the daemon's version."""
        if self._settings.url:
            return DirectClient(base_url=self._settings.url, version="auto", timeout=_CALL_SECONDS)
        return DirectClient(**docker.utils.kwargs_from_env(), version="auto", timeout=_CALL_SECONDS)

    def _round(self, client: docker.APIClient) -> None:
        """List the containers, then wait for the next event or the time to list again.

        The stream opens first, so that what happens while listing is not missed. ``client.events()`` cannot have a
        time-out, so the stream is a plain GET.
        """
        # What is watched need not be labelled: then every container's events count. Podman finds no event by the name
        # of a label without its value, and the value may be written in several ways.
        labelled = {} if self._watching or self._is_podman else {"label": ENABLE_LABEL}
        filters = docker.utils.convert_filters({"type": "container", "event": _EVENTS, **labelled})
        with client.get(
            f"{client.base_url}/v{client.api_version}/events",
            params={"filters": filters},
            stream=True,
            timeout=(_CALL_SECONDS, self._settings.relist_seconds),
        ) as response:
            response.raise_for_status()
            self._events = docker.types.CancellableStream(response.iter_content(None), response)
            listing, odd = readable(msgspec.convert(client.containers(), list[Any]), ListedContainer)
            for name in odd.keys() - self._odd.keys():
                log.warning("a container cannot be read, and is left out", container=name, error=odd[name])
            self._odd = odd
            self._images = self._listed_images(client)
            found = containers(listing, self._images, self._own_ids)
            self._ends.follow(found)
            self._call_in_loop(self._list, found, self._ended(client, labelled))
            if (several := ambiguous(listing, self._images)) != self._several:
                for service, projects in several.items():
                    log.warning(
                        "several Compose projects have this service, and are judged as one: "
                        f"give the containers of one of them another name by the label {SERVICE_LABEL}",
                        service=label_text(service), projects=[*map(label_text, projects)],
                    )  # fmt: skip
                self._several = several
            watching = any(WATCHES_LABEL in (listed.labels or {}) for listed in listing)
            if not self._stopping.is_set() and watching == self._watching:
                next(self._events, None)
            self._watching = watching
            self._events = None

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

    def _ended(self, client: docker.APIClient, labelled: dict[str, str]) -> list[MemoryKill]:
        """What the kernel ended since the last listing: Docker keeps its last 256 events, so no gap between two streams
        loses one.

        A plain GET with an end, which is answered immediately."""
        until, now = time.time(), time.monotonic()
        since = min(self._ends.since, until - (now - self._ends_read_at))  # the clock may have been set back
        filters = docker.utils.convert_filters({"type": "container", "event": ["oom", *DIED], **labelled})
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

    def _call_in_loop(self, then: Callable[..., None], *arguments: object) -> None:
        if not self._stopping.is_set():
            self._loop.call_soon_threadsafe(then, *arguments)

    def _list(self, found: list[Container], kills: list[MemoryKill]) -> None:
        if not self.up:
            log.info("docker answers", containers=len(found))
        self.up = self.tried = True
        self.containers = tuple(found)
        self._kills += kills
        self._changed()

    def _lost(self, error: str) -> None:
        if self.up or not self.tried:
            log.warning("docker does not answer; the containers known so far stay", error=error)
        self.up = False
        self.tried = True
        self._changed()


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""  # no procfs here: then this is no container either


register(
    DiscoveryKind(
        key="docker",
        settings=DockerSettings,
        default=DockerSettings(),
        create=lambda settings, changed: DockerDiscovery(settings, changed) if settings.enabled else None,
        finds_all=lambda settings: settings.enabled,
    )
)
