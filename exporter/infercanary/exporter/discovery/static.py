"""The list of probes in exporter.yaml, for those that no other discovery finds."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from infercanary.client.accept import LABEL_BYTES
from infercanary.command.settings import UsageError
from infercanary.exporter.discovery.base import Container, url_mistake


class StaticProbe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry of ``probes:``: where a probe answers, and what to call it."""

    url: str
    service: str
    container: str


def listed(probes: Iterable[StaticProbe]) -> list[Container]:
    """A container for each entry."""
    return [Container(service=probe.service, name=probe.container, url=probe.url) for probe in probes]


def check(probes: tuple[StaticProbe, ...], place: str) -> None:
    """Check every entry.

    Args:
        probes: As in the settings.
        place: Of the list in the settings, for messages.

    Raises:
        UsageError: One cannot be polled, or names the same container as another.
    """
    seen: dict[tuple[str, str], int] = {}
    for index, probe in enumerate(probes):
        if mistake := url_mistake(probe.url):
            raise UsageError(f"{place}[{index}].url: {mistake}")
        for key, text in (("service", probe.service), ("container", probe.container)):
            if not text or not text.isprintable() or len(text.encode()) > LABEL_BYTES:
                raise UsageError(
                    f"{place}[{index}].{key}: must be 1 to {LABEL_BYTES} bytes of printable text; "
                    "it becomes a label"
                )
        first = seen.setdefault((probe.service, probe.container), index)
        if first != index:
            raise UsageError(
                f"{place}[{index}]: same service and container as probes[{first}]; "
                "give one of them another container"
            )
