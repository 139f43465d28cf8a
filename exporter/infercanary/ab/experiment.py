"""The experiment: two arms take turns, A B B A A B B A …, one at a time, until the answer is clear or time is up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

from infercanary.ab.estimate import PairDecision
from infercanary.ab.interruption import ExperimentInterrupted, Interruption
from infercanary.ab.progress import Progress
from infercanary.ab.turn import Arm, Needed, OutOfTime, StartFailed, Turn, take
from infercanary.command.settings import UsageError

ArmName = Literal["A", "B"]
Ended = Literal["clear", "restarts", "budget", "interrupted"]


class Plan(NamedTuple):
    """Limits of an experiment: starts of each arm at most, and seconds in all."""

    restarts: int
    budget: float
    needed: Needed


class TurnPair(NamedTuple):
    """A turn of each arm, one right after the other."""

    a: Turn
    b: Turn
    a_first: bool


class FailedStart(NamedTuple):
    """A start that gave no runs."""

    side: ArmName
    why: str


class Result(NamedTuple):
    """The pairs of turns, the starts that failed, and why the experiment ended."""

    pairs: Sequence[TurnPair]
    failures: Sequence[FailedStart]
    ended: Ended
    seconds: float


Judged = Callable[[Sequence[TurnPair]], Mapping[str, PairDecision]]
"""From the pairs so far to a decision on each canary; raises :class:`UsageError` if no canary is in both."""


def run(a: Arm, b: Arm, plan: Plan, judged: Judged, interruption: Interruption, progress: Progress) -> Result:
    """Run an experiment.

    Args:
        a: The first arm.
        b: The second arm.
        plan: Starts of each arm at most, and seconds in all.
        judged: Decides after each pair.
        interruption: Ends it at the next safe place.
        progress: Where it says what is going on.

    Returns:
        The pairs so far, also where a signal or the budget ended it.

    Raises:
        UsageError: An arm failed to start twice in a row, or no canary is in both arms.
    """
    return _Experiment({"A": a, "B": b}, plan, judged, interruption, progress).run()


@dataclass
class _Experiment:
    sides: Mapping[ArmName, Arm]
    plan: Plan
    judged: Judged
    interruption: Interruption
    progress: Progress

    def __post_init__(self) -> None:
        self._begin = time.monotonic()
        self._pairs: list[TurnPair] = []
        self._failures: list[FailedStart] = []
        self._seconds: list[float] = []
        self._number = 0
        self._so_far = ""

    def run(self) -> Result:
        ended: Ended = "restarts"
        try:
            while not self._is_done():
                self._pairs.append(self._pair())
        except ExperimentInterrupted:
            ended = "interrupted"
        except OutOfTime:
            ended = "budget"
        else:
            if all(decision.clear for decision in self.judged(self._pairs).values()):
                ended = "clear"
        return Result(self._pairs, self._failures, ended, time.monotonic() - self._begin)

    def _is_done(self) -> bool:
        if not self._pairs:
            return False
        decisions = self.judged(self._pairs)
        self._so_far = so_far(decisions)
        return all(decision.done for decision in decisions.values())

    def _pair(self) -> TurnPair:
        a_first = len(self._pairs) % 2 == 0
        order: tuple[ArmName, ArmName] = ("A", "B") if a_first else ("B", "A")
        turns = {side: self._turn(side) for side in order}
        return TurnPair(turns["A"], turns["B"], a_first)

    def _turn(self, side: ArmName) -> Turn:
        """Take a turn; if it fails, try once more."""
        for last in (False, True):
            self.interruption.check()
            # Do not begin what cannot end in time.
            if self._left() < (fmean(self._seconds) if self._seconds else 0.0):
                raise OutOfTime
            self._number += 1
            deadline = self._begin + self.plan.budget
            try:
                turn = take(
                    self.sides[side],
                    self._number,
                    self.plan.needed,
                    deadline,
                    self.interruption,
                    self._notifier(side),
                )
            except StartFailed as error:
                self._failures.append(FailedStart(side, str(error)))
                if last:
                    raise UsageError(
                        f"{side}, {self.sides[side].name}: failed to start twice in a row: {error}"
                    ) from None
                self.progress.note(f"{side} failed to start ({error}); once more")
                continue
            self._seconds.append(turn.seconds)
            return turn
        raise AssertionError

    def _notifier(self, side: ArmName) -> Callable[[str], None]:
        done = len(self._seconds)
        most = max(2 * self.plan.restarts, done + 2 - done % 2)  # one more pair, if one did not count
        head = f"start {done + 1} of {most} at most, {side}"

        def notify(what: str) -> None:
            parts = [f"{head}: {what}", self._so_far, self._time_left(max(1, most - done))]
            self.progress.show(head, "; ".join(part for part in parts if part))

        return notify

    def _time_left(self, turns: int) -> str:
        if not self._seconds:
            return ""
        seconds = min(fmean(self._seconds) * turns, self._left())
        return f"at most {_rough(seconds)} left"

    def _left(self) -> float:
        return max(0.0, self._begin + self.plan.budget - time.monotonic())


def so_far(decisions: Mapping[str, PairDecision]) -> str:
    """Return the estimate so far in a few words, of the canary that moved most.

    Args:
        decisions: Canary → decision; empty text is returned where none has a look yet.
    """
    looks = [decision.looks[-1] for decision in decisions.values() if decision.looks]
    if not looks:
        return ""
    look = max(looks, key=lambda each: abs(each.shift.log))
    seen = look.seen
    return f"so far {100 * seen.shift:+.1f} % [{100 * seen.low:+.1f}, {100 * seen.high:+.1f}]"


def _rough(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 100 else f"{round(seconds / 60)} min"
