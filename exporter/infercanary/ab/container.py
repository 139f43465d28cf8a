"""An arm that is an image: each start is a container of its own.

Containers do not remove themselves (`--rm`), because the log of one that died says why.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

import docker.errors
import docker.types

from infercanary.ab.daemon import UNREACHED, Daemon, InspectedImage, one_line, remote
from infercanary.ab.probe_settings import settings_text
from infercanary.ab.sides import Side
from infercanary.ab.turn import StartFailed, last_line
from infercanary.command.settings import UsageError
from infercanary.contract.address import in_url
from infercanary.contract.report import DEFAULT_PORT
from infercanary.contract.vocabulary import ENABLE_LABEL

SETTINGS = PurePosixPath("/infercanary-ab/probe.yaml")
"""Path of the settings in a container."""

_WRONG = {*range(400, 500)} - {404, 409}
"""Status of a request that would be wrong the next time too; the others are "not found" and "being removed"."""


class Container:
    """Runs an image, with its own command or the probe alone.

    Args:
        daemon: Docker.
        image: From :meth:`Daemon.image`.
        side: Its settings.
        prefix: Begin of the containers' names.
    """

    def __init__(self, daemon: Daemon, image: InspectedImage, side: Side, prefix: str) -> None:
        self.name = image.name
        self._client, self._labels = daemon.client, daemon.labels
        self._image, self._side, self._prefix = image, side, prefix
        self._id = ""

    def start(self, number: int) -> Sequence[str]:
        """Start a container; return the addresses at which its probe may answer."""
        side = self._side
        port = DEFAULT_PORT if side.probe else self._image.port
        try:
            made = self._client.create_container(
                self._image.id,
                command=["probe", "--config", str(SETTINGS)] if side.probe else [*side.command] or None,
                entrypoint=["infercanary"] if side.probe else None,
                name=f"{self._prefix}-{number}",
                environment=side.variables,
                labels={**self._labels, ENABLE_LABEL: "false"},  # an exporter on this host ignores it
                healthcheck={"test": ["NONE"]},  # it would run every few seconds beside the canary
                ports=[port],
                host_config=self._host_config(port),
            )
            self._id = str(made["Id"])
            if side.probe:
                archive = tar_archive(SETTINGS, settings_text(side.probe, DEFAULT_PORT))
                self._client.put_archive(self._id, "/", archive)
            self._client.start(self._id)
            settings = self._client.inspect_container(self._id).get("NetworkSettings") or {}
        except UNREACHED as error:
            if isinstance(error, docker.errors.APIError) and error.status_code in _WRONG:
                raise UsageError(f"Docker refuses the container: {one_line(error)}") from None
            raise StartFailed(f"Docker: {one_line(error)}") from None
        return probe_urls(settings, port)

    def ended(self) -> str:
        """Return why the container has ended; empty while it runs."""
        try:
            state = self._client.inspect_container(self._id).get("State") or {}
        except docker.errors.NotFound:
            return "its container was removed from outside"
        except UNREACHED as error:
            return f"Docker went away ({one_line(error)})"
        if state.get("Running"):
            return ""
        if state.get("OOMKilled"):
            return "it ended, killed for memory (memory=…)"
        return f"it ended with exit code {state.get('ExitCode')}"

    def last_words(self) -> str:
        """Return the last line that the container logged; empty without one."""
        with suppress(*UNREACHED):
            return last_line(bytes(self._client.logs(self._id, stdout=True, stderr=True, tail=20)))
        return ""

    def end(self) -> None:
        """Remove the container with its anonymous volumes, running or not; the reaper does it if Docker refuses now."""
        if self._id:
            with suppress(*UNREACHED):
                self._client.remove_container(self._id, force=True, v=True)
            self._id = ""

    def _host_config(self, port: int) -> Any:
        side = self._side
        return self._client.create_host_config(
            # On this machine only; with a daemon on another one (docker:dind) that would not be reachable.
            port_bindings={port: ("" if remote() else "127.0.0.1", None)},
            nano_cpus=None if side.cpus is None else round(side.cpus * 1e9),
            cpuset_cpus=side.cpuset or None,
            mem_limit=side.memory,
            device_requests=[docker.types.DeviceRequest(device_ids=[*side.gpus], capabilities=[["gpu"]])]
            if side.gpus
            else None,
            mounts=[*side.volume],
        )


def probe_urls(settings: Mapping[str, Any], port: int) -> list[str]:
    """Return where a container's probe may answer: at its published port, and at its own address, in case this runs in
    a container too.

    Args:
        settings: NetworkSettings of the inspected container, in which anything may be null.
        port: Of the probe, inside the container.
    """
    published = (settings.get("Ports") or {}).get(f"{port}/tcp") or []
    networks = (settings, *filter(None, (settings.get("Networks") or {}).values()))
    own = (network.get(key) for key in ("IPAddress", "GlobalIPv6Address") for network in networks)
    addresses = [
        *((remote() or "127.0.0.1", binding["HostPort"]) for binding in published),
        *((address, port) for address in own if address),
    ]
    return [*dict.fromkeys(f"http://{in_url(address)}:{at}" for address, at in addresses)]


def tar_archive(path: PurePosixPath, text: str) -> bytes:
    """Return a tar archive with one file, to copy into a container: the daemon may not see files of this host."""
    data = text.encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo(str(path.parent).lstrip("/"))
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        file = tarfile.TarInfo(str(path).lstrip("/"))
        file.size, file.mode = len(data), 0o444
        archive.addfile(file, io.BytesIO(data))
    return buffer.getvalue()
