"""The list of probes in exporter.yaml, for those that no other discovery finds."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from infercanary.client.limits import Limits
from infercanary.command.settings import UsageError
from infercanary.contract.report import Family
from infercanary.exporter.discovery.base import Container, DiscoveryKind, register, url_mistake

log = structlog.get_logger(__name__)


STATIC = "probes"
"""Its section of the settings."""


class StaticProbe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry of ``probes:``: where a probe answers, and what to call it."""

    url: str
    service: str
    container: str


class StaticDiscovery:
    """Finds what the config lists.

    Args:
        probes: As in the config.
    """

    source = "the config's list"
    up = tried = True

    def __init__(self, probes: tuple[StaticProbe, ...], _changed: Callable[[], None]) -> None:
        self._probes = probes

    @property
    def containers(self) -> list[Container]:
        """One for each entry."""
        return [Container(service=p.service, name=p.container, url=p.url) for p in self._probes]

    def start(self) -> None:
        """Nothing to begin: the list is known."""

    async def stop(self) -> None:
        """Nothing to end."""

    def families(self) -> list[Family]:
        """None: a list cannot fail."""
        return []

    def reconfigure(self, settings: tuple[StaticProbe, ...]) -> None:
        """Use another list."""
        if settings != self._probes:
            log.info("the config lists other probes", probes=len(settings))
        self._probes = settings


def check(probes: tuple[StaticProbe, ...], limits: Limits, place: str) -> None:
    """Check every entry.

    Args:
        probes: As in the settings.
        limits: How long a label's value may be.
        place: Of the list in the settings, for messages.

    Raises:
        UsageError: One cannot be polled, or names the same container as another.
    """
    seen: dict[tuple[str, str], int] = {}
    for index, probe in enumerate(probes):
        if mistake := url_mistake(probe.url):
            raise UsageError(f"{place}[{index}].url: {mistake}")
        for key, text in (("service", probe.service), ("container", probe.container)):
            if not text or not text.isprintable() or len(text.encode()) > limits.label_bytes:
                raise UsageError(
                    f"{place}[{index}].{key}: must be 1 to {limits.label_bytes} bytes of printable text; "
                    "it becomes a label"
                )
        first = seen.setdefault((probe.service, probe.container), index)
        if first != index:
            raise UsageError(
                f"{place}[{index}]: same service and container as probes[{first}]; "
                "give one of them another container"
            )


register(
    DiscoveryKind(
        key=STATIC,
        settings=tuple[StaticProbe, ...],
        default=(),
        create=StaticDiscovery,
        check=check,
        precedence=1,  # who writes an entry for a container that Docker finds too wants that entry
    )
)
