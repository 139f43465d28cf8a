"""The verdict on one canary of one service: since which upgrade, on which runs, after how many looks.

Pure, and without memory: the same records give the same verdict, so that nothing of it can be lost. The looks are
replayed each time, with all that is known by now: a start that came later adds its first runs to each of them, and what
restarts have taught since counts. So evidence that comes late may take back a call that was made early.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec.structs import replace

from infercanary.contract.vocabulary import CONTROLS
from infercanary.judge.causes import Attribution
from infercanary.judge.finding import Finder, Finding
from infercanary.judge.identity import image_name, redrawn
from infercanary.judge.model import Pair, Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.result import Causes, Part, Result
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
        looks = [runs for runs in self._policy.decide.looks if finding.look and runs < finding.look.runs]
        if selection.upgrade is not None and looks and finding.state in CHANGED:
            # More runs may refute a cause, but one look does not: a sibling, a replica or a control that began to count
            # may have made it. Until another look agrees, the cause is unknown.
            first = {start.boot: start.first(looks[-1]) for start in selection.upgrade.after}
            before = selection._replace(
                starts=[first.get(start.boot, start) for start in selection.starts],
                upgrade=selection.upgrade._replace(after=[*first.values()]),
            )
            earlier, others = self._found(before, siblings, canary)
            if earlier.state == finding.state and {causes.cause, others.cause} in _CONTRADICTIONS:
                causes = replace(causes, cause="unknown")
        return self._result(finding, causes)

    def _found(self, selection: Selection, siblings: Sequence[Start], canary: str) -> tuple[Finding, Causes]:
        finding = self.finder.find(selection)
        beside = self.finder.beside(finding, siblings)
        return finding, self._attribution.of_upgrade(finding, beside, canary)

    def _result(self, finding: Finding, causes: Causes) -> Result:
        """The finding without the runs that it rests on."""
        selection, upgrade, look = finding.selection, finding.selection.upgrade, finding.look
        answer = finding.unwaited or look
        result = Result(
            state=finding.state,
            rolled_back_image=image_name(selection.rolled_back),
            settings_changed_at=selection.settings_changed_at,
            restart=(answer or finding).restarts,
        )
        if upgrade is None:
            return _without_upgrade(result, selection)
        replaced, running = upgrade.before[-1].generation, upgrade.after[-1].generation
        # People are shown the runs as they are.
        pairs = look.pairs if look else [Pair(upgrade.before, upgrade.after)]
        old = [start for pair in pairs for start in pair.before]
        new = [start for pair in pairs for start in pair.after]
        stayed = [each.during for pair in pairs for each in pair.concurrent]
        compared = (*old, *new, *stayed)
        reached = max(len(start.samples) for start in upgrade.after)
        own = finding.own
        result = replace(
            result,
            upgraded_at=upgrade.at,
            newest_at=max(start.generation.started_at for start in upgrade.after),
            rollback=bool(upgrade.own),
            own=Part.of(own, self._policy.attribute.history_confidence) if own else None,
            changed=upgrade.changed,
            baseline_image=image_name(replaced),
            candidate_image=image_name(running),
            origins=(replaced.origin, running.origin),
            is_by_reference="" != replaced.image_form != running.image_form != "",
            redrawn=redrawn(selection.starts),
            controls=_controls(old),
            next_look=next((runs for runs in self._policy.decide.looks if runs > reached), None),
            concurrent=len({start.generation.container for start in stayed}),
            contended=finding.contended,
            causes=causes,
            runs=reached,
            starts=len({start.boot for start in compared}),
            hosts=len({start.generation.host for start in compared} - {""}),
            hardware=tuple(sorted({gpu or cpu for cpu, gpu in (start.hardware for start in new)} - {""})),
        )
        if answer is None:
            return result
        before, after = _latencies(old), _latencies(new)
        return replace(
            result,
            baseline=_middle(before),
            current=_middle(after),
            medians=(_thinned(before), _thinned(after)),
            shift=answer.seen.shift,
            low=answer.seen.low,
            high=answer.seen.high,
            only=answer.shift.resolution.only,
            last_look=answer.runs,
            confirmed_at=answer.confirmed_at,
            concurrent_shift=None if answer.pooled.moved is None else ratio(answer.pooled.moved),
            is_unwaited=finding.unwaited is not None,
            runs=_count(new),
        )


def _without_upgrade(result: Result, selection: Selection) -> Result:
    """With the runs of the image that runs now: the next baseline."""
    if not selection.live:
        return result
    last = selection.live[-1]
    # Runs of an image that was rolled back are no part of the next baseline.
    same = [start for start in selection.starts if start.identity == last.identity]
    return replace(
        result,
        candidate_image=image_name(last.generation),
        runs=_count(same),
        until=max((sample.started_at for start in same for sample in start.samples), default=None),
        current=_middle(_latencies(same)),
        controls=_controls(same),
    )


def _latencies(starts: Iterable[Start]) -> list[float]:
    """Seconds, in order of time."""
    runs = sorted((s.started_at, s.median) for start in starts for s in start.samples if s.median)
    return [seconds for _, seconds in runs]


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _thinned(values: Sequence[float], most: int = 120) -> Sequence[float]:
    """At most so many, evenly spaced, for a picture."""
    return values[:: 1 + len(values) // most]


def _count(starts: Iterable[Start]) -> int:
    return sum(sample.runs for start in starts for sample in start.samples)


def _controls(starts: Sequence[Start]) -> dict[str, float]:
    found = {
        name: [s.controls[name] for start in starts for s in start.samples if name in s.controls]
        for name in CONTROLS
    }
    return {name: median(seconds) for name, seconds in found.items() if seconds}
