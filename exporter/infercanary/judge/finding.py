"""Finding: the shift of an upgrade at each look, and the resulting state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from infercanary.judge.align import Alignment, replica_of
from infercanary.judge.contention import left_waiting, uncontended
from infercanary.judge.evidence import is_single
from infercanary.judge.model import Pair, Start, Upgrade
from infercanary.judge.policy import Policy
from infercanary.judge.pooling import Pooling
from infercanary.judge.restarts import restarts_of
from infercanary.judge.result import State
from infercanary.judge.sequential import SequentialTest, verdict_after
from infercanary.judge.shift import CHANGED, Comparison, Pooled, Restarts, Shift, Verdict
from infercanary.judge.upgrade import Selection


class Look(NamedTuple):
    """A look: the shift after a number of runs, and the verdict of this look alone."""

    pooled: Pooled
    needs_starts: bool
    """True if an unconfirmed change needs more starts or replicas, because more runs alone would not confirm it."""
    seen: Comparison
    """Verdict, and the shift with its interval."""
    runs: int
    """Run count of the look."""
    pairs: Sequence[Pair]
    """The compared starts."""
    restarts: Restarts

    @property
    def shift(self) -> Shift:
        """Shift with its total error."""
        return self.pooled.shift


class Finding(NamedTuple):
    """State of one upgrade, and the last look at it."""

    selection: Selection
    restarts: Restarts
    contended: int
    """Number of contended starts that were excluded."""
    state: State = "no_baseline"
    look: Look | None = None
    """The last look; None if nothing can be compared yet."""
    unwaited: Look | None = None
    """The last look after subtracting CPU wait, if a change is called only after this subtraction; otherwise None."""
    own: Shift | None = None
    """After a rollback: the shift from earlier runs of the same image; None otherwise."""


class Finder:
    """Compares the starts of an upgrade by a policy."""

    def __init__(self, policy: Policy) -> None:
        self._pool, self._effect = policy.pool, policy.decide.log_effect
        self._last_look = policy.decide.looks[-1]
        self._alignment = Alignment(policy.pool, policy.decide.looks)
        self._pooling = Pooling(policy.pool)
        self._test = SequentialTest(policy.decide)

    def find(self, selection: Selection) -> Finding:
        """Return the shift of the selected upgrade and its state.

        Returns:
            State `no_baseline` if there was no upgrade, or if the old image has too few runs on comparable hardware;
            `settling` before the first look.
        """
        starts, upgrade = selection.starts, selection.upgrade
        new = [] if upgrade is None else [s.first(self._last_look) for s in upgrade.after]
        calm = uncontended(starts, new, self._pool)
        restarts = restarts_of(self._alignment.teaching(calm, upgrade), self._pool)
        finding = Finding(selection, restarts, len(starts) - len(calm))
        if upgrade is None or not self._has_baseline(upgrade):
            return finding
        left = {start.boot for start in calm}
        before = [start for start in upgrade.before if start.boot in left]
        looks = self._replayed(upgrade._replace(before=before), restarts)
        own = self._pooling.pooled(
            [*map(replica_of, self._alignment.pairs(upgrade.own, upgrade.after))], restarts
        )
        finding = finding._replace(
            state=verdict_after(look.seen for look in looks) or "settling",
            look=looks[-1] if looks else None,
            own=own and own.shift,
        )
        if finding.state not in ("inconclusive", "unconfirmed"):
            return finding
        unwaited = self._unwaited(starts, upgrade)
        # A change must also be visible without subtracting CPU wait, in the same direction and of similar size.
        state = verdict_after(look.seen for look in unwaited)
        if state in CHANGED and 0.25 <= looks[-1].pooled.log / unwaited[-1].pooled.log <= 1.75:
            return finding._replace(state=state, unwaited=unwaited[-1])
        return finding

    def beside(self, finding: Finding, siblings: Sequence[Start]) -> list[Pair]:
        """Return the runs of siblings and of replicas on the old image, before and since the upgrade.

        Args:
            finding: Finding whose last compared run ends the period.
            siblings: Starts of other services on the host, in order of time.
        """
        upgrade, look = finding.selection.upgrade, finding.look
        if upgrade is None or look is None:
            return []
        return self._alignment.beside([*siblings, *upgrade.stays], upgrade, look.pairs)

    def _has_baseline(self, upgrade: Upgrade) -> bool:
        classes = {start.hardware for start in upgrade.after}
        return any(
            len(start.samples) >= self._pool.fewest_runs and any(map(start.is_comparable, classes))
            for start in upgrade.before
        )

    def _replayed(self, upgrade: Upgrade, restarts: Restarts) -> list[Look]:
        """Return the looks that the verdict depends on, in order of time: the last look and some before it.

        Only an `unconfirmed` verdict depends on earlier looks, because an earlier look may have called the change. So
        most judgements compute one look.
        """
        found: list[Look] = []
        for runs, reached in self._alignment.looks(upgrade):
            look = self._look(runs, reached, restarts)
            if look is None:
                break
            found.append(look)
            if look.seen.verdict != "unconfirmed":
                break
        return found[::-1]

    def _look(self, runs: int, reached: Sequence[Pair], restarts: Restarts) -> Look | None:
        """Return a look at all runs or at runs of the same period, whichever has the smaller standard error.

        All runs include more starts, but also earlier changes of the host. Runs of the same period are used only if
        each pair has such runs. The choice does not depend on the shift, so it does not bias the verdict.
        """
        same = [pair.meanwhile for pair in reached if pair.meanwhile is not None]
        found = [
            (pooled, pairs)
            for pairs in (reached, same if len(same) == len(reached) else [])
            if (pooled := self._pooling.pooled([*map(replica_of, pairs)], restarts)) is not None
        ]
        if not found:
            return None
        pooled, pairs = min(found, key=lambda each: each[0].shift.se)
        look = Look(pooled, self._test.needs_starts(pooled), self._test.assess(pooled), runs, pairs, restarts)
        if not self._is_seen_unadjusted(look, reached):
            verdict: Verdict = "unconfirmed" if look.seen.verdict in CHANGED else "inconclusive"
            return look._replace(seen=look.seen._replace(verdict=verdict), needs_starts=True)
        return look

    def _is_seen_unadjusted(self, look: Look, reached: Sequence[Pair]) -> bool:
        """Return True if a look's verdict also holds without subtracting the shift of the only replica on the old
        image.

        The replica on the old image may have changed for its own reason. Then subtracting the replica's shift would
        make the new image appear changed in the opposite direction.
        """
        beside = {ran.during.generation.container for pair in look.pairs for ran in pair.concurrent}
        if len(beside) != 1 or look.seen.verdict == "inconclusive":
            return True
        alone = [replica_of(pair._replace(concurrent=())) for pair in reached]
        unadjusted, adjusted = self._pooling.shift(alone, look.restarts).log, look.pooled.log
        if look.seen.verdict == "equivalent":
            return abs(unadjusted - adjusted) <= self._effect
        return unadjusted / adjusted >= 0.5

    def _unwaited(self, starts: Sequence[Start], upgrade: Upgrade) -> list[Look]:
        """Return the looks after subtracting CPU wait.

        Returns:
            Empty if an engine has several threads, if the wait of a new start is unknown, or if the wait does not
            explain the scatter of the runs.
        """
        if not all(map(is_single, (*upgrade.before, *upgrade.after))):
            return []
        after = [start for start in upgrade.after if len(start.samples) >= self._pool.fewest_new_runs]
        quiet = upgrade._replace(before=left_waiting(upgrade.before), after=left_waiting(after))
        fewest = self._pool.fewest_runs
        adjusted, raw = (
            max(
                (s.series.shape.scatter for s in (*of.before, *of.after) if len(s.samples) >= fewest),
                default=0.0,
            )
            for of in (quiet, upgrade)
        )
        if len(quiet.after) < len(after) or adjusted > 0.5 * raw:
            return []
        return self._replayed(
            quiet, restarts_of(self._alignment.teaching(left_waiting(starts), quiet), self._pool)
        )
