"""Align the runs: which starts are compared with which, at each look, and with which siblings beside them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from operator import attrgetter

import numpy as np

from infercanary.judge.model import Concurrent, Pair, Start, Upgrade
from infercanary.judge.policy import Pool
from infercanary.judge.pooling import Replica
from infercanary.judge.statistics import Series


class Alignment:
    """Finds the starts that are compared.

    Args:
        pool: Which starts and runs count.
        looks: Runs of a start at which the judge looks.
    """

    def __init__(self, pool: Pool, looks: Sequence[int] = ()) -> None:
        self._pool = pool
        self._looks = looks

    def looks(self, upgrade: Upgrade) -> Iterator[tuple[int, list[Pair]]]:
        """The looks that the new image's starts have reached, the last one first: its first runs, against the baseline.

        Args:
            upgrade: With all runs of each start.

        Yields:
            Runs of a start, and the pairs; none while nothing can be compared.
        """
        reached = max((len(start.samples) for start in upgrade.after), default=0)
        for runs in reversed(self._looks):
            if runs <= reached:
                yield runs, self.pairs(upgrade.before, [start.first(runs) for start in upgrade.after])

    def pairs(self, before: Sequence[Start], after: Sequence[Start]) -> list[Pair]:
        """Within each class of hardware, the starts that are compared with each other: never across.

        Args:
            before: Starts of the old image, in order of time.
            after: Starts of the new one, in order of time.

        Returns:
            Those of each class; none of a class that the old image did not run on.
        """
        classes: dict[tuple[str, str], list[Start]] = {}
        for start in after:
            classes.setdefault(start.hardware, []).append(start)
        return [
            pair
            for hardware, of_class in classes.items()
            for pair in self._pairs([start for start in before if start.is_comparable(hardware)], of_class)
        ]

    def _pairs(self, before: Sequence[Start], after: Sequence[Start]) -> list[Pair]:
        """By container, so that what differs between replicas drops out; new names have the others' baseline.

        There is one pair for each container that both images ran in, and at most one more; none where either image has
        no start that counts, or while replicas on the old image have too few runs of the same period.
        """
        old = _by_container(before, self._pool.fewest_runs)
        new = _by_container(after, self._pool.fewest_new_runs)
        own = old.keys() & new.keys()
        if len(own) == len(old) < len(new):
            # Those with new names are one pair: a baseline that several share is one measurement, not several. So where
            # they have it to share with those of old names, all are one.
            own = set()
        groups: dict[str, tuple[list[Start], list[Start]]] = defaultdict(lambda: ([], []))
        for name, group in old.items():
            groups[name if name in own else ""][0].extend(group[-self._pool.history :])
        for name, group in new.items():
            groups[name if name in own else ""][1].extend(group)
        return [
            pair
            for baseline, group in groups.values()
            if baseline and group and (pair := self._pair(baseline, group, before)) is not None
        ]

    def _pair(
        self, baseline: Sequence[Start], after: Sequence[Start], before: Sequence[Start]
    ) -> Pair | None:
        """The runs of ``baseline`` before those of ``after``, with the starts of ``before`` that ran on beside these.

        Runs of the same period are compared first: None while there are too few of them yet.
        """
        ran_on = [ran for start in before if (ran := self._concurrent(start, after)) is not None]
        # Those that ran on for longest. What comes after the last run of ``after`` does not count, so a look stays as
        # it was.
        ran_on.sort(key=lambda ran: len(ran.during.samples), reverse=True)
        near = ran_on[: self._pool.concurrent_starts]
        stays = [ran for ran in near if len(ran.during.samples) >= self._pool.concurrent_runs]
        until = max(start.times[-1] for start in after)
        # One that runs more seldom than every 30 s is not waited for.
        if not stays and any(ran.ends >= until and _every(ran.before) <= 30 for ran in near):
            return None
        own = {start.boot for start in baseline}
        earlier = {ran.before.boot: ran.before for ran in ran_on}
        return Pair(
            [earlier.get(start.boot, start).latest(self._pool.baseline_runs) for start in baseline],
            after,
            stays,
            self._same_period([ran for ran in stays if ran.before.boot in own], after),
        )

    def _same_period(self, stays: Sequence[Concurrent], after: Sequence[Start]) -> Pair | None:
        """Those of the baseline that ran on, and the first starts of ``after`` while one of them goes on.

        A start that ended long before the new ones did is not of their period. None where less than half of the new
        starts have enough runs in it. The first ones stay the same when others begin.
        """
        last = max((ran.ends for ran in stays), default=-math.inf)
        cut = (start.first(int(np.searchsorted(start.times, last, "right"))) for start in after)
        new = [start for start in cut if len(start.samples) >= self._pool.fewest_new_runs]
        new = new[: self._pool.concurrent_starts]
        if not new or 2 * len(new) < len(after):
            return None
        began, until = min(start.times[0] for start in new), max(start.times[-1] for start in new)
        there = [
            ran._replace(during=during)
            for ran in stays
            if ran.ends >= began + 0.75 * (until - began)
            and len((during := _meanwhile(ran.during, new)).samples) >= self._pool.concurrent_runs
        ]
        return Pair([ran.during for ran in there], new, there, is_same_period=True) if there else None

    def _concurrent(self, start: Start, after: Sequence[Start]) -> Concurrent | None:
        """The runs of ``start`` before ``after`` and meanwhile; None where too few are before, or it did not go on."""
        first = int(np.searchsorted(start.times, min(s.times[0] for s in after)))
        if not max(self._pool.fewest_runs, 2) <= first < start.times.size:
            return None
        before = start.part(first - self._pool.baseline_runs, first)
        # Until its next run would be late, it goes on.
        ends = float(start.times[-1]) + self._pool.gone_runs * _every(before)
        return Concurrent(before, _meanwhile(start, after), ends)

    def teaching(self, starts: Sequence[Start], upgrade: Upgrade | None) -> list[Start]:
        """The starts that show the restart variance.

        Of a replica that stays on the old image those are its runs before the upgrade: what the host did since is no
        sign that starts differ, and the same runs give the same verdict again.

        Args:
            starts: Of a service, in order of time.
            upgrade: The one that is judged; None without any.
        """
        old = {start.boot for start in upgrade.before} if upgrade is not None else set()
        found = []
        for start in starts:
            before = (
                start.first(int(np.searchsorted(start.times, upgrade.at)))
                if upgrade and start.boot in old
                else start
            )
            found.append(before if len(before.samples) >= self._pool.fewest_runs else start)
        return found

    def beside(self, siblings: Sequence[Start], upgrade: Upgrade, until: float) -> list[Pair]:
        """Siblings on a host of the new image that ran before the upgrade: their runs before and since.

        There may be none since: a sibling that goes on will have some.

        Args:
            siblings: Starts of other services on the host.
            upgrade: The one that is judged.
            until: The last run that is judged (Unix seconds): what siblings feel days later is no part of the shift.
        """
        hosts, at = {start.generation.host for start in upgrade.after}, upgrade.at
        found = []
        for start in siblings:
            first, end = np.searchsorted(start.times, [at, np.nextafter(until, math.inf)]).tolist()
            if start.generation.host in hosts and first:
                before = start.part(first - self._pool.baseline_runs, first)
                found.append(Pair([before], [start.part(first, end)]))
        return found


def replica_of(pair: Pair, points: Callable[[Start], Series] = attrgetter("series")) -> Replica:
    """The values of a pair's starts.

    Args:
        pair: That is compared.
        points: The values of a start, one a run; its latencies without it.
    """
    return Replica(
        [*map(points, pair.before)],
        [*map(points, pair.after)],
        [(points(each.before), points(each.during)) for each in pair.concurrent],
        pair.is_same_period,
    )


def _every(start: Start) -> float:
    """Seconds between its runs, on average."""
    return float(np.ptp(start.times)) / (start.times.size - 1)


def _meanwhile(start: Start, after: Sequence[Start]) -> Start:
    """With the runs alone that began while one of ``after`` ran."""
    firsts, lasts = np.array([(s.times[0], s.times[-1]) for s in after]).T
    times = start.times[:, None]
    ran = ((firsts <= times) & (times <= lasts)).any(axis=1)
    return Start(start.generation, [*compress(start.samples, ran)])


def _by_container(starts: Iterable[Start], fewest: int) -> dict[str, list[Start]]:
    groups: dict[str, list[Start]] = {}
    for start in starts:
        if len(start.samples) >= fewest:
            groups.setdefault(start.generation.container, []).append(start)
    return groups
