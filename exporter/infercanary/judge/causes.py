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
    THROTTLED,
    Cause,
)
from infercanary.judge.bottleneck import bottlenecks
from infercanary.judge.crowding import Crowding
from infercanary.judge.differences import differences
from infercanary.judge.evidence import Evidence
from infercanary.judge.finding import Finding
from infercanary.judge.model import Pair
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

    def of_upgrade(self, finding: Finding, beside: Sequence[Pair], canary: str) -> Causes:
        """The causes of an upgrade's shift.

        Args:
            finding: What is known of the shift, or that there is none yet.
            beside: For each sibling and each replica that stays, whose image did not change, its starts before and
                after; one without a run since may have one soon.
            canary: Its name.

        Returns:
            Before anything can be compared, the causes that need no look.
        """
        upgrade, look = finding.selection.upgrade, finding.unwaited or finding.look
        if upgrade is None:
            return Causes()
        known = differences(upgrade.before, upgrade.after, finding.selection.live, canary, self._rules)
        if look is None or finding.state == "equivalent":
            return known
        # Siblings tell nothing of runs without their CPU wait, since the wait of siblings is not subtracted.
        beside = [] if finding.unwaited else beside
        return self.explain(look.shift, look.pairs, canary, beside=beside, known=known, awaits=True)

    def explain(
        self,
        shift: Shift,
        compared: Sequence[Pair],
        canary: str,
        *,
        beside: Sequence[Pair] = (),
        known: Causes | None = None,
        awaits: bool = False,
    ) -> Causes:
        """The causes of a shift, such as of a drift, of two files, of an experiment.

        Args:
            shift: Of ``canary``, between the starts of ``compared``.
            compared: For each replica its starts before and after.
            canary: Its name.
            beside: As ``compared``, of siblings, whose image did not change.
            known: What needs no look; by the starts of ``compared`` without it.
            awaits: Whether no cause is named while siblings will tell more soon.

        Returns:
            All that the runs show; parts are None, and the cause is `unknown`, where nothing can tell.
        """
        seen = Evidence(shift, compared, beside, self._policy)
        known = known or differences(seen.old, seen.new, seen.new, canary, self._rules)
        awaits = awaits and seen.awaits_siblings
        changed = {change.component for change in known.changes}
        blame = self._blame(seen, changed) if shift.log and not awaits else {}
        tags = seen.risen
        if blame.get("cause") in ("image", "both") and (users := seen.gpu_users):
            # A GPU runs its processes in turns, and a control's repeat is shorter than a turn. So controls that did not
            # move do not show that the image made the shift (docs/adr/0026). One that did still counts for the host.
            blame, tags = {}, tags | {GPU_BUSY: users}
        return msgspec.structs.replace(
            known,
            phases=seen.phases,
            bottlenecks=bottlenecks(seen.before, seen.after, seen.controls, seen.clock, seen.moved),
            controls={name: math.expm1(s.log) for name, s in seen.controls.items() if seen.moved(s)},
            has_controls=bool(seen.controls),
            siblings=seen.siblings and self._part(seen.siblings),
            clock=seen.clock and self._part(seen.clock),
            tags=tags,
            inside=seen.crowding.cores if seen.crowding is not None and CPU_WAIT_INSIDE in tags else None,
            operators=self._operators(seen, canary),
            unknown_siblings=awaits,
            unknown_waiting=seen.crowding is None and seen.waiting is not None,
            **blame,
        )

    def _blame(self, seen: Evidence, changed: Collection[str]) -> dict[str, Any]:
        """The parts of the shift and its cause; empty where nothing tells.

        Parts are shares that add up to 1. Host or load are blamed alone only where what may be the image's is small: a
        regression must not hide behind a neighbour. With the host an image is blamed only where its part is clear of
        zero: a false alarm costs most.
        """
        rules, shift, crowd = self._rules, seen.shift, seen.crowding or Crowding()
        few, size = 1 - rules.whole_share, abs(shift.log)
        host, se, is_known = self._host(seen, changed)
        error = math.hypot(shift.se, se)
        load = slack = 0.0  # slack is the share of the image's part that may be the host's
        if seen.waiting is not None:
            felt = min(1.0, seen.share(seen.waiting))
            load, outside = crowd.inside * felt * (crowd.load or 0.0), (1 - crowd.inside) * felt
            if host is None or outside > min(host, rules.whole_share):
                is_known = seen.crowding is not None or (is_known and (host or 0.0) >= rules.whole_share)
                host = outside
                # The wait's error has what restarts do, and not the scatter that the wait made.
                error = se = seen.waiting.se
                # Cold caches follow a wait.
                slack = min((rules.waiting_factor - 1) * outside, 1 - felt)
        if host is None:
            return {}
        host = min(host, 1 - load)
        image = 1 - host - load
        # Others inside, of whom too few runs know, may be requests. A canary may also wait for a lock that requests
        # hold, such as the interpreter's. In each second they can hold it for as long as they computed.
        more = (1.0 if crowd.load is None else crowd.load) * (crowd.cores[1] - crowd.cores[0])
        is_unseen = seen.crowding is None and CPU_WAIT_INSIDE in seen.risen
        may_be_load = is_unseen or (
            more * shift.log > 0 and rules.waiting_factor * math.log1p(abs(more)) > few * size
        )
        low, high = Shift(image, error / size, shift.df).interval(rules.cause_confidence)
        # Restarts hide a quarter of a small shift: half of it, or six times the smallest effect, may be the image's.
        is_small = high <= max(few, min(0.5, 6 * self._policy.decide.log_effect / size))
        cause: Cause = "unknown"
        if load >= rules.whole_share and is_small:
            cause = "load"
        elif load > few:
            pass
        elif host + slack <= few:
            cause = "unknown" if may_be_load else "image"
        elif is_known and host >= rules.whole_share and is_small:
            cause = "host"
        elif is_known and low > slack and not may_be_load:
            cause = "both"
        return {
            "cause": cause,
            "host": self._part(Shift(host * shift.log, se, shift.df)),
            "image": self._part(Shift(image * shift.log, error, shift.df)),
            "load": self._part(Shift(load * shift.log, se, shift.df)) if load else None,
            "unknown_load": may_be_load,
        }

    def _host(self, seen: Evidence, changed: Collection[str]) -> tuple[float | None, float, bool]:
        """The share of the shift that what the image cannot touch has moved by too (None where nothing tells), its
        standard error (a logarithm), and whether that may be blamed.

        Siblings do such work as the canary. Those or controls that stood still say that the host did not change; where
        one moved the same way as the canary, the host's part is what it moved by: of several the largest, at most all.
        """
        told = [s for name, s in seen.controls.items() if CONTROLS[name].in_step and seen.tells(s)]
        is_crowded = CPU_WAIT_INSIDE in seen.risen
        if is_crowded:
            # They shared the container's CPU with others as the canary did: what moved them is not the host.
            told = [s._replace(log=0.0) for s in told]
        if THROTTLED in seen.risen and "cpu_quota" not in changed and any(map(seen.moved, told)):
            # It reaches its quota more often, which nobody lowered: a control waits for the next period as the canary
            # does, whoever made that longer.
            told = []
        if seen.siblings is not None and seen.tells(seen.siblings):
            told.append(seen.siblings)
        moved = [s for s in told if seen.moved(s) and seen.share(s) > 0]
        if not moved:
            return 0.0 if told else None, min((s.se for s in told), default=0.0), True
        most = max(moved, key=seen.share)
        # An engine of several threads that waits for others on the host: no other's wait is as long.
        is_queued = (
            not (seen.is_single or is_crowded) and CPU_WAIT_OUTSIDE in seen.risen and seen.shift.log > 0
        )
        # One sibling may have changed by itself, or lie.
        is_known = len(seen.felt) > 1 or moved != [seen.siblings]
        return 1.0 if is_queued else seen.share(most), most.se, is_known

    def _part(self, shift: Shift) -> Part:
        return Part.of(shift, self._rules.cause_confidence)

    def _operators(self, seen: Evidence, canary: str) -> Operators | None:
        """What profiled repeats of both sides say; None where there is no change to explain."""
        if abs(seen.shift.log) < self._policy.decide.log_effect:
            return None
        old, new = (
            [p for start in side for p in unpacked(start.generation.profiles.get(canary, ()))]
            for side in (seen.old, seen.new)
        )
        return compare_operators(old, new, seen.latencies)
