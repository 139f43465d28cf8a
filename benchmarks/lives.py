"""Whole lives of upgrades, as the exporter's judge sees them: how often a restart is called, and how soon a change is.

``restarts``: a restart of the same image, for true restart SDs, numbers of earlier starts and of replicas. Each counts
as a false call if *any* look of the life calls a change. A restart keeps the replica's name, or gives it a new one, as
that of a pod of a Deployment does.

``populations``: the same with a prior that was learned of a store's services, from restarts alone.

``times``: the runs of a start until a change is called, from the new start's first steady run on, and how an identical
rebuild ends. Both are printed with their Monte-Carlo errors, at a run every 10 s, and where the new start has one every
2 s: the burst after a start, while its baseline is of a steady pace. What lasts, lasts as long in seconds at either.

``concurrent``: one replica of several is upgraded, on a host that drifted before, or was restless until then: with and
without the runs that the others, which stay on the old image, had meanwhile. The upgraded one keeps its name, or has a
new one, as a canary's pod has beside those of the stable version.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product, repeat
from typing import NamedTuple

import msgspec
import numpy as np

from infercanary.judge.align import align
from infercanary.judge.decide import decide
from infercanary.judge.estimate import shifts
from infercanary.judge.model import Start as KeptStart
from infercanary.judge.model import State
from infercanary.judge.policy import LIVE
from infercanary.judge.priors import Prior, learned
from infercanary.judge.sequential import is_beyond_doubt
from infercanary.judge.shift import CHANGED, Pooled, Restarts
from infercanary.judge.upgrade import select
from simulation import BEFORE, HOUR, PAST, Floats, kept, lasting, start

STEADY, BURST = 10.0, 2.0
"""Seconds between runs: as configured, and in the burst after a start."""

PACES = (1.0, STEADY / BURST)

MANY = 20
"""More than there are replicas, or earlier starts: it sets names apart."""


class Setting(NamedTuple):
    """What is simulated: a true restart SD and shift (ratios), earlier starts of the service, replicas."""

    restart_sd: float
    earlier: int
    replicas: int
    effect: float = 0.0
    pace: float = 1.0
    renamed: bool = False
    """Each start has a name of its own, as pods of a Deployment have; else a replica keeps its name."""

    @property
    def every(self) -> float:
        """Seconds between runs of the new start; before it, they were ``STEADY`` apart."""
        return STEADY / self.pace

    def starts(self, seed: int, number: int) -> tuple[list[KeptStart], list[KeptStart]]:
        """Those before the upgrade, and those of the new image; earlier ones are of the replicas in turn."""
        rng = np.random.default_rng([seed, number, *(int(1e4 * x) for x in self[:4])])
        earlier, new = (MANY, 2 * MANY) if self.renamed else (0, 0)
        before = [
            kept(
                start(rng, BEFORE, restart_sd=self.restart_sd),
                earlier + (i if self.renamed else i % self.replicas),
                i - self.earlier,
                "old",
            )
            for i in range(self.earlier)
        ]
        before += [
            kept(start(rng, BEFORE, restart_sd=self.restart_sd), i, 0, "old") for i in range(self.replicas)
        ]
        runs = LIVE.decide.looks[-1]
        after = [
            kept(
                start(rng, runs, restart_sd=self.restart_sd, image=self.effect, pace=self.pace),
                new + i,
                1,
                "new",
                self.every,
            )
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
    return watched(*setting.starts(seed, number))


def watched(before: Sequence[KeptStart], after: Sequence[KeptStart]) -> Life:
    """The judge asked at each look, with the runs that there are by then."""
    state: State = "settling"
    called: State | None = None
    runs = math.inf
    for look in LIVE.decide.looks:
        until = after[0].samples[look - 1].started_at
        seen = [KeptStart(s.generation, s.samples[:look]) for s in after]
        ran = [s.first(int(np.searchsorted(s.times, until, "right"))) for s in before]
        runs_of = align(select([*ran, *seen], LIVE), [], LIVE)
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
    print(
        "| names | a run every | restart SD | earlier starts |",
        *(f"{m} replica{'s'[: m > 1]} |" for m in REPLICAS),
    )
    print("|---|---|---|---|" + "---|" * len(REPLICAS))
    with ProcessPoolExecutor() as pool:
        for renamed, pace, sd, earlier in product((False, True), PACES, SDS, EARLIER):
            settings = [Setting(sd, earlier, m, pace=pace, renamed=renamed) for m in REPLICAS]
            cells = [share([*pool.map(_is_called, repeat(s), repeat(seed), range(trials))]) for s in settings]
            row = (
                f"{'new' if renamed else 'same'}",
                f"{STEADY / pace:g} s",
                f"{sd:.1%}",
                f"{earlier}",
                *cells,
            )
            print("|", *(f"{cell} |" for cell in row), flush=True)


def _is_called(setting: Setting, seed: int, number: int) -> bool:
    return life(setting, seed, number).called is not None


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


POPULATIONS: dict[str, tuple[float, ...]] = {
    "a third each of 0.3, 1 and 3 %": SDS,
    "all 0.3 %": (0.003,),
    "all 1 %": (0.01,),
    "all 3 %": (0.03,),
    "1 %, and one in ten 30 %": (*(0.01,) * 9, 0.3),
}
"""Restart SDs of a store's services, drawn with equal chances."""


