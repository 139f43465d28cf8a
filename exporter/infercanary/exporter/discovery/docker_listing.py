"""From what Docker lists to containers with a probe: labels, names, images and addresses, without any call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from infercanary.client.fetch import Unpolled
from infercanary.contract.report import DEFAULT_PORT
from infercanary.contract.vocabulary import (
    ENABLE_LABEL,
    PORT_LABEL,
    SERVICE_LABEL,
    SOCKET_LABEL,
    WATCHED_BY_LABEL,
    WATCHES_LABEL,
)
from infercanary.exporter.discovery.asking import is_meant, is_off, label_text, mistake, unknown
from infercanary.exporter.discovery.base import Container, as_port, url_mistake
from infercanary.judge.origin import Origin

_COMPOSE_SERVICE = "com.docker.compose.service"
_COMPOSE_PROJECT = "com.docker.compose.project"
_COMPOSE_HASH = "com.docker.compose.config-hash"
"""Compose gives it to each container that it starts, and to no image that it builds."""
_PREFIX = "infercanary."
_LOCAL = "localhost/"
"""Before the names of images that Podman has from no registry; Docker names them without."""
_LABELS = (ENABLE_LABEL, SERVICE_LABEL, PORT_LABEL, SOCKET_LABEL, WATCHES_LABEL, WATCHED_BY_LABEL)
_IDENTITY = (SERVICE_LABEL, SOCKET_LABEL, WATCHES_LABEL)
"""Who a container is: whoever built its image is not asked."""


class _Network(msgspec.Struct):
    ipv4: str = msgspec.field(default="", name="IPAddress")
    ipv6: str = msgspec.field(default="", name="GlobalIPv6Address")


class _NetworkSettings(msgspec.Struct, rename="pascal"):
    networks: dict[str, _Network] | None = None


class _HostConfig(msgspec.Struct, rename="pascal"):
    network_mode: str = ""


class ListedMount(msgspec.Struct, rename="pascal"):
    """A volume, or a folder of the host, in a container."""

    source: str = ""
    destination: str = ""
    writable: bool = msgspec.field(default=False, name="RW")


class ListedContainer(msgspec.Struct, rename="pascal"):
    """What is used of an entry of GET /containers/json."""

    id: str
    names: list[str] = []
    image: str = ""
    image_id: str = msgspec.field(default="", name="ImageID")
    created: float = 0.0
    labels: dict[str, str] | None = None
    host_config: _HostConfig = msgspec.field(default_factory=_HostConfig)
    network_settings: _NetworkSettings = msgspec.field(default_factory=_NetworkSettings)
    mounts: list[ListedMount] | None = None


class ListedImage(msgspec.Struct, rename="pascal"):
    """What is used of an entry of GET /images/json."""

    id: str
    repo_digests: list[str] | None = None
    labels: dict[str, str] | None = None


T = TypeVar("T")


def readable(entries: Sequence[object], kind: type[T]) -> tuple[list[T], dict[str, str]]:
    """The entries of a list that can be read: one odd entry, as of a container that is dead, costs no other.

    Args:
        entries: Of Docker's or Podman's answer; null is the same as a key that is missing.
        kind: What is used of each.

    Returns:
        Those in order; and of each other one its name or id, and why it cannot be read.
    """
    found: list[T] = []
    odd: dict[str, str] = {}
    for entry in entries:
        try:
            found.append(msgspec.convert(_without_nulls(entry), kind))
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            names = entry.get("Names") or entry.get("Id") if isinstance(entry, dict) else entry
            name = names[0] if isinstance(names, list) and names else names
            odd[label_text(str(name))] = label_text(str(error))
    return found, odd


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value if each is not None] if isinstance(value, list) else value


def containers(
    listing: Sequence[ListedContainer], images: Iterable[ListedImage], own_ids: Sequence[str]
) -> list[Container]:
    """The containers that ask for it by label, or seem to: one with other labels of ours has no URL, and says why.

    Args:
        listing: GET /containers/json.
        images: GET /images/json; digests come from it, and the labels that say where an image came from.
        own_ids: How the id of the exporter's own container may start; none where it runs on the host. Which networks
            it can reach depends on it.

    Returns:
        By service and name, in order of both.
    """
    by_id = {listed.id: listed for listed in listing}
    own = next((listed for start in own_ids for listed in listing if listed.id.startswith(start)), None)
    docker = _Docker(listing, by_id, {image.id: image for image in images}, own)
    found = []
    for listed in listing:
        if _asks(listed, docker.by_image.get(listed.image_id)):
            try:
                found.append(_container(listed, docker))
            except Exception as error:  # a fault of ours must cost this container only
                name = label_text(_name(listed))
                missing = f"what Docker says of it cannot be read: {label_text(repr(error))}"
                found.append(Container(service=name, name=name, id=listed.id, url_missing=missing))
    return sorted(found, key=lambda container: (container.service, container.name))


class _Docker(NamedTuple):
    """What Docker lists."""

    listing: Sequence[ListedContainer]
    by_id: Mapping[str, ListedContainer]
    by_image: Mapping[str, ListedImage]
    own: ListedContainer | None
    """The exporter's own container."""


