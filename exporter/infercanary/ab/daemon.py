"""Docker as an experiment uses it.

Its containers have a label, by which this process, its reaper or the next experiment finds and removes them.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlsplit

import docker
import docker.errors
import docker.utils
import msgspec
import requests

from infercanary.ab.interruption import Interruption
from infercanary.client.docker_api import DirectClient
from infercanary.command.settings import UsageError
from infercanary.contract.report import DEFAULT_PORT
from infercanary.contract.vocabulary import PORT_LABEL, SOCKET_LABEL
from infercanary.judge.origin import NOWHERE, Origin

LABEL = "infercanary.ab"
"""Label of every container of an experiment: the experiment's id."""
OWNER_LABEL = "infercanary.ab.owner"
"""Host and network namespace in which the experiment runs."""
UNTIL_LABEL = "infercanary.ab.until"
"""Unix time after which the experiment is over in any case."""

UNREACHED = (docker.errors.DockerException, requests.RequestException, OSError)
"""Errors of a request to Docker."""

_CALL_SECONDS = 60
_GRACE_SECONDS = 600.0
_LINE = 300  # characters of a message
_FIXES = {
    "denied|unauthorized|credentials|[Aa]uthentic": "log in with `docker login`, build it, or fix the name",
    "no space left": "free some room on Docker's disk",
    '(Get|Head) "http|dial |EOF|reset': "see that its registry answers here, build it, or fix the name",
    "": "build it, or fix the name",
}
"""Answer of Docker to a pull → the fix. The first that fits counts."""


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
        self._mine = {"label": f"{LABEL}={identity}"}
        self.labels = {
            LABEL: identity,
            OWNER_LABEL: place(),
            UNTIL_LABEL: f"{time.time() + seconds + _GRACE_SECONDS:.0f}",
        }
        """Labels of the experiment's containers."""
        try:
            self.client = connect()
        except UNREACHED as error:
            raise UsageError(
                f"Docker does not answer ({one_line(error)}); start it, or set DOCKER_HOST"
            ) from None
        self._held = hold(identity)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()
        self._held.close()

    def image(self, name: str, interruption: Interruption, notify: Callable[[str], None]) -> InspectedImage:
        """Return the image ``name``; pull it if it is not on this host.

        Args:
            name: What ``docker run`` takes.
            interruption: Ends a pull.
            notify: Called with what is going on, in a few words.

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
        except UNREACHED as error:
            why = one_line(error)
            fix = next(fix for pattern, fix in _FIXES.items() if re.search(pattern, why))
            raise UsageError(f"image {name}: not here, and cannot be pulled ({why}); {fix}") from None
        labels = (found.get("Config") or {}).get("Labels") or {}
        size = int(found.get("Size") or 0)
        return InspectedImage(name, str(found["Id"]), size, _port(name, labels), Origin.of(labels), pull)

    def check_volume(self, name: str) -> None:
        """Check that a volume is there: Docker would create a missing one, and leave it.

        Raises:
            UsageError: It is missing, or Docker does not answer.
        """
        try:
            self.client.inspect_volume(name)
        except UNREACHED as error:
            why = f"Docker does not answer ({one_line(error)})"
            if isinstance(error, docker.errors.NotFound):
                why = "no such volume; make it (docker volume create), or give a path from / on"
            raise UsageError(f"volume {name}: {why}") from None

    def sweep(self) -> bool:
        """Remove what is left of this experiment; return whether Docker confirms that nothing is."""
        try:
            remove(self.client, self._mine)
            return not self.client.containers(all=True, filters=self._mine)
        except UNREACHED:
            return False

    def sweep_stale(self) -> int:
        """Remove the containers of experiments that are over, although they are there; return their number."""
        with suppress(*UNREACHED):
            return remove(self.client, {"label": LABEL}, is_stale)
        return 0

    def _inspect(self, name: str) -> dict[str, Any]:
        return cast("dict[str, Any]", self.client.inspect_image(name))  # type: ignore[no-untyped-call]

    def _pull(self, name: str, interruption: Interruption, notify: Callable[[str], None]) -> None:
        repository, tag = docker.utils.parse_repository_tag(name)
        for line in self.client.pull(repository, tag=tag or "latest", stream=True, decode=True):
            interruption.check()
            if "error" in line:
                raise docker.errors.DockerException(str(line["error"]))
            notify(f"pulling {name}: {str(line.get('status', ''))[:60]}")


def connect() -> docker.APIClient:
    """Return a client that has connected, which the caller closes; DOCKER_HOST names the daemon."""
    return DirectClient(**docker.utils.kwargs_from_env(), version="auto", timeout=_CALL_SECONDS)


def remote() -> str:
    """Return the daemon's host if it is another one: published ports are there."""
    host = urlsplit(os.environ.get("DOCKER_HOST", ""))
    name = host.hostname or "" if host.scheme in ("tcp", "http", "https") else ""
    return "" if name in ("localhost", "127.0.0.1", "::1") else name


def remove(
    client: docker.APIClient,
    filters: Mapping[str, str],
    wanted: Callable[[Mapping[str, str]], bool] = lambda labels: True,
) -> int:
    """Remove the containers that match the filters and whose labels are ``wanted``.

    Returns:
        How many there were; some may still be there: what Docker refuses now is left to the reaper.
    """
    found = [c["Id"] for c in client.containers(all=True, filters=dict(filters)) if wanted(c["Labels"] or {})]
    for id_ in found:
        with suppress(*UNREACHED):
            client.remove_container(id_, force=True, v=True)
    return len(found)


def hold(identity: str) -> socket.socket:
    """Bind a name for as long as this process lives, by which others of its network namespace know that it does.

    Raises:
        OSError: Another process has it.
    """
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0{LABEL}.{identity}")
    except OSError:
        held.close()
        raise
    return held


def place() -> str:
    """Return host and network namespace: containers of one host name have names of their own."""
    return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/net')}"


def is_stale(labels: Mapping[str, str]) -> bool:
    """Return whether the experiment of a container is over: its time is up, or it ran here and has ended.

    Args:
        labels: The container's; without this project's labels it is not over.
    """
    until, identity = (labels.get(label, "") for label in (UNTIL_LABEL, LABEL))
    if until.isascii() and until.isdigit() and time.time() > int(until[:20]):
        return True
    if labels.get(OWNER_LABEL) != place():
        return False
    try:
        hold(identity).close()
    except OSError:
        return False
    return True


def one_line(error: BaseException) -> str:
    """Return what went wrong in one line, in Docker's own words where there are some."""
    text = getattr(error, "explanation", None) or str(error) or type(error).__name__
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    with suppress(ValueError):  # some answers are JSON
        answer = json.loads(text)
        text = answer.get("message", text) if isinstance(answer, dict) else text
    return " ".join(str(text).split())[:_LINE]


def _port(name: str, labels: Mapping[str, str]) -> int:
    text = labels.get(PORT_LABEL, "" if SOCKET_LABEL in labels else str(DEFAULT_PORT))
    if not text:
        raise UsageError(
            f"image {name}: its probe answers on a socket (label {SOCKET_LABEL}); have it listen on a port, or give "
            "config=…"
        )
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65_536):
        raise UsageError(
            f"image {name}: label {PORT_LABEL}: {text[:60]!r} is not a port; write a number from 1 to 65535"
        )
    return int(text)
