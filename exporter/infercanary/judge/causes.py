"""Attribute a shift: to host or image, to phases, controls and versions.

The control of an experiment is what the treatment cannot touch (difference in differences; Angrist and Pischke,
"Mostly Harmless Econometrics", 2009, chapter 5). Here the treatment is the new image, and two things it cannot touch:

- the controls, tiny work that is the same in every image, run in the same container after each canary run;
- sibling containers of the same host whose image did not change.

What they share with the canary is the host's part of a shift; the rest is the image's. A control depends on one
resource alone, and a canary on several: so a control's shift bounds the host's part, it is not multiplied by anything.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from infercanary.contract.vocabulary import (
    CONTROLS,
    CPU_WAIT_INSIDE,
    CPU_WAIT_OUTSIDE,
    GPU_BUSY,
    IN_STEP,
    THROTTLED,
    Cause,
)
from infercanary.judge.bottleneck import bottlenecks
from infercanary.judge.crowding import Crowding, level
from infercanary.judge.differences import differences
from infercanary.judge.evidence import Evidence
from infercanary.judge.model import Pair, Start, Upgrade
from infercanary.judge.operators import Operators, compare_operators
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.profiles import unpacked
from infercanary.judge.result import Causes, Part
from infercanary.judge.shift import Shift


class Attribution:
    """Attributes shifts to their causes, by the numbers of a policy."""

    def __init__(self, policy: Policy = LIVE) -> None:
        self._policy = policy
        self._rules = policy.attribute

    def of_upgrade(
        self,
        upgrade: Upgrade,
        live: Sequence[Start],
        shift: Shift,
        compared: Sequence[Pair],
        beside: Sequence[Pair],
        canary: str,
        *,
        all_pairs: Sequence[Pair],
        unwaited: tuple[Shift, Sequence[Pair]] | None = None,
    ) -> Causes:
        """The causes of an upgrade's shift.

        Args:
            upgrade: That is judged.
            live: The live starts of its new image.
            shift: Of the runs as they are.
            compared: For each replica its starts before and after; empty where nothing can be compared.
            beside: The same of siblings, whose image did not change; one without a run since may have one soon.
            canary: Its name.
            all_pairs: For each replica all its starts: a cold start is of no minutes.
            unwaited: Where the decision rests on the runs without their CPU wait: shift and pairs of these. Siblings
                tell nothing of it, since theirs is not subtracted.

        Returns:
            Before anything can be compared, the causes that need no look.
        """
        known = differences(upgrade.before, upgrade.after, live, all_pairs, canary, self._rules)
        if not compared or not math.isfinite(shift.se):
            return known
        if unwaited is not None:
            return self._of(Evidence(*unwaited, policy=self._policy), known, canary)
        seen = Evidence(shift, compared, beside, self._policy)
        began = min(sample.started_at for sample in seen.after)
        replaced = {start.generation.container for start in upgrade.after}
        stays = any(
            seen.goes_on(start.samples) and (start.times >= began).sum() < self._policy.pool.concurrent_runs
            for start in upgrade.before
            if start.generation.container not in replaced and not start.generation.ended_at
        )
        is_told = seen.felt or any(pair.concurrent for pair in compared)
        return self._of(seen, known, canary, awaits=not is_told and (stays or seen.awaits_siblings))

    def explain(
        self, shift: Shift, compared: Sequence[Pair], canary: str, *, beside: Sequence[Pair] = ()
    ) -> Causes:
        """The causes of a shift that no upgrade made: of a drift, of two files, of an experiment.

        Args:
            shift: Of ``canary``, between the starts of ``compared``.
            compared: For each replica its starts before and after.
            canary: Its name.
            beside: As ``compared``, of siblings, whose image did not change.

        Returns:
            All that the runs show; parts are None, and the cause is `unknown`, where nothing can tell.
        """
        seen = Evidence(shift, compared, beside, self._policy)
        return self._of(
            seen, differences(seen.old, seen.new, seen.new, compared, canary, self._rules), canary
        )

    def _of(self, seen: Evidence, known: Causes, canary: str, awaits: bool = False) -> Causes:
        """All causes; ``known`` is what needs no look."""
        changed = {change.component for change in known.changes}
        blame = self._blame(seen, changed) if seen.shift.log and not awaits else {}
        tags = seen.risen
        if seen.is_beside_gpu_users and blame.get("cause") in ("image", "both"):
            # A GPU runs its processes in turns, and a control's repeat is shorter than a turn. So controls that did not
            # move do not show that the image made the shift (docs/adr/0026). One that did still counts for the host.
            blame, tags = {}, tags | {tag: both for tag, both in seen.tags.items() if tag == GPU_BUSY}
        return msgspec.structs.replace(
            known,
            phases={name: share for name, share in seen.phases.items() if share >= self._rules.phase_share},
            bottlenecks=bottlenecks(seen.before, seen.after, seen.controls, seen.clock, seen.moved),
            controls={name: math.expm1(s.log) for name, s in seen.controls.items() if seen.moved(s)},
            has_controls=any(math.isfinite(s.se) for s in seen.controls.values()),
            siblings=self._part(seen.siblings),
            clock=self._part(seen.clock),
            tags=tags,
            inside=seen.crowding.cores if seen.crowding is not None and seen.is_crowded else None,
            operators=self._operators(seen, canary),
            unknown_siblings=awaits,
            unknown_waiting=seen.crowding is None and seen.waits,
            **blame,
        )

    def _blame(self, seen: Evidence, changed: Collection[str]) -> dict[str, Any]:
        """The parts of the shift and its cause; empty where nothing tells.

        Parts are shares that add up to 1. Host or load are blamed alone only where what may be the image's is small: a
        regression must not hide behind a neighbour. With the host an image is blamed only where its part is clear of
        zero: a false alarm costs most.
        """
        rules, shift = self._rules, seen.shift
        crowd, few, size = seen.crowding or Crowding(), 1 - rules.whole_share, abs(seen.shift.log)
        host, is_known = self._host(seen, changed)
        load = slack = 0.0  # slack is the share of the image's part that may be the host's
        error = math.inf
        if seen.waiting is not None and not seen.tells(seen.waiting[0]):
            return {}
        if seen.waiting is not None and seen.waits:
            waiting, whole = seen.waiting
            felt = min(1.0, seen.share(waiting))
            load, outside = crowd.inside * felt * (crowd.load or 0.0), (1 - crowd.inside) * felt
            rests = host is not None and seen.share(host) >= rules.whole_share
            if host is None or outside > min(seen.share(host), rules.whole_share):
                is_known = seen.crowding is not None or (rests and is_known)
                host = waiting._replace(log=outside * shift.log)
                # Cold caches follow a wait.
                slack = (1 - crowd.inside) * (min(rules.waiting_factor * felt, 1.0) - felt)
                # What is left of the shift has no scatter of the waiting in the same runs; what restarts do stays.
                error = math.hypot(math.sqrt(max(0.0, shift.se**2 - whole.se**2)), waiting.se)
        if host is None:
            return {}
        of_host = min(seen.share(host), 1 - load)
        image = Shift((1 - of_host - load) * shift.log, min(error, math.hypot(shift.se, host.se)), shift.df)
        # A canary may also wait for a lock that requests hold, such as the interpreter's. In each second they can hold
        # it for as long as they computed.
        more = (1.0 if crowd.load is None else crowd.load) * (crowd.cores[1] - crowd.cores[0])
        locked = min(rules.waiting_factor * math.log1p(abs(more)) / size, 1.0) - load
        may_be_load = more * shift.log > 0 and locked > few
        low, high = sorted(x / shift.log for x in image.interval(rules.cause_confidence))
        # Restarts hide a quarter of a small shift: half of it, or six times the smallest effect, may be the image's.
        effect = self._policy.decide.log_effect / size
        is_small = high <= max(few, min(max(0.5, effect), 6 * effect))
        cause: Cause = "unknown"
        if load > few:
            cause = "load" if load >= rules.whole_share and is_small else cause
        elif of_host + slack <= few:
            cause = cause if may_be_load else "image"
        elif of_host >= rules.whole_share and is_known and is_small:
            cause = "host"
        elif is_known and low > slack and not may_be_load:
            cause = "both"
        return {
            "cause": cause,
            "host": self._part(host._replace(log=of_host * shift.log), slack * shift.log),
            "image": self._part(image, -slack * shift.log),
            "load": self._part(host._replace(log=load * shift.log)) if load else None,
            "unknown_load": may_be_load,
        }

    def _host(self, seen: Evidence, changed: Collection[str]) -> tuple[Shift | None, bool]:
        """The part of the shift that what the image cannot touch has moved by too, and whether that may be blamed.

        Siblings do such work as the canary. Those or controls that stood still say that the host did not change; where
        one moved the same way as the canary, the host's part is what it moved by: of several the largest, at most all.
        """
        controls = [
            s
            for name, s in seen.controls.items()
            if name in IN_STEP and CONTROLS[name].made_of not in changed and seen.tells(s)
        ]
        if seen.is_crowded:
            # They shared the container's CPU with others as the canary did: what moved them is not the host.
            controls = [s._replace(log=0.0) for s in controls]
        if THROTTLED in seen.risen and "cpu_quota" not in changed and any(map(seen.moved, controls)):
            # It reaches its quota more often, which nobody lowered: a control waits for the next period as the canary
            # does, whoever made that longer.
            controls = []
        told = [*controls, *(s for s in [seen.siblings] if s is not None and seen.tells(s))]
        moved = [s for s in told if seen.moved(s) and seen.share(s) > 0]
        if not moved:
            return (min(told, key=lambda s: s.se)._replace(log=0.0) if told else None), True
        most = max(moved, key=lambda s: abs(s.log) - self._rules.moved_sigmas * s.se)
        # An engine of several threads that waits for others on the host: no other's wait is as long.
        is_queued = (
            not seen.is_single and CPU_WAIT_OUTSIDE in seen.risen and CPU_WAIT_INSIDE not in seen.risen
        )
        if seen.share(most) > 1 or (is_queued and seen.shift.log > 0):
            most = most._replace(log=seen.shift.log)
        # One sibling may have changed by itself, or lie.
        return most, len(seen.felt) > 1 or moved != [seen.siblings]

    def _part(self, shift: Shift | None, slack: float = 0.0) -> Part | None:
        """With an interval that reaches further by ``slack`` (a logarithm), in its direction."""
        if shift is None:
            return None
        part, further = (
            Part.of(s, self._rules.cause_confidence) for s in (shift, shift._replace(log=shift.log + slack))
        )
        return Part(part.shift, min(part.low, further.low), max(part.high, further.high))

    def _operators(self, seen: Evidence, canary: str) -> Operators | None:
        """What profiled repeats of both sides say; None where there is no change to explain."""
        both = {start.boot for start in seen.old} & {start.boot for start in seen.new}
        if abs(seen.shift.log) < self._policy.decide.log_effect or both:
            return None  # of one start that drifted, drift.py takes the profiles by their times
        profiles = [
            sorted(
                (p for s in side for p in unpacked(s.generation.profiles.get(canary, ()))),
                key=lambda p: p.taken_at,
            )
            for side in (seen.old, seen.new)
        ]
        old, new = (level(side, lambda s: s.median) for side in (seen.before, seen.after))
        return compare_operators(profiles[0], profiles[1], (old, new))
