"""Converts Docker's lists to containers with a probe: labels, names, images and addresses. Makes no calls."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from infercanary.client.fetch import Unpolled
from infercanary.contract.address import in_url
from infercanary.contract.report import DEFAULT_PORT
from infercanary.contract.vocabulary import (
    ENABLE_LABEL,
    PORT_LABEL,
    SERVICE_LABEL,
    SOCKET_LABEL,
    WATCHED_BY_LABEL,
    WATCHES_LABEL,
)
from infercanary.exporter.discovery.base import Container, as_port, asking, label_text, url_mistake
from infercanary.judge.origin import Origin

_COMPOSE_SERVICE = "com.docker.compose.service"
_COMPOSE_PROJECT = "com.docker.compose.project"
_COMPOSE_HASH = "com.docker.compose.config-hash"
"""Label of each container that Compose starts; images built by Compose do not have this label."""
_LOCAL = "localhost/"
"""Podman's prefix of image names without a registry; Docker has no such prefix."""
_LABELS = (ENABLE_LABEL, SERVICE_LABEL, PORT_LABEL, SOCKET_LABEL, WATCHES_LABEL, WATCHED_BY_LABEL)
_OF_CONTAINER = (SERVICE_LABEL, SOCKET_LABEL, WATCHES_LABEL)
"""Identity labels, which count only on the container and not on the image."""

T = TypeVar("T")


class _Network(msgspec.Struct):
    ipv4: str = msgspec.field(default="", name="IPAddress")
    ipv6: str = msgspec.field(default="", name="GlobalIPv6Address")


class _NetworkSettings(msgspec.Struct, frozen=True, rename="pascal"):
    networks: dict[str, _Network] | None = None


class _HostConfig(msgspec.Struct, frozen=True, rename="pascal"):
    network_mode: str = ""


class ListedMount(msgspec.Struct, rename="pascal"):
    """A volume or host folder mounted into a container."""

    source: str = ""
    destination: str = ""
    writable: bool = msgspec.field(default=False, name="RW")


class ListedContainer(msgspec.Struct, rename="pascal"):
    """Fields used from an entry of GET /containers/json."""

    id: str
    names: list[str] = []
    image: str = ""
    image_id: str = msgspec.field(default="", name="ImageID")
    created: float = 0.0
    labels: dict[str, str] = {}
    host_config: _HostConfig = _HostConfig()
    network_settings: _NetworkSettings = _NetworkSettings()
    mounts: list[ListedMount] = []

    @property
    def name(self) -> str:
        """The container's name, listed as ``/name``. Legacy links add other names, such as ``/other/alias``."""
        return next((name[1:] for name in self.names if name.count("/") == 1), self.id[:12])

    @property
    def networks(self) -> Mapping[str, _Network]:
        return self.network_settings.networks or {}


class ListedImage(msgspec.Struct, rename="pascal"):
    """Fields used from an entry of GET /images/json."""

    id: str
    repo_digests: list[str] = []
    labels: dict[str, str] = {}


_HOST = ListedContainer("", host_config=_HostConfig("host"))
"""Placeholder for the exporter's container if the exporter runs on the host."""
_UNLISTED = ListedImage("")
"""Placeholder for an unlisted image. Some image stores do not list images that lost their tag."""


def read_entry(entry: Mapping[str, object], kind: type[T]) -> T:
    """Convert an entry of a list from Docker or Podman. null counts as a missing key."""
    return msgspec.convert({key: value for key, value in entry.items() if value is not None}, kind)


class _UnpolledError(Exception):
    """A container cannot be polled. The message has the fix; ``failure`` is the reason in the metric."""

    def __init__(self, missing: str, failure: Unpolled = "label") -> None:
        super().__init__(missing)
        self.failure = failure


