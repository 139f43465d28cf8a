"""Align the runs: which starts are compared with which, at each look, and with which siblings beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from infercanary.judge.model import Concurrent, Pair, Start, Upgrade
from infercanary.judge.policy import Policy


class Alignment:
    """Finds the starts that are compared.

    Args:
        policy: The looks, and which starts count.
    """

    def __init__(self, policy: Policy) -> None:
        self._pool = policy.pool
        self._looks = policy.decide.looks

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
        old, new = (
            _by_container(before, self._pool.fewest_runs),
            _by_container(after, self._pool.fewest_new_runs),
        )
        baseline = {name: group[-self._pool.history :] for name, group in old.items()}
        orphans = [start for name, group in baseline.items() if name not in new for start in group]
        every = [start for group in baseline.values() for start in group]
        found = [
            pair
            for name, group in new.items()
            if name in baseline and (pair := self._pair(baseline[name], group, before)) is not None
        ]
        # Those with new names are one pair: a baseline that several share is one measurement, not several. So where
        # they have it to share with those of old names, all are one.
        renamed = [start for name, group in new.items() if name not in old for start in group]
        if not renamed or not every:
            return found
        if not orphans:
            found, renamed = [], [start for group in new.values() for start in group]
        shared = self._pair(orphans or every, renamed, before)
        return found if shared is None else [*found, shared]

    def _pair(
        self, baseline: Sequence[Start], after: Sequence[Start], before: Sequence[Start]
    ) -> Pair | None:
        """The runs of ``baseline`` before those of ``after``, with the starts of ``before`` that ran on beside these.

        Runs of the same period are compared first: None while there are too few of them yet.
        """
        near = self._longest_beside(before, after)
        found = {
            start.boot: ran
            for start in (*near, *baseline)
            if (ran := self._concurrent(start, after)) is not None
        }
        enough = {
            boot for boot, ran in found.items() if len(ran.during.samples) >= self._pool.concurrent_runs
        }
        beside = [found[start.boot] for start in near if start.boot in enough]
        if not beside and any(
            self._is_awaited(start, found[start.boot], after) for start in near if start.boot in found
        ):
            return None
        left = [found[start.boot].before if start.boot in enough else start for start in baseline]
        same = self._same_period({start.boot for start in baseline}, after, beside)
        return Pair([start.latest(self._pool.baseline_runs) for start in left], after, beside, meanwhile=same)

    def _same_period(
        self, baseline: Collection[tuple[str, str]], after: Sequence[Start], beside: Sequence[Concurrent]
    ) -> Pair | None:
        """Those of ``baseline`` that are ``beside``, and the first starts of ``after`` while one of them goes on.

        A start that ended long before a new one did is not of its period. None where no new start has enough runs on
        both sides, or less than half of them. The first ones stay the same when others begin.
        """
        stays = [ran for ran in beside if ran.during.boot in baseline]
        if not stays:
            return None
        # Until its next run would be late, a start goes on.
        ends = [ran.during.times[-1] + self._pool.gone_runs * _every(ran.before) for ran in stays]
        found: dict[tuple[int, int], Start] = {}
        new: list[Start] = []
        for start in after:
            cut = start.first(int(np.searchsorted(start.times, max(ends), "right")))
            if len(cut.samples) < self._pool.fewest_new_runs:
                continue
            began, until = cut.times[0], cut.times[-1]
            same = {}
            for row, ran in enumerate(stays):
                first = int(np.searchsorted(ran.during.times, began))
                end = int(np.searchsorted(ran.during.times, until, "right"))
                is_there = min(ends[row], until) - began >= 0.75 * (until - began)
                if is_there and end - first >= self._pool.concurrent_runs:
                    same[row, len(new)] = ran.during.part((first, end))
            if same:
                found |= same
                new.append(cut)
            if len(new) == self._pool.concurrent_starts:
                break
        if 2 * len(new) < len(after) or not new:
            return None
        rows = sorted({row for row, _ in found})
        stayed = {(rows.index(row), column): during for (row, column), during in found.items()}
        there = [stays[row] for row in rows]
        return Pair([ran.before for ran in there], new, there, stayed)

    def _is_awaited(self, start: Start, ran: Concurrent, after: Sequence[Start]) -> bool:
        """Whether ``start`` goes on beside ``after``, and will soon have enough runs."""
        every = _every(ran.before)
        goes_on = start.times[-1] + self._pool.gone_runs * every >= max(
            s.samples[-1].started_at for s in after
        )
        return bool(goes_on) and every <= 30  # seconds: one that runs more seldom is not waited for

    def _longest_beside(self, before: Sequence[Start], after: Sequence[Start]) -> Sequence[Start]:
        """Those of ``before`` that ran on beside ``after`` for longest, in the order that they have.

        What comes after the last run of ``after`` does not count, so a look stays as it was.
        """
        most = self._pool.concurrent_starts
        if len(before) <= most:
            return before
        began, until = (
            min(s.samples[0].started_at for s in after),
            max(s.samples[-1].started_at for s in after),
        )

        def meanwhile(place: int) -> tuple[bool, int]:
            first, end = np.searchsorted(before[place].times, [began, np.nextafter(until, np.inf)])
            return bool(first >= self._pool.fewest_runs), int(end - first)

        chosen = sorted(range(len(before)), key=meanwhile, reverse=True)[:most]
        return [before[place] for place in sorted(chosen)]

    def _concurrent(self, start: Start, after: Sequence[Start]) -> Concurrent | None:
        """The runs of ``start`` before ``after`` and meanwhile; None where too few are before, or it did not go on."""
        times, began = start.times, min(s.samples[0].started_at for s in after)
        first = int(np.searchsorted(times, began))
        if not max(self._pool.fewest_runs, 2) <= first < times.size:
            return None
        ran = [(s.samples[0].started_at, s.samples[-1].started_at) for s in after]
        firsts, lasts = np.searchsorted(times, ran)[:, 0], np.searchsorted(times, ran, "right")[:, 1]
        during = _merged(zip(firsts.tolist(), lasts.tolist(), strict=True))
        return Concurrent(start.part((max(0, first - self._pool.baseline_runs), first)), start.part(*during))

    def teaching(self, starts: Sequence[Start], upgrade: Upgrade | None) -> list[Start]:
        """The starts that show the restart variance.

        Of a replica that stays on the old image those are its runs before the upgrade: what the host did since is no
        sign that starts differ, and the same runs give the same verdict again.

        Args:
            starts: Of a service, in order of time.
            upgrade: The one that is judged; None without any.
        """
        image = {start.boot for start in upgrade.before} if upgrade is not None else set()
        found = []
        for start in starts:
            earlier = int(np.searchsorted(start.times, upgrade.at)) if upgrade and start.boot in image else 0
            found.append(start.part((0, earlier)) if earlier >= self._pool.fewest_runs else start)
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
        return [
            Pair(
                [
                    Start(
                        s.generation, [x for x in s.samples if x.started_at < at][-self._pool.baseline_runs :]
                    )
                ],
                [Start(s.generation, [x for x in s.samples if at <= x.started_at <= until])],
            )
            for s in siblings
            if s.generation.host in hosts and s.samples and s.samples[0].started_at < at
        ]


def _every(start: Start) -> float:
    """Seconds between its runs, on average."""
    return float(np.ptp(start.times)) / (start.times.size - 1)


def _merged(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, and each place in one of them."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(stretches):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def _by_container(starts: Iterable[Start], fewest: int) -> dict[str, list[Start]]:
    groups: dict[str, list[Start]] = {}
    for start in starts:
        if len(start.samples) >= fewest:
            groups.setdefault(start.generation.container, []).append(start)
    return groups
