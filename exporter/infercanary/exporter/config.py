"""Settings of ``exporter.yaml``, typed and checked."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from infercanary.client.access import ProbeAccess, ProbeTls
from infercanary.command import settings
from infercanary.command.settings import UsageError
from infercanary.contract.address import listen_address
from infercanary.exporter.discovery import static
from infercanary.exporter.discovery.static import StaticProbe
from infercanary.judge.policy import LIVE, Policy
from infercanary.store import store as stores
from infercanary.store.base import StoreError

Link = Annotated[str, msgspec.Meta(pattern="^(https?://[^@]+)?$")]


class JudgeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Section ``judge:``; values are ratios."""

    smallest_effect: Annotated[float, msgspec.Meta(gt=0, lt=1)] = LIVE.decide.smallest_effect
    false_calls: Annotated[float, msgspec.Meta(gt=0, le=0.05)] = LIVE.decide.false_calls

    def policy(self) -> Policy:
        """Return the exporter's policy with these settings. The dead band is at most a third of the smallest effect."""
        return LIVE.but(
            smallest_effect=self.smallest_effect,
            false_calls=self.false_calls,
            clear_zone=min(LIVE.decide.clear_zone, self.smallest_effect / 3),
        )


class Links(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Section ``links:``: base URLs of links in alerts, as a browser reaches them."""

    grafana: Link = ""
    runbooks: Link = ""
    """Address of the runbooks: this exporter's address followed by /runbooks, or the address of a copy."""


class ExporterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of exporter.yaml; the defaults fit a Docker host."""

    listen: str = "[::]:9797"
    poll_seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 5.0
    store: str | None = None
    """File or URL; with None, baselines last until the exporter ends."""
    judge: JudgeSettings = JudgeSettings()
    links: Links = Links()
    discovery: Literal["docker", "kubernetes", "none"] = "docker"
    """Source of containers with a probe, in addition to the list ``probes``."""
    probes: tuple[StaticProbe, ...] = ()
    probe_tls: ProbeTls | None = None
    """TLS settings for probes found by discovery. Probes listed in `probes` use the scheme of their URL."""
    probe_token_file: str | None = None
    """File with the token that probes expect (``token_file`` of a probe)."""

    @property
    def probe_access(self) -> ProbeAccess:
        return ProbeAccess(self.probe_tls, self.probe_token_file)

    @property
    def host_name(self) -> str:
        """Name of this host in a shared store; empty for a store of one exporter."""
        return (os.environ.get("NODE_NAME") or platform.node()) if stores.is_shared(self.store or "") else ""


def check(path: str | os.PathLike[str] | None, **options: object) -> ExporterConfig:
    """Read the config, and check the whole config before use.

    Args:
        path: YAML file; None for the defaults.
        options: Options of the command line, by key; they override the file.

    Raises:
        UsageError: The message is one line with the place, the mistake and the fix.
    """
    config = ExporterConfig() if path is None else settings.load(path, ExporterConfig)
    config = msgspec.structs.replace(config, **options)
    for key, check_value in (("listen", listen_address), ("store", _check_store)):
        try:
            check_value(getattr(config, key))
        except (ValueError, StoreError) as error:
            place = f"--{key}" if key in options else f"{path}: {key}"
            raise UsageError(f"{place}: {error}") from None
    config.probe_access.check()
    static.check(config.probes, f"{path}: probes")
    return config


def _check_store(location: str | None) -> None:
    stores.check(location)
    if location and not stores.is_shared(location) and not (folder := Path(location).parent).is_dir():
        raise ValueError(f"there is no folder {folder}; create it")
