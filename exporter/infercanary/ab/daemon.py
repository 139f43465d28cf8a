"""Containers of an experiment: created alike, found by their label, and always removed.

They do not remove themselves (`--rm`), because the log of one that died says why. This process, its reaper or the next
experiment finds them by the label, and removes them with their anonymous volumes.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import docker
import docker.errors
import docker.types
import docker.utils
import msgspec
import psutil
import requests

from infercanary.ab.conditions import Conditions, Mount, document
from infercanary.ab.interruption import Interruption
from infercanary.ab.turn import StartFailed
from infercanary.client.docker_api import DirectClient
from infercanary.command.settings import UsageError
from infercanary.contract.address import in_url
from infercanary.contract.report import DEFAULT_PORT
from infercanary.contract.started import started
from infercanary.contract.text import printable
from infercanary.contract.vocabulary import ENABLE_LABEL, PORT_LABEL, SOCKET_LABEL
from infercanary.judge.origin import NOWHERE, Origin

LABEL = "infercanary.ab"
"""Label of every container of an experiment: the experiment's id."""
OWNER_LABEL = "infercanary.ab.owner"
"""The owner: host, process, and start time of that."""
UNTIL_LABEL = "infercanary.ab.until"
"""Unix time after which the experiment is over in any case."""

SETTINGS = "/infercanary-ab/probe.yaml"
"""Path of the settings in a container."""

_CALL_SECONDS = 60
_GRACE_SECONDS = 600.0
_LINE = 300  # characters of a log line
_FIXES = (
    ("denied|unauthorized|credentials|[Aa]uthentic", "log in with `docker login`, build it, or fix the name"),
    ("no space left", "free some room on Docker's disk"),
    ('(Get|Head) "http|dial |EOF|reset', "see that its registry answers here, build it, or fix the name"),
)
"""Answer of Docker to a pull → the fix. The first that fits counts."""
_GONE = (404, 409)  # not found, or already being removed
_UNREACHED = (docker.errors.DockerException, requests.RequestException, OSError)


class InspectedImage(msgspec.Struct, frozen=True):
    """An image as Docker describes it."""

    name: str
    id: str
    bytes: int
    port: int
    origin: Origin = NOWHERE
    pull: dict[str, float] = {}
    """The step ``pull`` in seconds; empty if it was here."""


