"""Pods as the API server shows them: their containers with a probe, and those that the kernel killed for memory.

Without any call. The kubelet and controllers decide who a container is; annotations only name its service and port.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import attrgetter

import msgspec
import structlog

from infercanary.client.fetch import Unpolled
from infercanary.contract.address import in_url
from infercanary.contract.report import DEFAULT_PORT
from infercanary.exporter.discovery.asking import is_meant, is_off, label_text, mistake, unknown
from infercanary.exporter.discovery.base import Container, as_port
from infercanary.exporter.discovery.kills import MemoryKill
from infercanary.judge.model import ImageForm

log = structlog.get_logger(__name__)

_PREFIX = "infercanary.io/"
ENABLE, SERVICE, PORT, WATCHES = (f"{_PREFIX}{name}" for name in ("enable", "service", "port", "watches"))
_ANNOTATIONS = (ENABLE, SERVICE, PORT, WATCHES)
PORT_NAME = "infercanary"
"""Name of the container port where a probe answers."""

_OTEL_SERVICE = "resource.opentelemetry.io/service.name"
# Each controller puts the hash of its template into the names of its ReplicaSets, and into this label of their pods.
_TEMPLATE_HASHES = ("pod-template-hash", "rollouts-pod-template-hash")
_WORKER_SET = "leaderworkerset.sigs.k8s.io/name"
_CRON_SECONDS = 31 * 86_400.0  # a CronJob's job may begin this long after the minute it is scheduled for
_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(rb'"name"\s*:\s*"([^"\\]{1,253})"')  # the first one is the pod's, or its owner's


class _Owner(msgspec.Struct):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Port(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct):
    name: str
    image: str = ""
    ports: list[_Port] | None = None


class _Running(msgspec.Struct, rename="camel"):
    started_at: datetime | None = None


class _Terminated(msgspec.Struct, rename="camel"):
    reason: str = ""
    finished_at: datetime | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class _State(msgspec.Struct):
    running: _Running | None = None
    terminated: _Terminated | None = None


class _Status(msgspec.Struct, rename="camel"):
    """Status of one container, written by the kubelet."""

    name: str
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    state: _State = msgspec.field(default_factory=_State)
    last_state: _State = msgspec.field(default_factory=_State)


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _PodStatus(msgspec.Struct, rename="camel"):
    pod_ip: str = msgspec.field(default="", name="podIP")
    container_statuses: list[_Status] | None = None
    init_container_statuses: list[_Status] | None = None


class Pod(msgspec.Struct):
    """Fields of a pod that are read. A watch's bookmark has only the metadata."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def containers(self) -> list[_Container]:
        """All containers, sidecars among the init containers first."""
        return [*(self.spec.init_containers or ()), *(self.spec.containers or ())]

    @property
    def statuses(self) -> list[_Status]:
        """Statuses of all containers."""
        return [*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ())]


_decode_pod = msgspec.json.Decoder(Pod).decode


def containers(pod: Pod) -> tuple[Container, ...]:
    """Select the running containers of a pod that have a probe.

    Returns:
        One for each container that has a port with the name, or else for the one that the annotation's port is in;
        empty if the pod does not ask to be polled. If it seems to ask but does so wrongly, the containers say it.
    """
    annotations, labels = pod.metadata.annotations or {}, pod.metadata.labels or {}
    kind, enable = next(
        (
            (kind, given[ENABLE])
            for kind, given in (("annotation", annotations), ("label", labels))
            if ENABLE in given
        ),
        ("annotation", None),
    )
    if is_off(enable) if enable is not None else not is_meant((*annotations, *labels), ENABLE, _ANNOTATIONS):
        return ()
    running = {status.name: status for status in pod.statuses if status.state.running}
    images = {container.name: container.image for container in pod.containers}
    notes = (
        *unknown("annotation", _PREFIX, annotations, _ANNOTATIONS),
        *unknown("label", _PREFIX, labels, (ENABLE,)),
    )
    server = annotations.get(WATCHES, "")
    found = []
    for name, port, wrong in _probes(pod, annotations, mistake(kind, ENABLE, enable)):
        if (status := running.get(name)) is None:
            continue
        watched = running.get(server) if server and server != name else status
        failure: Unpolled = "label" if wrong else "no_address"
        if watched is None:
            wrong = f"annotation {WATCHES}: no container {label_text(server)!r} runs in this pod; fix it"
            failure, watched = "server_gone", status
        is_sidecar = watched is not status
        since = watched.state.running.started_at if is_sidecar and watched.state.running else None
        image_id, image_digest, image_form = image_identity(watched.image_id)
        address = pod.status.pod_ip
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
                watched_id=_bare(watched.container_id) if is_sidecar else "",
                watched_since=_unix(since),
                url=f"http://{in_url(address)}:{port}" if address and not wrong else None,
                url_missing=wrong or ("" if address else "the pod has no address yet"),
                failure=failure,
                is_asked=enable is not None,
                notes=notes,
            )
        )
    return tuple(found)


