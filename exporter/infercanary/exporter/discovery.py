"""Which containers have a probe, who they are, and where to reach them, as Docker tells it.

The Docker SDK blocks and is not thread-safe, so one thread of its own does all the asking. It needs five calls
only, so that a socket proxy can forbid the rest: GET of /version, /events, /containers/json and /images/json
(and /_ping for the proxy's own health check).
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import docker
import docker.errors
import docker.types
import docker.utils
import msgspec
import requests
import structlog

from infercanary.contract.report import DEFAULT_PORT, Family, Metric
from infercanary.contract.text import printable
from infercanary.contract.vocabulary import (
    ENABLE_LABEL,
    PORT_LABEL,
    SERVICE_LABEL,
    SOCKET_LABEL,
    WATCHES_LABEL,
)
from infercanary.exporter import config

log = structlog.get_logger(__name__)

UP = Metric(
    "infercanary_discovery_up",
    "gauge",
    "1 if Docker answered when last asked for its containers, else 0.",
    reading="`infercanary_discovery_up == 0` is an alert: containers known so far are still polled, new ones "
    "are not found. See the access to Docker's socket or its proxy. Missing with `docker.enabled: false`.",
)
FOUND = Metric(
    "infercanary_discovered_containers",
    "gauge",
    "Containers that Docker last listed with a probe.",
    reading="0 while `infercanary_discovery_up` is 1: no running container has the label "
    "`infercanary.enable=true`, or this is another daemon. A fall without a deployment is a crash of "
    "containers.",
)
METRICS = (UP, FOUND)

_COMPOSE_SERVICE = "com.docker.compose.service"
_COMPOSE_PROJECT = "com.docker.compose.project"

# Not each exec_* of a health check, which comes every few seconds from every container.
_EVENTS = ["create", "start", "die", "destroy", "pause", "unpause", "rename", "update"]
_CALL_SECONDS = 10
_SETTLE_SECONDS = 0.5  # a burst of events costs one listing
_STOP_SECONDS = 2.0


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """One container with a probe. ``name`` stays the same when it is recreated, ``id`` does not.

    ``url`` is where the probe answers; where there is none, ``url_missing`` says why and what would mend it. The image
    is that of what the probe watches: of its own container or, by label, of the server beside it, of which
    ``watched_id`` is the id and ``watched_since`` the Unix time at which that was created.
    """

    service: str
    name: str
    id: str = ""
    image: str = ""
    image_id: str = ""
    image_digest: str = ""
    watched_id: str = ""
    watched_since: float = 0.0
    url: str | None = None
    url_missing: str = ""
    server_gone: bool = False
    """What it watches does not run, and so is not reached either."""

    @property
    def ids(self) -> tuple[str, str]:
        """Of itself and of what it watches: with others, it is another one."""
        return self.id, self.watched_id


class _Network(msgspec.Struct):
    ipv4: str = msgspec.field(default="", name="IPAddress")
    ipv6: str = msgspec.field(default="", name="GlobalIPv6Address")


class _NetworkSettings(msgspec.Struct, rename="pascal"):
    networks: dict[str, _Network] | None = None


class _HostConfig(msgspec.Struct, rename="pascal"):
    network_mode: str = ""


class Listed(msgspec.Struct, rename="pascal"):
    """What is used of an entry of GET /containers/json."""

    id: str
    names: list[str]
    image: str = ""
    image_id: str = msgspec.field(default="", name="ImageID")
    created: float = 0.0
    labels: dict[str, str] | None = None
    host_config: _HostConfig = msgspec.field(default_factory=_HostConfig)
    network_settings: _NetworkSettings = msgspec.field(default_factory=_NetworkSettings)


class Image(msgspec.Struct, rename="pascal"):
    """What is used of an entry of GET /images/json."""

    id: str
    repo_digests: list[str] | None = None


def containers(listing: Sequence[Listed], images: Iterable[Image], own_ids: Sequence[str]) -> list[Container]:
    """Those of ``listing`` that ask for it by label, as seen from the container whose id starts with an own id."""
    by_id = {listed.id: listed for listed in listing}
    own = next((listed for start in own_ids for listed in listing if listed.id.startswith(start)), None)
    digests = {image.id: image.repo_digests or [] for image in images}
    found = []
    for listed in listing:
        labels = listed.labels or {}
        if labels.get(ENABLE_LABEL, "").lower() != "true":
            continue
        name = _name(listed)
        url, missing = _url(listed, own, by_id)
        watched: Listed | None = listed
        if server := labels.get(WATCHES_LABEL):
            running = next((each for each in listing if _name(each) == server), None)
            if running is None:  # its last image is not the next one's
                url = None
                missing = f"label {WATCHES_LABEL}: no container {_label(server)!r} runs; start it, or mend the label"
            watched = running
        shown = watched or listed
        found.append(
            Container(
                service=_label(labels.get(SERVICE_LABEL) or labels.get(_COMPOSE_SERVICE) or name),
                name=name,
                id=listed.id,
                image=shown.image,
                image_id=shown.image_id,
                image_digest=_digest(shown.image, digests.get(shown.image_id, [])),
                watched_id="" if shown is listed else shown.id,
                watched_since=0.0 if shown is listed else shown.created,
                url=url,
                url_missing=missing,
                server_gone=watched is None,
            )
        )
    return sorted(found, key=lambda container: (container.service, container.name))


def ambiguous(listing: Sequence[Listed]) -> dict[str, list[str]]:
    """Compose services that several projects have → those projects.

    By its name each is one service, of which the judge takes the containers that start last for an upgrade.
    """
    projects: dict[str, set[str]] = {}
    for listed in listing:
        labels = listed.labels or {}
        service = labels.get(_COMPOSE_SERVICE)
        if service and labels.get(ENABLE_LABEL, "").lower() == "true" and not labels.get(SERVICE_LABEL):
            projects.setdefault(service, set()).add(labels.get(_COMPOSE_PROJECT, ""))
    return {service: sorted(found) for service, found in projects.items() if len(found) > 1}


def own_ids(hostname: str, mountinfo: str) -> list[str]:
    """How this process' own container id may start: from the files that Docker mounts, else from the host name."""
    mounted = re.findall(r"/([0-9a-f]{64})/(?:hostname|hosts|resolv\.conf) /etc/", mountinfo)
    named = [hostname] if re.fullmatch(r"[0-9a-f]{12}", hostname) else []
    return list(dict.fromkeys(mounted + named))


