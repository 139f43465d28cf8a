"""The verdict on one canary of one service: since which upgrade, on which runs, after how many looks.

Pure, and without memory: the same records give the same verdict, so that nothing of it can be lost. The looks are
replayed each time, with all that is known by now: a start that came later adds its first runs to each of them, and what
restarts have taught since counts. So evidence that comes late may take back a call that was made early.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from msgspec.structs import replace

from infercanary.contract.vocabulary import CONTROLS
from infercanary.judge.causes import Attribution
from infercanary.judge.finding import Finder, Finding
from infercanary.judge.identity import by_reference, image_name, redrawn
from infercanary.judge.model import Pair, Sample, Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.result import (
    Causes,
    ConcurrentBaseline,
    Doubts,
    Levels,
    Looks,
    Part,
    RestartVariance,
    Result,
)
from infercanary.judge.shift import CHANGED, ratio
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

    def verdict(self, starts: Sequence[Start], siblings: Sequence[Start], canary: str) -> Result:
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
                causes = replace(causes, cause="unknown")
        return self._result(finding, causes)

    def _found(self, selection: Selection, siblings: Sequence[Start], canary: str) -> tuple[Finding, Causes]:
        finding = self.finder.find(selection)
        beside = self.finder.beside(finding, siblings)
        return finding, self._attribution.of_upgrade(finding, beside, canary)

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

    def _result(self, finding: Finding, causes: Causes) -> Result:
        """The finding without the runs that it rests on."""
        selection, pool = finding.selection, self._policy.pool
        upgrade, look = selection.upgrade, finding.unwaited or finding.look
        restarts = (look or finding).restarts
        gone = selection.rolled_back
        result = Result(
            state=finding.state,
            rolled_back_image=image_name(gone.generation if gone else None),
            settings_changed_at=selection.settings_changed_at if finding.state == "no_baseline" else None,
            restart=RestartVariance(restarts.sd, pool.prior, restarts.df <= pool.restart_df),
        )
        if upgrade is None:
            return _without_upgrade(result, selection)
        replaced, running = upgrade.before[-1].generation, upgrade.after[-1].generation
        reached = max(len(start.samples) for start in upgrade.after)
        looks = Looks(next=next((at for at in self._policy.decide.looks if at > reached), None))
        pairs = look.pairs if look else [Pair(upgrade.before, upgrade.after)]
        after = [start for pair in pairs for start in pair.after]
        stayed = [each.during for pair in pairs for each in pair.concurrent]
        compared = [*(start for pair in pairs for start in pair.before), *after, *stayed]
        result = replace(
            result,
            upgraded_at=upgrade.at,
            newest_at=max(start.generation.started_at for start in upgrade.after),
            rollback=bool(upgrade.own),
            changed=upgrade.changed,
            baseline_image=image_name(replaced),
            candidate_image=image_name(running),
            origins=(replaced.origin, running.origin),
            doubts=Doubts(
                by_reference(replaced, running),
                redrawn(selection.starts) if upgrade.changed != "image" else 0,
            ),
            levels=Levels(controls=_controls(_samples(upgrade.before))),
            looks=looks,
            contended=finding.contended,
            causes=causes,
            runs=reached,
            starts=len({start.boot for start in compared}),
            hardware=_classes(after),
        )
        if finding.look is None or look is None:
            return result
        # People are shown the runs as they are.
        old = _samples(start for pair in finding.look.pairs for start in pair.old)
        new = _samples(start for pair in finding.look.pairs for start in pair.after)
        is_same_period = any(pair.stayed for pair in finding.look.pairs)
        own = finding.own
        return replace(
            result,
            shift=look.seen.shift,
            low=look.seen.low,
            high=look.seen.high,
            own=Part.of(own, self._policy.attribute.history_confidence)
            if own is not None and math.isfinite(own.se)
            else None,
            levels=Levels(_level(old), _level(new), _controls(old), look.shift.resolution.only),
            looks=Looks(look.runs, looks.next, look.confirmed_at, look.starts_needed),
            concurrent=ConcurrentBaseline(
                len({start.generation.container for start in stayed}),
                None if look.moved is None else ratio(look.moved),
            )
            if stayed
            else None,
            is_unwaited=finding.unwaited is not None,
            runs=_count(_samples(after)),
            hosts=len({start.generation.host for start in compared} - {""}),
            medians=_pictures(old, new if is_same_period else _samples(upgrade.after), is_same_period),
        )


def _without_upgrade(result: Result, selection: Selection) -> Result:
    """With the runs of the image that runs now: the next baseline."""
    if not selection.live:
        return result
    last = selection.live[-1]
    # Runs of an image that was rolled back are no part of the next baseline.
    same = _samples(start for start in selection.starts if start.identity == last.identity)
    return replace(
        result,
        candidate_image=image_name(last.generation),
        runs=_count(same),
        until=max((sample.started_at for sample in same), default=None),
        levels=Levels(current=_level(same), controls=_controls(same)),
    )


def _samples(starts: Iterable[Start]) -> list[Sample]:
    return [sample for start in starts for sample in start.samples]


def _count(samples: Iterable[Sample]) -> int:
    return sum(sample.runs for sample in samples)


def _level(samples: Iterable[Sample]) -> float | None:
    values = [sample.median for sample in samples if sample.median]
    return median(values) if values else None


def _controls(samples: Sequence[Sample]) -> dict[str, float]:
    return {
        name: median(seconds)
        for name in CONTROLS
        if (seconds := [sample.controls[name] for sample in samples if name in sample.controls])
    }


def _classes(starts: Iterable[Start]) -> tuple[str, ...]:
    """Names of the hardware: of the GPU or, without one, of the CPU."""
    return tuple(sorted({gpu or cpu for cpu, gpu in (start.hardware for start in starts)} - {""}))


def _pictures(
    before: Sequence[Sample], after: Sequence[Sample], is_same_period: bool, points: int = 120
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The last runs before and the first ones after; of the same period, the first ones of both."""
    old, new = (
        tuple(level for _, level in sorted((s.started_at, s.median) for s in samples if s.median))
        for samples in (before, after)
    )
    return old[:points] if is_same_period else old[-points:], new[:points]
