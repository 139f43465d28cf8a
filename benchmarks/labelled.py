"""Measures how well change points are found in real series that people marked, by a protocol that prevents overfitting.

    python benchmarks/labelled.py nested series.json.gz    # choose the settings, and measure them
    python benchmarks/labelled.py guard                    # simulated noise without a change

The data is ``{name: {"values": [...], "marks": [[index, ...] of each person]}}``, such as SAP's
performance-regression-data-set (CC-BY-4.0) with the marks published with Costa et al., "Evaluating Change Point
Detection Methods for Software Performance Regression Analysis".

**Counting.** A change that is found more than 10 points from every person's mark is a false alarm. False alarms are
counted per 1,000 points. Recall is measured on changes that three people marked within 5 points of each other, and
that move the median of 20 points by 3 % or more; such a change must be found within 10 points. ``verdicts.py
--series`` measures comparisons around a known event.

**Precision.** A few series have most of the changes. So recall is also shown as a mean in which every series has the
same weight (recall by series). Each figure has a 95 % interval, by 2,000 bootstrap samples of tests. The two halves of
a test stay together.

**Choosing settings.** Settings are chosen by nested cross-validation over tests, in five folds. The folds are not
random: tests are sorted by number of changes and name, and dealt out in alternating direction. Each fold is scored
with the setting that is best on the other four folds, by the mean of both recalls among settings within a budget of
false alarms. The final setting is the same choice with all five folds. The scores of the folds estimate its quality on
unseen series. On unseen series, a chosen setting makes more false alarms than its budget allows. So two budgets are
shown; the goal is at most .06 per 1,000. Each scored variant is recorded as a line of ``results/labelled.tsv``, because
a reader must know how many variants were tried.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from infercanary.judge import changepoints
from simulation import lasting, periodic

Floats: TypeAlias = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results" / "labelled.tsv"

MARGIN, WINDOW, EFFECT, WIDTH = 10, 30, 0.03, 20
FOLDS, RESAMPLED = 5, 2_000
BUDGETS = 0.04, 0.02  # false alarms per 1,000 points
THRESHOLDS = [round(float(x), 2) for x in np.geomspace(2.5, 12, 40)]

Variant: TypeAlias = tuple[tuple[str, Any], ...]
"""Constants of the scan's module that are replaced: (name, value)."""
Setting: TypeAlias = tuple[Variant, float]
"""A variant and its threshold."""


GRIDS: dict[str, dict[str, Sequence[Any]]] = {
    "as shipped": {},
    "chosen": {"SIDE": (12, 15, 20), "NEAR": (5, 8), "PRICES": (changepoints.PRICES, (96, 48, 24, 12, 6, 3))},
}
"""The shipped scan, and the candidates from which its settings were chosen."""


def found_by(variant: Variant, values: Sequence[float] | Floats) -> list[tuple[int, float]]:
    """Return the index and the strength of each change that a variant of the scan finds."""
    with mock.patch.multiple(changepoints, **dict(variant)) if variant else contextlib.nullcontext():
        return changepoints.strengths(np.log(np.asarray(values, dtype=float)))


class Labelled(NamedTuple):
    """One series, with all marked changes and the changes that three people agree on."""

    name: str
    values: Sequence[float]
    marks: Sequence[int]
    agreed: Sequence[int]
    changes: Sequence[int]
    """Changes that must be found."""

    @property
    def test(self) -> str:
        return self.name.rpartition("_split")[0] or self.name


class Counts(NamedTuple):
    """Counts of one series: points, false alarms, changes, and found changes."""

    points: int
    false: int
    changes: int
    hits: int


class Score(NamedTuple):
    """Score over many series."""

    false: float
    """False alarms per 1,000 points."""
    recall: float
    by_series: float
    """Mean recall over the series with changes."""

    @classmethod
    def of(cls, counts: Iterable[Counts]) -> Score:
        """Return the score of all ``counts`` together."""
        every = list(counts)
        points, false, changes, hits = (sum(column) for column in zip(*every, strict=True))
        shares = [c.hits / c.changes for c in every if c.changes]
        mean = sum(shares) / len(shares) if shares else math.nan
        return cls(1000 * false / points, hits / changes if changes else math.nan, mean)

    def merit(self, budget: float) -> float:
        """Return the criterion of the choice: mean recall; beyond the budget, the negative rate of false alarms."""
        return (self.recall + self.by_series) / 2 if self.false <= budget else -self.false


def load(path: Path) -> list[Labelled]:
    """Read the series of a file; skip series with a value that is not positive."""
    found = []
    for name, item in json.loads(gzip.decompress(path.read_bytes())).items():
        marks = item["marks"]
        if min(item["values"]) > 0:
            values, every = item["values"], sorted({x for person in marks for x in person})
            agreed = consensus(marks, every)
            changes = [x for x in agreed if moved(values, x, WIDTH)]
            found.append(Labelled(name, values, every, agreed, changes))
    return found


