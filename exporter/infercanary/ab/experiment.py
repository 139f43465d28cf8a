"""The experiment: two arms take turns, A B B A A B B A …, until the answer is clear or a limit is reached.

Only one start runs at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, NamedTuple, TypeAlias

from infercanary.ab.estimate import PairDecision
from infercanary.ab.progress import show_progress
from infercanary.ab.turn import Arm, ArmSummary, OutOfTime, Plan, StartFailed, Turn, TurnReader
from infercanary.command.interruption import Interrupted, Interruption
from infercanary.command.settings import UsageError
from infercanary.render.units import duration

ArmName = Literal["A", "B"]
Ended = Literal["clear", "restarts", "budget", "interrupted"]


class TurnPair(NamedTuple):
    """Two consecutive turns, one of each arm."""

    a: Turn
    b: Turn


Judged: TypeAlias = Callable[[Sequence[TurnPair]], Mapping[str, PairDecision]]
"""Function that returns the decision on each canary after some pairs."""


class Result(NamedTuple):
    """Result of an experiment: both arms, the pairs of turns, failed starts, and the reason for the end."""

    arms: Sequence[ArmSummary]
    pairs: Sequence[TurnPair]
    failures: Sequence[str]
    ended: Ended
    seconds: float


@dataclass
class Experiment:
    """An experiment.

    Args:
        sides: Both arms.
        plan: Limits of the experiment.
        judged: Called after each pair.
        interruption: Ends the experiment after a signal, at the next safe point.
    """

    sides: Mapping[ArmName, Arm]
    plan: Plan
    judged: Judged
    interruption: Interruption
    _pairs: list[TurnPair] = field(default_factory=list)
    _failures: list[str] = field(default_factory=list)
    _seconds: list[float] = field(default_factory=list)

    def run(self) -> Result:
        """Run the experiment. Return its result, even if a signal or the budget ended the experiment.

        Raises:
            UsageError: An arm failed to start twice in a row, or no canary is in both arms.
        """
        begin = time.monotonic()
        self._deadline = begin + self.plan.budget
        ended: Ended
        try:
            while True:
                self._pairs.append(self._pair())
                decisions = self.judged(self._pairs).values()
                if all(decision.done for decision in decisions):
                    break
            ended = "clear" if all(decision.clear for decision in decisions) else "restarts"
        except Interrupted:
            ended = "interrupted"
        except OutOfTime:
            ended = "budget"
        arms = [arm.summary for arm in self.sides.values()]
        return Result(arms, self._pairs, self._failures, ended, time.monotonic() - begin)

    def _pair(self) -> TurnPair:
        order: Sequence[ArmName] = ("B", "A") if len(self._pairs) % 2 else ("A", "B")
        turns = {side: self._turn(side) for side in order}
        return TurnPair(turns["A"], turns["B"])

    def _turn(self, side: ArmName, *, is_last: bool = False) -> Turn:
        """Take a turn; after a failure, try once more."""
        self.interruption.check()
        arm, done = self.sides[side], len(self._seconds)
        left, expected = self._deadline - time.monotonic(), fmean(self._seconds or [0.0])
        if left < expected:  # the next turn would not end within the budget
            raise OutOfTime
        most = max(2 * self.plan.restarts, done + 1)  # one more after an excluded pair or a late change
        rest = f", at most {duration(min(expected * (most - done), left))} left" if done else ""
        show_progress(f"start {done + 1} of up to {most}: {side}{rest}")
        try:
            turn = TurnReader(arm, self.plan, self._deadline, self.interruption).take()
        except StartFailed as error:
            if is_last:
                name = f"{side}, {arm.summary.name}"
                raise UsageError(f"{name}: failed to start twice in a row: {error}") from None
            self._failures.append(f"{side} failed to start ({error}); trying once more")
            show_progress(f"infercanary: {self._failures[-1]}")
            return self._turn(side, is_last=True)
        self._seconds.append(turn.seconds)
        return turn
