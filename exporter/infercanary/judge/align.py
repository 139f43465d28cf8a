"""Stage 2: align the runs: which starts are compared with which, at each look, and with which siblings beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from infercanary.judge.host import uncontended
from infercanary.judge.model import Concurrent, Pair, Start, Upgrade
from infercanary.judge.policy import Policy
from infercanary.judge.upgrade import Selection


class Runs(NamedTuple):
    """What is compared. A look is made when a start of the new image has so many runs."""

    selection: Selection
    reached: int = 0
    """Runs of the new image's start that has most."""
    looks: Sequence[Sequence[Pair]] = ()
    """At each look that was reached, for each replica its starts before and after."""
    own: Sequence[Pair] = ()
    """After a rollback: the same with the new image's own starts of before."""
    taught: Sequence[Start] = ()
    """What shows how much starts of one image differ."""
    contended: int = 0
    """Starts that are left out because they were contended."""
    siblings: Sequence[Start] = ()
    """Starts of other services of the host that ran before the upgrade and since."""
    beside: Sequence[Pair] = ()
    """Runs of siblings before the upgrade, and since up to the last run that is judged: there may be none yet."""


def align(selection: Selection, siblings: Sequence[Start], policy: Policy) -> Runs:
    """The runs of the selected upgrade as they are compared.

    Args:
        selection: The upgrade, of which there may be none.
        siblings: Starts of other services on the host, one canary each, in order of time.
        policy: The looks, and which starts count.

    Returns:
        The pairs and their siblings; no looks without an upgrade, or before the first one.
    """
    upgrade = selection.upgrade
    if upgrade is None:
        calm = uncontended(selection.starts, [], policy)
        return Runs(selection, taught=calm, contended=len(selection.starts) - len(calm))
    reached = max((len(start.samples) for start in upgrade.after), default=0)
    new = [start.first(policy.decide.looks[-1]) for start in upgrade.after]
    calm = uncontended(selection.starts, new, policy)
    left = {start.boot for start in calm}
    looks = looks_of(upgrade._replace(before=[s for s in upgrade.before if s.boot in left]), policy)
    beside = spanning(siblings, upgrade.at)
    judged = looks[-1] if looks else ()
    # What siblings feel days later is no part of this shift.
    until = max((s.started_at for pair in judged for start in pair.after for s in start.samples), default=0.0)
    hosts = {start.generation.host for start in upgrade.after}
    there = (
        s
        for s in siblings
        if s.generation.host in hosts and s.samples and s.samples[0].started_at < upgrade.at
    )
    return Runs(
        selection,
        reached,
        looks,
        taught=teaching(calm, upgrade, policy),
        contended=len(selection.starts) - len(calm),
        own=pairs(upgrade.own, upgrade.after, policy),
        siblings=beside,
        beside=[_around(s, upgrade.at, until, policy) for s in there],
    )


def looks_of(upgrade: Upgrade, policy: Policy) -> list[list[Pair]]:
    """The pairs at each look that the new image's starts have reached: its first runs, against all of the baseline.

    Args:
        upgrade: With all runs of each start.
        policy: The looks, and which starts count.

    Returns:
        For each look, in order, its pairs; there are none where no start of the old image has enough runs.
    """
    reached = max((len(start.samples) for start in upgrade.after), default=0)
    return [
        pairs(upgrade.before, [start.first(runs) for start in upgrade.after], policy)
        for runs in policy.decide.looks
        if runs <= reached
    ]


def pairs(before: Sequence[Start], after: Sequence[Start], policy: Policy) -> list[Pair]:
    """Within each class of hardware, the starts that are compared with each other: never across.

    Args:
        before: Starts of the old image, in order of time.
        after: Starts of the new one, in order of time.
        policy: How many runs make a start count, and which of the baseline do.

    Returns:
        Those of each class; none of a class that the old image did not run on.
    """
    classes: dict[tuple[str, str], list[Start]] = {}
    for start in after:
        classes.setdefault(start.hardware, []).append(start)
    return [
        pair
        for hardware, of_class in classes.items()
        for pair in _pairs([start for start in before if start.is_comparable(hardware)], of_class, policy)
    ]


