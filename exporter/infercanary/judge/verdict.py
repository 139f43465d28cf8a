"""The verdict on one canary of one service: since which upgrade, on which runs, after how many looks.

Pure, and without memory: the same records give the same verdict, so that nothing of it can be lost. The looks are
replayed each time, with all that is known by now: a start that came later adds its first runs to each of them, and what
restarts have taught since counts. So evidence that comes late may take back a call that was made early.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from infercanary.judge.causes import Attribution
from infercanary.judge.finding import Finder, Finding
from infercanary.judge.model import Causes, Judgement, Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.sentence import word
from infercanary.judge.shift import CHANGED, UNKNOWN
from infercanary.judge.upgrade import Selection, select

_CONTRADICTIONS = [{"image", "host"}, {"image", "load"}, {"both", "load"}]


class Judge:
    """Judges upgrades by one policy.

    Args:
        policy: The numbers that decide.
    """

    def __init__(self, policy: Policy = LIVE) -> None:
        self._policy = policy
        self._attribution = Attribution(policy)
        self.finder = Finder(policy)

    def verdict(self, starts: Sequence[Start], siblings: Sequence[Start], canary: str) -> Judgement:
        """Did the last upgrade of a service change the latency of ``canary``, by how much, and why.

        Args:
            starts: Of the service's containers, in order of time, with the runs of this canary.
            siblings: Starts of other services on the host, one canary each, in order of time.
            canary: Its name.

        Returns:
            `no_baseline` without an upgrade, or where the image before has too few runs; `settling` before the first
            look.
        """
        selection = select(starts, self._policy.pool)
        finding, causes = self._found(selection, siblings, canary)
        before = self._look_before(finding) if finding.state in CHANGED else None
        if before is not None:
            # More runs may refute a cause, but one look does not: a sibling, a replica or a control that began to count
            # may have made it. Until another look agrees, the cause is unknown.
            earlier, others = self._found(before, siblings, canary)
            if earlier.state == finding.state and {causes.cause, others.cause} in _CONTRADICTIONS:
                causes = msgspec.structs.replace(causes, cause="unknown")
        return word(finding, causes, self._policy)

    def _found(self, selection: Selection, siblings: Sequence[Start], canary: str) -> tuple[Finding, Causes]:
        finding = self.finder.find(selection)
        if finding.selection.upgrade is None:
            return finding, Causes()
        look, unwaited = finding.look, finding.unwaited
        causes = self._attribution.of_upgrade(
            finding.selection.upgrade,
            finding.selection.live,
            look.shift if look is not None else UNKNOWN,
            look.pairs if look is not None else (),
            self.finder.beside(finding, siblings),
            canary,
            all_pairs=look.all_pairs if look is not None else (),
            unwaited=(unwaited.shift, unwaited.pairs) if unwaited is not None else None,
        )
        return finding, causes

    def _look_before(self, finding: Finding) -> Selection | None:
        """The same upgrade as it was at the look before the last one; None at the first one."""
        upgrade, look = finding.selection.upgrade, finding.look
        earlier = [runs for runs in self._policy.decide.looks if look is not None and runs < look.runs]
        if upgrade is None or not earlier:
            return None
        first = {start.boot: start.first(earlier[-1]) for start in upgrade.after}
        after = [*first.values()]
        starts = [first.get(start.boot, start) for start in finding.selection.starts]
        return finding.selection._replace(starts=starts, upgrade=upgrade._replace(after=after))
