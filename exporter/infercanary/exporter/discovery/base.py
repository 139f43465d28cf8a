"""Containers with a probe, labels that request polling, and discovery from a source of containers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
import structlog

from infercanary.client.fetch import Unpolled
from infercanary.contract.report import PATH, Family, Metric
from infercanary.contract.text import masked, printable
from infercanary.exporter.watch import WATCH
from infercanary.judge.model import ImageForm, ServiceKey
from infercanary.judge.origin import NOWHERE, Origin

log = structlog.get_logger(__name__)

T = TypeVar("T")
U = TypeVar("U")

_MAX_PAUSE_SECONDS = 30.0
_SETTLE_SECONDS = 0.25
_OFF = ("", "false", "no", "off", "0")
_SHOWN = 120  # characters of an entry in the log; enough for the name at the entry's beginning
_MOST_NOTES = 8  # a container may have thousands of labels
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


def label_text(text: str) -> str:
    """Return ``text`` as the value of a label: printable and of limited length."""
    return printable(text, 256)


def as_port(text: str) -> int | None:
    """Return the port in a label or annotation; None if it is not a number from 1 to 65535."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else 0
    return number if 0 < number < 65_536 else None


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """One container with a probe. A recreated container keeps its ``name`` and gets a new ``id``.

    ``image``, ``image_id`` and ``image_digest`` belong to the watched server: the probe's own container, or the
    server that a sidecar watches.
    """

    service: str
    name: str
    namespace: str = ""
    """Kubernetes namespace of the pod; empty outside Kubernetes."""
    pod: str = ""
    host: str = ""
    """Name of the host, if exporters of several hosts share the store."""
    id: str = ""
    image: str = ""
    image_id: str = ""
    image_digest: str = ""
    image_form: ImageForm = ""
    origin: Origin = NOWHERE
    """Origin of the image, from its labels."""
    watched_id: str = ""
    """Id of the server that a sidecar watches; empty if the probe runs in the server's own container."""
    watched_since: float = 0.0
    """Unix time at which the server that a sidecar watches was created."""
    url: str | None = None
    """Address of the probe."""
    url_missing: str = ""
    """Reason for a missing URL, and how to fix it."""
    notes: tuple[str, ...] = ()
    """Mistakes in labels that do not prevent polling. A message names the ignored label and the fix."""
    is_asked: bool = True
    """False if the container has InferCanary labels, but not the label that requests polling; usually a mistake.
    """
    failure: Unpolled = "no_address"
    """Label ``reason`` of the failed polls if there is no URL."""

    @property
    def place(self) -> str:
        """Name of the container within its service on this host; in Kubernetes, with the pod's name."""
        return f"{self.pod}/{self.name}" if self.pod else self.name

    @property
    def replica(self) -> str:
        """Name of the container within its service on all hosts.

        Without the host, containers with the same name on several hosts would be one container that restarts.
        """
        return f"{self.host}/{self.name}" if self.host and not self.pod else self.place

    @property
    def service_key(self) -> ServiceKey:
        return ServiceKey(self.namespace, self.service)

    @property
    def key(self) -> Key:
        """Namespace, service and place; unique for each container of this exporter."""
        return self.namespace, self.service, self.place

    @property
    def labels(self) -> dict[str, str]:
        """Labels of all series of the container."""
        of_pod = {"namespace": self.namespace, "pod": self.pod} if self.pod else {}
        return {**of_pod, "service": self.service, "container": self.name}

    @property
    def image_key(self) -> str:
        """Identity of the image; empty if no discovery knows it."""
        return self.image_id or self.image_digest

    @property
    def server_id(self) -> str:
        """Id of the watched server's container."""
        return self.watched_id or self.id

    @property
    def ids(self) -> tuple[str, str]:
        """Ids of the container and of the server that it watches. If either id changes, this is a new container."""
        return self.id, self.watched_id


class MemoryKill(msgspec.Struct, frozen=True):
    """One container that the kernel killed for lack of memory."""

    container: Container
    """Container with the probe, even if the killed container is the server that a sidecar watches."""
    id: str
    """Id of the killed container."""
    at: float
    """Unix time, by the source's clock."""


class Source(Protocol):
    """A source of containers, such as Docker."""

    name: str
    kills: list[MemoryKill]
    """New memory kills. The reader removes each kill from the list."""

    def watch(self) -> AsyncGenerator[Iterable[Container], None]:
        """Follow the containers with a probe.

        Yields:
            The complete list of these containers, after each change.

        Raises:
            Exception: The source does not answer; the caller starts again.
        """