def _pairs(before: Sequence[Start], after: Sequence[Start], policy: Policy) -> list[Pair]:
    """By container, so that what differs between replicas drops out; those with new names have the others' baseline.

    Replicas that stay on the old image are beside each pair, with their runs of the same minutes. What they moved by
    since before is taken off: nothing was restarted, and a replica's own level drops out. Where they are the baseline
    themselves, they can be compared in the same minutes alone, too. There is one pair for each container that both
    images ran in, and at most one more; none where either image has no start that counts, or while replicas on the old
    image have too few runs of the same minutes.
    """
    old, new = (
        _by_container(before, policy.pool.fewest_runs),
        _by_container(after, policy.pool.fewest_new_runs),
    )
    baseline = {name: group[-policy.pool.history :] for name, group in old.items()}
    orphans = [start for name, group in baseline.items() if name not in new for start in group]
    every = [start for group in baseline.values() for start in group]
    found = [
        pair
        for name, group in new.items()
        if name in baseline and (pair := _pair(baseline[name], group, before, policy)) is not None
    ]
    # Those with new names are one pair: a baseline that several share is one measurement, not several. So where they
    # have it to share with those of old names, all are one.
    renamed = [start for name, group in new.items() if name not in old for start in group]
    if not renamed or not every:
        return found
    if not orphans:
        found, renamed = [], [start for group in new.values() for start in group]
    shared = _pair(orphans or every, renamed, before, policy)
    return found if shared is None else [*found, shared]


def _pair(
    baseline: Sequence[Start], after: Sequence[Start], before: Sequence[Start], policy: Policy
) -> Pair | None:
    """The runs of ``baseline`` before those of ``after``, with the starts of ``before`` that ran on beside these.

    Those of the same minutes are compared with first: None while there are too few of them yet.
    """
    near = _longest_beside(before, after, policy)
    starts = {start.boot: start for start in (*near, *baseline)}
    found = {
        boot: each
        for boot, start in starts.items()
        if (each := _concurrent(start, after, policy)) is not None
    }
    enough = {boot for boot, each in found.items() if len(each.during.samples) >= policy.pool.concurrent_runs}
    beside = [found[start.boot] for start in near if start.boot in enough]
    if not beside and any(
        _awaited(start, found[start.boot], after, policy) for start in near if start.boot in found
    ):
        return None
    left = [found[start.boot].before if start.boot in enough else start for start in baseline]
    meanwhile = _same_minutes({start.boot for start in baseline}, after, beside, policy)
    return Pair(
        [start.latest(policy.pool.baseline_runs) for start in left], after, beside, meanwhile=meanwhile
    )


def _same_minutes(
    baseline: Collection[tuple[str, str]],
    after: Sequence[Start],
    beside: Sequence[Concurrent],
    policy: Policy,
) -> Pair | None:
    """Those of ``baseline`` that are ``beside``, and the first starts of ``after`` while one of them goes on.

    A start that ended long before a new one did is not of its minutes. None where no new start has enough runs on both
    sides. The first ones are as many as a verdict has time for, and stay the same when others begin.
    """
    stays = [each for each in beside if each.during.boot in baseline]
    if not stays:
        return None
    # Until its next run would be late, a start goes on.
    ends = [each.during.times[-1] + policy.pool.gone_runs * _every(each.before) for each in stays]
    found: dict[tuple[int, int], Start] = {}
    new: list[Start] = []
    for start in after:
        cut = start.first(int(np.searchsorted(start.times, max(ends), "right")))
        if len(cut.samples) < policy.pool.fewest_new_runs:
            continue
        began, until = cut.times[0], cut.times[-1]
        ran = {}
        for row, each in enumerate(stays):
            first = int(np.searchsorted(each.during.times, began))
            end = int(np.searchsorted(each.during.times, until, "right"))
            is_there = min(ends[row], until) - began >= policy.attribute.whole_share * (until - began)
            if is_there and end - first >= policy.pool.concurrent_runs:
                ran[row] = each.during.part((first, end))
        if ran:
            found |= {(row, len(new)): during for row, during in ran.items()}
            new.append(cut)
        if len(new) == policy.pool.concurrent_starts:
            break
    if not new:
        return None
    rows = sorted({row for row, _ in found})
    stayed = {(rows.index(row), column): during for (row, column), during in found.items()}
    there = [stays[row] for row in rows]
    return Pair([each.before for each in there], new, there, stayed)


