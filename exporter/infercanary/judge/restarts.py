"""The restart variance: by how much starts of one image differ, learned from those that there were."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from infercanary.judge.contention import uncontended
from infercanary.judge.model import Start
from infercanary.judge.policy import LIVE, Pool
from infercanary.judge.shift import Restarts
from infercanary.judge.statistics import learn


def restarts_of(starts: Iterable[Start], pool: Pool = LIVE.pool) -> Restarts:
    """As far as the last runs of ``starts`` show, each of which may be a baseline.

    Args:
        starts: Of one service, with the runs of one canary.
        pool: The prior, and which runs of a start are a baseline.

    Returns:
        The prior with what they add; the prior alone where no image was started again.
    """
    groups = _by_image(starts, pool)
    return learn([[s.latest(pool.baseline_runs).series for s in group] for group in groups], pool)


def restarts_before(last: Start, starts: Sequence[Start], pool: Pool = LIVE.pool) -> Restarts:
    """As far as was known when ``last`` began, by how the other ``starts`` began.

    A drift within a start is not what restarts do: learned from, it would excuse itself.

    Args:
        last: The start that does not count.
        starts: Of its service, with the runs of one canary.
        pool: The prior, and how many runs are the beginning of a start.

    Returns:
        The prior with what they add.
    """
    groups = _by_image((start for start in uncontended(starts, [], pool) if start is not last), pool)
    return learn([[s.first(pool.opening_runs).series for s in group] for group in groups], pool)


def _by_image(starts: Iterable[Start], pool: Pool) -> list[list[Start]]:
    """Those with enough runs, of each image of each replica, in order of time.

    A replica is a container or, where pods come back under new names, several: a new one takes the place of the one
    that ended last before the new one's runs were enough, and that no other one replaced.
    """
    groups: dict[tuple[str, ...], list[Start]] = {}
    for start in starts:
        if len(start.samples) >= pool.fewest_runs:
            groups.setdefault((start.generation.container, *start.work), []).append(start)
    replicas: list[list[Start]] = []
    ended: dict[tuple[str, ...], list[tuple[float, int]]] = {}  # when, and which replica
    for (_, *work), group in groups.items():
        left = ended.setdefault(tuple(work), [])
        before = bisect_left(left, (group[0].samples[pool.fewest_runs - 1].started_at,))
        if before:
            _, number = left.pop(before - 1)
            replicas[number] += group
        else:
            number = len(replicas)
            replicas.append(group)
        insort(left, (max(start.samples[-1].started_at for start in group), number))
    return replicas
