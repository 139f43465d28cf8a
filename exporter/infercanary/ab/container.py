"""An arm with an image: each start is a new container.

Containers are started without `--rm`, because the log of a failed container contains the reason.
"""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import docker
import docker.errors
import docker.types
import docker.utils

from infercanary.ab.daemon import (
    HERE,
    UNREACHED,
    check_volume,
    digests_of,
    find_image,
    labels,
    one_line,
    published_host,
)
from infercanary.ab.probe_settings import settings_text
from infercanary.ab.reaper import Reaper
from infercanary.ab.sides import Side
from infercanary.ab.turn import ArmSummary, StartFailed, last_line
from infercanary.command.interruption import Interruption
from infercanary.command.settings import UsageError
from infercanary.contract.address import in_url
from infercanary.contract.report import DEFAULT_PORT
from infercanary.contract.vocabulary import ENABLE_LABEL, PORT_LABEL, SOCKET_LABEL
from infercanary.judge.origin import Origin

SETTINGS = "/infercanary-ab.yaml"
"""Path of the settings in a container."""

_IN_CONTAINER = ("/.dockerenv", "/run/.containerenv")  # files that Docker and Podman create inside containers


class Container:
    """Runs an image, either with its own command or with the probe alone.

    Args:
        side: Settings of this side.
        budget: Duration limit of the experiment, seconds.
        reaper: Removes the container if this process is killed, or if Docker refuses the removal.
        interruption: Stops a pull after a signal.
    """

    def __init__(
        self,
        client: docker.APIClient,
        side: Side,
        budget: float,
        reaper: Reaper,
        interruption: Interruption,
    ) -> None:
        for mount in side.volume:
            if mount["Type"] == "volume":
                check_volume(client, mount["Source"])
        image, pull = find_image(client, side.image, interruption)
        of_image = (image.get("Config") or {}).get("Labels") or {}
        self.summary = ArmSummary(
            name=side.image,
            host=str(client.info().get("Name", "")),
            image_id=image["Id"],
            digests=digests_of(image),
            image_bytes=image.get("Size"),
            origin=Origin.of(of_image),
            settings=side.differing,
            cold_start=pull,
        )
        self._port = DEFAULT_PORT if side.probe else probe_port(side.image, of_image)
        self._client, self._side, self._budget, self._reaper = client, side, budget, reaper

    def start(self) -> Sequence[str]:
        """Start a container; return the possible addresses of its probe."""
        side = self._side
        self._name = f"infercanary-ab-{uuid.uuid4().hex[:12]}"
        self._reaper.send(f"watch {self._name}")
        try:
            self._client.create_container(
                self.summary.image_id,
                command=["probe", "--config", SETTINGS] if side.probe else [*side.command] or None,
                entrypoint=["infercanary"] if side.probe else None,
                name=self._name,
                environment=side.variables,
                # Exporters on this host ignore a container with this label.
                labels={**labels(self._budget), ENABLE_LABEL: "false"},
                # A health check every few seconds would slow the canary.
                healthcheck={"test": ["NONE"]},
                ports=[self._port],
                host_config=self._host_config(),
            )
            if side.probe:
                # A remote daemon does not see files of this host, so copy instead of mounting.
                files = [(SETTINGS.lstrip("/"), settings_text(side.probe, DEFAULT_PORT))]
                memory = io.BytesIO()  # instead of a temporary file: the disk may be full
                docker.utils.create_archive("/", files=[], fileobj=memory, extra_files=files)
                self._client.put_archive(self._name, "/", memory.getvalue())
            self._client.start(self._name)
            settings = self._client.inspect_container(self._name).get("NetworkSettings") or {}
        except UNREACHED as error:
            raise StartFailed(f"Docker: {one_line(error)}") from None
        return probe_urls(settings, self._port, published_host(self._client))

    def ended(self) -> str:
        try:
            state = self._client.inspect_container(self._name).get("State") or {}
        except UNREACHED as error:
            return f"the container no longer exists, or Docker does not answer ({one_line(error)})"
        if state.get("Running"):
            return ""
        if state.get("OOMKilled"):
            return "the container was killed for memory (memory=…)"
        return f"the container ended with exit code {state.get('ExitCode')}"

    def last_words(self) -> str:
        with suppress(*UNREACHED):
            return last_line(bytes(self._client.logs(self._name, stdout=True, stderr=True, tail=20)))
        return ""

    def end(self) -> None:
        """Remove the container, running or not, with its anonymous volumes.

        If Docker refuses, the reaper removes the container later.
        """
        try:
            with suppress(docker.errors.NotFound):
                self._client.remove_container(self._name, force=True, v=True)
        except UNREACHED:
            return
        self._reaper.send(f"forget {self._name}")

    def _host_config(self) -> Any:
        side = self._side
        return self._client.create_host_config(
            # Published on this machine's loopback only. The loopback of a remote daemon (docker:dind) is not reachable
            # from here, so such a daemon publishes on every address.
            port_bindings={self._port: (HERE if published_host(self._client) == HERE else "", None)},
            nano_cpus=None if side.cpus is None else round(side.cpus * 1e9),
            cpuset_cpus=",".join(map(str, sorted(side.cpuset))) or None,
            mem_limit=side.memory,
            device_requests=[docker.types.DeviceRequest(device_ids=[*side.gpus], capabilities=[["gpu"]])]
            if side.gpus
            else None,
            mounts=[*side.volume],
        )


def probe_port(name: str, labels: Mapping[str, str]) -> int:
    """Return the port of the image's own probe, from the image's labels."""
    text = labels.get(PORT_LABEL, labels.get(SOCKET_LABEL, str(DEFAULT_PORT)))
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65_536):
        raise UsageError(
            f"image {name}: the probe's port in the image's labels is {text[:60]!r}, which is not a port; set the "
            f"label {PORT_LABEL} to a number from 1 to 65535, or give config=…"
        )
    return int(text)


def probe_urls(settings: Mapping[str, Any], port: int, host: str) -> list[str]:
    """Return the possible addresses of a container's probe.

    The address belongs to the published port or, if this process also runs in a container, to the probe's container.

    Args:
        settings: NetworkSettings of the inspected container; any value may be null.
        port: Port of the probe inside the container.
        host: Host on which Docker publishes ports.
    """
    if host == HERE and any(map(os.path.exists, _IN_CONTAINER)):
        networks = [network or {} for network in (settings.get("Networks") or {}).values()]
        addresses = [network.get(key) for key in ("IPAddress", "GlobalIPv6Address") for network in networks]
        return [f"http://{in_url(address)}:{port}" for address in addresses if address]
    published = (settings.get("Ports") or {}).get(f"{port}/tcp") or []
    return [f"http://{in_url(host)}:{binding['HostPort']}" for binding in published]
