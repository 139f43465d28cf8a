"""Containers with a probe, and the following of a source that finds them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import msgspec
import structlog

from infercanary.client.fetch import Unpolled
from infercanary.contract.report import PATH, Family, Metric
from infercanary.contract.text import masked, printable
from infercanary.exporter.watch import WATCH
from infercanary.judge.model import ImageForm, ServiceKey
from infercanary.judge.origin import NOWHERE, Origin

if TYPE_CHECKING:
    from infercanary.exporter.discovery.kills import MemoryKill

log = structlog.get_logger(__name__)

_MAX_PAUSE_SECONDS = 30.0
Key = tuple[str, str, str]
"""Namespace, service and replica of a container."""

UP = Metric(
    "infercanary_discovery_up",
    "gauge",
    "1 if Docker or the Kubernetes API server answered the last request for containers, else 0.",
    reading="0 is an alert: new containers are not found. Check the access to Docker's socket, or the service account "
    "and the network.",
)
FOUND = Metric(
    "infercanary_discovered_containers",
    "gauge",
    "Containers with a probe that Docker or Kubernetes last reported as running.",
    reading="0 while `infercanary_discovery_up` is 1: no running container or pod of this host is enabled by a label "
    "or annotation.",
)
METRICS = (UP, FOUND)


def as_port(text: str) -> int | None:
    """A port that somebody wrote, who may have built an image: int() raises for some thousand digits.

    Args:
        text: A label's or an annotation's value.

    Returns:
        From 1 to 65535; None for all else.
    """
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
    return number if 0 < number < 65_536 else None


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """One container with a probe. ``name`` stays the same when it is recreated, ``id`` does not.

    ``image``, ``image_id`` and ``image_digest`` are those of what the probe watches: of its own container, or of the
    server that a sidecar watches.
    """

    service: str
    name: str
    namespace: str = ""
    """Of its pod; empty where there is no Kubernetes."""
    pod: str = ""
    id: str = ""
    image: str = ""
    image_id: str = ""
    image_digest: str = ""
    image_form: ImageForm = ""
    origin: Origin = NOWHERE
    """What the labels of that image say of where it came from."""
    watched_id: str = ""
    """Id of the server that a sidecar watches; empty where the probe is in its own server's container."""
    watched_since: float = 0.0
    """When that server's container was created, a Unix time."""
    url: str | None = None
    """Where the probe answers."""
    url_missing: str = ""
    """Why there is no URL, and how to fix it."""
    notes: tuple[str, ...] = ()
    """Mistakes in its labels that stop nothing: what was ignored, and what to write."""
    is_asked: bool = True
    """Whether somebody asked for it by name; else another label of ours is there, which is mostly a mistake."""
    failure: Unpolled = "no_address"
    """What is counted where there is no URL."""

    @property
    def replica(self) -> str:
        """What tells it from others of its service: its name, in Kubernetes with its pod's."""
        return f"{self.pod}/{self.name}" if self.pod else self.name

    @property
    def service_key(self) -> ServiceKey:
        """What tells its service from all others."""
        return ServiceKey(self.namespace, self.service)

    @property
    def key(self) -> Key:
        """Namespace, service and replica: no two containers have the same."""
        return self.namespace, self.service, self.replica

    @property
    def labels(self) -> dict[str, str]:
        """The labels that every one of its series carries."""
        of_pod = {"namespace": self.namespace, "pod": self.pod} if self.pod else {}
        return {**of_pod, "service": self.service, "container": self.name}

    @property
    def image_key(self) -> str:
        """What tells its image from others; empty where no discovery knows it."""
        return self.image_id or self.image_digest

    @property
    def server_id(self) -> str:
        """The id of what its probe watches."""
        return self.watched_id or self.id

    @property
    def ids(self) -> tuple[str, str]:
        """Its own id and that of what it watches: where one of them differs, it is another container."""
        return self.id, self.watched_id


class Source(Protocol):
    """A source of containers, such as Docker."""

    name: str

    def watch(self) -> AsyncGenerator[Sequence[Container], None]:
        """Follow the containers with a probe.

        Yields:
            All of them, after each change.

        Raises:
            Exception: The source does not answer; it is asked again.
        """

    def new_kills(self) -> list[MemoryKill]:
        """Containers that the kernel ended for memory since the last call, in order of time, each once."""


class Discovery:
    """Follows a source, and again after each failure. All of it belongs to one event loop.

    Args:
        source: Followed from :meth:`start` on.
        changed: Called after changes of ``containers`` or ``up``.
    """

    def __init__(self, source: Source, changed: Callable[[], None]) -> None:
        self.source = source
        self.containers: Sequence[Container] = ()
        """Last containers found. They stay while the source does not answer: containers may outlive it."""
        self.up = False
        self.tried = False
        """True once the source was asked; the exporter is not ready before."""
        self._changed = changed

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._task = WATCH.task(self.source.name.lower(), self._follow)

    async def stop(self) -> None:
        """End, within seconds, also where the source hangs."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def families(self) -> list[Family]:
        """Whether the source answers, and how many containers it has."""
        return [
            UP.family(float(self.up)),
            FOUND.family(sum(container.is_asked for container in self.containers)),
        ]

    async def _follow(self) -> None:
        failures, name = 0, self.source.name
        while True:
            try:
                async with aclosing(self.source.watch()) as watch:
                    async for self.containers in watch:
                        failures = 0
                        if not self.up:
                            log.info("containers are followed", source=name, containers=len(self.containers))
                        self.up = self.tried = True
                        self._changed()
            except Exception as error:  # whatever a source answers must not end the search for ever
                if self.up or not self.tried:
                    log.warning(
                        "the source of containers does not answer; the containers known so far stay",
                        source=name,
                        error=printable(str(error) or type(error).__name__, 300, " "),
                    )
            self.up, self.tried = False, True
            self._changed()
            # Exporters of all nodes lose the API server in the same moment.
            await asyncio.sleep(min(_MAX_PAUSE_SECONDS, 2.0**failures) * random.uniform(0.5, 1.0))  # noqa: S311
            failures += 1


def url_mistake(url: str, *, schemes: Sequence[str] = ("http", "https", "unix")) -> str | None:
    """What is wrong with a URL and how to fix it, or None.

    Args:
        url: As given.
        schemes: Those of a probe, if nothing else is said.

    Returns:
        One line; None where nothing is wrong.
    """
    fix = "write " + (
        "http://host:9798 or unix:///path/to/probe.sock" if "unix" in schemes else "http://host:port"
    )
    shown = masked(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        why = error if shown == url else "its password has characters to percent-encode"
        return f"{shown!r} is not a URL ({why}); {fix}"
    if not url.isprintable() or " " in url:
        return f"{shown!r} has blanks or control characters; {fix}"
    if parts.scheme not in schemes:
        return f"{shown!r} has no scheme that is known; {fix}"
    if parts.scheme == "unix":
        if parts.netloc or not parts.path.startswith("/") or parts.path == "/":
            return f"{shown!r} needs an absolute path; {fix}"
    elif not parts.hostname or port == 0:
        return f"{shown!r} names no host or an impossible port; {fix}"
    if parts.query or parts.fragment:
        return f"{shown!r} has a query or a fragment; {fix}"
    if parts.scheme != "unix" and "unix" in schemes and parts.path.rstrip("/").endswith(PATH):
        return f"{shown!r} ends with {PATH}, which the exporter adds; leave it out"
    return None