def _probes(pod: Pod, annotations: Mapping[str, str], wrong: str) -> list[tuple[str, int, str]]:
    """Containers with a probe: name, port, and the mistake that leaves the port unknown.

    Args:
        wrong: Mistake in how the pod asks, or empty.
    """
    given = annotations.get(PORT, "")
    port = as_port(given or str(DEFAULT_PORT)) or 0
    if not port:
        value = label_text(given)
        wrong = (
            wrong or f"annotation {PORT}: {value!r} is not a port; write a number from 1 to 65535, in quotes"
        )
    ports = [(container.name, port) for container in pod.containers for port in container.ports or ()]
    named = [(name, each.container_port, "") for name, each in ports if each.name == PORT_NAME]
    if named and not given and not wrong:
        return named
    # A sidecar that watches a server is not that server.
    names = [each.name for each in pod.spec.containers or () if each.name != annotations.get(WATCHES)]
    declared = [name for name, each in ports if each.container_port == port]
    if not declared and len(names) > 1:
        wrong = wrong or (
            f"the pod has several containers, and none has a port named {PORT_NAME}; name the probe's port so"
        )
    return [(name, port, wrong) for name in (declared or names)[:1]]


def service_of(pod: Pod) -> str:
    """Name of a pod's service, the same across upgrades: as annotated, else the owner's name. Without the namespace."""
    annotations = pod.metadata.annotations or {}
    return label_text(annotations.get(SERVICE) or annotations.get(_OTEL_SERVICE) or _owner(pod.metadata))


def _owner(metadata: _Metadata) -> str:
    labels = metadata.labels or {}
    owner = next((each for each in metadata.owner_references or () if each.controller), None)
    if owner is None:
        return metadata.name
    if owner.kind == "ReplicaSet":
        hashes = (f"-{labels[label]}" for label in _TEMPLATE_HASHES if labels.get(label))
        return next((owner.name.removesuffix(end) for end in hashes if owner.name.endswith(end)), owner.name)
    if owner.kind == "StatefulSet":
        # Leaders have a StatefulSet of the set's own name, workers one for each group: `name-0`.
        name = labels.get(_WORKER_SET, "")
        return name if name and re.fullmatch(re.escape(name) + r"-\d+", owner.name) else owner.name
    if owner.kind == "Job":
        # The jobs of a CronJob end with the minute that they are scheduled for, in minutes of Unix time.
        name, _, minutes = owner.name.rpartition("-")
        late = _unix(metadata.creation_timestamp) - 60 * int(minutes) if minutes.isdecimal() else -math.inf
        return name if name and -60 <= late <= _CRON_SECONDS else owner.name
    if owner.kind == "Node":  # mirror of a static pod
        return metadata.name.removesuffix(f"-{owner.name}")
    return owner.name


def image_identity(image_id: str) -> tuple[str, str, ImageForm]:
    """Image id, registry digest and form from a container's status.

    Args:
        image_id: ``repo@sha256:…`` of a pulled image, ``docker-pullable://repo@sha256:…`` if Docker pulled it,
            ``sha256:…`` or bare digits of a loaded one.

    Returns:
        Id or digest is empty; all three are if there is neither.
    """
    form: ImageForm = "docker" if image_id.startswith("docker-pullable://") else "registry"
    reference = image_id.partition("://")[2] or image_id
    repository, at, digest = reference.rpartition("@")
    if at and repository:
        return "", label_text(digest), form
    if _HEX.fullmatch(digest):
        digest = f"sha256:{digest}"
    return (label_text(digest), "", "config") if digest else ("", "", "")


