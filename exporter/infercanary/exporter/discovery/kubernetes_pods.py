"""From a pod, as the API server shows it, to containers with a probe: opt-in, service, image and address, without any
call.

What decides who a container is comes from the kubelet and from controllers; annotations only name its service and port.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from infercanary.contract.address import first_routed, in_url
from infercanary.contract.report import DEFAULT_PORT
from infercanary.exporter.discovery.asking import is_meant, is_off, label_text, mistake, unknown
from infercanary.exporter.discovery.base import Container, as_port
from infercanary.exporter.discovery.kills import MemoryKill
from infercanary.judge.model import ImageForm

ENABLE = "infercanary.io/enable"
SERVICE = "infercanary.io/service"
PORT = "infercanary.io/port"
WATCHES = "infercanary.io/watches"
_PREFIX = "infercanary.io/"
_ANNOTATIONS = (ENABLE, SERVICE, PORT, WATCHES)
PORT_NAME = "infercanary"
"""Of a container's port: there its probe answers."""

_OTEL_SERVICE = "resource.opentelemetry.io/service.name"
# Each controller puts the hash of its template into the names of its ReplicaSets, and into this label of their pods.
_TEMPLATE_HASHES = ("pod-template-hash", "rollouts-pod-template-hash")
_SOURCE = "kubernetes.io/config.source"
_WORKER_SET = "leaderworkerset.sigs.k8s.io/name"
_CRON_SECONDS = 31 * 86_400.0  # a pod that a CronJob's job begins later than that is not taken for one
_HEX = re.compile(r"[0-9a-f]{64}")


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Owner(msgspec.Struct):
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class _Port(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""
    protocol: str = "TCP"


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
    """What the kubelet says of one container."""

    name: str
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    state: _State = msgspec.field(default_factory=_State)
    last_state: _State = msgspec.field(default_factory=_State)


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container] = []
    init_containers: list[_Container] | None = None
    node_name: str = ""


class _PodIP(msgspec.Struct):
    ip: str = ""


class _PodStatus(msgspec.Struct, rename="camel"):
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: list[_PodIP] | None = msgspec.field(default=None, name="podIPs")
    container_statuses: list[_Status] | None = None
    init_container_statuses: list[_Status] | None = None


class Pod(msgspec.Struct):
    """What is used of a pod."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name: no two pods have the same at a time."""
        return self.metadata.namespace, self.metadata.name

    @property
    def created(self) -> float:
        """A Unix time; 0 where it is not known."""
        return _unix(self.metadata.creation_timestamp)


def asks(pod: Pod) -> bool:
    """Whether it asks for it, by annotation or label, or seems to: others of ours without that one are a mistake.

    Args:
        pod: Any.
    """
    _, value = _enable(pod)
    if value is None:
        given = (*(pod.metadata.annotations or ()), *(pod.metadata.labels or ()))
        return is_meant(given, ENABLE, _ANNOTATIONS)
    return not is_off(value)


def _enable(pod: Pod) -> tuple[str, str | None]:
    """By what it asks, and with which value; an annotation counts more than a label. None where it has neither."""
    both = [
        (kind, given[ENABLE])
        for kind, given in (("annotation", pod.metadata.annotations), ("label", pod.metadata.labels))
        if given and ENABLE in given
    ]
    return next((each for each in both if each[1]), both[0] if both else ("annotation", None))


