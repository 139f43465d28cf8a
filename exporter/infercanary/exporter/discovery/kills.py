"""Counts how often the kernel killed a container for lack of memory.

A probe cannot report these kills, because the probe ends with its server. Docker reports them as events, and Kubernetes
in ``lastState.terminated`` with the reason ``OOMKilled``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import attrgetter

import msgspec
import structlog

from infercanary.contract.report import Family, Metric
from infercanary.exporter.discovery.base import Container, Key, MemoryKill

log = structlog.get_logger(__name__)

ENDED = Metric(
    "infercanary_container_oom_kills_total",
    "counter",
    "Times that the kernel ended the container, or the server that a sidecar watches, for lack of memory.",
    ("service", "container", "image", "image_id"),
    reading="An increase is an alert. For kills of a single worker, see `infercanary_cgroup_oom_kills_total`.",
)
METRICS = (ENDED,)

KEPT_SECONDS = 3600.0
"""Time for which a kill counts as recent. A removed container stays in the metric for the same time, because alerts may
still fire on its last kill.
"""


class _Ended(msgspec.Struct):
    """Memory kills of one image in one container."""

    container: Container
    """The container as first found. Later facts would begin a new series (such as a moved tag), and are ignored."""
    times: int = 0
    last_at: float = -math.inf
    """Unix time."""


class KillCounts:
    """Number of memory kills, by container and image."""

    def __init__(self) -> None:
        self._ended: dict[tuple[Key, str], _Ended] = {}

    def follow(self, containers: Iterable[Container], now: float) -> None:
        """Count the kills of these containers. Forget any other container an hour after its last kill.

        Args:
            containers: All containers that the discoveries found. A container without an id is from the config's list,
                and no source reports its kills.
            now: Unix time.
        """
        present = {(each.key, each.image_key): _Ended(each) for each in containers if each.id}
        self._ended = present | {
            key: ended
            for key, ended in self._ended.items()
            if key in present or now - ended.last_at <= KEPT_SECONDS
        }

    def count(self, kill: MemoryKill) -> None:
        container = kill.container
        ended = self._ended.setdefault((container.key, container.image_key), _Ended(container))
        ended.times += 1
        ended.last_at = kill.at
        log.warning(
            "the kernel killed a container for lack of memory", image=container.image, **container.labels
        )

    def last(self) -> Mapping[Key, tuple[int, float, str]]:
        """Return the last memory kill of each container: number of kills, Unix time, and name of the image."""
        ended = sorted(self._ended.values(), key=attrgetter("last_at"))
        return {
            each.container.key: (each.times, each.last_at, each.container.image)
            for each in ended
            if each.times
        }

    def families(self) -> list[Family]:
        """Return a counter for containers outside pods, and a counter with namespace and pod for containers in pods."""
        points: tuple[dict[tuple[str, ...], float], ...] = {}, {}
        for ended in self._ended.values():
            container = ended.container
            labels = (*container.labels.values(), container.image, container.image_key)
            points[bool(container.pod)][labels] = ended.times
        of_pods = msgspec.structs.replace(ENDED, labels=("namespace", "pod", *ENDED.labels))
        return [ENDED.family(points[0]), of_pods.family(points[1])]
