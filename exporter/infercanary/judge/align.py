"""Alignment: pairs old and new starts for comparison at each look, and selects the runs of siblings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress
from operator import attrgetter
from typing import Any

import numpy as np

from infercanary.judge.model import Concurrent, Pair, Start, Upgrade
from infercanary.judge.policy import Pool
from infercanary.judge.pooling import Replica
from infercanary.judge.statistics import Series


class Alignment:
    """Pairs old and new starts for comparison.

    Args:
        pool: Limits that select starts and runs.
        looks: Run counts of a new start at which the judge looks, in ascending order.
    """

    def __init__(self, pool: Pool, looks: Sequence[int] = ()) -> None:
        self._pool = pool
        self._looks = looks

    def looks(self, upgrade: Upgrade) -> Iterator[tuple[int, list[Pair]]]:
        """Yield run count and pairs of each look that a new start has reached. The latest look comes first.

        A look uses only the first runs of each new start, up to the look's run count.
        """
        reached = max((len(start.samples) for start in upgrade.after), default=0)
        for runs in reversed(self._looks):
            if runs <= reached:
                yield runs, self.pairs(upgrade.before, [start.first(runs) for start in upgrade.after])

    def pairs(self, before: Sequence[Start], after: Sequence[Start]) -> list[Pair]:
        """Pair old and new starts on the same hardware.

        Args:
            before: Starts of the old image, in order of time.
            after: Starts of the new image, in order of time. Starts on hardware without an old start are left out.
        """
        after = [start for start in after if any(old.is_comparable(start.hardware) for old in before)]
        known_first = sorted((start.hardware for start in after), key=lambda hardware: hardware.count(""))
        # A start on unknown hardware joins only the first hardware class, because a baseline belongs to one class.
        classes = grouped(after, lambda start: next(filter(start.is_comparable, known_first)))
        return [
            pair
            for hardware, of_class in classes.items()
            for pair in self._pairs([start for start in before if start.is_comparable(hardware)], of_class)
        ]

    def _pairs(self, before: Sequence[Start], after: Sequence[Start]) -> list[Pair]:
        """Pair starts by container, which cancels differences between replicas.

        Returns:
            One pair for each container that ran both images, and at most one pair for all other containers. Empty if
            either image has no counted start, or while running replicas on the old image have too few runs during the
            new starts.
        """
        fewest, fewest_new, history = self._pool.fewest_runs, self._pool.fewest_new_runs, self._pool.history
        container = attrgetter("generation.container")
        old = grouped((start for start in before if len(start.samples) >= fewest), container)
        new = grouped((start for start in after if len(start.samples) >= fewest_new), container)
        own = [name for name in old if name in new]
        if len(own) == len(old) < len(new):
            # All containers of the old image have new starts, so no baseline is left for containers with new names.
            # Then all starts are one pair.
            own = []
        groups = [(old.pop(name)[-history:], new.pop(name)) for name in own]
        rest = [start for group in old.values() for start in group[-history:]]
        groups.append((rest, [*chain(*new.values())]))
        pairs = [self._pair(baseline, group, before) for baseline, group in groups if baseline and group]
        return [pair for pair in pairs if pair is not None]

    def _pair(
        self, baseline: Sequence[Start], after: Sequence[Start], before: Sequence[Start]
    ) -> Pair | None:
        """Pair baseline starts with new starts, and add the concurrent baseline.

        Returns:
            None while starts of the old image still run, but have too few runs during the new starts.
        """
        ran_on = [ran for start in before if (ran := self._concurrent(start, after)) is not None]
        # Select the old starts with the most runs during the new starts. Later runs do not count: they would change the
        # result of an earlier look.
        ran_on.sort(key=lambda ran: len(ran.during.samples), reverse=True)
        near = ran_on[: self._pool.concurrent_starts]
        stays = [ran for ran in near if len(ran.during.samples) >= self._pool.concurrent_runs]
        until = max(start.times[-1] for start in after)
        # Waiting for a start with a run interval above 30 s would take too long.
        if not stays and any(ran.ends >= until and ran.before.pace <= 30 for ran in near):
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
        """Pair the continuing baseline starts with the first new starts, using only runs of the same period.

        A baseline start is left out if it ended in the first three quarters of the period, or has too few runs in the
        period. Later starts must not change the result, so only the first new starts are compared.

        Args:
            stays: Baseline starts that continued to run.
            after: Starts of the new image, in order of time.

        Returns:
            None if no baseline start is left, or if less than half of the new starts have enough runs in the period.
        """
        last = max((ran.ends for ran in stays), default=-math.inf)
        parts = (start.until(last) for start in after)
        new = [start for start in parts if len(start.samples) >= self._pool.fewest_new_runs]
        new = new[: self._pool.concurrent_starts]
        if not new or 2 * len(new) < len(after):
            return None
        began, until = min(start.times[0] for start in new), max(start.times[-1] for start in new)
        there = [
            ran._replace(during=during)
            for ran in stays
            if ran.ends >= began + 0.75 * (until - began)
            and len((during := _meanwhile(ran.during, new)).samples) >= self._pool.fewest_runs
        ]
        return Pair([ran.during for ran in there], new, there, is_same_period=True) if there else None

    def _concurrent(self, start: Start, after: Sequence[Start]) -> Concurrent | None:
        """Split the runs of one start into runs before the new starts and runs during the new starts.

        Returns:
            None if there are too few runs before the new starts, or no runs since the first new start began.
        """
        before = start.until(min(s.times[0] for s in after))
        if not self._pool.fewest_runs <= len(before.samples) < len(start.samples):
            return None
        # A start counts as running for ``gone_runs`` run intervals after its last run.
        ends = float(start.times[-1]) + self._pool.gone_runs * before.pace
        return Concurrent(before.latest(self._pool.baseline_runs), _meanwhile(start, after), ends)

    def teaching(self, starts: Sequence[Start], upgrade: Upgrade | None) -> list[Start]:
        """Select the runs from which the restart variance is estimated.

        For a replica that stays on the old image, only runs before the upgrade are selected. Later changes are caused
        by the host, and later runs must not change the verdict.

        Args:
            starts: All starts of a service, in order of time.
            upgrade: The upgrade; None to select all runs.
        """
        old = {start.boot: start.until(upgrade.at) for start in upgrade.before} if upgrade else {}
        long = {boot: part for boot, part in old.items() if len(part.samples) >= self._pool.fewest_runs}
        return [long.get(start.boot, start) for start in starts]

    def beside(self, siblings: Iterable[Start], upgrade: Upgrade, pairs: Sequence[Pair]) -> list[Pair]:
        """Return each sibling's runs before and since the upgrade, for siblings on a host of the new image.

        Args:
            siblings: Starts of other services on the host.
            pairs: The compared pairs. Runs of siblings after the last compared run do not count.

        Returns:
            One pair for each sibling. The second side is empty until the sibling has a run since the upgrade.
        """
        hosts = {start.generation.host for start in upgrade.after}
        until = max((start.times[-1] for pair in pairs for start in pair.after), default=-math.inf)
        beside = []
        for start in siblings:
            before = start.until(upgrade.at)
            if start.generation.host in hosts and before.samples:
                since = start.part(len(before.samples), int((start.times <= until).sum()))
                beside.append(Pair([before.latest(self._pool.baseline_runs)], [since]))
        return beside


def replica_of(pair: Pair, points: Callable[[Start], Series] = attrgetter("series")) -> Replica:
    """Convert a pair of starts to a replica, with one series for each start.

    Args:
        points: Function from a start to its values; latencies by default.
    """
    return Replica(
        [*map(points, pair.before)],
        [*map(points, pair.after)],
        [(points(each.before), points(each.during)) for each in pair.concurrent],
        pair.is_same_period,
    )


def _meanwhile(start: Start, after: Sequence[Start]) -> Start:
    """Return the start with only its runs that began while a new start was running."""
    firsts, lasts = np.array([(s.times[0], s.times[-1]) for s in after]).T
    times = start.times[:, None]
    ran = ((firsts <= times) & (times <= lasts)).any(axis=1)
    return Start(start.generation, [*compress(start.samples, ran)])


def grouped(starts: Iterable[Start], key: Callable[[Start], Any]) -> dict[Any, list[Start]]:
    """Group starts by a key. Each group keeps the order of ``starts``."""
    groups: dict[Any, list[Start]] = defaultdict(list)
    for start in starts:
        groups[key(start)].append(start)
    return groups
