"""Verdict on one canary of one service: the upgrade, the compared runs, and the looks.

The verdict is a pure function of the stored records, so no state can be lost. Each judgement replays the looks with
all records. A start that began later adds its first runs to each look, and later restarts refine the restart
variance. So later evidence may take back an earlier verdict.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from infercanary.contract.vocabulary import CONTROLS
from infercanary.judge.causes import Attribution
from infercanary.judge.crowding import LATENCY, level
from infercanary.judge.finding import Finder, Finding
from infercanary.judge.identity import image_name, redrawn
from infercanary.judge.model import Pair, Sample, Start, Upgrade, have_alike_controls, medians
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.result import Causes, Doubts, Looks, Part, Result
from infercanary.judge.shift import CHANGED, ratio
from infercanary.judge.upgrade import Selection, select

_CONTRADICTIONS = [{"image", "host"}, {"image", "load"}, {"both", "load"}]


class Trial(NamedTuple):
    """Result of an A/A test, which judges a restart of the same image as if it were an upgrade."""

    looks: int
    """Number of looks that the start had reached."""
    called: bool
    """True if a change was called, which is a false alarm."""


Trials: TypeAlias = Mapping[tuple[str, str], Trial]
"""Trial of each start, by container and boot id."""


class Judge:
    """Judges upgrades of services by the thresholds of a policy."""

    def __init__(self, policy: Policy = LIVE) -> None:
        self._policy = policy
        self._attribution = Attribution(policy)
        self.finder = Finder(policy)

    def verdict(
        self,
        starts: Sequence[Start],
        siblings: Sequence[Start],
        canary: str,
        selection: Selection | None = None,
    ) -> Result:
        """Judge whether the last upgrade of a service changed the latency of a canary, by how much, and why.

        Args:
            starts: Starts of the service's containers with the runs of this canary, in order of time.
            siblings: Starts of other services on the host, one canary each, in order of time.
            selection: Result of :func:`select` for ``starts``, if already computed.

        Returns:
            State `no_baseline` if there was no upgrade or the old image has too few runs; `settling` before the first
            look.
        """
        selection = selection or select(starts)
        finding, causes = self._found(selection, siblings, canary)
        upgrade, look, looks = selection.upgrade, finding.look, self._policy.decide.looks
        if upgrade and look and look.runs > looks[0] and finding.state in CHANGED:
            # A single look may name a wrong cause, if a sibling, a replica or a control has just begun to count. So the
            # cause is unknown if the previous look named a contradicting cause.
            runs = max(runs for runs in looks if runs < look.runs)
            first = upgrade._replace(after=[start.first(runs) for start in upgrade.after])
            before = selection._replace(upgrade=first)
            earlier, others = self._found(before, siblings, canary)
            if earlier.state == finding.state and {causes.cause, others.cause} in _CONTRADICTIONS:
                causes = replace(causes, cause="unknown")
        return self._result(finding, causes)

    def trials(
        self, starts: Sequence[Start], known: Mapping[tuple[str, str], Trial] = {}, most: float = math.inf
    ) -> Trials:
        """Judge each restart of an unchanged image as if it were an upgrade (A/A test), which measures false alarms.

        A trial uses only starts before the judged start: an unusual restart would increase the restart variance and so
        hide itself. A trial is repeated only when its start has reached another look.

        Args:
            starts: Starts of a service, in order of time.
            known: Earlier trials.
            most: Largest number of new trials in this call. A trial costs as much CPU time as a judgement.

        Returns:
            Earlier and new trials.
        """
        fewest = 24  # smallest number of runs of both starts: with fewer, a trial seldom calls a change
        found: dict[tuple[str, str], Trial] = {}
        earlier: dict[tuple[str, ...], int] = {}
        for place, start in enumerate(starts):
            runs = len(start.samples)
            before, earlier[start.replica] = earlier.get(start.replica, 0), runs
            trial = known.get(start.boot, Trial(0, False))
            looks = bisect_right(self._policy.decide.looks, runs)
            if trial.looks < looks and most > 0 and min(before, runs) >= fewest:
                most -= 1
                past, after = starts[:place], start.reporting(image_id="tried")
                same = [other for other in past if other.work == start.work]
                upgrade = Upgrade(start.generation.started_at, same, [after], [])
                tried = self.finder.find(Selection([*past, after], upgrade, [after]))
                trial = Trial(looks, tried.state in CHANGED)
            if trial.looks:
                found[start.boot] = trial
        return found

    def _found(self, selection: Selection, siblings: Sequence[Start], canary: str) -> tuple[Finding, Causes]:
        finding = self.finder.find(selection)
        beside = self.finder.beside(finding, siblings)
        return finding, self._attribution.of_upgrade(finding, beside, canary)

    def _result(self, finding: Finding, causes: Causes) -> Result:
        selection, upgrade, look = finding.selection, finding.selection.upgrade, finding.look
        answer = finding.unwaited or look
        result = Result(
            state=finding.state,
            rolled_back_image=selection.rolled_back_image,
            settings_changed_at=selection.settings_changed_at,
            restart=(answer or finding).restarts,
        )
        if upgrade is None:
            return _without_upgrade(result, selection)
        replaced, running = upgrade.before[-1].generation, upgrade.after[-1].generation
        forms = {replaced.image_form, running.image_form} - {""}
        # The result shows latencies as measured, without subtracting CPU wait.
        pairs = look.pairs if look else [Pair(upgrade.before, upgrade.after)]
        old = [start for pair in pairs for start in pair.before]
        new = [start for pair in pairs for start in pair.after]
        stayed = [ran.during for pair in pairs for ran in pair.concurrent]
        compared = (*old, *new, *stayed)
        before, after = _runs(old), _runs(new)
        reached = max(len(start.samples) for start in upgrade.after)
        next_look = next((runs for runs in self._policy.decide.looks if runs > reached), None)
        result = replace(
            result,
            upgraded_at=upgrade.at,
            newest_at=running.started_at,
            rollback=bool(upgrade.own),
            own=finding.own and Part.of(finding.own, self._policy.attribute.history_confidence),
            changed=upgrade.changed,
            baseline_image=image_name(replaced),
            candidate_image=image_name(running),
            origins=(replaced.origin, running.origin),
            doubts=Doubts(len(forms) > 1, redrawn(selection.starts)),
            controls=_controls(before, (*old, *new)),
            looks=Looks(answer.runs, next_look, answer.needs_starts) if answer else Looks(0, next_look),
            concurrent=len({start.generation.container for start in stayed}),
            contended=finding.contended,
            causes=causes,
            runs=reached,
            starts=len({start.boot for start in compared}),
            hosts=len({start.generation.host for start in compared} - {""}),
        )
        if answer is None:
            return result
        moved = answer.pooled.moved
        return replace(
            result,
            baseline=level(before, LATENCY),
            current=level(after, LATENCY),
            medians=(_picture(before), _picture(after)),
            shift=answer.seen.shift,
            low=answer.seen.low,
            high=answer.seen.high,
            only=answer.pooled.resolution.only,
            concurrent_shift=None if moved is None else ratio(moved),
            is_unwaited=finding.unwaited is not None,
            runs=sum(sample.runs for sample in after),
        )


def _without_upgrade(result: Result, selection: Selection) -> Result:
    """Return the result for a service without an upgrade, with the runs of its only image."""
    if not selection.live:
        return result
    last = selection.live[-1]
    # Leave out the runs of a rolled-back image.
    starts = [start for start in selection.starts if start.identity == last.identity]
    same = _runs(starts)
    return replace(
        result,
        candidate_image=image_name(last.generation),
        runs=sum(sample.runs for sample in same),
        current=level(same, LATENCY) or None,
        controls=_controls(same, starts),
    )


def _runs(starts: Iterable[Start]) -> list[Sample]:
    return sorted((sample for start in starts for sample in start.samples), key=attrgetter("started_at"))


def _controls(runs: Sequence[Sample], starts: Iterable[Start]) -> dict[str, float]:
    """Return median seconds by control; empty if the starts ran different controls."""
    if not have_alike_controls(starts):
        return {}
    return {name: x for name, x in medians([s.controls for s in _some(runs)]).items() if name in CONTROLS}


def _picture(runs: Sequence[Sample]) -> list[float]:
    return [sample.median for sample in _some(runs) if sample.median]


def _some(runs: Sequence[Sample]) -> Sequence[Sample]:
    """Return at most 120 runs, evenly spread over time."""
    return runs[:: 1 + len(runs) // 120]
