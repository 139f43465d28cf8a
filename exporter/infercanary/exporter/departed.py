"""Services without a container: a server that is stopped takes its card and its alerts with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from infercanary.judge.model import ServiceKey

KEPT_SECONDS = 3600.0
"""The status page names a service for this time after its last container."""
_MOST = 32  # services that are kept


class Gone(NamedTuple):
    """A service without a container."""

    service: ServiceKey
    container: str
    """Its last container, or one of these."""
    seconds: float
    """Time since it was found to be gone."""


class Departed:
    """Services that ended while this exporter ran."""

    def __init__(self) -> None:
        self._running: Mapping[ServiceKey, str] = {}
        self._ended: dict[ServiceKey, tuple[str, float]] = {}

    def follow(self, running: Mapping[ServiceKey, str], now: float) -> None:
        """Note the services that ended since the last call.

        Args:
            running: Service → name of one of its containers.
            now: Seconds, monotonic.
        """
        ended = self._ended | {service: (name, now) for service, name in self._running.items()}
        kept = [
            (service, end)
            for service, end in ended.items()
            if service not in running and now - end[1] < KEPT_SECONDS
        ]
        self._ended = dict(sorted(kept, key=lambda each: each[1][1])[-_MOST:])
        self._running = running

    def recent(self, now: float) -> list[Gone]:
        """Services that ended within the last hour, the last one first.

        Args:
            now: Seconds, monotonic.
        """
        ended = [Gone(service, name, now - at) for service, (name, at) in reversed(self._ended.items())]
        return [gone for gone in ended if gone.seconds < KEPT_SECONDS]
