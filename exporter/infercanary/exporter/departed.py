"""Services of which no container runs any more: a server that is stopped takes its card and its alerts with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from infercanary.judge.model import ServiceKey

KEPT_SECONDS = 3600.0
"""For how long a service counts as one that ended just now."""
_MOST = 32  # that are kept


class Gone(NamedTuple):
    """A service without a container."""

    service: ServiceKey
    container: str
    """That ended last, or one of those that did."""
    seconds: float
    """How long ago that was seen."""


class Departed:
    """Which services ended, as far as this exporter saw."""

    def __init__(self) -> None:
        self._running: Mapping[ServiceKey, str] = {}
        self._left: dict[ServiceKey, tuple[str, float]] = {}

    def follow(self, running: Mapping[ServiceKey, str], now: float) -> None:
        """Note which services ended since the last call.

        Args:
            running: Service → the name of one of its containers.
            now: Seconds, monotonic.
        """
        ended = {service: (name, now) for service, name in self._running.items() if service not in running}
        known = {service: each for service, each in self._left.items() if service not in running}
        recent = {
            service: each for service, each in {**known, **ended}.items() if now - each[1] < KEPT_SECONDS
        }
        self._left = dict([*recent.items()][-_MOST:])
        self._running = running

    def recent(self, now: float) -> list[Gone]:
        """Which ended within the last hour.

        Args:
            now: Seconds, monotonic.

        Returns:
            The one that ended last first.
        """
        left = (Gone(service, name, now - at) for service, (name, at) in self._left.items())
        return sorted((each for each in left if each.seconds < KEPT_SECONDS), key=lambda each: each.seconds)