class Discovery:
    """Follows a source, and starts again after each failure. All methods run on one event loop.

    Args:
        source: Followed from :meth:`start` on.
        changed: Called after changes of ``containers`` or ``up``.
    """

    def __init__(self, source: Source, changed: Callable[[], None]) -> None:
        self.source = source
        self.containers: Iterable[Container] = ()
        """Last containers found. Containers may run on without the source, so the list stays while the source is
        silent.
        """
        self.up = False
        self.tried = False
        """True once the source has answered or failed."""
        self._changed = changed
        self._told: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start on the running event loop."""
        self._task = WATCH.task(self.source.name.lower(), self._follow)

    async def stop(self) -> None:
        """Stop within seconds, even if the source hangs."""
        self._task.cancel()
        if self._told is not None:
            self._told.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def families(self) -> list[Family]:
        """Return the state of the source, and the number of its containers."""
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
                            log.info(
                                "containers are followed",
                                source=name,
                                containers=sum(1 for _ in self.containers),
                            )
                        self.up = self.tried = True
                        self._tell()
            except Exception as error:  # the discovery continues after any error of the source
                if self.up or not self.tried:
                    log.warning(
                        "the source of containers does not answer; the last containers found are kept",
                        source=name,
                        error=printable(str(error) or type(error).__name__, 300, " "),
                    )
            self.up, self.tried = False, True
            self._tell()
            # Exporters of all nodes lose the API server at the same moment, so the pause is random.
            await asyncio.sleep(min(_MAX_PAUSE_SECONDS, 2.0**failures) * random.uniform(0.5, 1.0))  # noqa: S311
            failures += 1

    def _tell(self) -> None:
        """Call ``changed`` after a delay. A burst of events then causes only one comparison."""
        if self._told is None or self._told.when() < asyncio.get_running_loop().time():
            self._told = asyncio.get_running_loop().call_later(_SETTLE_SECONDS, self._changed)


def url_mistake(url: str) -> str | None:
    """Return the mistake in a probe's URL, and how to fix it; None if the URL is valid."""
    fix = "http://host:9798 or unix:///path/to/probe.sock"
    mistake = f"{masked(url)!r} is not a probe's address; write {fix}"
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return mistake
    if parts.scheme == "unix":
        has_address = url.startswith("unix:///") and parts.path != "/"
    else:  # a probe expects a token and no user name
        is_report = parts.path.rstrip("/").endswith(PATH)
        has_address = has_host and parts.scheme in ("http", "https") and "@" not in url and not is_report
    is_plain = url.isprintable() and " " not in url and not parts.query and not parts.fragment
    return None if has_address and is_plain else mistake


class Asking(NamedTuple):
    """A container's request to be polled."""

    mistake: str
    """Empty if the request is correct."""
    notes: tuple[str, ...]
    """One message for each unknown name with our prefix."""


def asking(kind: str, given: Mapping[str, str], names: Sequence[str]) -> Asking | None:
    """Read labels or annotations with which a container opts in to polling.

    Args:
        kind: ``label`` or ``annotation``.
        given: Labels or annotations of the container.
        names: Known names. The first name opts in; other names with our prefix, but without the first, are a mistake.

    Returns:
        None if the container does not opt in.
    """
    enable = names[0]
    ours = sorted(name for name in given if name.startswith(enable.removesuffix("enable")))
    value = given.get(enable)
    if not ours or (value is not None and value.lower() in _OFF):
        return None
    mistake = ""
    if value is None:
        mistake = f"{kind} {enable} is missing, so the probe is not polled; write true, or false if there is no probe"
    elif value.lower() != "true":
        mistake = f"{kind} {enable}: {label_text(value)!r} is neither true nor false; write true"
    unknown = [name for name in ours if name not in names][:_MOST_NOTES]
    known = ", ".join(names)
    notes = (f"{kind} {label_text(name)}: not known; the {kind}s are {known}" for name in unknown)
    return Asking(mistake, tuple(notes))


def convert_each(entries: Iterable[T], convert: Callable[[T], U], failed: set[str]) -> list[U]:
    """Convert entries one by one; log and skip an entry that cannot be converted.

    Args:
        entries: Entries from a source.
        convert: May raise any exception.
        failed: Beginnings of entries that were already logged, to log an entry only once.
    """
    converted = []
    for entry in entries:
        try:
            converted.append(convert(entry))
        except Exception as error:
            text = printable(str(entry), _SHOWN)
            if text not in failed:
                failed.add(text)
                log.warning(
                    "an entry cannot be read and is left out", entry=text, error=label_text(str(error))
                )
    return converted