def containers(pod: Pod) -> tuple[Container, ...]:
    """The running containers of a pod that have a probe.

    Args:
        pod: As listed or watched.

    Returns:
        One for each container that has a port with the name, or else for the one that the annotation's port is in;
        none where the pod does not ask for it, or where they do not run.
    """
    if not asks(pod):
        return ()
    annotations = pod.metadata.annotations or {}
    statuses = {
        status.name: status
        for each in (pod.status.init_container_statuses, pod.status.container_statuses)
        for status in each or ()
    }
    listed = {each.name: each for each in (*(pod.spec.init_containers or ()), *pod.spec.containers)}
    notes = (
        *unknown("annotation", _PREFIX, annotations, _ANNOTATIONS),
        *unknown("label", _PREFIX, pod.metadata.labels or (), (ENABLE,)),
    )
    addresses = (pod.status.pod_ip, *(each.ip for each in pod.status.pod_ips or ()))
    address = first_routed([each for each in addresses if each])
    found = []
    kind, value = _enable(pod)
    for name, port, missing in _probes(pod, annotations, mistake(kind, ENABLE, value)):
        status = statuses.get(name)
        if status is None or status.state.running is None:
            continue
        watched: _Status | None = status
        server = annotations.get(WATCHES, "")
        if server and server != name:
            watched = statuses.get(server)
            if watched is None or watched.state.running is None:
                watched, port = None, 0
                missing = (
                    f"annotation {WATCHES}: no container {label_text(server)!r} runs in this pod; fix it"
                )
        described = watched or status
        image_id, image_digest, image_form = image_identity(described.image_id)
        found.append(
            Container(
                namespace=label_text(pod.metadata.namespace),
                pod=label_text(pod.metadata.name),
                service=service_of(pod),
                name=label_text(name),
                id=_bare(status.container_id),
                image=listed[server if watched is not status and server in listed else name].image,
                image_id=image_id,
                image_digest=image_digest,
                image_form=image_form,
                watched_id="" if described is status else _bare(described.container_id),
                watched_since=0.0 if described is status else _started(described),
                url=_url(address, port),
                url_missing=missing or ("" if address else "the pod has no address yet"),
                failure="server_gone" if watched is None else "label" if missing else "no_address",
                is_asked=value is not None,
                notes=notes,
            )
        )
    return tuple(found)


def _probes(pod: Pod, annotations: Mapping[str, str], wrong: str) -> list[tuple[str, int, str]]:
    """Name, port and what is wrong of each container with a probe; the port is 0 where it is not known.

    ``wrong`` is what is wrong with how the pod asks, or empty.
    """
    if wrong:
        return [(each.name, 0, wrong) for each in pod.spec.containers[:1]]
    candidates = [*(pod.spec.init_containers or ()), *pod.spec.containers]
    given = annotations.get(PORT, "")
    number = as_port(given or str(DEFAULT_PORT))
    if number is None:
        wrong = f"annotation {PORT}: {label_text(given)!r} is not a port; write a number from 1 to 65535, in quotes"
        return [(each.name, 0, wrong) for each in pod.spec.containers[:1]]
    if not given:
        named = [
            (each.name, port.container_port, "")
            for each in candidates
            for port in each.ports or ()
            if port.name == PORT_NAME
        ]
        if named:
            return named
    declared = [each.name for each in candidates if any(p.container_port == number for p in each.ports or ())]
    if declared:
        return [(declared[0], number, "")]
    # A sidecar that watches a server is not that server.
    others = [each.name for each in pod.spec.containers if each.name != annotations.get(WATCHES)]
    if len(others) == 1:
        return [(others[0], number, "")]
    missing = (
        f"the pod has several containers, and none has a port named {PORT_NAME}; name the probe's port so"
    )
    return [(name, 0, missing) for name in others[:1]]


def service_of(pod: Pod) -> str:
    """What stays the same across upgrades: as annotated, else the owner's name.

    Args:
        pod: Any.

    Returns:
        Bare, without the namespace.
    """
    annotations = pod.metadata.annotations or {}
    return label_text(annotations.get(SERVICE) or annotations.get(_OTEL_SERVICE) or _owner(pod))


def _owner(pod: Pod) -> str:
    metadata = pod.metadata
    labels = metadata.labels or {}
    owner = next((each for each in metadata.owner_references or () if each.controller), None)
    if owner is None:
        # A static pod has no owner in its kubelet's list. One that the API server knows came from there.
        is_static = (metadata.annotations or {}).get(_SOURCE, "api") != "api"
        return metadata.name.removesuffix(f"-{pod.spec.node_name}") if is_static else metadata.name
    if owner.kind == "ReplicaSet":
        hashes = (f"-{labels[label]}" for label in _TEMPLATE_HASHES if labels.get(label))
        return next((owner.name.removesuffix(end) for end in hashes if owner.name.endswith(end)), owner.name)
    if owner.kind == "StatefulSet":
        # Leaders have a StatefulSet of the set's own name, workers one for each group: `name-0`.
        name = labels.get(_WORKER_SET, "")
        return name if re.fullmatch(re.escape(name) + r"-\d+", owner.name) and name else owner.name
    if owner.kind == "Job":
        return _without_schedule(owner.name, pod.created)
    if owner.kind == "Node":  # a static pod's mirror
        return metadata.name.removesuffix(f"-{owner.name}")
    return owner.name


