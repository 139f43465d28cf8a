"""Containers that the kernel ended for memory: what a discovery says of each, and what the exporter shows of all.

No probe can report it, since it ends with its server. Docker has it in its events, Kubernetes in
``lastState.terminated`` with the reason ``OOMKilled``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from infercanary.contract.report import Family, Metric
from infercanary.exporter.discovery.base import Container, Key

ENDED = Metric(
    "infercanary_container_oom_kills_total",
    "counter",
    "Times that the kernel ended the container, or the server that a sidecar watches, for lack of memory.",
    ("service", "container", "image", "image_id"),
    reading="An increase is an alert. Of a single worker or child, see `infercanary_cgroup_oom_kills_total`.",
)
METRICS = (ENDED,)

KEPT_SECONDS = 3600.0
"""A kill counts as recent for so long; a container that is gone is kept as long, for alerts on its last end."""
_OF_PODS = ("namespace", "pod", *ENDED.labels)


class MemoryKill(msgspec.Struct, frozen=True):
    """One container that the kernel ended for memory."""

    container: Container
    """That with the probe, as it was found last, also where it is the server beside it that was ended."""
    id: str
    """Of the container that was ended; another one of that name has another id."""
    at: float
    """A Unix time, by the clock of what says it."""


class _Ended(msgspec.Struct):
    """One image in one container."""

    container: Container
    """As it was found first: a tag that moves on must not begin another series."""
    seen_at: float
    """When it was last found, a Unix time."""
    times: int = 0
    last_at: float = 0.0


class KillCounts:
    """How often each container was ended for memory, by container and image."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, ...], _Ended] = {}

    def follow(self, containers: Iterable[Container], now: float) -> None:
        """Show a count of these, 0 at first, and forget what is gone, an hour after it was ended or else immediately.

        Args:
            containers: All that the discoveries found. One without an id is from a list, where no end is seen.
            now: A Unix time.
        """
        for container in containers:
            if container.id:
                self._of(container, now).seen_at = now
        self._ended = {
            key: each
            for key, each in self._ended.items()
            if each.seen_at == now or (each.times and now - each.last_at <= KEPT_SECONDS)
        }

    def count(self, kill: MemoryKill) -> None:
        """Count one.

        Args:
            kill: As a discovery says it.
        """
        ended = self._of(kill.container, kill.at)
        ended.times += 1
        ended.last_at = max(ended.last_at, kill.at)

    def last(self) -> Mapping[Key, tuple[int, float, str]]:
        """What the status page says.

        Returns:
            Key of a container → how often it was ended, when last (a Unix time), and its image then; without those that
            never were.
        """
        found: dict[Key, tuple[int, float, str]] = {}
        for each in self._ended.values():
            if each.times:
                key = each.container.key
                times, at, image = found.get(key, (0, 0.0, ""))
                newer = each.last_at >= at
                found[key] = (
                    (times + each.times, each.last_at, each.container.image)
                    if newer
                    else (times + each.times, at, image)
                )
        return found

    def families(self) -> list[Family]:
        """The counter: of containers, and of those of pods, which have two labels more.

        Returns:
            A point for each container and image, also with 0.
        """
        points: dict[bool, dict[tuple[str, ...], float]] = {False: {}, True: {}}
        for each in self._ended.values():
            container = each.container
            values = (*container.labels.values(), container.image, container.image_key)
            points[bool(container.pod)][values] = float(each.times)
        of_pods = msgspec.structs.replace(ENDED, labels=_OF_PODS)
        return [ENDED.family(points[False]), of_pods.family(points[True])]

    def _of(self, container: Container, now: float) -> _Ended:
        return self._ended.setdefault((*container.key, container.image_key), _Ended(container, now))
