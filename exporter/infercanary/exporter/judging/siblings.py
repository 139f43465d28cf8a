"""Siblings of a service: canaries of other services on its hosts, with their runs at the same time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from infercanary.contract.vocabulary import BY_ITSELF, NOT_JUDGED
from infercanary.judge.align import grouped
from infercanary.judge.identity import identified
from infercanary.judge.model import ServiceKey, Start
from infercanary.store.base import LastRun
from infercanary.store.store import Store

_MOST = 8
"""Siblings on a host."""
_MOST_IN_ALL = 64
_MOST_RUNS = 6_000
"""Of a sibling: 17 hours at a run in 10 s, and of most of it block medians are kept."""
_ASKED = tuple(sorted(NOT_JUDGED | BY_ITSELF))
"""Tags that a sibling's runs are asked for; a hostile one has many others."""
_READ_SECONDS = 30.0  # those of a host are read from the store so often at most
_RECENT_SECONDS = 600.0  # between two runs: which of two that run ran last is chance


class Siblings:
    """A canary in one container of each other service of a host, of those that were found: one start for each image.

    Restarts of one image are joined, so that a sibling that was restarted still has runs on either side of an upgrade.

    Args:
        most_bytes: That are read of one at once, as :meth:`Store.generations` counts them.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._of_host: dict[str, list[list[Start]]] = {}
        self._cleared_at = -math.inf

    def of(self, service: ServiceKey, hosts: Iterable[str], store: Store) -> list[Start]:
        """The starts of the siblings of ``service``.

        Args:
            service: The one that is judged.
            hosts: Those that its starts ran on. Of many hosts each has fewer siblings, and the last ones by name none.
            store: Where the starts are read; not at each call.

        Returns:
            Starts with their runs that count; those of one sibling follow each other.
        """
        hosts = sorted({*hosts})[:_MOST_IN_ALL]
        most = min(_MOST, _MOST_IN_ALL // max(1, len(hosts)))
        found = []
        for host in hosts:
            others = [each for each in self._on(host, store) if each[0].generation.key != service]
            found += [start for each in others[:most] for start in each]
        return found

    def _on(self, host: str, store: Store) -> list[list[Start]]:
        now = time.monotonic()
        if now - self._cleared_at > _READ_SECONDS:
            self._of_host, self._cleared_at = {}, now
        if host not in self._of_host:
            found = []
            for last in chosen(store.last_runs(host), time.time())[: _MOST + 1]:
                starts = store.generations(
                    last.service, last.canary, container=last.container, most_bytes=self._most_bytes
                )
                own = [Start.of(g, samples) for g, samples in starts if g.is_known and g.host == host]
                if counted := [start for start in own if start.samples]:
                    found.append(newest(joined(identified(counted))))
            self._of_host[host] = found
        return self._of_host[host]


def joined(starts: Iterable[Start]) -> list[Start]:
    """The starts of one container, of each image as one: what a sibling is.

    Args:
        starts: In order of time.

    Returns:
        One for each image, with all its runs and the latest start's generation.
    """
    return [
        Start(group[-1].generation, [sample for start in group for sample in start.samples])
        for group in grouped(starts, attrgetter("identity")).values()
    ]


def newest(starts: Sequence[Start]) -> list[Start]:
    """The newest runs of a sibling, with what they are asked for alone: they are held for a while, and of many.

    Args:
        starts: Of one sibling, in order of time.

    Returns:
        Starts without their environment, and runs with their times, medians and the tags that count; none of a start
        that has none of the newest runs.
    """
    left, found = _MOST_RUNS, []
    for start in reversed(starts):
        samples = [
            msgspec.structs.replace(
                sample,
                phases={},
                controls={},
                off_cpu={},
                measures={},
                tags=tuple(tag for tag in _ASKED if tag in sample.tags),
            )
            for sample in start.samples[-left:]
        ]
        left -= len(samples)
        found.append(
            Start(
                msgspec.structs.replace(
                    start.generation, environment={}, outputs={}, cold_start={}, profiles={}
                ),
                samples,
            )
        )
        if not left:
            break
    return found[::-1]


def chosen(runs: Iterable[LastRun], now: float) -> list[LastRun]:
    """A canary in one container of each service: of those that run, the first ones by name, and so the same each time.

    Args:
        runs: What ran on one host.
        now: A Unix time. A run that claims a later one ran now: a wrong clock makes no other one old.

    Returns:
        One for each service, by name. Those that run come first.
    """
    runs = [run._replace(at=min(run.at, now)) for run in runs]
    recent = max((run.at for run in runs), default=0.0) - _RECENT_SECONDS
    first: dict[ServiceKey, LastRun] = {}
    for run in sorted(runs, key=lambda run: (run.at < recent, run)):
        first.setdefault(run.service, run)
    return [*first.values()]