def populations(trials: int, seed: int) -> None:
    """Print what is learned of a store's services, and how often a restart of another one of them is called.

    Restarts alone: without the runs' own noise, and one replica.

    Args:
        trials: Stores of each kind; from each 40 more services are drawn.
        seed: Of the random numbers.
    """
    print(
        f"\n{trials} stores each: the prior that is learned, and restarts of 40 other services called changed\n"
    )
    print("| restart SDs | services | SD | df |", *(f"{earlier} earlier |" for earlier in EARLIER))
    print("|---|---|---|---|" + "---|" * len(EARLIER))
    rng = np.random.default_rng(seed)
    for name, sds in POPULATIONS.items():
        for services in (8, 16, 50):
            found: list[tuple[float, float]] = []
            called: dict[int, list[bool]] = {earlier: [] for earlier in EARLIER}
            for _ in range(trials):
                df = rng.integers(1, 12, services)
                own = rng.choice(sds, services) * np.sqrt(rng.chisquare(df) / df)
                prior = (
                    learned([Restarts(*each) for each in zip(own, df.astype(float), strict=True)]) or Prior()
                )
                found.append((prior.sd, prior.df))
                for earlier in EARLIER:
                    called[earlier] += _called(rng, rng.choice(sds, 40), earlier, prior)
            sd, df_ = np.median(found, axis=0)
            cells = (f"{share(called[earlier])} |" for earlier in EARLIER)
            print(f"| {name} | {services} | {sd:.2%} | {df_:.1f} |", *cells, flush=True)


def _called(rng: np.random.Generator, sds: Floats, earlier: int, prior: Prior) -> list[bool]:
    """Whether a restart of each of these services is called; the baseline is one start more than ``earlier``."""
    starts = rng.normal(0, 1, (sds.size, earlier + 1)) * sds[:, None]
    new = rng.normal(0, 1, sds.size) * sds
    df = prior.df + earlier
    squares = prior.df * prior.sd**2 + ((starts - starts.mean(axis=1)[:, None]) ** 2).sum(axis=1)
    each = zip(new - starts.mean(axis=1), np.sqrt(squares / df * (1 + 1 / (earlier + 1))), strict=True)
    return [
        is_beyond_doubt(Pooled(shift, 0.0, 1e9, se, df), LIVE.decide.looks[-1], LIVE) for shift, se in each
    ]