def _name(listed: Listed) -> str:
    """Its own name: ``/name``. Legacy links add others, such as ``/other/alias``."""
    return next((name[1:] for name in listed.names if name.count("/") == 1), listed.id[:12])


def _label(text: str) -> str:
    return printable(text, 256)


def _digest(reference: str, digests: Sequence[str]) -> str:
    """The ``sha256:…`` under which a registry knows the image: that of the reference's repository, if it has one."""
    repository = _repository(reference)
    # An image without a name has `<none>@<none>`.
    parts = (d.partition("@") for d in digests)
    known = [(repo == repository, digest) for repo, at, digest in parts if at and digest != "<none>"]
    return max(known, key=lambda entry: entry[0], default=(False, ""))[1]


def _repository(reference: str) -> str:
    path, slash, last = reference.partition("@")[0].rpartition("/")
    return (path + slash + last.partition(":")[0]).removeprefix("docker.io/").removeprefix("library/")


def _url(listed: Listed, own: Listed | None, by_id: dict[str, Listed]) -> tuple[str | None, str]:
    """Where the probe of ``listed`` answers, or why that is not known."""
    labels = listed.labels or {}
    if path := labels.get(SOCKET_LABEL):
        # A label may come from the image: it must not send the exporter to any other host.
        if not path.startswith("unix://") or config.url_mistake(path):
            return None, f"label {SOCKET_LABEL}: {path!r} is not a socket; write unix:///path/to/probe.sock"
        return path, ""
    port = labels.get(PORT_LABEL, str(DEFAULT_PORT))
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        return None, f"label {PORT_LABEL}: {port!r} is not a port; write a number from 1 to 65535"
    host, missing = _host(listed, own, by_id)
    return (f"http://{host}:{port}", "") if host else (None, missing)


def _host(listed: Listed, own: Listed | None, by_id: dict[str, Listed]) -> tuple[str, str]:
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
    ours = (here.network_settings.networks or {}).keys() if here else networks.keys()
    for name, network in networks.items():
        if on_host or name in ours:
            if network.ipv4:
                return network.ipv4, ""
            if network.ipv6:
                return f"[{network.ipv6}]", ""
    return "", (
        "it has no address on a network that the exporter can reach; attach both to one network, "
        f"or share a socket by the label {SOCKET_LABEL}"
    )


def _network_owner(listed: Listed, by_id: dict[str, Listed]) -> Listed:
    """The container whose network ``listed`` uses: itself, or the one that its network mode names."""
    seen = set()
    while listed.host_config.network_mode.startswith("container:") and listed.id not in seen:
        seen.add(listed.id)
        listed = by_id.get(listed.host_config.network_mode.removeprefix("container:"), listed)
    return listed


_EXPECTED = (docker.errors.DockerException, requests.RequestException, OSError, msgspec.ValidationError)


