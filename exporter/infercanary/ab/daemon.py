"""Requests to Docker for an experiment.

Each container of an experiment has a label, by which the next experiment finds and removes overdue containers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import docker
import docker.errors
import docker.utils
import requests

from infercanary.ab.progress import show_progress
from infercanary.client.docker_api import DirectClient
from infercanary.command.interruption import Interruption
from infercanary.command.settings import UsageError
from infercanary.contract.text import printable
from infercanary.judge.identity import Digests

LABEL = "infercanary.ab"
"""Label of every container of an experiment. The label's value is a Unix time after the latest end of the experiment.
"""

UNREACHED = (docker.errors.DockerException, requests.RequestException, OSError)
"""Errors of requests to Docker."""

HERE = "127.0.0.1"
_CALL_SECONDS = 60
_GRACE_SECONDS = 600.0
_LINE = 300  # maximum number of characters of a message


def open_daemon() -> docker.APIClient:
    """Return a client from :func:`connect`, after removing containers left by overdue experiments.

    Raises:
        UsageError: Docker does not answer.
    """
    try:
        client = connect()
        overdue = remove_overdue(client)
    except UNREACHED as error:
        raise UsageError(
            f"Docker does not answer ({one_line(error)}); start Docker, or set DOCKER_HOST"
        ) from None
    if overdue:
        show_progress(f"removed {overdue} container(s) left by an earlier experiment")
    return client


def find_image(
    client: docker.APIClient, name: str, interruption: Interruption
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return Docker's description of the image ``name``; pull the image if this host does not have it.

    Returns:
        The inspected image, and the duration of the step ``pull`` in seconds if the image was pulled.

    Raises:
        UsageError: The image cannot be pulled.
        Interrupted: A signal came during the pull.
    """
    inspect: Any = client.inspect_image  # the Docker SDK has no type hints
    pull: dict[str, float] = {}
    try:
        try:
            image = inspect(name)
        except docker.errors.ImageNotFound:
            begin = time.monotonic()
            show_progress(f"pulling {name}")
            repository, tag = docker.utils.parse_repository_tag(name)
            for line in client.pull(repository, tag=tag or "latest", stream=True, decode=True):
                interruption.check()
                if "error" in line:
                    raise docker.errors.DockerException(str(line["error"])) from None
            pull = {"pull": time.monotonic() - begin}
            image = inspect(name)
        return image, pull
    except UNREACHED as error:
        raise UsageError(
            f"image {name} is not on this machine and cannot be pulled ({one_line(error)}); build the image, fix "
            "its name, log in (`docker login`), or check the network to its registry"
        ) from None


def digests_of(image: Mapping[str, Any]) -> Digests:
    """Return the digests in Docker's description of an image.

    With containerd's image store, the id is a registry's digest, whose kind is known (Docker 28 or newer).
    """
    kind = (image.get("Descriptor") or {}).get("mediaType", "")
    registry = [name.rpartition("@")[2] for name in image.get("RepoDigests") or ()]
    if not kind:
        return Digests(image["Id"], *registry[:1])
    return Digests(index_digest=image["Id"]) if re.search("index|list", kind) else Digests("", image["Id"])


def check_volume(
    client: docker.APIClient,
    name: str,
    advice: str = "create the volume (docker volume create), or give an absolute path",
) -> None:
    """Check that a volume exists, because Docker would create a missing volume and leave it behind.

    Args:
        name: The volume's name.
        advice: What the user can do if the volume is missing.

    Raises:
        UsageError: The volume is missing, or Docker does not answer.
    """
    try:
        client.inspect_volume(name)
    except docker.errors.NotFound:
        raise UsageError(f"volume {name}: no such volume; {advice}") from None
    except UNREACHED as error:
        raise UsageError(f"volume {name}: Docker does not answer ({one_line(error)})") from None


def labels(budget: float) -> dict[str, str]:
    """Return the labels of a container that starts now. The experiment lasts up to ``budget`` seconds."""
    return {LABEL: f"{time.time() + budget + _GRACE_SECONDS:.0f}"}


def connect() -> docker.APIClient:
    """Return a connected client, which the caller must close. DOCKER_HOST names the daemon."""
    return DirectClient(**docker.utils.kwargs_from_env(), version="auto", timeout=_CALL_SECONDS)


def published_host(client: docker.APIClient) -> str:
    """Return the host on which the daemon publishes ports: this host, or the host of a remote daemon (docker:dind)."""
    address = urlsplit(client.base_url)
    is_here = address.scheme == "http+docker" or address.hostname in (None, "localhost", "::1")
    return HERE if is_here else str(address.hostname)


def remove_overdue(client: docker.APIClient) -> int:
    """Remove the containers of overdue experiments; return their number."""
    ids = [
        container["Id"]
        for container in client.containers(all=True, filters={"label": LABEL})
        if is_overdue(container["Labels"])
    ]
    for id_ in ids:
        with suppress(*UNREACHED):
            client.remove_container(id_, force=True, v=True)
    return len(ids)


def is_overdue(labels: Mapping[str, str]) -> bool:
    """True if the experiment of a container is over."""
    until = labels[LABEL]
    return until.isdecimal() and time.time() > int(until[:20])


def one_line(error: BaseException) -> str:
    """Return an error as one line: Docker's explanation, if the error has one."""
    text = getattr(error, "explanation", None) or str(error) or type(error).__name__
    text = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return printable(" ".join(text.split()), _LINE)
