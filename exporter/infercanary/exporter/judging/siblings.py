"""Siblings of a service: canaries of other services on the same hosts, with their runs."""

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
"""Largest number of siblings on a host."""
_MOST_IN_ALL = 64
_MOST_RUNS = 6_000
"""Largest number of runs of a sibling. The newest runs are kept, and a merged block counts as one run."""
_ASKED = tuple(sorted(NOT_JUDGED | BY_ITSELF))
"""Tags that are kept with a sibling's runs. A hostile probe may report many tags, so other tags are dropped."""
_READ_SECONDS = 30.0  # seconds for which the siblings of a host are cached
_RECENT_SECONDS = 600.0  # a canary runs if its last run is within this time of the host's newest run


class Siblings:
    """Finds siblings: one canary in one container of each other service on a host.

    The starts of one image are joined into one start. So even a restarted sibling has runs before and after an upgrade.

    Args:
        most_bytes: Limit of the data read for one sibling, as in :meth:`Store.generations`.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._of_host: dict[str, list[list[Start]]] = {}
        self._cleared_at = -math.inf

    def of(self, service: ServiceKey, hosts: Iterable[str], store: Store) -> list[Start]:
        """Return the starts of a service's siblings, with the runs that count. A sibling's starts are adjacent.

        Args:
            hosts: Hosts of the service's starts. The total number of siblings is limited. With many hosts, each host
                has fewer siblings, and the last hosts by name have none.
            store: Store, which is read if the cache is too old.
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
    """Join the starts of one container by image. A joined start has all runs and the latest generation."""
    return [
        Start(group[-1].generation, [sample for start in group for sample in start.samples])
        for group in grouped(starts, attrgetter("identity")).values()
    ]


def newest(starts: Sequence[Start]) -> list[Start]:
    """Reduce a sibling's starts to the newest runs and the needed fields, to limit the cache.

    Returns:
        Starts without environment, whose runs have only time, median and some tags. Starts with none of the newest
        runs are left out.
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
    """Choose one canary in one container of each service. To keep the choice stable, choose the first running canary by
    name.

    Args:
        runs: Last runs on one host.
        now: Unix time. A run in the future counts as now: one wrong clock must not make all other runs old.

    Returns:
        Last run of each service's chosen canary, ordered by name. Canaries that run come first.
    """
    runs = [run._replace(at=min(run.at, now)) for run in runs]
    recent = max((run.at for run in runs), default=0.0) - _RECENT_SECONDS
    first: dict[ServiceKey, LastRun] = {}
    for run in sorted(runs, key=lambda run: (run.at < recent, run)):
        first.setdefault(run.service, run)
    return [*first.values()]