def times(trials: int, seed: int) -> None:
    """Print runs to a call of a change; and, of identical rebuilds, how they end."""
    print(f"\n{trials} upgrades each: runs of a start, and minutes, until it is called\n")
    print(
        "| a run every | shift | restart SD | earlier starts | replicas | runs | p95 | minutes | p95 |"
        " called rightly | wrongly | equivalent |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for pace, each in product(PACES, CHANGES):
        setting = each._replace(pace=pace)
        lives = [life(setting, seed, i) for i in range(trials)]
        middle, late = (
            float(np.quantile([each.runs for each in lives], q, method="higher")) for q in (0.5, 0.95)
        )
        right = [each.called == "regressed" and setting.effect > 0 for each in lives]
        wrong = [
            each.called is not None and (each.called != "regressed" or not setting.effect) for each in lives
        ]
        print(
            f"| {setting.every:g} s | {setting.effect:+.0%} | {setting.restart_sd:.1%} | {setting.earlier} |",
            f"{setting.replicas} |",
            f"{middle:g} | {late:g} |",
            *(f"{runs * setting.every / 60:.1f} |" for runs in (middle, late)),
            f"{share(right)} | {share(wrong)} |",
            f"{share([each.ended == 'equivalent' for each in lives])} |",
            flush=True,
        )


class Staying(NamedTuple):
    """What is simulated where one replica of several is upgraded, of a service that was restarted 8 times before."""

    stay: int
    """Replicas that stay on the old image."""
    drift: float
    """By how much the host gets slower or faster in the hour before the upgrade (a ratio), in turns."""
    effect: float = 0.0
    restart_sd: float = 0.01
    renamed: bool = False
    """The new start has a name of its own, and so had the earlier ones; those that stay are its baseline, too."""
    restless: float = 0.0
    """SD of what the host did to the runs before the upgrade (logarithms); it lasts as the runs' own noise does."""

    def starts(self, seed: int, number: int) -> tuple[list[KeptStart], list[KeptStart]]:
        """Those of the old image, of which some run on, and that of the new one."""
        rng = np.random.default_rng([seed, number, *(int(1e4 * x) for x in self)])
        drift = self.drift if number % 2 else -self.drift
        before = [
            kept(
                start(rng, BEFORE, restart_sd=self.restart_sd),
                MANY + i if self.renamed else 0,
                i - PAST,
                "old",
            )
            for i in range(PAST + (not self.renamed))
        ]
        for replica in range(1, self.stay + 1):
            whole = kept(
                start(rng, BEFORE + LIVE.decide.looks[-1], restart_sd=self.restart_sd), replica, 0, "old"
            )
            later = [
                msgspec.structs.replace(
                    s, started_at=s.started_at + HOUR - 5 * BEFORE, median=(s.median or 0) * (1 + drift)
                )
                for s in whole.samples[BEFORE:]
            ]
            restless = np.exp(lasting(rng, BEFORE, 0.6, self.restless)).tolist()
            quiet = [
                msgspec.structs.replace(s, median=(s.median or 0) * by)
                for s, by in zip(whole.samples[:BEFORE], restless, strict=True)
            ]
            before.append(KeptStart(whole.generation, [*quiet, *later]))
        new = start(rng, LIVE.decide.looks[-1], restart_sd=self.restart_sd, image=self.effect, host=drift)
        return before, [kept(new, MANY - 1 if self.renamed else 0, 1, "new")]


def concurrent(trials: int, seed: int) -> None:
    """Print what old replicas that run on beside an upgrade change, where the host drifts before it.

    Args:
        trials: Upgrades of each kind.
        seed: Of the random numbers.
    """
    print(
        f"\n{trials} upgrades of one replica each, restart SD 1 %, 8 earlier starts: without the runs that the others"
        "\nhad meanwhile, and with them\n"
    )
    print(
        "| name | host | replicas that stay | shift | called rightly: without | with | wrongly: without | with | runs |"
        " with |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    hosts = ((0.0, 0.0), (0.05, 0.0), (0.1, 0.0), (0.0, 0.1))
    for renamed, (drift, restless), stay, effect in product((False, True), hosts, (1, 2, 4), (0.0, 0.1)):
        lives: tuple[list[Life], list[Life]] = ([], [])
        for number in range(trials):
            each = Staying(stay, drift, effect, renamed=renamed, restless=restless)
            before, after = each.starts(seed, number)
            begin = after[0].generation.started_at
            lives[0].append(watched([s.first(int(np.searchsorted(s.times, begin))) for s in before], after))
            lives[1].append(watched(before, after))
        host = f"restless, {restless:.0%}" if restless else f"±{drift:.0%}"
        _row(f"{'new' if renamed else 'kept'} | {host} | {stay} | {effect:+.0%}", effect, lives)


def _row(name: str, effect: float, several: Sequence[Sequence[Life]]) -> None:
    right = [share([each.called == "regressed" and effect > 0 for each in lives]) for lives in several]
    wrong = [
        share([each.called is not None and (each.called != "regressed" or not effect) for each in lives])
        for lives in several
    ]
    runs = [
        ", ".join(
            f"{float(np.quantile([each.runs for each in lives], q, method='higher')):g}" for q in (0.5, 0.95)
        )
        for lives in several
    ]
    print(f"| {name} |", *(f"{cell} |" for cell in (*right, *wrong, *runs)), flush=True)
