"""Stage 2: align the runs: which starts are compared with which, at each look, and with which siblings beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from infercanary.judge.model import Pair, Start, Upgrade
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
    siblings: Sequence[Start] = ()
    """Starts of other services of the host that ran before the upgrade and since."""
    beside: Sequence[Pair] = ()
    """Their runs before the upgrade, and since up to the last run that is judged."""


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
        return Runs(selection)
    reached = max((len(start.samples) for start in upgrade.after), default=0)
    looks = looks_of(upgrade, policy)
    beside = spanning(siblings, upgrade.at)
    judged = looks[-1] if looks else ()
    # What siblings feel days later is no part of this shift.
    until = max((s.started_at for pair in judged for start in pair.after for s in start.samples), default=0.0)
    around = [_around(start, upgrade.at, until, policy) for start in beside]
    return Runs(
        selection,
        reached,
        looks,
        pairs(upgrade.own, upgrade.after, policy),
        beside,
        [pair for pair in around if pair.after[0].samples],
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
        for runs in policy.looks
        if runs <= reached
    ]


def pairs(before: Sequence[Start], after: Sequence[Start], policy: Policy) -> list[Pair]:
    """By container, so that what differs between replicas drops out; those with new names have the others' baseline.

    Args:
        before: Starts of the old image, in order of time.
        after: Starts of the new one, in order of time.
        policy: How many runs make a start count, and which of the baseline do.

    Returns:
        One for each container that both images ran in, and at most one more; none where either image has no start that
        counts.
    """
    old, new = _by_container(before, policy.fewest_runs), _by_container(after, policy.fewest_new_runs)
    latest = {name: [start.latest(policy.baseline_runs) for start in group] for name, group in old.items()}
    baseline = {name: group[-policy.history :] for name, group in latest.items()}
    orphans = [start for name, group in baseline.items() if name not in new for start in group]
    every = [start for group in baseline.values() for start in group]
    found = [Pair(baseline[name], group) for name, group in new.items() if name in baseline]
    # Those with new names are one pair: a baseline that several share is one measurement, not several. So where they
    # have it to share with those of old names, all are one.
    renamed = [start for name, group in new.items() if name not in old for start in group]
    if not renamed or not every:
        return found
    if not orphans:
        return [Pair(every, [start for group in new.values() for start in group])]
    return [*found, Pair(orphans, renamed)]


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
    before = [s for s in start.samples if s.started_at < at][-policy.baseline_runs :]
    after = [s for s in start.samples if at <= s.started_at <= until]
    return Pair([Start(start.generation, before)], [Start(start.generation, after)])