def _asks(listed: ListedContainer, image: ListedImage | None) -> bool:
    """Whether it has the label, or others of ours without it: ``infercanary.enabled=true`` must not go unnoticed.

    A label that its image brings is no sign that somebody meant this container, and a server that is watched has one
    without a probe of its own.
    """
    labels = listed.labels or {}
    if ENABLE_LABEL in labels or image is None:
        return not is_off(labels.get(ENABLE_LABEL, ""))
    brought = image.labels or {}
    given = [name for name, value in labels.items() if value != brought.get(name)]
    return WATCHED_BY_LABEL not in given and is_meant(given, ENABLE_LABEL, _LABELS)


def _container(listed: ListedContainer, docker: _Docker) -> Container:
    """One that asks for it."""
    labels = listed.labels or {}
    name = _name(listed)
    asked = labels.get(ENABLE_LABEL)
    own_image = docker.by_image.get(listed.image_id)
    labels, brought = _given(labels, (own_image.labels if own_image else None) or {})
    wrong = mistake("label", ENABLE_LABEL, asked) or _mistaken(labels)
    url, missing = (None, wrong) if wrong else _url(listed, labels, docker.own, docker.by_id)
    failure: Unpolled = "label" if wrong else "no_address"
    if url is not None and (writers := _writers(url, listed, docker.own, docker.listing)) - {name}:
        several = ", ".join(map(label_text, sorted(writers)))
        url, missing = None, f"its socket's volume is writable for {several}; give each its own"
        failure = "label"
    watched: ListedContainer | None = listed
    if server := labels.get(WATCHES_LABEL):
        running = next((each for each in docker.listing if _name(each) == server), None)
        if running is None:  # the image that it ran last need not be the next one
            url, failure = None, "server_gone"
            missing = (
                f"label {WATCHES_LABEL}: no container {label_text(server)!r} runs; start it, or fix the label"
            )
        elif not _agrees(running, name, docker.by_image):
            url, failure = None, "label"
            missing = (
                f"label {WATCHES_LABEL}: {label_text(server)!r} does not say that it is watched; start it with the "
                f"label {WATCHED_BY_LABEL}={label_text(name)}"
            )
            running = listed  # another's identity is not borrowed
        watched = running
    described = watched or listed
    image = docker.by_image.get(described.image_id)
    composed, notes = _compose_service(labels, (own_image.labels if own_image else None) or {})
    return Container(
        service=label_text(labels.get(SERVICE_LABEL) or composed or name),
        notes=(
            *unknown("label", _PREFIX, labels, _LABELS),
            *brought,
            *(notes if not labels.get(SERVICE_LABEL) else ()),
        ),
        name=name,
        id=listed.id,
        image=described.image.removeprefix(_LOCAL),
        image_id=described.image_id,
        image_digest=_digest(described.image, (image.repo_digests if image else None) or []),
        # A container's own labels are those of its image and more: what was given when it was started.
        origin=Origin.of((image.labels if image else described.labels) or {}),
        watched_id="" if described is listed else described.id,
        watched_since=0.0 if described is listed else described.created,
        url=url,
        url_missing=missing,
        is_asked=asked is not None,
        failure=failure,
    )


