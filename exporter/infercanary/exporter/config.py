"""Settings of ``exporter.yaml``, typed and checked."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from infercanary.client.access import ProbeAccess, ProbeTls
from infercanary.command import settings
from infercanary.command.settings import UsageError
from infercanary.contract.address import EVERY_ADDRESS
from infercanary.exporter.discovery import kubernetes, static
from infercanary.exporter.discovery.docker import DockerSettings
from infercanary.exporter.discovery.kubernetes import KubernetesSettings
from infercanary.exporter.discovery.static import StaticProbe
from infercanary.judge.policy import LIVE, Policy
from infercanary.store import store as stores
from infercanary.store.base import StoreError

Link = Annotated[str, msgspec.Meta(pattern="^(https?://.+)?$")]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class JudgeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Section ``judge:``, ratios."""

    smallest_effect: Annotated[float, msgspec.Meta(gt=0, lt=1)] = LIVE.decide.smallest_effect
    false_calls: Annotated[float, msgspec.Meta(gt=0, le=0.05)] = LIVE.decide.false_calls

    def policy(self) -> Policy:
        """Return the exporter's policy with these numbers; the dead band stays narrower than the smallest effect."""
        return LIVE.but(
            smallest_effect=self.smallest_effect,
            false_calls=self.false_calls,
            clear_zone=min(LIVE.decide.clear_zone, self.smallest_effect / 3),
        )


class Links(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Section ``links:``: addresses that alerts link to, as people reach them."""

    grafana: Link = ""
    runbooks: Link = ""
    """This exporter's address with /runbooks at its end, or another place where they are published."""


class ExporterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of exporter.yaml; the defaults are for a Docker host."""

    listen: str = "[::]:9797"
    poll_seconds: Seconds = 5.0
    timeout_seconds: Seconds = 3.0
    store: str | None = None
    """File or URL; None keeps baselines for as long as the exporter runs."""
    host: str = ""
    """Name of this host in a store that hosts share; empty for the node's name, or the host's own."""
    judge: JudgeSettings = JudgeSettings()
    links: Links = Links()
    docker: DockerSettings = DockerSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
    probes: tuple[StaticProbe, ...] = ()
    probe_tls: ProbeTls | None = None
    """Probes that a discovery finds are asked over TLS; those of the list as their URL says."""
    probe_token_file: str | None = None
    """File with the token that probes expect (their ``token_file``)."""

    @property
    def probe_access(self) -> ProbeAccess:
        """Credentials for probes."""
        return ProbeAccess(self.probe_tls, self.probe_token_file)

    @property
    def host_name(self) -> str:
        """Host of the starts in a shared store; empty for a file, which has one host."""
        if not stores.is_shared(self.store):
            return ""
        return self.host or os.environ.get("NODE_NAME", "") or platform.node()


def check(
    path: str | os.PathLike[str] | None, given: Mapping[str, object] = MappingProxyType({})
) -> ExporterConfig:
    """Read the config, and check all of it before any of it is used.

    Args:
        path: YAML; None for the defaults.
        given: Options of the command line by key; they override the file.

    Raises:
        UsageError: One line with the place, the mistake and the fix.
    """
    config = ExporterConfig() if path is None else settings.load(path, ExporterConfig)
    config = msgspec.structs.replace(config, **given)
    listen_address(config.listen, place_of("listen", path, given))
    try:
        config.probe_access.check()
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    try:
        stores.check(config.store)
    except StoreError as error:
        raise UsageError(f"{place_of('store', path, given)}: {error}") from None
    static.check(config.probes, f"{path}: probes")
    kubernetes.check(config.kubernetes, f"{path}: kubernetes")
    if config.docker.enabled and config.kubernetes.enabled:
        raise UsageError(
            f"{path}: docker and kubernetes are enabled, and find the same containers; set docker.enabled: false"
        )
    return config


def place_of(key: str, path: str | os.PathLike[str] | None, given: Collection[str]) -> str:
    """Return the place of a setting for a message: the option, or file and key."""
    return f"--{key}" if key in given or path is None else f"{path}: {key}"


def remarks(config: ExporterConfig) -> list[str]:
    """Return a line with its fix for each omission that people notice too late."""
    if config.links.runbooks:
        return []
    return [
        "links.runbooks is empty: alerts link to no runbook; give the address by which people reach this exporter, "
        "such as http://gpu-1:9797/runbooks"
    ]


def listen_address(listen: str, place: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; without a host, the address is every one of IPv4 and IPv6.

    Args:
        listen: As given; an IPv6 address is in brackets.
        place: File and key, or option, for the message.

    Returns:
        Host without brackets, and port.

    Raises:
        UsageError: The text is no such address.
    """
    try:
        parts = urlsplit(f"//{listen}")
        port = parts.port
    except ValueError:
        port = None
    if port is None or parts.netloc != listen:
        raise UsageError(
            f"{place}: '{listen}' is not HOST:PORT; write for example [::]:9797 or 127.0.0.1:9797"
        )
    return parts.hostname or EVERY_ADDRESS, port
