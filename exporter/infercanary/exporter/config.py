"""What ``exporter.yaml`` says: typed, and checked in full before any of it is used."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, TypeVar, cast

import msgspec

from infercanary.client.access import ProbeAccess, ProbeTls
from infercanary.client.limits import Limits
from infercanary.command import settings
from infercanary.command.settings import UsageError
from infercanary.contract.address import EVERY_ADDRESS
from infercanary.contract.text import masked
from infercanary.exporter.discovery.base import DiscoveryKind, registered, url_mistake
from infercanary.judge.policy import LIVE, Policy
from infercanary.store import store as stores
from infercanary.store.base import StoreError

S = TypeVar("S")

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class JudgeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The section ``judge:``: the numbers of :class:`~infercanary.judge.policy.Policy` that a user may set."""

    smallest_effect: Annotated[float, msgspec.Meta(gt=0, lt=1)] = LIVE.decide.smallest_effect
    clear_zone: Annotated[float, msgspec.Meta(ge=0)] = LIVE.decide.clear_zone
    confidence: Annotated[float, msgspec.Meta(ge=0.5, lt=1)] = LIVE.decide.confidence
    false_calls: Annotated[float, msgspec.Meta(gt=0, le=0.05)] = LIVE.decide.false_calls
    looks: Annotated[tuple[Annotated[int, msgspec.Meta(ge=5)], ...], msgspec.Meta(min_length=1)] = (
        LIVE.decide.looks
    )
    history: Annotated[int, msgspec.Meta(ge=1)] = LIVE.pool.history

    def __post_init__(self) -> None:
        """Refuse numbers that contradict each other.

        Raises:
            ValueError: With the field's name and what it must be.
        """
        if self.clear_zone >= self.smallest_effect:
            raise ValueError(f"clear_zone {self.clear_zone:g}: must be below smallest_effect")
        if any(after <= before for before, after in pairwise(self.looks)):
            raise ValueError(f"looks {[*self.looks]}: must rise, such as [6, 12, 24, 48]")

    def policy(self) -> Policy:
        """The policy with these numbers.

        Returns:
            A policy; what users may not set is that of ``LIVE``.
        """
        return LIVE.but(**msgspec.structs.asdict(self))


class Links(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The section ``links:``: targets of links in alerts and on the status page, as people reach them."""

    alertmanager: str = ""
    grafana: str = ""
    runbooks: str = ""
    """Of this exporter, with /runbooks at its end; or where else they are published."""


class ExporterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What exporter.yaml may say, but for the sections of discoveries: those are added by :func:`file_type`.

    ``store`` is the judge's file, or the URL of a store that several exporters share. Without one, baselines live as
    long as the exporter does. ``host`` tells apart the hosts of those; empty for the node's name, or the host's own.
    """

    listen: str | int = "[::]:9797"
    poll_seconds: Seconds = 5.0
    timeout_seconds: Seconds = 3.0
    store: str | None = None
    host: str = ""
    judge: JudgeSettings = JudgeSettings()
    links: Links = Links()
    limits: Limits = Limits()
    probe_tls: ProbeTls | None = None
    """Probes that a discovery finds are asked over TLS; those of the list as their URL says."""
    probe_token_file: str | None = None
    """Whose text is shown to probes (their ``token_file``)."""

    @property
    def probe_access(self) -> ProbeAccess:
        """What is shown to probes."""
        return ProbeAccess(self.probe_tls, self.probe_token_file)

    @property
    def host_name(self) -> str:
        """What starts on this host have as its name; empty where the store is a file, which is of one host."""
        if not stores.is_shared(self.store):
            return ""
        return self.host or os.environ.get("NODE_NAME", "") or platform.node()

    def section(self, kind: DiscoveryKind[S]) -> S:
        """The settings of one kind of discovery.

        Args:
            kind: A registered one.

        Returns:
            Its settings; the kind's default where the file has no such section.
        """
        section: S = getattr(self, kind.key, kind.default)
        return section


def file_type() -> type[ExporterConfig]:
    """The config with the section of each discovery: all keys of the file, with defaults for a Docker host.

    Returns:
        A subclass of :class:`ExporterConfig` that refuses unknown keys.
    """
    sections = [(kind.key, kind.settings, kind.default) for kind in registered()]
    kind = msgspec.defstruct(
        "ExporterFile",
        sections,
        bases=(ExporterConfig,),
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
    )
    return cast(type[ExporterConfig], kind)  # a defstruct's type is the bare Struct


def check(
    path: str | os.PathLike[str] | None, given: Mapping[str, object] = MappingProxyType({})
) -> ExporterConfig:
    """The config in the file ``path`` with the command line's options, which is good in all its parts.

    Args:
        path: YAML; None for the defaults.
        given: Keys that options set, whatever the file says.

    Returns:
        The config; nothing of it is in use yet.

    Raises:
        UsageError: One line with the place, the mistake and the fix.
    """
    config = file_type()() if path is None else settings.load(path, file_type())
    config = msgspec.structs.replace(config, **given)
    place = {key: f"--{key}" if key in given else f"{path}: {key}" for key in ("listen", "store")}
    listen_address(config.listen, place["listen"])
    for name, url in msgspec.structs.asdict(config.links).items():
        if url and (mistake := url_mistake(url, schemes=("http", "https"))):
            raise UsageError(f"{path}: links.{name}: {mistake}")
    try:
        config.probe_access.check()
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    try:
        stores.check(config.store)
    except StoreError as error:
        raise UsageError(f"{place['store']}: {error}") from None
    for kind in registered():
        kind.check(config.section(kind), config.limits, f"{path}: {kind.key}")
    if len(several := [kind.key for kind in registered() if kind.finds_all(config.section(kind))]) > 1:
        raise UsageError(
            f"{path}: {' and '.join(several)} are enabled, and find the same containers; "
            f"set {several[0]}.enabled: false"
        )
    return config


def remarks(config: ExporterConfig) -> list[str]:
    """What a good config leaves out that people miss later, or names that is not on this machine.

    Args:
        config: Read and checked.

    Returns:
        A line for each, with the fix.
    """
    found = []
    if not config.links.runbooks:
        found.append(
            "links.runbooks is empty: alerts link to no runbook; give the address by which people reach this exporter, "
            "such as http://gpu-1:9797/runbooks"
        )
    if config.store and not stores.is_shared(config.store):
        folder = os.path.dirname(config.store.removeprefix("sqlite://"))
        if folder and not os.path.isdir(folder):
            found.append(
                f"store: no folder `{masked(folder)}` here; make it, or what was learned ends with the exporter"
            )
    return found


def listen_address(listen: str | int, place: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as host and port; a port alone means every address, IPv4 and IPv6.

    Args:
        listen: As given.
        place: Where it is given, for the message.

    Returns:
        Host without brackets, and port.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(listen, int):
        listen = min(max(listen, -1), 10**9)  # one of thousands of digits takes seconds to write
    text = f":{listen}" if str(listen).isdecimal() else str(listen)
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (
        not colon
        or not (port.isascii() and port.isdigit())
        or len(port) > 5
        or int(port) > 65_535
        or (":" in bare and bare == host)
    ):
        raise UsageError(
            f"{place}: '{listen}' is not HOST:PORT; write for example [::]:9797 or 127.0.0.1:9797"
        )
    return bare or EVERY_ADDRESS, int(port)