def _given(labels: Mapping[str, str], image: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The labels that were given to a container when it was started, and a note for each that its image brings.

    Whoever builds an image must not say whose runs its containers report: a label about identity counts where its value
    is not the image's own.
    """
    brought = [name for name in _IDENTITY if name in labels and labels[name] == image.get(name)]
    notes = (
        f"label {name}: its image brings it, and it is ignored; give it when the container is started, with another "
        "value than the image's"
        for name in brought
    )
    return {name: value for name, value in labels.items() if name not in brought}, tuple(notes)


def _agrees(server: ListedContainer, sidecar: str, images: Mapping[str, ListedImage]) -> bool:
    """Whether who started a server wants it to be watched by this container."""
    by = (server.labels or {}).get(WATCHED_BY_LABEL)
    image = images.get(server.image_id)
    return by == sidecar and by != ((image.labels if image else None) or {}).get(WATCHED_BY_LABEL)


def _writers(
    url: str, listed: ListedContainer, own: ListedContainer | None, listing: Sequence[ListedContainer]
) -> set[str]:
    """Who may put a socket where this one is: whoever is first is taken for the container.

    A folder above the shared one is not looked at: who may write to Docker's own folders administers the host.
    """
    if not url.startswith("unix://"):
        return set()
    path = url.removeprefix("unix://")
    if own is not None:
        inside = [m for m in own.mounts or [] if m.source and _is_in(path, m.destination)]
        if not inside:
            return set()
        mount = max(inside, key=lambda mount: len(mount.destination))
        shared = mount.source.rstrip("/")
        path = f"{shared}/{path[len(mount.destination) :].lstrip('/')}"
    else:  # the exporter is on the host, and sees what the container has mounted
        sources = [m.source for m in listed.mounts or [] if m.source and _is_in(path, m.source)]
        shared = min(sources, key=len, default=path.rpartition("/")[0]).rstrip("/")
    return {
        _name(each)
        for each in listing
        if own is None or each.id != own.id
        for mount in each.mounts or []
        if mount.writable and _is_in(path, mount.source) and _is_in(f"{mount.source}/", shared)
    }


def _is_in(path: str, folder: str) -> bool:
    return bool(folder) and path.startswith(f"{folder.rstrip('/')}/")


def _compose_service(labels: Mapping[str, str], image: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The Compose service that started a container, and a note where its image alone names one.

    An image that Compose built has the labels of its service. Containers of it that others start have them, too, and
    are no replicas of that service.
    """
    service = labels.get(_COMPOSE_SERVICE, "")
    if not service or (_COMPOSE_HASH in labels and _COMPOSE_HASH not in image):
        return service, ()
    return "", (
        f"its image was built for the Compose service {label_text(service)!r}, and Compose did not start it: its "
        f"service is its own name; set the label {SERVICE_LABEL} if another is meant",
    )


def ambiguous(listing: Sequence[ListedContainer], images: Iterable[ListedImage]) -> dict[str, list[str]]:
    """Compose services that several projects have → those projects.

    The judge would take such a service for one, and the containers that start last for its upgrade.

    Args:
        listing: All containers that Docker lists.
        images: Whose labels are not those of who started a container.

    Returns:
        Service → projects, in order; empty where all services are of one project.
    """
    brought = {image.id: image.labels or {} for image in images}
    projects: dict[str, set[str]] = {}
    for listed in listing:
        image = brought.get(listed.image_id, {})
        labels, _ = _given(listed.labels or {}, image)
        service, _ = _compose_service(labels, image)
        if service and labels.get(ENABLE_LABEL, "").lower() == "true" and not labels.get(SERVICE_LABEL):
            projects.setdefault(service, set()).add(labels.get(_COMPOSE_PROJECT, ""))
    return {service: sorted(found) for service, found in projects.items() if len(found) > 1}


def own_ids(hostname: str, mountinfo: str) -> list[str]:
    """How the id of this process' container may start: by the files that Docker mounts, else by the host name.

    Args:
        hostname: Of this process.
        mountinfo: The text of ``/proc/self/mountinfo``.

    Returns:
        Ids or their first 12 digits; none outside of a container.
    """
    mounted = re.findall(r"/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf) /etc/", mountinfo)
    named = [hostname] if re.fullmatch(r"[0-9a-f]{12}", hostname) else []
    return list(dict.fromkeys(mounted + named))


def _name(listed: ListedContainer) -> str:
    """Its own name: ``/name``. Legacy links add others, such as ``/other/alias``."""
    return next((name[1:] for name in listed.names if name.count("/") == 1), listed.id[:12])


def _digest(reference: str, digests: Sequence[str]) -> str:
    """The ``sha256:…`` under which a registry knows the image: that of the reference's repository, if it has one."""
    repository = _repository(reference)
    # An image without a name has `<none>@<none>`.
    parts = (d.partition("@") for d in digests)
    known = [
        (_repository(repo) == repository, digest) for repo, at, digest in parts if at and digest != "<none>"
    ]
    return max(known, key=lambda entry: entry[0], default=(False, ""))[1]


def _repository(reference: str) -> str:
    path, slash, last = reference.partition("@")[0].rpartition("/")
    return (
        (path + slash + last.partition(":")[0])
        .removeprefix(_LOCAL)
        .removeprefix("docker.io/")
        .removeprefix("library/")
    )


def _url(
    listed: ListedContainer,
    labels: Mapping[str, str],
    own: ListedContainer | None,
    by_id: Mapping[str, ListedContainer],
) -> tuple[str | None, str]:
    """Where the probe of ``listed`` answers, by labels without a mistake, or why that is not known."""
    if path := labels.get(SOCKET_LABEL):
        return path, ""
    host, missing = _host(listed, own, by_id)
    return (f"http://{host}:{as_port(_port(labels))}", "") if host else (None, missing)


def _mistaken(labels: Mapping[str, str]) -> str:
    """What is wrong with the labels that say where the probe answers, or an empty text."""
    if path := labels.get(SOCKET_LABEL):
        # A label may come from the image: it must not send the exporter to any other host.
        if path.startswith("unix://") and not url_mistake(path):
            return ""
        return f"label {SOCKET_LABEL}: {label_text(path)!r} is not a socket; write unix:///path/to/probe.sock"
    if as_port(given := _port(labels)) is None:
        return f"label {PORT_LABEL}: {label_text(given)!r} is not a port; write a number from 1 to 65535"
    return ""


def _port(labels: Mapping[str, str]) -> str:
    return labels.get(PORT_LABEL, str(DEFAULT_PORT))


def _host(
    listed: ListedContainer, own: ListedContainer | None, by_id: Mapping[str, ListedContainer]
) -> tuple[str, str]:
    target = _network_owner(listed, by_id)
    here = _network_owner(own, by_id) if own else None
    mode = target.host_config.network_mode
    on_host = here is None or here.host_config.network_mode == "host"
    if here is not None and target.id == here.id:
        return "127.0.0.1", ""
    if mode == "host":
        return (
            ("127.0.0.1", "")
            if on_host
            else (
                "",
                "it uses the host's network, which the exporter does not; run the exporter with network_mode: host, "
                f"or share a socket by the label {SOCKET_LABEL}",
            )
        )
    networks = target.network_settings.networks or {}
    if not (mode or networks):  # Podman's list has neither; Docker's always has the mode
        return "", (
            "no address of it is listed, as Podman does for containers that are rootless or on the host's network; "
            f"share a socket by the label {SOCKET_LABEL}"
        )
    ours = (here.network_settings.networks or {}).keys() if here else networks.keys()
    # Swarm's `ingress` only balances the load of published ports.
    for name, network in sorted(networks.items(), key=lambda item: item[0] == "ingress"):
        if on_host or name in ours:
            if network.ipv4:
                return network.ipv4, ""
            if network.ipv6:
                return f"[{network.ipv6}]", ""
    return "", (
        "it has no address on a network that the exporter can reach; attach both to one network, "
        f"or share a socket by the label {SOCKET_LABEL}"
    )


def _network_owner(listed: ListedContainer, by_id: Mapping[str, ListedContainer]) -> ListedContainer:
    """The container whose network ``listed`` uses: itself, or the one that its network mode names."""
    seen = set()
    while listed.host_config.network_mode.startswith("container:") and listed.id not in seen:
        seen.add(listed.id)
        listed = by_id.get(listed.host_config.network_mode.removeprefix("container:"), listed)
    return listed