class Discovery:
    """Follows Docker. ``containers`` and ``up`` belong to the event loop that calls :meth:`start`.

    When Docker goes away the last list stays: containers may well outlive their daemon.
    """

    def __init__(self, settings: config.Docker, changed: Callable[[], None]) -> None:
        self.containers: tuple[Container, ...] = ()
        self.up = False
        self.tried = False
        self._settings = settings
        self._changed = changed
        self._stopping = threading.Event()
        self._events: docker.types.CancellableStream[bytes] | None = None
        self._watching = False
        self._images: list[Image] = []
        self._images_missing = False
        self._several: dict[str, list[str]] = {}
        self._thread = threading.Thread(target=self._run, name="docker", daemon=True)
        self._own_ids = own_ids(socket.gethostname(), _read("/proc/self/mountinfo"))

    def start(self) -> None:
        """Begin to follow, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End, within seconds: a call that hangs in a wedged daemon is left to its thread, which is a daemon too."""
        self._stopping.set()
        events = self._events
        if events is not None:
            with suppress(OSError, AttributeError):  # it may be ending by itself at this very moment
                events.close()
        await asyncio.to_thread(self._thread.join, _STOP_SECONDS)

    def families(self) -> list[Family]:
        """What the metrics say of Docker."""
        return [UP.family(float(self.up)), FOUND.family(len(self.containers))]

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                with closing(self._client()) as client:
                    while not self._stopping.is_set():
                        self._round(client)
                        failures = 0
                        self._stopping.wait(_SETTLE_SECONDS)
            except (
                Exception
            ) as error:  # whatever Docker answers, or we make of it, must not end the search for ever
                if not isinstance(error, _EXPECTED):
                    log.exception("the search for containers failed by a fault of the exporter")
                self._tell(self._lost, str(error))
                self._stopping.wait(0.5 * 2 ** min(failures, 6))
                failures += 1

    def _client(self) -> docker.APIClient:
        """A client that has asked for the daemon's version."""
        if self._settings.url:
            return docker.APIClient(base_url=self._settings.url, version="auto", timeout=_CALL_SECONDS)
        return docker.APIClient(**docker.utils.kwargs_from_env(), version="auto", timeout=_CALL_SECONDS)

    def _round(self, client: docker.APIClient) -> None:
        """List the containers, then wait for the next event or the time to list again.

        The stream opens first, so that what happens while listing is not missed. It is asked for without
        ``client.events()``, which cannot have a time-out.
        """
        # What is watched need not be labelled: then every container's events count.
        labelled = {} if self._watching else {"label": f"{ENABLE_LABEL}=true"}
        filters = docker.utils.convert_filters({"type": "container", "event": _EVENTS, **labelled})
        with client.get(
            f"{client.base_url}/v{client.api_version}/events",
            params={"filters": filters},
            stream=True,
            timeout=(_CALL_SECONDS, self._settings.relist_seconds),
        ) as response:
            response.raise_for_status()
            self._events = docker.types.CancellableStream(response.iter_content(None), response)
            listing = msgspec.convert(client.containers(), list[Listed])
            self._images = self._listed_images(client)
            self._tell(self._list, containers(listing, self._images, self._own_ids))
            if (several := ambiguous(listing)) != self._several:
                for service, projects in several.items():
                    log.warning(
                        "several Compose projects have this service, and are judged as one: "
                        f"give the containers of one of them another name by the label {SERVICE_LABEL}",
                        service=_label(service), projects=[*map(_label, projects)],
                    )  # fmt: skip
                self._several = several
            watching = any(WATCHES_LABEL in (listed.labels or {}) for listed in listing)
            if not self._stopping.is_set() and watching == self._watching:
                next(self._events, None)
            self._watching = watching
            self._events = None

    def _listed_images(self, client: docker.APIClient) -> list[Image]:
        """What tells digests; a proxy may keep it to itself, and containers are found without."""
        try:
            images = msgspec.convert(client.images(all=True), list[Image])
        except (docker.errors.APIError, requests.Timeout, msgspec.ValidationError) as error:
            if not self._images_missing:
                log.warning("docker does not list images; digests are those known before", error=str(error))
            self._images_missing = True
            return self._images
        self._images_missing = False
        return images

    def _tell(self, then: Callable[..., None], *arguments: object) -> None:
        if not self._stopping.is_set():
            self._loop.call_soon_threadsafe(then, *arguments)

    def _list(self, found: list[Container]) -> None:
        if not self.up:
            log.info("docker answers", containers=len(found))
        self.up = self.tried = True
        self.containers = tuple(found)
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