class Listing:
    """Lists of containers and images from Docker.

    Args:
        containers: GET /containers/json.
        images: GET /images/json.
        own_ids: Possible prefixes of the exporter's container id. Through this container's networks, the exporter
            reaches other containers.
    """

    def __init__(
        self, containers: Sequence[ListedContainer], images: Iterable[ListedImage], own_ids: Iterable[str]
    ) -> None:
        self._containers = containers
        self._by_id = {listed.id: listed for listed in containers}
        self._images = {image.id: image for image in images}
        self._own = next(
            (each for start in own_ids for each in containers if each.id.startswith(start)), _HOST
        )
        self._projects: defaultdict[str, set[str]] = defaultdict(set)
        for listed in containers:
            if listed.labels.get(ENABLE_LABEL, "").lower() == "true" and _COMPOSE_HASH in listed.labels:
                service = listed.labels.get(SERVICE_LABEL) or listed.labels.get(_COMPOSE_SERVICE, "")
                self._projects[service].add(listed.labels.get(_COMPOSE_PROJECT, ""))

    def container(self, listed: ListedContainer) -> Container | None:
        """Convert a container whose labels ask for polling.

        A container with only other InferCanary labels gets a message instead of a URL. The message reports a mistake
        such as ``infercanary.enabled=true``.
        """
        # An image may ask for polling. But the builder of an image must not choose the service that its containers
        # report as.
        brought = self._image(listed).labels
        given = {
            name: value
            for name, value in listed.labels.items()
            if name == ENABLE_LABEL or value != brought.get(name)
        }
        if WATCHED_BY_LABEL in given and ENABLE_LABEL not in given:
            return None  # the container is a server that a sidecar watches
        if (asked := asking("label", given, _LABELS)) is None:
            return None
        watched, url, missing = listed, None, ""
        failure: Unpolled = "no_address"
        try:
            watched = self._watched(listed, given)
            if asked.mistake:
                raise _UnpolledError(asked.mistake)
            url = self._url(listed, given)
        except _UnpolledError as error:
            failure, missing = error.failure, str(error)
        image = self._image(watched)
        is_sidecar = watched is not listed
        composed = listed.labels.get(_COMPOSE_SERVICE, "") if _COMPOSE_HASH in given else ""
        return Container(
            service=label_text(given.get(SERVICE_LABEL) or composed or listed.name),
            notes=(*asked.notes, *self._notes(listed, given, composed)),
            name=listed.name,
            id=listed.id,
            image=watched.image.removeprefix(_LOCAL),
            image_id=watched.image_id,
            image_digest=_digest(watched.image, image.repo_digests),
            origin=Origin.of(image.labels or watched.labels),
            watched_id=watched.id if is_sidecar else "",
            watched_since=watched.created if is_sidecar else 0.0,
            url=url,
            url_missing=missing,
            is_asked=ENABLE_LABEL in given,
            failure=failure,
        )

    def _image(self, listed: ListedContainer) -> ListedImage:
        return self._images.get(listed.image_id, _UNLISTED)

    def _notes(self, listed: ListedContainer, given: Mapping[str, str], composed: str) -> Iterator[str]:
        for name in _OF_CONTAINER:
            if name in listed.labels and name not in given:
                yield (
                    f"label {name}: ignored, because the image has the same label; set it when the container is "
                    "started, with another value than the image's"
                )
        projects = self._projects[composed]
        if len(projects) > 1 and not given.get(SERVICE_LABEL):
            yield (
                f"the Compose projects {label_text(', '.join(sorted(projects)))} have this service, and their "
                f"containers are judged together: to separate a project, set the label {SERVICE_LABEL} to "
                "another service name"
            )

    def _watched(self, listed: ListedContainer, given: Mapping[str, str]) -> ListedContainer:
        """Return the server that a sidecar watches, if the server's label names the sidecar.

        A container that is no sidecar watches itself.
        """
        server = given.get(WATCHES_LABEL)
        if not server:
            return listed
        running = next((each for each in self._containers if each.name == server), None)
        if running is None:
            raise _UnpolledError(
                f"label {WATCHES_LABEL}: no container {label_text(server)!r} runs; start it, or fix the label",
                "server_gone",
            )
        agreed = running.labels.get(WATCHED_BY_LABEL)
        if agreed != listed.name or agreed == self._image(running).labels.get(WATCHED_BY_LABEL):
            raise _UnpolledError(
                f"label {WATCHES_LABEL}: {label_text(server)!r} lacks the matching label; start that container with "
                f"the label {WATCHED_BY_LABEL}={label_text(listed.name)}"
            )
        return running

    def _url(self, listed: ListedContainer, given: Mapping[str, str]) -> str:
        """Return the probe's URL. An image may set its port, but never its socket."""
        if path := given.get(SOCKET_LABEL):
            if not path.startswith("unix://") or url_mistake(path):
                raise _UnpolledError(
                    f"label {SOCKET_LABEL}: {label_text(path)!r} is not a socket; write unix:///path/to/probe.sock"
                )
            if writers := self._writers(path.removeprefix("unix://"), listed):
                several = label_text(", ".join(sorted(writers)))
                raise _UnpolledError(
                    f"the volume of the probe's socket is also writable for {several}; use a separate volume for each "
                    "container"
                )
            return path
        port = listed.labels.get(PORT_LABEL, str(DEFAULT_PORT))
        if as_port(port) is None:
            raise _UnpolledError(
                f"label {PORT_LABEL}: {label_text(port)!r} is not a port; write a number from 1 to 65535"
            )
        return f"http://{self._host(listed)}:{port}"

    def _writers(self, path: str, listed: ListedContainer) -> set[str]:
        """Return the other containers that may create a socket at this path.

        A container that creates the socket first could pretend to be this container. Mounts of folders above the shared
        folder are ignored: a container with access to Docker's own folders controls the host anyway.
        """
        if self._own is _HOST:  # an exporter on the host sees the source folders of mounts
            sources = [mount.source for mount in listed.mounts if _is_in(path, mount.source)]
            shared = min(sources, key=len, default=path.rpartition("/")[0])
        else:
            inside = [mount for mount in self._own.mounts if _is_in(path, mount.destination)]
            if not inside:
                return set()
            mount = max(inside, key=lambda mount: len(mount.destination))
            shared = mount.source.rstrip("/")
            path = shared + path.removeprefix(mount.destination)
        return {
            each.name
            for each in self._containers
            if each.id not in (self._own.id, listed.id)
            for mount in each.mounts
            if mount.writable and _is_in(path, mount.source) and _is_in(f"{mount.source}/", shared)
        }

    def _host(self, listed: ListedContainer) -> str:
        """Return an address of the container that the exporter can reach."""
        target, here = self._network_owner(listed), self._network_owner(self._own)
        on_host = here.host_config.network_mode == "host"
        if target is here or (on_host and target.host_config.network_mode == "host"):
            return "127.0.0.1"
        for name, network in target.networks.items():
            address = network.ipv4 or network.ipv6
            if address and (on_host or name in here.networks):
                return in_url(address)
        raise _UnpolledError(
            "the container has no address that the exporter can reach; attach both to one network, run the exporter "
            f"with network_mode: host, or share a socket with the label {SOCKET_LABEL}",
            "no_address",
        )

    def _network_owner(self, listed: ListedContainer) -> ListedContainer:
        """Return the container whose network ``listed`` uses: itself, or the container named by its network mode."""
        return self._by_id.get(listed.host_config.network_mode.removeprefix("container:"), listed)


def _is_in(path: str, folder: str) -> bool:
    return bool(folder) and path.startswith(f"{folder.rstrip('/')}/")


def _digest(reference: str, digests: Sequence[str]) -> str:
    """Return a registry's ``sha256:…`` digest of the image, preferably for the reference's repository."""
    first = ""
    for name in digests:
        repository, _, digest = name.partition("@")
        if f"{reference}:".startswith((f"{repository}:", f"{repository}@")):
            return digest
        first = first or digest
    return first.removeprefix("<none>")  # Docker's repository of an image without a name


def own_ids(hostname: str, mountinfo: str) -> list[str]:
    """Return possible prefixes of this process's container id.

    The ids come from the files that Docker mounts into ``/etc``, and then from the host name.

    Args:
        hostname: Host name of this process.
        mountinfo: Content of ``/proc/self/mountinfo``.

    Returns:
        Ids or their first 12 digits; empty outside a container.
    """
    mounted = re.findall(r"/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf) /etc/", mountinfo)
    return mounted + re.findall(r"^[0-9a-f]{12}$", hostname)