class Daemon:
    """The Docker daemon, as one experiment uses it.

    Args:
        identity: The experiment's id.
        seconds: Its budget, after which its containers may be removed by others.

    Raises:
        UsageError: Docker does not answer.
    """

    def __init__(self, identity: str, seconds: float) -> None:
        self._identity = identity
        self._seconds = seconds
        try:
            self._client = client()
        except _UNREACHED as error:
            raise UsageError(
                f"Docker does not answer ({one_line(error)}); start it, or set DOCKER_HOST"
            ) from None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def image(self, name: str, interruption: Interruption, notify: Callable[[str], None]) -> InspectedImage:
        """Return the image ``name``; pull it if it is not on this host.

        Args:
            name: What ``docker run`` takes.
            interruption: Ends a pull.
            notify: Called with what is going on, in a few words.

        Returns:
            The image's id, bytes, and the port of its probe.

        Raises:
            UsageError: It cannot be pulled, or its labels name no port.
            ExperimentInterrupted: A signal came while it was pulled.
        """
        if not name.strip() or not name.isprintable() or name.startswith("-"):
            raise UsageError(f"image `{name[:60]}`: is not the name of one; give what `docker run` takes")
        pull = {}
        try:
            try:
                found = self._inspect(name)
            except docker.errors.ImageNotFound:
                begin = time.monotonic()
                self._pull(name, interruption, notify)
                pull["pull"] = time.monotonic() - begin
                found = self._inspect(name)
        except _UNREACHED as error:
            why = one_line(error)
            fix = next(
                (fix for pattern, fix in _FIXES if re.search(pattern, why)), "build it, or fix the name"
            )
            raise UsageError(f"image {name}: not here, and cannot be pulled ({why}); {fix}") from None
        labels = (found.get("Config") or {}).get("Labels") or {}
        size = int(found.get("Size") or 0)
        return InspectedImage(name, str(found["Id"]), size, _port(name, labels), Origin.of(labels), pull)

    def check(self, mounts: Sequence[Mount]) -> None:
        """Check that each volume is there: Docker would create a missing one, and leave it.

        Args:
            mounts: Those that are no volumes are not checked.

        Raises:
            UsageError: One is missing, or Docker does not answer.
        """
        for mount in mounts:
            if not mount.is_volume:
                continue
            try:
                self._client.inspect_volume(mount.source)
            except docker.errors.NotFound:
                raise UsageError(
                    f"volume {mount.source}: no such volume; make it (docker volume create), or give a path from / on"
                ) from None
            except _UNREACHED as error:
                raise UsageError(
                    f"volume {mount.source}: Docker does not notify ({one_line(error)})"
                ) from None

    def start(self, image: InspectedImage, conditions: Conditions, name: str) -> RunningContainer:
        """Create and start a container of ``image``.

        Args:
            image: From :meth:`image`.
            conditions: The side's.
            name: The container's; no other may have it.

        Returns:
            The started container; its addresses are known, whether its probe answers yet is not.

        Raises:
            StartFailed: It did not start; another try may help.
            UsageError: Docker refuses it, and would again.
        """
        port = DEFAULT_PORT if conditions.settings else image.port
        container = None
        try:
            made = self._client.create_container(
                image.id,
                command=["probe", "--config", SETTINGS]
                if conditions.settings
                else [*conditions.command] or None,
                entrypoint=["infercanary"] if conditions.settings else None,
                name=name,
                environment=dict(conditions.variables),
                labels={
                    LABEL: self._identity,
                    OWNER_LABEL: owner(os.getpid()),
                    UNTIL_LABEL: f"{time.time() + self._seconds + _GRACE_SECONDS:.0f}",
                    ENABLE_LABEL: "false",  # an exporter on this host ignores it
                },
                healthcheck={"test": ["NONE"]},  # it would run every few seconds beside the canary
                ports=[port],
                host_config=self._host_config(conditions, port),
            )
            container = RunningContainer(self._client, str(made["Id"]), port)
            if conditions.settings:
                self._client.put_archive(container.id, "/", _archive(SETTINGS, document(conditions.settings)))
            self._client.start(container.id)
            container.find(_remote() or "127.0.0.1")
        except BaseException as error:
            if container is not None:
                container.end()
            if isinstance(error, _UNREACHED):
                raise _refused(error) from None
            raise
        return container

    def sweep(self) -> bool:
        """Remove what is left of this experiment; return whether Docker confirms that nothing is."""
        mine = {"label": f"{LABEL}={self._identity}"}
        try:
            remove(self._client, mine, lambda labels: True)
            return not self._client.containers(all=True, filters=mine)
        except _UNREACHED:
            return False

    def sweep_stale(self) -> int:
        """How many containers of experiments whose process and reaper were killed there were; they are removed."""
        now = time.time()
        with suppress(*_UNREACHED):
            return remove(self._client, {"label": LABEL}, lambda labels: is_stale(labels, now))
        return 0

    def _inspect(self, name: str) -> dict[str, Any]:
        return cast("dict[str, Any]", self._client.inspect_image(name))  # type: ignore[no-untyped-call]

    def _host_config(self, conditions: Conditions, port: int) -> Any:
        request = conditions.device_request()
        return self._client.create_host_config(
            # On this machine only; with a daemon on another one (docker:dind) that would not be reachable.
            port_bindings={port: ("" if _remote() else "127.0.0.1", None)},
            nano_cpus=None if conditions.cpus is None else round(conditions.cpus * 1e9),
            cpuset_cpus=conditions.cpuset or None,
            mem_limit=conditions.memory,
            device_requests=None if request is None else [docker.types.DeviceRequest(**request)],
            mounts=[
                docker.types.Mount(
                    m.target, m.source, type="volume" if m.is_volume else "bind", read_only=m.read_only
                )
                for m in conditions.volume
            ],
        )

    def _pull(self, name: str, interruption: Interruption, notify: Callable[[str], None]) -> None:
        repository, tag = docker.utils.parse_repository_tag(name)
        for line in self._client.pull(repository, tag=tag or "latest", stream=True, decode=True):
            interruption.check()
            if "error" in line:
                raise docker.errors.DockerException(str(line["error"]))
            notify(f"pulling {name}: {str(line.get('status', ''))[:60]}")


