"""Verdicts on memory, throughput and energy: identical restarts that are called, and changes that are found.

``calls``: restarts of the same image, of one and two replicas, with one and eight earlier starts. Each counts as a
false call if *any* look of its life calls a change. Then changes: 30 % more memory at equal latency, and 20 % less
throughput at batch 8 only; as the exporter's judge sees them, and as ``compare`` does, at one look at all values.

``cost``: CPU time of the verdicts on four measures of a service, beside that of the verdict on its latency.

Memory has a value a run, and a run every 10 s. It is the same to the byte in all starts; or a level of each start, with
an SD of 1 %, with some pages more or less at random; or a leak on top of that, of 1 to 5 % an hour, of each start
another one. Each start of the old image ran for a time of its own, from half an hour to 30 hours. Throughput has a
value an hour: a level of each start (SD 2 and 3 %), the noise of a second's requests (SD 1.5 %), a clock 3 % slower for
one value in five, and one in 50 that was throttled by 20 %. Latency never changes.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from infercanary.contract.measures import ENERGY, HOST_MEMORY, throughput_of
from infercanary.judge.measures import MeasureVerdict, compare_measures, judge_measures
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.shift import CHANGED
from infercanary.judge.stages import judge
from simulation import Floats

LOADS = (throughput_of(1, 1), throughput_of(8, 1))
LIFE = 2e6  # seconds between the starts of one replica


class Kind(NamedTuple):
    """How the values of one start are made, and how far apart they are."""

    words: str
    every: float
    values: Callable[[np.random.Generator, Floats], Floats]
    """Of ages in seconds, each at its level about 1."""


def _pages(rng: np.random.Generator, level: float, ages: Floats) -> Floats:
    pages = rng.integers(-20, 40, ages.size) * (rng.random(ages.size) < 0.1)
    return level * (1 + 1e-5 * pages.astype(np.float64))


def _constant(rng: np.random.Generator, ages: Floats) -> Floats:
    return np.ones(ages.size)


def _level(rng: np.random.Generator, ages: Floats) -> Floats:
    return _pages(rng, math.exp(rng.normal(0, 0.01)), ages)


def _leak(rng: np.random.Generator, ages: Floats) -> Floats:
    return _level(rng, ages) * (1 + rng.uniform(0.01, 0.05) * ages / 3600)


def _throughput(sd: float) -> Callable[[np.random.Generator, Floats], Floats]:
    def values(rng: np.random.Generator, ages: Floats) -> Floats:
        found = math.exp(rng.normal(0, sd)) * np.exp(rng.normal(0, 0.015, ages.size))
        found *= np.where(rng.random(ages.size) < 0.2, 0.97, 1.0)
        slowed: Floats = found * np.where(rng.random(ages.size) < 0.02, 0.8, 1.0)
        return slowed

    return values


MEMORY = (
    Kind("memory, the same to the byte", 10.0, _constant),
    Kind("memory, restart SD 1 %", 10.0, _level),
    Kind("memory that leaks, restart SD 1 %", 10.0, _leak),
)
THROUGHPUT = (
    Kind("throughput, restart SD 2 %", 3600.0, _throughput(0.02)),
    Kind("throughput, restart SD 3 %", 3600.0, _throughput(0.03)),
)


class Setting(NamedTuple):
    """What is simulated: earlier starts of each replica, replicas, and the measure over what it was."""

    kind: Kind
    earlier: int
    replicas: int
    ratio: float = 1.0

    def starts(self, seed: int, number: int) -> tuple[list[Start], list[Start]]:
        """Those of the old image, and those of the new one, which have as many values as the last look."""
        key = [*map(ord, self.kind.words)]
        rng = np.random.default_rng([seed, number, self.earlier, self.replicas, int(1e3 * self.ratio), *key])
        before = []
        for past in range(self.earlier, -1, -1):
            for replica in range(self.replicas):
                count = (
                    int(math.exp(rng.uniform(math.log(180), math.log(10_800))))
                    if self.kind in MEMORY
                    else 240
                )
                before.append(self._start(rng, replica, -1 - past, count))
        return before, [
            self._start(rng, i, 0, LIVE.decide.looks[-1], self.ratio) for i in range(self.replicas)
        ]

    def _start(
        self, rng: np.random.Generator, replica: int, order: int, count: int, ratio: float = 1.0
    ) -> Start:
        ages: Floats = self.kind.every * np.arange(count, dtype=np.float64)
        g = Generation(
            service="service", container=f"replica-{replica}", boot_id=f"{replica}-{order}",
            started_at=1e9 + LIFE * order + replica, image_id="old" if order < 0 else "new",
        )  # fmt: skip
        values = self.kind.values(rng, ages)
        if self.kind in MEMORY:
            measures = [{HOST_MEMORY: 4096.0 * round(131_072 * x * ratio)} for x in values.tolist()]
        else:  # at batch 8 alone
            other = self.kind.values(rng, ages).tolist()
            measures = [
                {LOADS[0]: 200 * y, LOADS[1]: 900 * x * ratio}
                for x, y in zip(values.tolist(), other, strict=True)
            ]
        samples = [
            Sample(i, "canary", g.started_at + at, "ok", x, measures=m)
            for i, (at, x, m) in enumerate(
                zip(
                    ages.tolist(), (0.01 * np.exp(rng.normal(0, 0.01, count))).tolist(), measures, strict=True
                )
            )
        ]
        return Start(g, samples, samples[-1].started_at)


class Life(NamedTuple):
    """By measure: the first call of any look, and after how many values it came."""

    called: dict[str, str]
    values: dict[str, int]
    last: dict[str, MeasureVerdict]


def life(setting: Setting, seed: int, number: int) -> Life:
    """The judge asked at each look."""
    before, after = setting.starts(seed, number)
    called: dict[str, str] = {}
    values: dict[str, int] = {}
    found: dict[str, MeasureVerdict] = {}
    for look in LIVE.decide.looks:
        found = judge_measures([*before, *(start.first(look) for start in after)])
        for name, verdict in found.items():
            if verdict.state in CHANGED and name not in called:
                called[name], values[name] = verdict.state, look
    return Life(called, values, found)


def calls(trials: int, seed: int, only: str = "") -> None:
    """Print identical restarts that are called, and changes that are found.

    Args:
        trials: Lives of each kind.
        seed: Of the random numbers.
        only: How the words of the kinds begin.
    """
    kinds = [kind for kind in (*MEMORY, *THROUGHPUT) if kind.words.startswith(only)]
    print(f"\n{trials} restarts of the same image each: called changed at any look, and by `compare`\n")
    print("| measure | replicas | earlier starts | live | compare | live ends `equivalent` |")
    print("|---|---|---|---|---|---|")
    for kind, replicas, earlier in product(kinds, (1, 2), (1, 8)):
        setting = Setting(kind, earlier, replicas)
        lives = [life(setting, seed, i) for i in range(trials)]
        compared = [_compared(setting, seed, i) for i in range(trials)]
        print(
            f"| {kind.words} | {replicas} | {earlier} | {sum(bool(each.called) for each in lives)} |",
            f"{sum(any(v.state in CHANGED for v in each.values()) for each in compared)} |",
            f"{sum(all(v.state == 'equivalent' for v in each.last.values()) for each in lives)} |",
            flush=True,
        )
    print(
        f"\n{trials} changes each: called `regressed`, and nothing else called; values of a start until then\n"
    )
    print("| measure | change | replicas | earlier starts | live | values: median | 95 % | compare |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, replicas, earlier in product(kinds, (1, 2), (0, 1, 8)):
        name, ratio = (HOST_MEMORY, 1.3) if kind in MEMORY else (LOADS[1], 0.8)
        setting = Setting(kind, earlier, replicas, ratio)
        lives = [life(setting, seed, i) for i in range(trials)]
        compared = [_compared(setting, seed, i) for i in range(trials)]
        right = [each.called == {name: "regressed"} for each in lives]
        alike = [{n for n, v in each.items() if v.state in CHANGED} == {name} for each in compared]
        runs = [each.values.get(name, math.inf) for each in lives]
        middle, late = (float(np.quantile(runs, q, method="higher")) for q in (0.5, 0.95))
        print(
            f"| {kind.words} | {ratio - 1:+.0%} | {replicas} | {earlier} | {sum(right)} | {middle:g} | {late:g} |",
            f"{sum(alike)} |",
            flush=True,
        )


def _compared(setting: Setting, seed: int, number: int) -> dict[str, MeasureVerdict]:
    return compare_measures(*setting.starts(seed, number))


def cost(trials: int, seed: int) -> None:
    """Print CPU time of judging four measures, and of judging the latency of the same service.

    Args:
        trials: Judgements of each.
        seed: Of the random numbers.
    """
    services = [_mixed(Setting(MEMORY[1], 8, 2), seed, i) for i in range(trials)]
    print(
        f"\n{trials} services of two replicas with 8 earlier starts each, at the last look: CPU time of a judgement\n"
    )
    print("\n| | ms |\n|---|---|")
    for words, judged in (
        ("latency", lambda starts: judge(starts, [], "canary")),
        ("four measures", judge_measures),
    ):
        begin = time.process_time()
        for starts in services:
            judged(starts)
        print(f"| {words} | {1e3 * (time.process_time() - begin) / trials:.1f} |", flush=True)


def _mixed(setting: Setting, seed: int, number: int) -> Sequence[Start]:
    """With memory and energy of each run, and two points of a sweep once an hour."""
    rng = np.random.default_rng([seed, number])
    before, after = setting.starts(seed, number)
    found = []
    for start in (*before, *after):
        energy = np.exp(rng.normal(0, 0.02, len(start.samples))).tolist()
        for i, sample in enumerate(start.samples):
            sample.measures[ENERGY] = energy[i]
            if i % 360 == 359:
                sample.measures.update({name: 900 * math.exp(rng.normal(0, 0.02)) for name in LOADS})
        found.append(start)
    return found


def main() -> None:
    """Run what is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["calls", "cost"])
    parser.add_argument("--trials", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--only", default="", help="kinds of `calls` that begin so, such as throughput")
    args = parser.parse_args()
    if args.what == "calls":
        calls(args.trials, args.seed, args.only)
    else:
        cost(args.trials, args.seed)


if __name__ == "__main__":
    main()
