"""Pods from the API server: their containers with a probe, and containers that the kernel killed for memory.

The module makes no calls. The identity of a container comes from the kubelet and the controllers. Annotations set
only the service's name, the port, and the container that a sidecar watches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from operator import attrgetter

import msgspec

from infercanary.client.fetch import Unpolled
from infercanary.contract.address import in_url
from infercanary.contract.report import DEFAULT_PORT
from infercanary.exporter.discovery.base import (
    Container,
    MemoryKill,
    as_port,
    asking,
    convert_each,
    label_text,
)
from infercanary.judge.model import ImageForm

_ANNOTATIONS = ENABLE, SERVICE, PORT, WATCHES = (
    "infercanary.io/enable", "infercanary.io/service", "infercanary.io/port", "infercanary.io/watches",
)  # fmt: skip
PORT_NAME = "infercanary"
"""Name of the container port where a probe answers."""

_OTEL_SERVICE = "resource.opentelemetry.io/service.name"
# Labels with the template hash. Each controller also puts this hash into the names of its ReplicaSets.
_TEMPLATE_HASHES = ("pod-template-hash", "rollouts-pod-template-hash")
_WORKER_SET = "leaderworkerset.sigs.k8s.io/name"
_CRON_SECONDS = 31 * 86_400.0  # longest delay of a CronJob's job after its scheduled minute
_HEX = re.compile(r"[0-9a-f]{64}")


class _Owner(msgspec.Struct):
    kind: str = ""
    name: str = ""
    controller: bool = False


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[_Owner] = []


class _Port(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct):
    name: str
    image: str = ""
    ports: list[_Port] = []


class _End(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    finished_at: datetime | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class _Running(msgspec.Struct, rename="camel"):
    started_at: datetime | None = None


class _State(msgspec.Struct, frozen=True):
    running: _Running | None = None
    terminated: _End = _End()


class _Status(msgspec.Struct, rename="camel"):
    """Status of one container, written by the kubelet."""

    name: str
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    state: _State = _State()
    last_state: _State = _State()


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    containers: list[_Container] = []
    init_containers: list[_Container] = []


class _PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    pod_ip: str = msgspec.field(default="", name="podIP")
    container_statuses: list[_Status] = []
    init_container_statuses: list[_Status] = []


class Pod(msgspec.Struct):
    """Fields used from a pod."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _PodStatus = _PodStatus()

    @property
    def given(self) -> Mapping[str, str]:
        """Labels and annotations of the pod."""
        return self.metadata.labels | self.metadata.annotations

    @property
    def containers(self) -> list[_Container]:
        """All containers. Init containers, which include sidecars, come first."""
        return self.spec.init_containers + self.spec.containers

    @property
    def statuses(self) -> list[_Status]:
        return self.status.init_container_statuses + self.status.container_statuses


_decode_pod = msgspec.json.Decoder(Pod).decode


def containers(pod: Pod) -> tuple[Container, ...]:
    """Select the running containers of a pod that have a probe.

    Returns:
        Every container with a port named :data:`PORT_NAME`, or else one container, found by the annotated or default
        port. Empty if the pod does not ask to be polled, or has no IP address. After a wrong request, ``url_missing``
        has the mistake.
    """
    given, address = pod.given, pod.status.pod_ip
    asked = asking("annotation", given, _ANNOTATIONS)
    if asked is None or not address:
        return ()
    images = {container.name: container.image for container in pod.containers}
    running = {status.name: status for status in pod.statuses if status.state.running}
    ports, mistake = _ports(pod)
    server = given.get(WATCHES)
    found = []
    for name, port in ports.items():
        if (status := running.get(name)) is None:
            continue
        missing = asked.mistake or mistake
        failure: Unpolled = "label"
        watched = running.get(server or name)
        if watched is None:
            missing = (
                f"annotation {WATCHES}: no container {label_text(server or name)!r} runs in this pod; fix it"
            )
            failure, watched = "server_gone", status
        since = watched.state.running if watched is not status else None
        image_id, image_digest, image_form = image_identity(watched.image_id)
        found.append(
            Container(
                namespace=label_text(pod.metadata.namespace),
                pod=label_text(pod.metadata.name),
                service=service_of(pod),
                name=label_text(name),
                id=_bare(status.container_id),
                image=images.get(watched.name, ""),
                image_id=image_id,
                image_digest=image_digest,
                image_form=image_form,
                watched_id=_bare(watched.container_id) if since else "",
                watched_since=_unix(since.started_at) if since else 0.0,
                url=None if missing else f"http://{in_url(address)}:{port}",
                url_missing=missing,
                failure=failure,
                is_asked=ENABLE in given,
                notes=asked.notes,
            )
        )
    return tuple(found)


def _ports(pod: Pod) -> tuple[dict[str, int], str]:
    """Return the port of each container with a probe. If container or port are uncertain, also return the mistake."""
    ports = [(container.name, port) for container in pod.containers for port in container.ports]
    named = {name: port.container_port for name, port in ports if port.name == PORT_NAME}
    text = pod.given.get(PORT)
    if named and text is None:
        return named, ""
    number = as_port(str(DEFAULT_PORT) if text is None else text)
    names = [name for name, port in ports if port.container_port == number]
    mistake = ""
    if not names:
        # The sidecar and the watched server are different containers.
        names = [each.name for each in pod.spec.containers if each.name != pod.given.get(WATCHES)]
        if len(names) > 1:
            mistake = f"the pod has several containers, and none has a port named {PORT_NAME}; give the port this name"
    if number is None:
        value = label_text(text or "")
        mistake = f"annotation {PORT}: {value!r} is not a port; write a number from 1 to 65535, in quotes"
    return dict.fromkeys(names[:1], number or 0), mistake


