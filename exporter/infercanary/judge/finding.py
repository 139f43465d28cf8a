"""The shift at each look, and what the looks amount to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from infercanary.judge.align import Alignment
from infercanary.judge.contention import left_waiting, uncontended
from infercanary.judge.evidence import is_single
from infercanary.judge.model import Pair, Start, Upgrade
from infercanary.judge.policy import Policy
from infercanary.judge.pooling import Pooling, Replica
from infercanary.judge.restarts import restarts_of
from infercanary.judge.result import State
from infercanary.judge.sequential import Looks, verdict_after
from infercanary.judge.shift import CHANGED, Comparison, Pooled, Restarts, Shift
from infercanary.judge.upgrade import Selection


class Look(NamedTuple):
    """The shift after so many runs of a start, and what it is by itself."""

    shift: Shift
    seen: Comparison
    runs: int
    pairs: Sequence[Pair]
    """The starts that were compared."""
    all_pairs: Sequence[Pair]
    """The same with all starts, where those of the same period alone were compared."""
    restarts: Restarts
    confirmed_at: int | None = None
    """Look that would call an unconfirmed change if it stays as it is; None if none would."""
    starts_needed: int | None = None
    """Starts that an unconfirmed change still needs where no look calls it; None where that is not known."""
    moved: float | None = None
    """Shift of replicas that stayed on the old image (a logarithm), which is taken off; None where nothing is."""


class Finding(NamedTuple):
    """The state of one upgrade, and the look that it rests on."""

    selection: Selection
    restarts: Restarts
    contended: int
    """Starts that are left out because they were contended."""
    state: State = "no_baseline"
    look: Look | None = None
    """The last look as it was measured; None where nothing can be compared yet."""
    unwaited: Look | None = None
    """The same after subtracting CPU wait, where only that is an answer."""
    own: Shift | None = None
    """After a rollback: the shift against what the same image did before."""


class Finder:
    """Compares the starts of an upgrade.

    Args:
        policy: The numbers that decide.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._alignment = Alignment(policy)
        self._pooling = Pooling(policy.pool)
        self._looks = Looks(policy.decide)

    def find(self, selection: Selection) -> Finding:
        """The shift of the selected upgrade, and what it amounts to.

        Args:
            selection: The upgrade, of which there may be none.

        Returns:
            `no_baseline` without an upgrade, or where the image before has too few runs on hardware of the same class;
            `settling` before the first look.
        """
        starts, upgrade, pool = selection.starts, selection.upgrade, self._policy.pool
        new = [] if upgrade is None else [s.first(self._policy.decide.looks[-1]) for s in upgrade.after]
        calm = uncontended(starts, new, pool)
        restarts = restarts_of(self._alignment.teaching(calm, upgrade), pool)
        found = Finding(selection, restarts, len(starts) - len(calm))
        if upgrade is None or not self._has_baseline(upgrade):
            return found
        left = {start.boot for start in calm}
        looks = self._replayed(
            upgrade._replace(before=[s for s in upgrade.before if s.boot in left]), restarts
        )
        own = (
            self._pooled(self._alignment.pairs(upgrade.own, upgrade.after), restarts) if upgrade.own else None
        )
        found = found._replace(state="settling", own=own and own.shift)
        if not looks:
            return found
        last = looks[-1]
        found = found._replace(state=_verdict(looks), look=last)
        unwaited = self._unwaited(starts, upgrade) if found.state in ("inconclusive", "unconfirmed") else None
        if unwaited is None or (state := _verdict(unwaited)) not in CHANGED:
            return found
        # What is called must be seen in the runs as they are, too.
        log = unwaited[-1].shift.log
        if abs(last.shift.log - log) > 0.75 * abs(log):
            return found
        return found._replace(state=state, unwaited=unwaited[-1])

    def beside(self, finding: Finding, siblings: Sequence[Start]) -> list[Pair]:
        """Siblings, and replicas that stay, beside the runs that a finding compares: their runs before the upgrade, and
        since.

        Args:
            finding: Of an upgrade.
            siblings: Starts of other services on the host, in order of time.
        """
        upgrade = finding.selection.upgrade
        if upgrade is None or finding.look is None:
            return []
        until = max(
            s.started_at for pair in finding.look.pairs for start in pair.after for s in start.samples
        )
        return self._alignment.beside([*siblings, *upgrade.stays], upgrade, until)

    def _has_baseline(self, upgrade: Upgrade) -> bool:
        classes = {start.hardware for start in upgrade.after}
        return any(
            len(start.samples) >= self._policy.pool.fewest_runs and any(map(start.is_comparable, classes))
            for start in upgrade.before
        )

    def _replayed(self, upgrade: Upgrade, restarts: Restarts) -> list[Look]:
        """The last look, and those before it that decide what it says.

        What a look says depends on earlier ones only where it is `unconfirmed`: then a change may have been called
        before. So most judgements take one look, however many were reached.
        """
        found: list[Look] = []
        for runs, reached in self._alignment.looks(upgrade):
            look = self._look(runs, reached, restarts)
            if look is None:
                break
            found.append(look)
            if look.seen.verdict != "unconfirmed":
                break
        if found and found[0].seen.verdict == "unconfirmed":
            found[0] = self._with_outlook(found[0])
        return found[::-1]

    def _look(self, runs: int, reached: Sequence[Pair], restarts: Restarts) -> Look | None:
        """All runs, or those of the same period alone where each pair has some, whichever have the smaller error.

        All are of more starts, and their error has what the host did before. The choice does not see the shift.
        """
        pooled, compared = self._pooled(reached, restarts), reached
        same = [pair.meanwhile for pair in reached if pair.meanwhile is not None]
        if same and len(same) == len(reached):
            other = self._pooled(same, restarts)
            if other is not None and (pooled is None or other.shift.se < pooled.shift.se):
                pooled, compared = other, same
        if pooled is None:
            return None
        seen = self._looks.assess(pooled)
        if not self._is_seen_as_it_is(seen, pooled, compared, restarts):
            seen = seen._replace(verdict="unconfirmed" if seen.verdict in CHANGED else "inconclusive")
        return Look(pooled.shift, seen, runs, compared, reached, restarts, moved=pooled.moved)

    def _with_outlook(self, look: Look) -> Look:
        """With how many more runs or starts would call its change. This takes time, so only the last look has it."""
        pooled = self._pooled(look.pairs, look.restarts)
        assert pooled is not None
        called = look.seen._replace(verdict="regressed")  # or improved: what either waits for is the same
        if not self._is_seen_as_it_is(called, pooled, look.pairs, look.restarts):
            return look  # a second replica would confirm it, and no number of runs
        confirmed = self._looks.confirmed_at(pooled, look.runs)
        if confirmed is not None:
            return look._replace(confirmed_at=confirmed)
        old, new = (sum(len(getattr(pair, side)) for pair in look.pairs) for side in ("old", "after"))
        return look._replace(starts_needed=self._looks.starts_needed(pooled, look.runs, old, new))

    def _is_seen_as_it_is(
        self, seen: Comparison, pooled: Pooled, compared: Sequence[Pair], restarts: Restarts
    ) -> bool:
        """Whether an answer needs no second replica on the old image to confirm it.

        A replica alone may have changed by itself, which would be attributed to the new image with the opposite sign.
        So the change must be seen in the runs as they are, too.
        """
        beside = {each.during.generation.container for pair in compared for each in pair.concurrent}
        if len(beside) != 1 or seen.verdict not in (*CHANGED, "equivalent"):
            return True
        raw = self._pooled([pair._replace(concurrent=(), stayed={}) for pair in compared], restarts)
        if raw is None:
            return False
        if seen.verdict == "equivalent":
            return abs(raw.log - pooled.log) <= self._policy.decide.log_effect
        return raw.log / pooled.log >= 0.5

    def _unwaited(self, starts: Sequence[Start], upgrade: Upgrade) -> list[Look] | None:
        """Looks after subtracting the CPU wait of each run; None where it is not known of a start that counts, or does
        not explain the scatter of the runs."""
        if not all(map(is_single, (*upgrade.before, *upgrade.after))):
            return None
        left = left_waiting(starts, self._policy.pool)
        known, fewest = {start.boot: start for start in left}, self._policy.pool.fewest_runs

        def same(several: Sequence[Start]) -> list[Start]:
            return [known[start.boot] for start in several if start.boot in known]

        quiet = Upgrade(upgrade.at, same(upgrade.before), same(upgrade.after), same(upgrade.own))
        judged = sum(len(start.samples) >= fewest for start in upgrade.after)
        if not quiet.before or len(quiet.after) < judged:
            return None
        scatters = [
            max(
                (s.series.scatter for s in (*of.before, *of.after) if len(s.samples) >= fewest),
                default=math.inf,
            )
            for of in (quiet, upgrade)
        ]
        if scatters[0] > 0.5 * scatters[1]:
            return None
        return (
            self._replayed(quiet, restarts_of(self._alignment.teaching(left, quiet), self._policy.pool))
            or None
        )

    def _pooled(self, compared: Sequence[Pair], restarts: Restarts) -> Pooled | None:
        return self._pooling.pooled([replica_of(pair) for pair in compared], restarts)


def replica_of(pair: Pair) -> Replica:
    """The latencies of a pair's starts."""
    return Replica(
        [start.series for start in pair.before],
        [start.series for start in pair.after],
        [(each.before.series, each.during.series) for each in pair.concurrent],
        {place: start.series for place, start in pair.stayed.items()},
    )


def _verdict(looks: Sequence[Look]) -> State:
    return verdict_after(look.seen for look in looks) or "settling"
