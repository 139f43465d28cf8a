"""What a discovery is, what it finds, and the registry of the discoveries in this folder.

A discovery is one file in this folder: a class with the methods of :class:`Discovery`, a struct with its section of
exporter.yaml, and one call of :func:`register`. Nothing else names it; ``static`` is the shortest example.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable
from urllib.parse import urlsplit

import msgspec

from infercanary.client.fetch import Unpolled
from infercanary.client.limits import Limits
from infercanary.contract.report import PATH, Family, Metric
from infercanary.contract.text import masked
from infercanary.judge.model import ImageForm, ServiceKey
from infercanary.judge.origin import NOWHERE, Origin

S = TypeVar("S")
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


class Discovery(Protocol):
    """Finds containers. The event loop that calls :meth:`start` reads the properties."""

    @property
    def source(self) -> str:
        """What people know it as: the status page says "… does not answer" while it is not up."""

    @property
    def containers(self) -> Sequence[Container]:
        """What it last found. It stays while the source does not answer: containers may outlive it."""

    @property
    def up(self) -> bool:
        """Whether the source answered last time."""

    @property
    def tried(self) -> bool:
        """Whether it was asked once; the exporter is not ready before."""

    def start(self) -> None:
        """Begin, on the running event loop; it must not block."""

    async def stop(self) -> None:
        """End, within seconds, also where the source hangs."""

    def families(self) -> list[Family]:
        """Its own metrics, without labels of a container.

        Returns:
            Families with labels of its own, or without any.
        """


@runtime_checkable
class Reloadable(Discovery, Protocol):
    """A discovery that takes new settings while it runs; of the others a reload says that a restart is needed."""

    def reconfigure(self, settings: Any) -> None:
        """Use ``settings``; the exporter reads ``containers`` again afterwards.

        Args:
            settings: Of the type that its kind declares, checked.
        """


class DiscoveryKind(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """How one kind of discovery is configured and made."""

    key: str
    """Its section in exporter.yaml."""
    settings: Any
    """The type of that section, for msgspec; a struct forbids unknown fields."""
    default: S
    """The section where the file has none."""
    create: Callable[[S, Callable[[], None]], Discovery | None]
    """From the section and what to call, on the event loop, when the containers changed; None where it is off."""
    check: Callable[[S, Limits, str], None] = lambda _settings, _limits, _place: None
    """From the section, the limits and the section's place in the file; it raises :class:`UsageError` for what the type
    does not exclude."""
    finds_all: Callable[[S], bool] = lambda _settings: False
    """Whether, with this section, it finds all containers of its host: two that do would find each of them twice."""
    precedence: int = 0
    """Where two discoveries find the same service and container, the one with the higher number counts."""


_registered: dict[str, DiscoveryKind[Any]] = {}


def register(kind: DiscoveryKind[Any]) -> None:
    """Add ``kind``; called once by each file of this folder that has a discovery.

    Args:
        kind: Its key is the section in the config.

    Raises:
        ValueError: Another discovery has the same key.
    """
    if kind.key in _registered:
        raise ValueError(f"two discoveries have the key {kind.key!r}")
    _registered[kind.key] = kind


def registered() -> list[DiscoveryKind[Any]]:
    """Every discovery that a file of this folder registers, the lowest precedence first.

    Returns:
        Kinds in order of precedence, then of their keys.
    """
    package = importlib.import_module(__package__ or "")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return sorted(_registered.values(), key=lambda kind: (kind.precedence, kind.key))


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