class PodState(msgspec.Struct, frozen=True):
    """Present containers of one pod, and its ended ones that the kernel killed for memory."""

    created: float = 0.0
    """Unix time."""
    containers: tuple[Container, ...] = ()
    kills: Mapping[str, float] = {}
    """Id of a killed container → Unix time of its end."""


class NodePods:
    """Containers with a probe in the pods of one node, as lists and watch events change them."""

    def __init__(self) -> None:
        self.changed = False
        """True if containers changed since :meth:`containers` was called."""
        self.kills: list[MemoryKill] = []
        """New kills; the reader empties the list."""
        self._pods: dict[tuple[str, str], PodState] = {}
        self._unreadable: set[str] = set()

    def containers(self) -> list[Container]:
        """All running containers with a probe, no two of which are polled at one address.

        An address is given to another pod as soon as one has ended, which may be known late: the newer pod has it.
        """
        self.changed = False
        pods = sorted(self._pods.values(), key=attrgetter("created"))
        found = [each for pod in pods for each in pod.containers]
        owners = {each.url: each for each in found}
        if len(owners) == len(found):
            return found
        for i, each in enumerate(found):
            if each.url is not None and (newer := owners[each.url]) is not each:
                mistake = f"its address is that of the newer pod {newer.pod}"
                found[i] = msgspec.structs.replace(each, url=None, url_missing=mistake)
        return found

    def read(self, pods: Iterable[msgspec.Raw]) -> dict[tuple[str, str], PodState]:
        """Convert pods, by namespace and name."""
        states = {}
        for raw in pods:
            try:
                pod = _decode_pod(raw)
                metadata = pod.metadata
                states[metadata.namespace, metadata.name] = PodState(
                    _unix(metadata.creation_timestamp), containers(pod), _kills(pod)
                )
            except Exception as error:  # a pod that cannot be read must not cost the others
                match = _NAME.search(raw)
                name = label_text(match[1].decode(errors="replace")) if match else ""
                if name not in self._unreadable:
                    self._unreadable.add(name)
                    log.warning(
                        "a pod cannot be read and is left out", pod=name, error=label_text(str(error))
                    )
        return states

    def replace(self, listed: Mapping[tuple[str, str], PodState]) -> None:
        """Take the pods of a whole list: others are gone."""
        for key in {*self._pods, *listed}:
            self._set(key, listed.get(key, PodState()))

    def take(self, pod: msgspec.Raw, *, gone: bool) -> None:
        """Take one pod that was added, changed or (``gone``) deleted."""
        for key, state in self.read([pod]).items():
            self._set(key, msgspec.structs.replace(state, containers=()) if gone else state)

    def _set(self, key: tuple[str, str], state: PodState) -> None:
        """Replace one pod. A container that ran before and is now said to be killed is a new kill."""
        before = self._pods.pop(key, PodState()).containers
        kills = [
            MemoryKill(each, id_, state.kills[id_])
            for each in before
            for id_ in each.ids
            if id_ in state.kills
        ]
        self.kills += kills
        self.changed = self.changed or state.containers != before
        if state.containers:
            self._pods[key] = state


def _kills(pod: Pod) -> dict[str, float]:
    ends = [
        (end.container_id or status.container_id, end)
        for status in pod.statuses
        for end in (status.last_state.terminated, status.state.terminated)
        if end is not None and end.reason == "OOMKilled"
    ]
    return {_bare(id_): _unix(end.finished_at) for id_, end in ends}


def _bare(container_id: str) -> str:
    """Container id without the runtime's name: ``containerd://…``."""
    return label_text(container_id.partition("://")[2] or container_id)


def _unix(time: datetime | None) -> float:
    return time.timestamp() if time is not None else 0.0