def consensus(marks: Sequence[Sequence[int]], every: Sequence[int]) -> list[int]:
    """Return the indexes that three or more people marked within 5 points of each other."""
    found: list[int] = []
    for x in every:
        votes = sum(any(abs(y - x) <= 5 for y in person) for person in marks)
        if votes >= 3 and not any(abs(x - other) <= 5 for other in found):
            found.append(x)
    return found


def moved(values: Sequence[float], at: int, width: int) -> bool:
    """Return True if the median of ``width`` points differs by 3 % or more from the median of the points before."""
    before, after = values[max(0, at - width) : at], values[at : at + width]
    if len(before) < 5 or len(after) < 5:
        return False
    return abs(math.log(median(after) / median(before))) >= EFFECT


def folds(series: Sequence[Labelled]) -> dict[str, int]:
    """Return the fold of each test."""
    changes: defaultdict[str, int] = defaultdict(int)
    for item in series:
        changes[item.test] += len(item.changes)
    there_and_back = [*range(FOLDS), *reversed(range(FOLDS))]
    ordered = sorted(changes, key=lambda test: (-changes[test], test))
    return {test: there_and_back[i % (2 * FOLDS)] for i, test in enumerate(ordered)}


def counted(item: Labelled, found: Sequence[int]) -> Counts:
    """Compare ``found`` with the marks of one series."""
    false = sum(not any(abs(at - x) <= MARGIN for x in item.marks) for at in found)
    hits = sum(any(abs(at - x) <= MARGIN for at in found) for x in item.changes)
    return Counts(len(item.values), false, len(item.changes), hits)


class Table:
    """Counts of each series by grid and setting. Each variant of the scan runs only once."""

    def __init__(self, series: Sequence[Labelled]) -> None:
        self.series = series
        self.fold = folds(series)
        self.counts: dict[tuple[str, Setting], list[Counts]] = {}
        for name, grid in GRIDS.items():
            for values in product(*grid.values()):
                self._run(name, tuple(zip(grid, values, strict=True)))

    def _run(self, name: str, variant: Variant) -> None:
        begin = time.perf_counter()
        found = [found_by(variant, item.values) for item in self.series]
        pace = sum(len(item.values) for item in self.series) / (time.perf_counter() - begin)
        for threshold in THRESHOLDS:
            each = zip(self.series, found, strict=True)
            self.counts[name, (variant, threshold)] = [
                counted(item, at_least(places, threshold)) for item, places in each
            ]
        best = self.best(name, range(FOLDS), BUDGETS[-1], variant)
        note(name, shown(best), self.score(name, best, range(FOLDS)), pace)

    def of_folds(self, name: str, setting: Setting, within: Iterable[int]) -> list[tuple[str, Counts]]:
        """Return the test and the counts of each series in some folds."""
        chosen = set(within)
        each = zip(self.series, self.counts[name, setting], strict=True)
        return [(item.test, counts) for item, counts in each if self.fold[item.test] in chosen]

    def score(self, name: str, setting: Setting, within: Iterable[int]) -> Score:
        """Return the score of one setting on some folds."""
        return Score.of(counts for _, counts in self.of_folds(name, setting, within))

    def best(
        self, name: str, within: Sequence[int], budget: float, variant: Variant | None = None
    ) -> Setting:
        """Return the best setting on some folds, or the first of several equally good settings."""
        own = [setting for key, setting in self.counts if key == name and variant in (None, setting[0])]
        return max(own, key=lambda setting: self.score(name, setting, within).merit(budget))


def at_least(found: Iterable[tuple[int, float]], threshold: float) -> list[int]:
    """Return the indexes of changes with at least this strength."""
    return [at for at, strength in found if strength >= threshold]


def interval(counts: Iterable[tuple[str, Counts]]) -> tuple[Score, Score]:
    """Return the 95 % interval of each part of a score, by resampling tests."""
    by_test: defaultdict[str, list[Counts]] = defaultdict(list)
    for test, count in counts:
        by_test[test].append(count)
    groups = list(by_test.values())
    rng = np.random.default_rng(20261123)
    drawn = [
        Score.of(count for i in rng.integers(0, len(groups), len(groups)) for count in groups[i])
        for _ in range(RESAMPLED)
    ]
    low, high = np.nanquantile(np.array(drawn), (0.025, 0.975), axis=0)
    return Score(*low.tolist()), Score(*high.tolist())


def with_interval(counts: Sequence[tuple[str, Counts]]) -> str:
    """Return a score with its intervals as table cells: false alarms per 1,000, recall, recall by series."""
    score = Score.of(count for _, count in counts)
    parts = zip(score, *interval(counts), strict=True)
    return " | ".join(f"{x:.3f} [{low:.3f}, {high:.3f}]" for x, low, high in parts)


