"""How well change points are found in real series that people marked, by a protocol that guards against tuning.

    python benchmarks/labelled.py nested series.json.gz     # what to choose, and how well such a choice does
    python benchmarks/labelled.py score series.json.gz --set window=12
    python benchmarks/labelled.py folds series.json.gz
    python benchmarks/labelled.py guard                     # simulated noise, without a change

The data is ``{name: {"values": [...], "marks": [[index, ...] of each person]}}``, such as SAP's
performance-regression-data-set (CC-BY-4.0) with the marks that were published with Costa et al., "Evaluating Change
Point Detection Methods for Software Performance Regression Analysis".

**What counts.** Without an event: a change that is found more than 10 points from every person's mark is a false alarm,
counted per 1,000 points. A change that three people marked within 5 points of each other, and that moves the median of
20 points by 3 % or more, is to be found within 10 points (recall). Around a known event: ``known_event.py``.

**What a figure is worth.** A few series hold most changes, so each figure stands beside one in which every series
weighs the same (recall by series), and has an interval: bootstrap over tests, 2,000 times, 95 %. The halves of one test
stay together.

**How a choice is made.** By nested cross-validation over tests, in five folds. They do not depend on chance: tests in
the order of their number of changes, then of their names, are dealt out there and back. For each outer fold, and from
the other four alone: each family of variants is scored by inner folds (its setting chosen on three, scored on the
fourth), the best family is taken, its setting is chosen on all four, and the outer fold is scored with that. A setting
is chosen by the mean of both recalls among those within a budget of false alarms. The final setting is the same choice
with all five folds, and what the outer folds gave is how well it does on series that nobody has seen. A choice
overdraws its budget there, so two are shown: the goal is at most .06 per 1,000, and the smaller one's choice ships.

Each variant that is scored becomes a line of ``results/labelled.tsv``: trying many is tuning, too.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias

import numpy as np

from change_peers import FAMILIES, NOISES, Family, Found

RESULTS = Path(__file__).parent / "results" / "labelled.tsv"

MARGIN, WINDOW, EFFECT, WIDTH = 10, 30, 0.03, 20
FOLDS, RESAMPLED = 5, 2_000
BUDGETS = 0.04, 0.02  # false alarms per 1,000 points

Setting: TypeAlias = tuple[tuple[str, float], ...]
"""The parameters of a variant, by name; a threshold is one of them."""


class Labelled(NamedTuple):
    """One series, where anybody marked a change, and where three agreed on one."""

    name: str
    values: Sequence[float]
    marks: Sequence[int]
    agreed: Sequence[int]
    changes: Sequence[int]
    """Of those the ones to be found."""

    @property
    def test(self) -> str:
        """What was measured: the halves of a test belong together."""
        return self.name.rpartition("_split")[0] or self.name


class Counts(NamedTuple):
    """Of one series: points, false alarms, changes, and how many of those were found."""

    points: int
    false: int
    changes: int
    hits: int


class Score(NamedTuple):
    """Of many series."""

    false: float
    """False alarms per 1,000 points."""
    recall: float
    by_series: float
    """The mean over the series that have changes."""

    @classmethod
    def of(cls, counts: Iterable[Counts]) -> Score:
        """The score of all ``counts`` together."""
        every = list(counts)
        points, false, changes, hits = (sum(column) for column in zip(*every, strict=True))
        shares = [c.hits / c.changes for c in every if c.changes]
        mean = sum(shares) / len(shares) if shares else math.nan
        return cls(1000 * false / points, hits / changes if changes else math.nan, mean)

    def merit(self, budget: float) -> float:
        """What is chosen by, within the budget of false alarms; beyond it fewer of them are better."""
        return (self.recall + self.by_series) / 2 if self.false <= budget else -self.false

    def __str__(self) -> str:
        return f"{self.false:.4f}  {self.recall:.4f}  {self.by_series:.4f}"


def load(path: Path) -> list[Labelled]:
    """The series of a file; those with values that are no latencies are left out."""
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
    """Where three people or more marked a change within 5 points of each other."""
    found: list[int] = []
    for x in every:
        votes = sum(any(abs(y - x) <= 5 for y in person) for person in marks)
        if votes >= 3 and not any(abs(x - other) <= 5 for other in found):
            found.append(x)
    return found


def moved(values: Sequence[float], at: int, width: int) -> bool:
    """Whether the median of ``width`` points differs by 3 % from the one before."""
    before, after = values[max(0, at - width) : at], values[at : at + width]
    if len(before) < 5 or len(after) < 5:
        return False
    return abs(math.log(median(after) / median(before))) >= EFFECT


def folds(series: Sequence[Labelled]) -> dict[str, int]:
    """The fold of each test."""
    changes: defaultdict[str, int] = defaultdict(int)
    for item in series:
        changes[item.test] += len(item.changes)
    there_and_back = [*range(FOLDS), *reversed(range(FOLDS))]
    ordered = sorted(changes, key=lambda test: (-changes[test], test))
    return {test: there_and_back[i % (2 * FOLDS)] for i, test in enumerate(ordered)}


def counted(item: Labelled, found: Sequence[int]) -> Counts:
    """``found`` against the marks of one series."""
    false = sum(not any(abs(at - x) <= MARGIN for x in item.marks) for at in found)
    hits = sum(any(abs(at - x) <= MARGIN for at in found) for x in item.changes)
    return Counts(len(item.values), false, len(item.changes), hits)


class Table:
    """The counts of each series by family and setting; each variant is run once."""

    def __init__(self, series: Sequence[Labelled], families: Mapping[str, Family]) -> None:
        self.series = series
        self.fold = folds(series)
        self.counts: dict[tuple[str, Setting], list[Counts]] = {}
        for name, family in families.items():
            for values in product(*family.grid.values()):
                self._run(name, family, dict(zip(family.grid, values, strict=True)))

    def _run(self, name: str, family: Family, settings: Mapping[str, float]) -> None:
        begin = time.perf_counter()
        found = [family.find(item.values, settings) for item in self.series]
        pace = sum(len(item.values) for item in self.series) / (time.perf_counter() - begin)
        best: tuple[Score, Setting] | None = None
        for threshold in family.thresholds:
            setting = (*settings.items(), ("threshold", threshold))
            counts = [
                counted(item, at_least(one, threshold)) for item, one in zip(self.series, found, strict=True)
            ]
            self.counts[name, setting] = counts
            score = Score.of(counts)
            if best is None or score.merit(BUDGETS[-1]) > best[0].merit(BUDGETS[-1]):
                best = score, setting
        if best:
            note(name, best[1], best[0], pace)

    def score(self, variant: tuple[str, Setting], within: Iterable[int]) -> Score:
        """Of one variant, on some of the folds."""
        chosen = set(within)
        each = zip(self.series, self.counts[variant], strict=True)
        return Score.of(counts for item, counts in each if self.fold[item.test] in chosen)

    def best(self, name: str, within: Sequence[int], budget: float) -> tuple[str, Setting]:
        """The setting of a family that does best on some of the folds; of equals the first."""
        own = [variant for variant in self.counts if variant[0] == name]
        return max(own, key=lambda variant: self.score(variant, within).merit(budget))

    def crossed(self, name: str, within: Sequence[int], budget: float) -> list[Counts]:
        """The counts of a family where each fold is scored with the setting that the others choose."""
        found: list[Counts] = []
        for out in within:
            variant = self.best(name, [fold for fold in within if fold != out], budget)
            found += self.of_fold(variant, out)
        return found

    def of_fold(self, variant: tuple[str, Setting], fold: int) -> list[Counts]:
        """The counts of one fold."""
        each = zip(self.series, self.counts[variant], strict=True)
        return [counts for item, counts in each if self.fold[item.test] == fold]

    def tests_of_fold(self, fold: int) -> list[str]:
        """The test of each of those counts."""
        return [item.test for item in self.series if self.fold[item.test] == fold]


def at_least(found: Found, threshold: float) -> list[int]:
    """Where the strength of what was found reaches a threshold."""
    return [at for at, strength in found if strength >= threshold]


def chosen(table: Table, names: Sequence[str], within: Sequence[int], budget: float) -> tuple[str, Setting]:
    """The family that does best by cross-validation within the folds, and its best setting on all of them."""
    name = max(names, key=lambda name: Score.of(table.crossed(name, within, budget)).merit(budget))
    return table.best(name, within, budget)


def interval(tests: Sequence[str], counts: Sequence[Counts]) -> tuple[Score, Score]:
    """The 95 % interval of each part of a score, by resampling tests."""
    by_test: defaultdict[str, list[Counts]] = defaultdict(list)
    for test, count in zip(tests, counts, strict=True):
        by_test[test].append(count)
    groups = list(by_test.values())
    rng = np.random.default_rng(20261123)
    drawn = [
        Score.of(count for i in rng.integers(0, len(groups), len(groups)) for count in groups[i])
        for _ in range(RESAMPLED)
    ]
    low, high = np.nanquantile(np.array(drawn), (0.025, 0.975), axis=0)
    return Score(*low.tolist()), Score(*high.tolist())


def nested(series: Sequence[Labelled], families: Mapping[str, Family]) -> None:
    """Print how well each family does, and the choice between all, on folds that had no part in a choice."""
    table = Table(series, families)
    print(f"{len(series)} series, {sum(len(s.values) for s in series):,} points, ", end="")
    print(f"{sum(len(s.changes) for s in series)} changes")
    print("outer folds: false alarms per 1,000, recall, recall by series, each with its 95 % interval")
    own = [name for name in families if not families[name].is_peer]
    rows = [(name, [name]) for name in families]
    rows += [("the choice between ours", own)] if len(own) > 1 else []
    for budget in BUDGETS:
        print(f"\nchosen within {budget} false alarms per 1,000")
        for label, names in rows:
            crossed(table, label, names, budget)


def crossed(table: Table, label: str, names: Sequence[str], budget: float) -> None:
    """Print the score of the choice between families on the outer folds, and what all folds choose."""
    tests: list[str] = []
    counts: list[Counts] = []
    for out in range(FOLDS):
        variant = chosen(table, names, [fold for fold in range(FOLDS) if fold != out], budget)
        counts += table.of_fold(variant, out)
        tests += table.tests_of_fold(out)
        print(f"    fold {out}: {Score.of(table.of_fold(variant, out))}  with {shown(variant)}")
    score, (low, high) = Score.of(counts), interval(tests, counts)
    parts = (f"{x:.3f} [{a:.3f}, {b:.3f}]" for x, a, b in zip(score, low, high, strict=True))
    print(f"{label:28} {'   '.join(parts)}")
    final = chosen(table, names, range(FOLDS), budget)
    print(
        f"{'':28} all folds choose {shown(final)}: in sample {table.score(final, range(FOLDS))}", flush=True
    )


def shown(variant: tuple[str, Setting]) -> str:
    """A variant in words."""
    return ", ".join([variant[0], *(f"{name} {value:g}" for name, value in variant[1])])


def note(name: str, setting: Setting, score: Score, pace: float) -> None:
    """Append a variant to the results file."""
    if not RESULTS.exists():
        RESULTS.write_text(
            "when\tfamily\tsetting\tfalse alarms per 1,000\trecall\tby series\tpoints a second\n", "utf-8"
        )
    settings = " ".join(f"{key}={value:g}" for key, value in setting)
    with RESULTS.open("a", encoding="utf-8") as file:
        row = (time.strftime("%Y-%m-%d %H:%M"), name, settings, *(f"{x:.4f}" for x in score), f"{pace:.0f}")
        file.write("\t".join(row) + "\n")


def guard(families: Mapping[str, Family], count: int = 200, length: int = 650) -> None:
    """Print false alarms per 1,000 points in simulated noise, at the usual threshold of each family."""
    print(f"{count} series of {length} points each: false alarms per 1,000, by noise")
    print(f"{'':28}" + "".join(f"{name:>14}" for name in NOISES))
    for name, family in families.items():
        row = []
        for number, make in enumerate(NOISES.values()):
            rngs = (np.random.default_rng([20261123, number, i]) for i in range(count))
            found = sum(len(at_least(family.find(make(rng, length), {}), family.usual)) for rng in rngs)
            row.append(1000 * found / count / length)
        print(f"{name:28}" + "".join(f"{x:14.3f}" for x in row), flush=True)


def families_of(path: Path) -> dict[str, Family]:
    """Families of a file outside the tree that defines ``FAMILIES``: variants that are only tried."""
    spec = importlib.util.spec_from_file_location("tried", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path}: no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Family] = module.FAMILIES
    return found


def main() -> None:
    """One part of the protocol."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("nested", "score", "folds", "guard"))
    parser.add_argument("data", nargs="?", type=Path, help="the labelled series; `guard` needs none")
    parser.add_argument("--family", action="append", help="only this one; may be repeated")
    parser.add_argument("--also", type=Path, help="a Python file with a dict FAMILIES of variants to try")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="for `score`")
    args = parser.parse_args()
    families = dict(FAMILIES) | (families_of(args.also) if args.also else {})
    families = {name: families[name] for name in args.family or families}
    if args.what == "guard":
        guard(families)
        return
    if args.data is None:
        parser.error(f"{args.what} needs the labelled series")
    series = load(args.data)
    if args.what == "folds":
        fold = folds(series)
        for number in range(FOLDS):
            own = [item for item in series if fold[item.test] == number]
            size = sum(len(item.values) for item in own), sum(len(item.changes) for item in own)
            print(f"fold {number}: {len(own)} series, {size[0]:,} points, {size[1]} changes: ", end="")
            print(" ".join(item.name for item in own))
    elif args.what == "nested":
        nested(series, families)
    else:
        settings = {key: float(value) for key, _, value in (each.partition("=") for each in args.set)}
        paces = {name: scored(series, name, family, settings) for name, family in families.items()}
        if "ours" in paces:
            print("pace: " + ", ".join(f"{paces['ours'] / paces[name]:.2f} of {name}" for name in paces))


def scored(series: Sequence[Labelled], name: str, family: Family, settings: Mapping[str, float]) -> float:
    """Print the score of one variant as it stands, on all series; nothing is chosen by it. Return points a second."""
    begin = time.perf_counter()
    found = [at_least(family.find(item.values, settings), family.usual) for item in series]
    pace = sum(len(item.values) for item in series) / (time.perf_counter() - begin)
    counts = [counted(item, one) for item, one in zip(series, found, strict=True)]
    score = Score.of(counts)
    low, high = interval([item.test for item in series], counts)
    note(name, (*settings.items(), ("threshold", family.usual)), score, pace)
    print(f"{name:28} {score}  from {low} to {high}; {pace:,.0f} points a second")
    return pace


if __name__ == "__main__":
    main()
