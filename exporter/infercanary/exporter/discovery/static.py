"""The list of probes in exporter.yaml, for probes that no discovery finds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from infercanary.command.settings import UsageError
from infercanary.exporter.discovery.base import Container, url_mistake

_Name = Annotated[str, msgspec.Meta(min_length=1)]


class StaticProbe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry of ``probes:``: address and name of a probe."""

    url: str
    service: _Name
    container: _Name


def listed(probes: Iterable[StaticProbe]) -> list[Container]:
    return [Container(service=probe.service, name=probe.container, url=probe.url) for probe in probes]


def check(probes: tuple[StaticProbe, ...], place: str) -> None:
    """Check every entry.

    Args:
        probes: The list in the settings.
        place: Place of the list in the settings, for messages.

    Raises:
        UsageError: An entry has an invalid address, or names the same container as another entry.
    """
    seen = set()
    for index, container in enumerate(listed(probes)):
        if mistake := url_mistake(container.url or ""):
            raise UsageError(f"{place}[{index}].url: {mistake}")
        if container.key in seen:
            raise UsageError(
                f"{place}[{index}]: another entry has this service and container; give one of them another "
                "container name"
            )
        seen.add(container.key)