def service_of(pod: Pod) -> str:
    """Return the service of a pod, without namespace: the annotated name, else the owner's name.

    Upgrades do not change this name.
    """
    given = pod.given
    return label_text(given.get(SERVICE) or given.get(_OTEL_SERVICE) or _owner(pod.metadata))


def _owner(metadata: _Metadata) -> str:
    owners = (owner for owner in metadata.owner_references if owner.controller)
    owner = next(owners, _Owner(name=metadata.name))
    if owner.kind == "Node":  # mirror pod of a static pod
        return metadata.name.removesuffix(f"-{owner.name}")
    if owner.kind == "Job":
        # The name of a CronJob's job ends with the scheduled minute, in minutes of Unix time.
        job = re.fullmatch(r"(.+)-(\d{8})", owner.name)
        if job and abs(_unix(metadata.creation_timestamp) - 60 * int(job[2])) <= _CRON_SECONDS:
            return job[1]
    if owner.kind == "ReplicaSet":
        template = next(
            (metadata.labels[label] for label in _TEMPLATE_HASHES if label in metadata.labels), ""
        )
        return owner.name.removesuffix(f"-{template}")
    # In a LeaderWorkerSet, a StatefulSet of the same name owns the leaders, and a further StatefulSet for each group
    # owns the group's workers.
    return metadata.labels.get(_WORKER_SET, owner.name)


def image_identity(image_id: str) -> tuple[str, str, ImageForm]:
    """Return image id, registry digest and form from a container's status.

    Args:
        image_id: ``repo@sha256:…`` for a pulled image, ``docker-pullable://repo@sha256:…`` if Docker pulled it,
            ``sha256:…`` or only digits for a loaded image.

    Returns:
        Id, digest and form. Only one of id and digest is set; all three are empty if neither is known.
    """
    form: ImageForm = "docker" if image_id.startswith("docker-pullable://") else "registry"
    repository, _, digest = _bare(image_id).rpartition("@")
    if repository:
        return "", digest, form
    if _HEX.fullmatch(digest):
        digest = f"sha256:{digest}"
    return (digest, "", "config") if digest else ("", "", "")


class PodState(msgspec.Struct, frozen=True):
    """Current containers of one pod, and its ended containers that the kernel killed for memory."""

    created: float = 0.0
    """Unix time at which the pod was created."""
    containers: tuple[Container, ...] = ()
    kills: Mapping[str, float] = {}
    """Unix time of the end, by id of a killed container."""


Pods = dict[tuple[str, str], PodState]
"""State by namespace and name of a pod."""


class NodePods:
    """Containers with a probe in the pods of one node, updated by lists and watch events."""

    def __init__(self) -> None:
        self.kills: list[MemoryKill] = []
        self._pods: Pods = {}
        self._failed: set[str] = set()

    def __iter__(self) -> Iterator[Container]:
        """Yield all running containers with a probe; each address occurs once.

        The end of a pod may become known late, and a new pod may already use its address. So the newer pod keeps the
        address.
        """
        pods = sorted(self._pods.values(), key=attrgetter("created"))
        yield from {each.url or each.key: each for pod in pods for each in pod.containers}.values()

    def read(self, pods: Iterable[msgspec.Raw]) -> Pods:
        """Convert pods to states by namespace and name."""
        return dict(convert_each(map(bytes, pods), _read_pod, self._failed))

    def replace(self, listed: Pods) -> None:
        for key in {*self._pods, *listed}:
            self._set(key, listed.get(key, PodState()))

    def take(self, pod: msgspec.Raw, *, gone: bool) -> bool:
        """Update one pod that was added, changed or deleted (``gone``). Return True if containers changed."""
        changed = False
        for key, state in self.read([pod]).items():
            changed = self._set(key, msgspec.structs.replace(state, containers=()) if gone else state)
        return changed

    def _set(self, key: tuple[str, str], state: PodState) -> bool:
        """Replace the state of one pod. A kill is new if the killed container was running before."""
        before = self._pods.pop(key, PodState()).containers
        self.kills += [
            MemoryKill(each, id_, state.kills[id_])
            for each in before
            for id_ in each.ids
            if id_ in state.kills
        ]
        if state.containers:
            self._pods[key] = state
        return state.containers != before


def _read_pod(text: bytes) -> tuple[tuple[str, str], PodState]:
    pod = _decode_pod(text)
    metadata = pod.metadata
    kills = {
        _bare(end.container_id): _unix(end.finished_at)
        for status in pod.statuses
        for end in (status.last_state.terminated, status.state.terminated)
        if end.reason == "OOMKilled"
    }
    state = PodState(_unix(metadata.creation_timestamp), containers(pod), kills)
    return (metadata.namespace, metadata.name), state


def _bare(id_: str) -> str:
    """Return the id of a container or image without the runtime's prefix, such as ``containerd://``."""
    return label_text(id_.partition("://")[2] or id_)


def _unix(time: datetime | None) -> float:
    return time.timestamp() if time is not None else 0.0
