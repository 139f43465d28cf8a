"""Docker as an experiment uses it.

Its containers have a label, by which this process, its reaper or the next experiment finds and removes them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, cast
from urllib.parse import urlsplit

import docker
import docker.errors
import docker.utils
import requests

from infercanary.ab.interruption import Interruption
from infercanary.ab.progress import show_progress
from infercanary.client.docker_api import DirectClient
from infercanary.command.settings import UsageError
from infercanary.contract.text import printable

LABEL = "infercanary.ab"
"""Label of every container of an experiment: the experiment's id."""
UNTIL_LABEL = "infercanary.ab.until"
"""Unix time after which the experiment is over in any case."""

UNREACHED = (docker.errors.DockerException, requests.RequestException, OSError)
"""Errors of a request to Docker."""

HERE = "127.0.0.1"
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


class Daemon:
    """The Docker daemon, as one experiment uses it; containers that overdue experiments left are removed.

    Args:
        identity: The experiment's id.
        seconds: Its budget, after which its containers may be removed by others.

    Raises:
        UsageError: Docker does not answer.
    """

    def __init__(self, identity: str, seconds: float) -> None:
        self._identity, self._seconds = identity, seconds
        try:
            self.client = connect()
            overdue = remove(self.client)
        except UNREACHED as error:
            raise UsageError(
                f"Docker does not answer ({one_line(error)}); start it, or set DOCKER_HOST"
            ) from None
        if overdue:
            show_progress(f"removed {overdue} container(s) that an experiment before this one left")

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """Labels of the experiment's containers. The budget begins with the first one, after all pulls."""
        return {LABEL: self._identity, UNTIL_LABEL: f"{time.time() + self._seconds + _GRACE_SECONDS:.0f}"}

    def image(self, name: str, interruption: Interruption) -> tuple[Mapping[str, Any], dict[str, float]]:
        """Return what Docker says of the image ``name``; pull it if it is not on this host.

        Args:
            name: What ``docker run`` takes.
            interruption: Ends a pull.

        Returns:
            The inspected image, and the step ``pull`` in seconds where it was missing.

        Raises:
            UsageError: It cannot be pulled.
            ExperimentInterrupted: A signal came while it was pulled.
        """
        try:
            try:
                return self._inspect(name), {}
            except docker.errors.ImageNotFound:
                begin = time.monotonic()
                self._pull(name, interruption)
                pull = {"pull": time.monotonic() - begin}
                return self._inspect(name), pull
        except UNREACHED as error:
            why = one_line(error)
            fix = next(fix for pattern, fix in _FIXES.items() if re.search(pattern, why))
            raise UsageError(f"image {name}: not here, and cannot be pulled ({why}); {fix}") from None

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
        """Remove what is left of this experiment; return whether Docker confirms that nothing was."""
        with suppress(*UNREACHED):
            return not remove(self.client, self._identity)
        return False

    def _inspect(self, name: str) -> dict[str, Any]:
        return cast("dict[str, Any]", self.client.inspect_image(name))  # type: ignore[no-untyped-call]

    def _pull(self, name: str, interruption: Interruption) -> None:
        show_progress(f"pulling {name}")
        repository, tag = docker.utils.parse_repository_tag(name)
        for line in self.client.pull(repository, tag=tag or "latest", stream=True, decode=True):
            interruption.check()
            if "error" in line:
                raise docker.errors.DockerException(str(line["error"]))


def connect() -> docker.APIClient:
    """Return a client that has connected, which the caller closes; DOCKER_HOST names the daemon."""
    return DirectClient(**docker.utils.kwargs_from_env(), version="auto", timeout=_CALL_SECONDS)


def published_host(client: docker.APIClient) -> str:
    """Return the host on which the daemon publishes ports: this one, or that of a daemon elsewhere (docker:dind)."""
    address = urlsplit(client.base_url)
    is_here = address.scheme == "http+docker" or address.hostname in (None, "localhost", "::1")
    return HERE if is_here else str(address.hostname)


def remove(client: docker.APIClient, identity: str = "") -> int:
    """Remove the containers of an experiment, or without its identity those of any one whose time is up.

    Returns:
        How many there were; some may still be there: what Docker refuses now is left to the reaper.
    """
    label = f"{LABEL}={identity}" if identity else LABEL
    ids = [
        container["Id"]
        for container in client.containers(all=True, filters={"label": label})
        if identity or is_overdue(container["Labels"] or {})
    ]
    for id_ in ids:
        with suppress(*UNREACHED):
            client.remove_container(id_, force=True, v=True)
    return len(ids)


def is_overdue(labels: Mapping[str, str]) -> bool:
    """Return whether the time of the experiment of a container is up."""
    until = labels.get(UNTIL_LABEL, "")
    return until.isdecimal() and time.time() > int(until[:20])


def one_line(error: BaseException) -> str:
    """Return what went wrong in one line, in Docker's own words where there are some."""
    text = getattr(error, "explanation", None) or str(error) or type(error).__name__
    text = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return printable(" ".join(text.split()), _LINE)
