"""Answer of an experiment: the verdict on each canary with evidence and causes, and the duration of each step of a
start.

All functions are pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import msgspec
import numpy as np

from infercanary.ab import measures
from infercanary.ab.estimate import FEWEST_PAIRS, PairDecision, PairJudge, restart_sd
from infercanary.ab.experiment import Ended, Result, TurnPair
from infercanary.ab.neighbours import counted
from infercanary.ab.sides import words
from infercanary.ab.turn import ArmSummary
from infercanary.command.settings import UsageError
from infercanary.compare import claim
from infercanary.compare.comparison import (
    ComparisonResult,
    Gate,
    compare_runs,
    concluded,
    regressions,
)
from infercanary.compare.recording import RecordedRuns, listed
from infercanary.judge.causes import Attribution
from infercanary.judge.model import Pair
from infercanary.judge.policy import EXPERIMENT, FILES, Policy
from infercanary.judge.result import Causes
from infercanary.judge.result import Result as JudgeResult
from infercanary.judge.samples import compare_starts
from infercanary.judge.shift import Shift
from infercanary.pages.sentence import sentence

_OPEN = ("inconclusive", "unconfirmed")


class PairShift(msgspec.Struct, frozen=True):
    """Shift from A to B in one pair of starts, as a ratio: 0.05 means that B is 5 % slower."""

    shift: float
    a: float
    b: float
    """Medians of the two starts, in seconds."""


class ExperimentAnswer(ComparisonResult, frozen=True, kw_only=True):
    """Answer on one canary: the comparison of both arms, and facts about the experiment."""

    a: ArmSummary
    b: ArmSummary
    pairs: Sequence[PairShift]
    ended: Ended
    seconds: float


class CanaryPairs:
    """Pairs of starts of one canary, with the counted runs.

    Args:
        pairs: One or more pairs, in order of time.
        canary: Name of a canary that every start has.
    """

    def __init__(self, pairs: Sequence[TurnPair], canary: str) -> None:
        self.starts, self.notes = counted([(pair.a.starts[canary], pair.b.starts[canary]) for pair in pairs])
        """``starts``: start of A and start of B, for each counted pair. ``notes``: remarks on excluded runs."""

    @cached_property
    def shifts(self) -> list[Shift]:
        """Shift from A to B in each pair."""
        return [compare_starts([a.series], [b.series], restart_sd=0.0)[1] for a, b in self.starts]

    @cached_property
    def series(self) -> tuple[RecordedRuns, RecordedRuns]:
        """Runs of both arms, each with its starts in order of time."""
        a, b = (
            RecordedRuns([np.exp(start.series.logs) for start in starts], starts)
            for starts in zip(*self.starts, strict=True)
        )
        return a, b


@dataclass(frozen=True)
class ExperimentJudge:
    """Decides when an experiment ends, and makes the answer.

    Args:
        most: Number of planned pairs.
        policy: Thresholds of the decision.
        claimed: Shift of `--expect`, as a ratio; the experiment continues until the claim is confirmed or refuted.
        gate: With "all", the experiment also continues while the regression of another measure is unconfirmed. A
            regression of the latency ends the experiment, because the answer is then known.
    """

    most: int
    policy: Policy = EXPERIMENT
    claimed: float | None = None
    gate: Gate = "all"

    @property
    def _pairs(self) -> PairJudge:
        return PairJudge(self.most, self.policy)

    def decisions(self, pairs: Sequence[TurnPair]) -> dict[str, PairDecision]:
        """Return the decision on each canary after these pairs.

        Raises:
            UsageError: No canary is in all pairs.
        """
        decisions = {}
        for name in common(pairs)[0]:
            of = CanaryPairs(pairs, name)
            decision = self._pairs.decide(of.shifts)
            if self.claimed is not None:
                is_known = False
                if decision.looks and decision.verdict != "unconfirmed":
                    seen = decision.looks[-1].seen[1:]
                    is_known = claim.check(self.claimed, seen, self.policy).state != "unknown"
                is_last = len(of.shifts) >= self.most and decision.done
                decision = decision._replace(clear=is_known, done=is_known or is_last)
            elif decision.done and self.gate == "all" and decision.verdict != "regressed":
                decision = decision._replace(done=not measures.decide(of.starts, self._pairs)[1])
            # An experiment must end, so excluded pairs count as attempts.
            decisions[name] = decision._replace(done=decision.done or len(pairs) > self.most)
        return decisions

    def answer(self, canary: str, result: Result) -> ExperimentAnswer:
        """Return the answer on one canary that every start has."""
        of = CanaryPairs(result.pairs, canary)
        verdicts, _ = measures.decide(of.starts, self._pairs)
        answer = self._latency(canary, of, result, regressions(verdicts))
        return concluded(answer, verdicts, self.gate, self.claimed, self.policy)

    def _latency(self, canary: str, of: CanaryPairs, result: Result, also: Sequence[str]) -> ExperimentAnswer:
        """Return the result as by `infercanary compare`, with verdict, interval and causes replaced by the experiment's
        own.
        """
        decision = self._pairs.decide(of.shifts)
        rules, (a, b) = self.policy.decide, result.arms
        files = FILES.but(smallest_effect=rules.smallest_effect, clear_zone=rules.clear_zone)
        compared = compare_runs(canary, *of.series, policy=files)
        fields: dict[str, Any] = msgspec.structs.asdict(compared) | {
            "verdict": decision.verdict,
            "sentence": f"{decision.verdict}: too few starts",
            "next": [self._action(of)] if decision.verdict in _OPEN else (),
            "notes": [*of.notes, *result.failures],
            "causes": Causes(),
            **dict.fromkeys(("shift", "low", "high")),
        }
        if decision.looks:
            look = decision.looks[-1]
            causes = Attribution(self.policy).explain(
                look.shift, [Pair([x], [y]) for x, y in of.starts], canary
            )
            _, shift, low, high = look.seen
            judged = JudgeResult(
                state=decision.verdict,
                origins=(a.origin, b.origin),
                shift=shift,
                low=low,
                high=high,
                baseline=compared.baseline.median,
                current=compared.candidate.median,
                causes=causes,
                only=look.shift.resolution.only,
            )
            settings = [
                f"{name}: {words(arm.settings)}" for name, arm in (("B", b), ("A", a)) if arm.settings
            ]
            is_same = (a.image_id or a.name) == (b.image_id or b.name)
            subject = "image" if not settings else "settings" if is_same else "image or settings"
            fields |= {
                "sentence": sentence(judged, subject, [*settings[:1], *also]),
                "shift": shift,
                "low": low,
                "high": high,
                "level": round(look.level, 4),
                "causes": causes,
                "restart_sd": math.expm1(restart_sd(of.shifts)),
                "restart_sd_from": f"measured on {2 * len(of.shifts)} starts",
            }
        shifts = (math.expm1(shift.log) for shift in of.shifts)
        medians = (map(float, map(np.median, runs.points)) for runs in of.series)
        return ExperimentAnswer(
            **fields,
            a=_summary(result, of, canary, 0),
            b=_summary(result, of, canary, 1),
            pairs=[*map(PairShift, shifts, *medians)],
            ended=result.ended,
            seconds=result.seconds,
        )

    def _action(self, of: CanaryPairs) -> str:
        """Return advice on how to get a verdict."""
        if len(of.shifts) < FEWEST_PAIRS:
            return f"at least {FEWEST_PAIRS} pairs of starts are needed: raise the time limit (--budget)"
        if needed := self._pairs.pairs_needed(of.shifts, FILES.pool.history):
            return f"about {needed} starts of each side would give a verdict (--restarts, --budget)"
        return (
            "more starts will hardly give a verdict: the shift is near a limit, or starts differ too much; give "
            "the containers separate CPUs (--both cpuset=…) without other work"
        )


def common(pairs: Sequence[TurnPair]) -> tuple[list[str], list[str]]:
    """Return the canaries that every start has, and notes on canaries of only one side.

    Args:
        pairs: One or more pairs.

    Raises:
        UsageError: No canary is in every start.
    """
    turns = [turn.starts for pair in pairs for turn in pair]
    names = [name for name in turns[0] if all(name in starts for starts in turns)]
    a, b = (turn.starts for turn in pairs[0])
    if not names:
        raise UsageError(
            f"no canary is in both images; A has {listed(a)}; B has {listed(b)}; give both the same config=…"
        )
    return names, [
        f"only in {side}, so not judged: {listed(only)}"
        for side, here, there in (("A", a, b), ("B", b, a))
        if (only := [name for name in here if name not in there])
    ]


def _summary(result: Result, of: CanaryPairs, canary: str, side: int) -> ArmSummary:
    runs, arm, steps = of.series[side].every, result.arms[side], defaultdict[str, list[float]](list)
    for pair in result.pairs:
        for step, seconds in pair[side].steps.get(canary, {}).items():
            steps[step].append(seconds)
    medians = {step: median(seconds) for step, seconds in steps.items()}
    return msgspec.structs.replace(
        arm,
        starts=len(result.pairs),
        runs=runs.size,
        mean=float(runs.mean()),
        sd=float(runs.std(ddof=1)),
        cold_start=arm.cold_start | medians,
        swing={
            step: float(np.ptp(seconds)) / 2 / medians[step]
            for step, seconds in steps.items()
            if len(seconds) > 1 and medians[step]
        },
    )
