"""Causes: attributes a shift to host or image, and to phases, controls and versions.

A control group is a group that the treatment cannot affect (difference in differences; Angrist and Pischke, "Mostly
Harmless Econometrics", 2009, chapter 5). In an upgrade the treatment is the new image, which cannot affect:

- controls: tiny work that is the same in every image, run in the same container after each canary run;
- siblings: containers of other services on the host, whose image did not change.

The shift that controls and siblings share with the canary is the host's part of the canary's shift; the rest is the
image's part. A control depends on one resource, but a canary depends on several. So a control's shift is not scaled.
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
    """Attributes shifts to causes, with the thresholds of a policy."""

    def __init__(self, policy: Policy = LIVE) -> None:
        self._policy = policy
        self._rules = policy.attribute

    def of_upgrade(self, finding: Finding, beside: Sequence[Pair], canary: str) -> Causes:
        """Return the causes of an upgrade's shift. Before the first look, only differences of the starts are known.

        Args:
            finding: Shift and state of the upgrade.
            beside: Runs of each sibling and of each replica on the old image, before and since the upgrade. There may
                be no runs since the upgrade yet.
        """
        upgrade, look = finding.selection.upgrade, finding.unwaited or finding.look
        if upgrade is None:
            return Causes()
        known = differences(upgrade.before, upgrade.after, finding.selection.live, canary, self._rules)
        if look is None or finding.state == "equivalent":
            return known
        # If CPU wait was subtracted from the canary's runs, siblings are no evidence, because their runs still include
        # CPU wait.
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
        """Return the causes of a shift, for example in a drift, between two files or in an experiment.

        Args:
            shift: Shift of the canary between the starts of ``compared``.
            compared: Starts of each replica, before and after.
            beside: Starts of each sibling, before and after. A sibling's image did not change.
            known: Differences of the starts; computed from ``compared`` if missing.
            awaits: True to name no cause while a sibling is expected to have enough runs soon.

        Returns:
            The causes. If the runs show no cause, the cause is `unknown` and the parts are None.
        """
        seen = Evidence(shift, compared, beside, self._policy)
        known = known or differences(seen.old, seen.new, seen.new, canary, self._rules)
        awaits = awaits and seen.awaits_siblings
        changed = {change.component for change in known.changes}
        blame = self._blame(seen, changed) if shift.log and not awaits else {}
        tags = seen.risen
        if blame.get("cause") in ("image", "both") and (users := seen.gpu_users):
            # A GPU gives each process a time slice longer than a control's repeat. So unchanged controls are no proof
            # that the image caused the shift (docs/adr/0026). Changed controls are still evidence for the host.
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
        """Return the cause and the parts of the shift; empty without evidence.

        The host, the image and the load have shares of the shift that add up to 1. The host or the load alone is the
        cause only if the image's possible part is small; otherwise a neighbour could hide a regression. The image is
        named together with the host only if the image's part is surely above zero, because a false alarm is the most
        expensive mistake.
        """
        rules, shift, crowd = self._rules, seen.shift, seen.crowding or Crowding()
        few, size = 1 - rules.whole_share, abs(shift.log)
        host, se, is_known = self._host(seen, changed)
        error = math.hypot(shift.se, se)
        load = slack = 0.0  # slack: share of the shift that is attributed to the image but may be the host's
        if seen.waiting is not None:
            felt = min(1.0, seen.share(seen.waiting))
            load, outside = crowd.inside * felt * (crowd.load or 0.0), (1 - crowd.inside) * felt
            if host is None or outside > min(host, rules.whole_share):
                is_known = seen.crowding is not None or (is_known and (host or 0.0) >= rules.whole_share)
                host = outside
                # The error of the wait includes restart variance, but not the scatter caused by the wait.
                error = se = seen.waiting.se
                # The host's part includes the slowdown by cold caches after a wait.
                slack = min((rules.waiting_factor - 1) * outside, 1 - felt)
        if host is None:
            return {}
        host = min(host, 1 - load)
        image = 1 - host - load
        # Requests may be the cause if too few runs report the CPU use of other processes in the container. A canary may
        # also wait for a lock that requests hold, such as the GIL, but at most as long as the requests used a CPU.
        more = (1.0 if crowd.load is None else crowd.load) * (crowd.cores[1] - crowd.cores[0])
        is_unseen = seen.crowding is None and CPU_WAIT_INSIDE in seen.risen
        may_be_load = is_unseen or (
            more * shift.log > 0 and rules.waiting_factor * math.log1p(abs(more)) > few * size
        )
        low, high = Shift(image, error / size, shift.df).interval(rules.cause_confidence)
        # Restart variance hides whether the image's part of a small shift is zero. So the host also counts as the cause
        # if the image's possible part is at most half of the shift and at most six times the smallest effect.
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
        """Return the host's share of the shift, its standard error, and whether the host may be named as the cause.

        A sibling or control that did not move shows that the host did not change. If siblings or controls moved in
        the canary's direction, the largest of their shifts is the host's part.

        Returns:
            The share is None if unknown. The standard error is that of a logarithm.
        """
        told = [s for name, s in seen.controls.items() if CONTROLS[name].in_step and seen.tells(s)]
        is_crowded = CPU_WAIT_INSIDE in seen.risen
        if is_crowded:
            # Other processes in the container slowed the controls as well as the canary. So the controls' shift is not
            # due to the host.
            told = [s._replace(log=0.0) for s in told]
        if THROTTLED in seen.risen and "cpu_quota" not in changed and any(map(seen.moved, told)):
            # The container reaches its unchanged CPU quota more often. Then controls and canary both wait for the next
            # period, and controls do not tell who used the quota.
            told = []
        if seen.siblings is not None and seen.tells(seen.siblings):
            told.append(seen.siblings)
        moved = [s for s in told if seen.moved(s) and seen.share(s) > 0]
        if not moved:
            return 0.0 if told else None, min((s.se for s in told), default=0.0), True
        most = max(moved, key=seen.share)
        # A multi-threaded engine waits longer for other processes on the host than any sibling or control does.
        is_queued = (
            not (seen.is_single or is_crowded) and CPU_WAIT_OUTSIDE in seen.risen and seen.shift.log > 0
        )
        # A single sibling may have changed for its own reason, so it is no evidence about the host.
        is_known = len(seen.felt) > 1 or moved != [seen.siblings]
        return 1.0 if is_queued else seen.share(most), most.se, is_known

    def _part(self, shift: Shift) -> Part:
        return Part.of(shift, self._rules.cause_confidence)

    def _operators(self, seen: Evidence, canary: str) -> Operators | None:
        """Return the explanation of a shift by profiled repeats; None if the shift is below the smallest effect."""
        if abs(seen.shift.log) < self._policy.decide.log_effect:
            return None
        old, new = (
            [p for start in side for p in unpacked(start.generation.profiles.get(canary, ()))]
            for side in (seen.old, seen.new)
        )
        return compare_operators(old, new, seen.latencies)