def nested(series: Sequence[Labelled]) -> None:
    """Print each grid's score by nested cross-validation, and the setting that is best with all folds."""
    table = Table(series)
    print(f"{len(series)} series, {sum(len(s.values) for s in series):,} points, ", end="")
    print(f"{sum(len(s.changes) for s in series)} changes")
    for budget in BUDGETS:
        print(f"\n| within {budget} | false alarms per 1,000 | recall | by series | all folds choose |")
        print("|---|---|---|---|---|")
        for name in GRIDS:
            counts: list[tuple[str, Counts]] = []
            for out in range(FOLDS):
                setting = table.best(name, [fold for fold in range(FOLDS) if fold != out], budget)
                counts += table.of_folds(name, setting, [out])
            final = shown(table.best(name, range(FOLDS), budget))
            print(f"| {name} | {with_interval(counts)} | {final} |", flush=True)


def shown(setting: Setting) -> str:
    """Return a setting as text."""
    variant, threshold = setting
    numbers = [f"{name}={value}" for name, value in variant]
    return " ".join([*numbers, f"threshold={threshold:g}"])


def note(name: str, setting: str, score: Score, pace: float) -> None:
    with RESULTS.open("a", encoding="utf-8") as file:
        row = (time.strftime("%Y-%m-%d %H:%M"), name, setting, *(f"{x:.4f}" for x in score), f"{pace:.0f}")
        file.write("\t".join(row) + "\n")


def _modes(rng: np.random.Generator, count: int, slow: float, fast: float) -> Floats:
    """Return noise of two modes 5 % apart; ``slow`` and ``fast`` are the mean lengths of a stay, in points."""
    stays = np.repeat(np.arange(2 * count) % 2, rng.geometric(np.tile((1 / fast, 1 / slow), count)))
    noise: Floats = 0.05 * stays[:count] + rng.normal(0, 0.005, count)
    return noise


def _ticks(rng: np.random.Generator, count: int, scatter: float) -> Floats:
    """Return latencies of a coarse clock: a tick is 5 % of the latency, which drifts by less than a tick."""
    level = rng.uniform(18, 20) + rng.uniform(-0.3, 0.3) * np.linspace(0, 1, count)
    return np.log(np.round(level + rng.normal(0, scatter, count)))


NOISES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "white": lambda rng, n: lasting(rng, n, 0, 0.02, heavy=False),
    "heavy tails": lambda rng, n: 0.012 * rng.standard_t(3, n),
    "outliers": lambda rng, n: rng.normal(0, 0.01, n) + (rng.random(n) < 0.03) * rng.exponential(0.5, n),
    "bursts": lambda rng, n: (
        rng.normal(0, 0.01, n) + 0.15 * np.convolve(rng.random(n) < 0.01, np.ones(4))[:n].clip(0, 1)
    ),
    "AR .3": lambda rng, n: lasting(rng, n, 0.3, 0.02, heavy=False),
    "AR .6": lambda rng, n: lasting(rng, n, 0.6, 0.02, heavy=False),
    "AR .9": lambda rng, n: lasting(rng, n, 0.9, 0.02, heavy=False),
    "walk": lambda rng, n: np.cumsum(rng.normal(0, 0.01, n)),
    "wide walk": lambda rng, n: np.cumsum(rng.normal(0, 0.02, n)),
    "walk in noise": lambda rng, n: np.cumsum(rng.normal(0, 0.003, n)) + rng.normal(0, 0.01, n),
    "two modes": lambda rng, n: 0.05 * (rng.random(n) < 0.3) + rng.normal(0, 0.005, n),
    "even modes": lambda rng, n: 0.05 * (rng.random(n) < 0.5) + rng.normal(0, 0.002, n),
    "sticky modes": lambda rng, n: _modes(rng, n, 5, 35 / 3),
    "ticks": lambda rng, n: _ticks(rng, n, 0.25),
    "fine ticks": lambda rng, n: _ticks(rng, n, 0.1),
    "drift": lambda rng, n: np.log(np.linspace(1, 1.3, n)) + rng.normal(0, 0.01, n),
    "wave of 60": periodic(60, 0.04),
    "wave of 100": periodic(100, 0.04),
    "wave of 200": periodic(200, 0.04),
    "sawtooth of 100": periodic(100, 0.1, sawtooth=True),
}


def guard() -> None:
    """Print the false alarms per 1,000 points of the scan in simulated noise."""
    count, length = 1_000, 650
    print(f"{count} series of {length} points each: changes found per 1,000 points, by noise")
    for number, (name, make) in enumerate(NOISES.items()):
        rngs = (np.random.default_rng([20261123, number, i]) for i in range(count))
        found = sum(len(changepoints.scan(0.01 * np.exp(make(rng, length)))) for rng in rngs)
        print(f"| {name} | {1000 * found / count / length:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("nested", "guard"))
    parser.add_argument("data", nargs="?", type=Path, help="the labelled series; `guard` needs none")
    args = parser.parse_args()
    if args.what == "guard":
        guard()
    elif args.data is None:
        parser.error("`nested` needs a file: python benchmarks/labelled.py nested series.json.gz")
    else:
        nested(load(args.data))


if __name__ == "__main__":
    main()