class RunningContainer:
    """A container that was created, and the addresses at which its probe may answer.

    Args:
        client: Of the daemon.
        id_: The container's.
        port: Of its probe, inside it.
    """

    def __init__(self, client: docker.APIClient, id_: str, port: int) -> None:
        self.id = id_
        self.urls: Sequence[str] = ()
        self._client = client
        self._port = port

    def find(self, host: str) -> None:
        """Find its port: published on ``host``, and on its own address, in case this runs in a container too.

        Args:
            host: Where Docker publishes ports, as seen from here.
        """
        settings = self._client.inspect_container(self.id).get("NetworkSettings") or {}
        published = (settings.get("Ports") or {}).get(f"{self._port}/tcp") or []
        ports = dict.fromkeys(
            binding["HostPort"] for binding in published
        )  # IPv4's, and IPv6's if it is another
        networks = (settings, *filter(None, (settings.get("Networks") or {}).values()))
        own = (network.get(key) for key in ("IPAddress", "GlobalIPv6Address") for network in networks)
        addresses = [
            *((host, port) for port in ports),
            *((address, self._port) for address in own if address),
        ]
        self.urls = [*dict.fromkeys(f"http://{in_url(address)}:{port}" for address, port in addresses)]

    def ended(self) -> str:
        """Return why it has ended; empty while it runs."""
        try:
            state = self._client.inspect_container(self.id).get("State") or {}
        except docker.errors.NotFound:
            return "its container was removed from outside"
        except _UNREACHED as error:
            return f"Docker went away ({one_line(error)})"
        if state.get("Running"):
            return ""
        if state.get("OOMKilled"):
            return "it ended, killed for memory (--memory)"
        return f"it ended with exit code {state.get('ExitCode')}"

    def last_words(self) -> str:
        """Return the last line that it logged; empty without one."""
        try:
            text = self._client.logs(self.id, stdout=True, stderr=True, tail=20)
        except _UNREACHED:
            return ""
        return last_line(bytes(text))

    def end(self) -> None:
        """Remove it, running or not, with its anonymous volumes."""
        remove_one(self._client, self.id)


def client() -> docker.APIClient:
    """Return a client that has connected; DOCKER_HOST names the daemon.

    Returns:
        A client that the caller closes.
    """
    return DirectClient(**docker.utils.kwargs_from_env(), version="auto", timeout=_CALL_SECONDS)


def remove(
    client: docker.APIClient, filters: Mapping[str, str], wanted: Callable[[Mapping[str, str]], bool]
) -> int:
    """Remove the containers that match the filters and whose labels are ``wanted``.

    Args:
        client: Of the daemon.
        filters: As Docker's API takes them.
        wanted: From a container's labels to whether it goes.

    Returns:
        How many there were; some may still be there (:func:`remove_one`).
    """
    found = [c for c in client.containers(all=True, filters=dict(filters)) if wanted(c.get("Labels") or {})]
    for each in found:
        remove_one(client, each["Id"])
    return len(found)


def remove_one(client: docker.APIClient, id_: str) -> None:
    """Remove a container, if it is still there. What Docker refuses now is left to the reaper.

    Args:
        client: Of the daemon.
        id_: The container's.
    """
    with suppress(*_UNREACHED):
        client.remove_container(id_, force=True, v=True)