def _without_schedule(job: str, created: float) -> str:
    """A CronJob's jobs end with the minute that they are scheduled for, in minutes of Unix time."""
    name, _, minutes = job.rpartition("-")
    if name and minutes.isascii() and minutes.isdigit() and len(minutes) <= 10:
        late = created - 60 * int(minutes)
        return name if -60 <= late <= _CRON_SECONDS else job
    return job


def image_identity(image_id: str) -> tuple[str, str, ImageForm]:
    """Image id, registry digest and form, of what a kubelet says of an image.

    Args:
        image_id: ``repo@sha256:…`` of one that was pulled, ``docker-pullable://repo@sha256:…`` where Docker pulled it,
            ``sha256:…`` or bare digits of one that was loaded.

    Returns:
        Either of the two is empty; all are where it says none of that.
    """
    form: ImageForm = "docker" if image_id.startswith("docker-pullable://") else "registry"
    reference = image_id.partition("://")[2] or image_id
    repository, at, digest = reference.rpartition("@")
    if at and repository:
        return "", label_text(digest), form
    if _HEX.fullmatch(digest):
        digest = f"sha256:{digest}"
    return (label_text(digest), "", "config") if digest else ("", "", "")


def reachable(found: Iterable[tuple[float, Sequence[Container]]]) -> list[Container]:
    """All containers of a node, of which no two are polled at one address.

    An address is given to another pod as soon as one has ended, and that may be known late: the newer pod has it.

    Args:
        found: When a pod was created (Unix seconds), and its containers.

    Returns:
        In the same order; without an address where a newer pod has it.
    """
    every: list[Container] = []
    holders: dict[str, tuple[float, int]] = {}
    for created, of_pod in found:
        for container in of_pod:
            loser = None
            if container.url is not None:
                holder = holders.get(container.url)
                if holder is None or every[holder[1]].pod == container.pod or holder[0] <= created:
                    holders[container.url] = created, len(every)
                    loser = holder
                else:
                    loser = created, len(every)
            every.append(container)
            if loser is not None and container.url is not None:
                newer = every[holders[container.url][1]].pod
                every[loser[1]] = msgspec.structs.replace(
                    every[loser[1]], url=None, url_missing=f"its address is that of the newer pod {newer}"
                )
    return every


def memory_kills(pod: Pod, found: Sequence[Container]) -> list[MemoryKill]:
    """What the kernel ended for memory: the last end of each container with a probe, and of the server it watches.

    Args:
        pod: As listed or watched.
        found: Its containers with a probe, as they were last known to run.

    Returns:
        Also those that were returned before.
    """
    ends = {}
    for each in (pod.status.init_container_statuses, pod.status.container_statuses):
        for status in each or ():
            for state in (status.last_state, status.state):
                if state.terminated is not None and state.terminated.reason == "OOMKilled":
                    end = state.terminated
                    ends[_bare(end.container_id or status.container_id)] = _unix(end.finished_at)
    return [
        MemoryKill(container, name, ends[name])
        for container in found
        for name in (container.id, container.watched_id)
        if name and name in ends
    ]


def _url(address: str, port: int) -> str | None:
    if not address or not port:
        return None
    return f"http://{in_url(address)}:{port}"


def _bare(container_id: str) -> str:
    """The id without the runtime's name: ``containerd://…``."""
    return label_text(container_id.partition("://")[2] or container_id)


def _started(status: _Status) -> float:
    return _unix(status.state.running.started_at) if status.state.running else 0.0


def _unix(time: datetime | None) -> float:
    return time.timestamp() if time is not None else 0.0