def _every(start: Start) -> float:
    """Seconds between its runs, on average."""
    return float(np.ptp(start.times)) / (start.times.size - 1)


def _awaited(start: Start, found: Concurrent, after: Sequence[Start], policy: Policy) -> bool:
    """Whether ``start`` goes on beside ``after``, and will soon have enough runs."""
    every = _every(found.before)
    goes_on = start.times[-1] + policy.pool.gone_runs * every >= max(s.samples[-1].started_at for s in after)
    return bool(goes_on) and every <= policy.pool.concurrent_seconds


def _longest_beside(before: Sequence[Start], after: Sequence[Start], policy: Policy) -> Sequence[Start]:
    """Those of ``before`` that ran on beside ``after`` for longest, in the order that they have.

    First those with enough runs before and meanwhile. What comes after the last run of ``after`` does not count, so a
    look stays as it was.
    """
    if len(before) <= policy.pool.concurrent_starts:
        return before
    began = min(s.samples[0].started_at for s in after)
    until = max(s.samples[-1].started_at for s in after)

    def rank(place: int) -> tuple[bool, bool, float]:
        times = before[place].times
        first, end = np.searchsorted(times, began), np.searchsorted(times, until, "right")
        meanwhile = float(times[end - 1] - began) if end > first else 0.0
        return (
            bool(first >= max(policy.pool.fewest_runs, 2)),
            bool(end - first >= policy.pool.concurrent_runs),
            meanwhile,
        )

    chosen = sorted(range(len(before)), key=rank, reverse=True)[: policy.pool.concurrent_starts]
    return [before[place] for place in sorted(chosen)]


def _concurrent(start: Start, after: Sequence[Start], policy: Policy) -> Concurrent | None:
    """What ``start`` did before ``after`` and meanwhile; None where it has too few runs before, or did not go on."""
    times, began = start.times, min(s.samples[0].started_at for s in after)
    first = int(np.searchsorted(times, began))
    if not max(policy.pool.fewest_runs, 2) <= first < times.size:
        return None
    ran = [(s.samples[0].started_at, s.samples[-1].started_at) for s in after]
    firsts, lasts = np.searchsorted(times, ran)[:, 0], np.searchsorted(times, ran, "right")[:, 1]
    during = _merged(zip(firsts.tolist(), lasts.tolist(), strict=True))
    return Concurrent(start.part((max(0, first - policy.pool.baseline_runs), first)), start.part(*during))


def _merged(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """In order, and each place in one of them."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(stretches):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def teaching(starts: Sequence[Start], upgrade: Upgrade | None, policy: Policy) -> list[Start]:
    """What shows how much starts of one image differ.

    Of a replica that stays on the old image that is what it did before the upgrade: what the host did since is no sign
    that starts differ, and the same runs give the same verdict again.

    Args:
        starts: Of a service, in order of time.
        upgrade: The one that is judged; None without any.
        policy: How many runs make a start count.

    Returns:
        The starts, of which some have fewer runs.
    """
    if upgrade is None:
        return [*starts]
    image = {start.boot for start in upgrade.before}
    found = []
    for start in starts:
        earlier = int(np.searchsorted(start.times, upgrade.at)) if start.boot in image else 0
        found.append(start.part((0, earlier)) if earlier >= policy.pool.fewest_runs else start)
    return found


def spanning(siblings: Iterable[Start], at: float) -> list[Start]:
    """Those that ran before that time and after.

    Args:
        siblings: Starts of other services on the host.
        at: Unix seconds.

    Returns:
        Starts with all their runs, in the same order.
    """
    return [s for s in siblings if s.samples and s.samples[0].started_at < at <= s.samples[-1].started_at]


def _by_container(starts: Iterable[Start], fewest: int) -> dict[str, list[Start]]:
    groups: dict[str, list[Start]] = {}
    for start in starts:
        if len(start.samples) >= fewest:
            groups.setdefault(start.generation.container, []).append(start)
    return groups


def _around(start: Start, at: float, until: float, policy: Policy) -> Pair:
    """A start that went on, before and after that time."""
    before = [s for s in start.samples if s.started_at < at][-policy.pool.baseline_runs :]
    after = [s for s in start.samples if at <= s.started_at <= until]
    return Pair([Start(start.generation, before)], [Start(start.generation, after)])