def owner(pid: int) -> str:
    """Return what identifies a process uniquely: its host and namespace, its id, and its start time.

    Args:
        pid: Of a process on this host.
    """
    return f"{_place()} {pid} {_started(pid)}"


def is_stale(labels: Mapping[str, str], now: float) -> bool:
    """Return whether the experiment of a container is over: its time is up, or its process on this host has ended.

    Args:
        labels: The container's; without this project's labels it is not over.
        now: Unix seconds.
    """
    until = labels.get(UNTIL_LABEL) or ""
    if until.isascii() and until.isdigit() and now > int(until[:20]):
        return True
    place, _, process = (labels.get(OWNER_LABEL) or "").partition(" ")
    pid, _, started = process.partition(" ")
    if place != _place() or not (pid.isascii() and pid.isdigit() and len(pid) < 20) or not started:
        return False
    now_there = _started(int(pid))
    return now_there != started if now_there else not _runs(int(pid))


def _place() -> str:
    """Return host and process namespace: containers of one host name may each have a process 7."""
    namespace = ""
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()}/{namespace}"


def last_line(text: bytes) -> str:
    """Return the last line that is not blank, in printable characters.

    Args:
        text: What a process wrote; empty gives an empty line.
    """
    lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
    return printable(lines[-1].strip(), _LINE) if lines else ""


def one_line(error: BaseException) -> str:
    """Return what went wrong in one line, in Docker's own words where there are some.

    Args:
        error: Docker's, or any other.
    """
    text = getattr(error, "explanation", None) or str(error) or type(error).__name__
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    with suppress(ValueError):  # some answers are JSON
        found = json.loads(text)
        text = found.get("message", text) if isinstance(found, dict) else text
    return " ".join(str(text).split())[:_LINE]


def _refused(error: Exception) -> StartFailed | UsageError:
    """Return the error to raise: a request that Docker calls wrong would be wrong the next time too."""
    if (
        isinstance(error, docker.errors.APIError)
        and error.is_client_error()
        and error.status_code not in _GONE
    ):
        return UsageError(f"Docker refuses the container: {one_line(error)}")
    return StartFailed(f"Docker: {one_line(error)}")


def _port(name: str, labels: Mapping[str, str]) -> int:
    if SOCKET_LABEL in labels and PORT_LABEL not in labels:
        raise UsageError(
            f"image {name}: its probe answers on a socket (label {SOCKET_LABEL}); have it listen on a port, or give "
            "--config"
        )
    text = labels.get(PORT_LABEL, str(DEFAULT_PORT))
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65_536):
        raise UsageError(
            f"image {name}: label {PORT_LABEL}: {text[:60]!r} is not a port; write a number from 1 to 65535"
        )
    return int(text)


def _remote() -> str:
    """Return the daemon's host if it is another one: published ports are there."""
    host = urlsplit(os.environ.get("DOCKER_HOST", ""))
    name = host.hostname or "" if host.scheme in ("tcp", "http", "https") else ""
    return "" if name in ("localhost", "127.0.0.1", "::1") else name


def _archive(path: str, text: str) -> bytes:
    """Return a tar archive with one file, to copy into a container: the daemon may not see files of this host."""
    data = text.encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo(str(Path(path).parent).lstrip("/"))
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        file = tarfile.TarInfo(path.lstrip("/"))
        file.size, file.mode = len(data), 0o444
        archive.addfile(file, io.BytesIO(data))
    return buffer.getvalue()


def _runs(pid: int) -> bool:
    """Return whether a process runs, also if /proc hides it from this user (``hidepid``): psutil would deny it."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _started(pid: int) -> str:
    """Return the ticks since boot at which the process started; empty if it does not run or is hidden."""
    with suppress(psutil.Error, OSError, RuntimeError):
        return str(round(started(pid) * os.sysconf("SC_CLK_TCK")))
    return ""
