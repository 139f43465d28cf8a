"""Whole lives of upgrades, as the exporter's judge sees them: how often a restart is called, and how soon a change is.

``restarts``: a restart of the same image, for true restart SDs, numbers of earlier starts and of replicas. Each counts
as a false call if *any* look of the life calls a change.

``times``: the runs of a start until a change is called, from the new start's first steady run on, and how an identical
rebuild ends. Both are printed with their Monte-Carlo errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from infercanary.judge.align import align
from infercanary.judge.decide import decide
from infercanary.judge.estimate import shifts
from infercanary.judge.model import Start as KeptStart
from infercanary.judge.model import State
from infercanary.judge.policy import LIVE
from infercanary.judge.shift import CHANGED
from infercanary.judge.upgrade import select
from simulation import BEFORE, kept, start


class Setting(NamedTuple):
    """What is simulated: a true restart SD and shift (ratios), earlier starts of the service, replicas."""

    restart_sd: float
    earlier: int
    replicas: int
    effect: float = 0.0

    def starts(self, seed: int, number: int) -> tuple[list[KeptStart], list[KeptStart]]:
        """Those before the upgrade, and those of the new image; earlier ones are of the replicas in turn."""
        rng = np.random.default_rng([seed, number, *(int(1e4 * x) for x in self)])
        before = [
            kept(start(rng, BEFORE, restart_sd=self.restart_sd), i % self.replicas, i - self.earlier, "old")
            for i in range(self.earlier)
        ]
        before += [
            kept(start(rng, BEFORE, restart_sd=self.restart_sd), i, 0, "old") for i in range(self.replicas)
        ]
        runs = LIVE.looks[-1]
        after = [
            kept(start(rng, runs, restart_sd=self.restart_sd, image=self.effect), i, 1, "new")
            for i in range(self.replicas)
        ]
        return before, after


class Life(NamedTuple):
    """The first call and after how many runs of a start it came, and the state after the last look."""

    called: State | None
    runs: float
    ended: State


def life(setting: Setting, seed: int, number: int) -> Life:
    """The judge asked at each look."""
    before, after = setting.starts(seed, number)
    state: State = "settling"
    called: State | None = None
    runs = math.inf
    for look in LIVE.looks:
        seen = [KeptStart(s.generation, s.samples[:look]) for s in after]
        runs_of = align(select([*before, *seen], LIVE), [], LIVE)
        state = decide(shifts(runs_of, LIVE), LIVE).state
        if state in CHANGED:
            called, runs = state, look
            break
    return Life(called, runs, state)


def share(values: Sequence[bool]) -> str:
    """A share with its Monte-Carlo error; of none seen, the bound that 95 % of such runs would keep."""
    n, p = len(values), sum(values) / len(values)
    if not p:
        return f"0 (<{3 / n:.2%})"
    return f"{p:.2%} ±{math.sqrt(p * (1 - p) / n):.2%}"


EARLIER, REPLICAS, SDS = (0, 1, 2, 8), (1, 2, 4), (0.003, 0.01, 0.03)


def restarts(trials: int, seed: int) -> None:
    """Print the share of restarts of one image that are called a change at any look."""
    print(f"\n{trials} restarts of the same image each: called changed at any of the looks\n")
    print("| restart SD | earlier starts |", *(f"{m} replica{'s'[: m > 1]} |" for m in REPLICAS))
    print("|---|---|" + "---|" * len(REPLICAS))
    for sd in SDS:
        for earlier in EARLIER:
            cells = [
                share([life(Setting(sd, earlier, m), seed, i).called is not None for i in range(trials)])
                for m in REPLICAS
            ]
            print(f"| {sd:.1%} | {earlier} |", *(f"{cell} |" for cell in cells), flush=True)


CHANGES = (
    Setting(0.01, 0, 1, 1.0),
    Setting(0.01, 0, 1, 0.3),
    Setting(0.01, 0, 1, 0.1),
    Setting(0.01, 8, 2, 0.3),
    Setting(0.01, 8, 2, 0.1),
    Setting(0.01, 8, 2, 0.05),
    Setting(0.003, 8, 2, 0.0),
    Setting(0.01, 8, 2, 0.0),
    Setting(0.01, 0, 1, 0.0),
)


def times(trials: int, seed: int) -> None:
    """Print runs to a call of a change; and, of identical rebuilds, how they end."""
    print(
        f"\n{trials} upgrades each: runs of a start until it is called (10 runs are 100 s at an interval of 10 s)\n"
    )
    print(
        "| shift | restart SD | earlier starts | replicas | median | p95 | called rightly | wrongly | equivalent |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for setting in CHANGES:
        lives = [life(setting, seed, i) for i in range(trials)]
        middle, late = (
            float(np.quantile([each.runs for each in lives], q, method="higher")) for q in (0.5, 0.95)
        )
        right = [each.called == "regressed" and setting.effect > 0 for each in lives]
        wrong = [
            each.called is not None and (each.called != "regressed" or not setting.effect) for each in lives
        ]
        print(
            f"| {setting.effect:+.0%} | {setting.restart_sd:.1%} | {setting.earlier} | {setting.replicas} |",
            f"{middle:g} | {late:g} | {share(right)} | {share(wrong)} |",
            f"{share([each.ended == 'equivalent' for each in lives])} |",
            flush=True,
        )
