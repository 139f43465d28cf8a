"""Measures the judge's verdicts: false calls, power, causes and abilities, as one table.

    python benchmarks/verdicts.py --series series.json.gz
    python benchmarks/verdicts.py --rows 'cause, .*siblings' --trials 400

Each figure is a rate with its interval (Wilson, 95 %), or a median with the interval of its order statistics.
``simulation.py`` makes the services. A row draws the same services for every version of the judge, so outputs are
comparable. A life is the series of looks at one service, after 5, 8, 12, 24 and 48 runs of the new starts. Each look is
a complete verdict on all runs so far.

Exits with 1 if, beyond chance, more than .5 % of unchanged services or more than .1 % of quiet places are called.

**Causes.** Each cell (``CAUSES``) has its correct answers and the reason; any other named cause is wrong. With
siblings or replicas on the old image, a new start runs 2.5 times as often as they do, as in the burst after a start.
Before 12 runs of the new start, siblings and replicas have too few runs for a comparison, so `unknown` is also correct.
One case is missing: a host effect that neither a control nor a sibling shows. No judge can distinguish this effect from
a slower image; by convention, the cause is `image`.

``--series`` takes the data of ``labelled.py``. A place is quiet if no mark is within 30 points.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, product, repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
from scipy.stats import binom, binomtest

from infercanary.contract.measures import HOST_MEMORY, throughput_of
from infercanary.contract.vocabulary import GPU_BUSY, THROTTLED
from infercanary.judge import Judge, compare, scan
from infercanary.judge.measures import Measures
from infercanary.judge.model import Start
from simulation import (
    CANARY,
    EVERY,
    GAP,
    NOISES,
    Floats,
    Scene,
    beside,
    bursts,
    cold,
    hardware,
    lasting,
    measured,
    noisy,
    one_slower,
    renamed,
    scene,
    shared,
    tagged,
)  # fmt: skip

FALSE_GOALS = {"live, all cells: false call": 0.5, "event: false calls at quiet places": 0.1}
"""Row → largest accepted rate, in %."""
LOOKS, LAST, COMPARED, CALLED = (5, 8, 12, 24, 48), 192, 12, ("regressed", "improved")
AT_1, AT_8 = throughput_of(1, 1), throughput_of(8, 1)
BURST = 2.5  # when a new start has 12 runs, siblings have five, the smallest number for a comparison
Rng: TypeAlias = np.random.Generator
Build: TypeAlias = Callable[[Rng], Scene]


JUDGE = Judge()
MEASURES = Measures().judge


def ask(starts: Sequence[Start], siblings: Sequence[Start] = (), canary: str = CANARY) -> Any:
    """Return a complete verdict on copies of the starts, because a start caches computed values."""
    ours, others = ([Start(s.generation, s.samples) for s in side] for side in (starts, siblings))
    return JUDGE.verdict(ours, others, canary)


class Look(NamedTuple):
    """State and cause after this number of runs; the state is `crashed` after an error."""

    runs: int
    state: str
    cause: str


Lives: TypeAlias = Sequence[Sequence[Look]]


def life(made: Build, rng: Rng, looks: Sequence[int] = LOOKS, stop: bool = True) -> list[Look]:
    """Return the looks at a scene; with ``stop``, only up to the first call."""
    shown, seen = made(rng), list[Look]()
    for runs in looks:
        try:
            result = ask(*shown.at(runs))
            seen.append(Look(runs, result.state, result.causes.cause))
        except (ArithmeticError, LookupError, TypeError, ValueError):
            seen.append(Look(runs, "crashed", "unknown"))
        if stop and seen[-1].state in CALLED:
            break
    return seen


class Figure(NamedTuple):
    """A value with its interval; None if nothing was counted."""

    row: str
    value: float | None
    low: float
    high: float
    number: int
    unit: str = "%"

    def __str__(self) -> str:
        if self.value is None:
            return "no case | "
        return f"{self.value:,.2f} {self.unit} | {self.low:,.2f} to {self.high:,.2f}"


def rate(row: str, hits: Iterable[bool], scale: float = 100, unit: str = "%") -> Figure:
    """Return the share of hits."""
    each = [*hits]
    if not each:
        return Figure(row, None, 0.0, 0.0, 0, unit)
    share, ends = sum(each) / len(each), binomtest(sum(each), len(each)).proportion_ci(method="wilson")
    return Figure(row, scale * share, scale * ends.low, scale * ends.high, len(each), unit)


def middle(row: str, values: Iterable[float]) -> Figure:
    """Return the median with the interval of its order statistics."""
    each = sorted(values)
    place = max(int(binom.ppf(0.025, len(each), 0.5)) - 1, 0)
    return Figure(row, float(np.median(each)), each[place], each[-1 - place], len(each), "runs")


Figures: TypeAlias = Callable[[str, Sequence[Any]], Iterator[Figure]]


def share(row: str, outcomes: Sequence[bool]) -> Iterator[Figure]:
    """Return the rate of positive trials."""
    yield rate(row, outcomes)


def first(looks: Iterable[Look], states: Sequence[str] = CALLED, causes: Sequence[str] = ()) -> float:
    """Return the number of runs at the first look with one of the states (and causes); infinite without such a look."""
    right = (each.runs for each in looks if each.state in states and (not causes or each.cause in causes))
    return next(right, math.inf)


def false_calls(row: str, lives: Lives) -> Iterator[Figure]:
    """Return the rate of lives in which any look calls a change."""
    yield rate(row, (first(looks) < math.inf for looks in lives))


def power(*within: int) -> Figures:
    """Return the rate of lives called `regressed` within each number of runs, and the median number of runs."""

    def figures(row: str, lives: Lives) -> Iterator[Figure]:
        called = [first(looks, ("regressed",)) for looks in lives]
        yield from (rate(f"{row}: called within {runs}", (x <= runs for x in called)) for runs in within)
        yield middle(f"{row}: runs to the call", called)

    return figures


def equivalent(row: str, lives: Lives) -> Iterator[Figure]:
    """Return the rate of lives whose last look is `equivalent`."""
    yield rate(row, (looks[-1].state == "equivalent" for looks in lives))


def causes(right: tuple[str, ...], waits: bool) -> Figures:
    """Return the causes by look for called lives, the number of runs until a correct cause, and contradictions.

    Args:
        right: Correct causes.
        waits: True if the cause needs a comparison with siblings or with replicas on the old image. Before 12 runs,
            `unknown` is then also correct.
    """

    def figures(row: str, lives: Lives) -> Iterator[Figure]:
        for runs, looks in zip(LOOKS, zip(*lives, strict=True), strict=True):
            named = [look.cause for look in looks if look.state in CALLED]
            allowed = (*right, "unknown") if waits and runs < COMPARED else right
            for name, hits in (
                ("called", [look.state in CALLED for look in looks]),
                ("right", [cause in allowed for cause in named]),
                ("unknown", [cause == "unknown" for cause in named]),
                ("wrong", [cause not in (*allowed, "unknown") for cause in named]),
            ):
                yield rate(f"{row}, {runs:2} runs: {name}", hits)
        yield middle(f"{row}: runs to a right cause", (first(looks, CALLED, right) for looks in lives))
        yield rate(f"{row}: looks that contradict each other", map(contradicts, lives))

    return figures


def contradicts(looks: Sequence[Look]) -> bool:
    """Return True if two looks name different causes, or if a call is withdrawn."""
    called = [look for look in looks if look.state in CALLED]
    causes = {look.cause for look in called} - {"unknown"}
    is_taken_back = bool(called) and looks[-1].state not in (called[0].state, "unconfirmed")
    return len(causes) > 1 or is_taken_back


SLOW, HELD = {"host": 0.3, "control": 0.3}, {"old": tagged(THROTTLED, 0.05), "new": tagged(THROTTLED, 0.8)}
QUOTA = {"image": 0.3, "control": 0.3, **HELD}
BUSY = {"old": shared(), "new": shared(0.5)}
CAUSES: tuple[tuple[str, dict[str, Any], tuple[str, ...], str], ...] = (
    ("slower image", {"image": 0.3}, ("image",), "the control is flat"),
    ("slower image, two siblings", {"image": 0.3, "siblings": 2}, ("image",), "all else is flat"),
    ("slower host, control", SLOW, ("host",), "the control moves as much"),
    ("slower host, control, two siblings", {**SLOW, "felt": 0.3, "siblings": 2}, ("host",), "all move as much"),
    (
        "slower host, control flat, two siblings", {"host": 0.3, "felt": 0.3, "siblings": 2}, ("host", "unknown"),
        "the control's work is of another kind, but two siblings agree: `image` would hide the neighbour",
    ),
    (
        "slower host, control flat, one sibling", {"host": 0.3, "felt": 0.3, "siblings": 1}, ("host", "unknown"),
        "one sibling may have changed by itself: the data cannot tell",
    ),
    (
        "slower image, own quota", QUOTA, ("unknown", "image"),
        "the quota also slows the control, and no sibling shows the host: the data cannot tell, but `host` is wrong",
    ),
    ("slower image, own quota, two siblings", {**QUOTA, "siblings": 2}, ("image",), "the host is as before"),
    (
        "slower image and host, two siblings",
        {"image": 0.25, "host": 0.25, "control": 0.25, "felt": 0.25, "siblings": 2}, ("both",),
        "control and siblings show half of the shift",
    ),
    ("neighbour, identical rebuild", BUSY, ("host",), "each run measures its CPU wait"),
    (
        "neighbour, identical rebuild, two siblings", {**BUSY, "beside": shared(0.5), "siblings": 2}, ("host",),
        "CPU wait is measured, and siblings are slower, too",
    ),
    ("slower image, two replicas stay", {"image": 0.3, "stay": 2}, ("image",), "these replicas are flat"),
    (
        "slower image and host, two replicas stay", {"image": 0.3, "host": 0.15, "control": 0.15, "stay": 2},
        ("image",), "the shift is beyond that of these replicas",
    ),
)  # fmt: skip
"""Name, scene, correct causes and the reason, decided before the judge was run."""


# Abilities: each trial returns True if the judge's answer is correct.


def says(made: Build, right: Callable[[Any], bool], rng: Rng) -> bool:
    """Return True if the verdict after 24 runs is correct."""
    return right(ask(*made(rng).at(24)))


def is_called(result: Any) -> bool:
    """Return True if the change is called `regressed`."""
    return bool(result.state == "regressed")


def is_blamed(result: Any) -> bool:
    """Return True if the verdict names the image as a cause of a slowdown."""
    return is_called(result) and result.causes.cause in ("image", "both")


def loads(result: Any) -> bool:
    """Return True if the verdict names a change of loading in the cold start."""
    return "load" in result.causes.cold_start


def called_measures(shown: Scene) -> set[str]:
    """Return the measures that any look calls, with their states."""
    verdicts = [each for runs in LOOKS for each in MEASURES(*shown.at(runs)).items()]
    return {f"{name} {v.state}" for name, v in verdicts if v.state in CALLED}


def measure(names: Sequence[str], ratio: float, sd: float, rng: Rng) -> bool:
    """Return True if only the last measure is called, as `regressed`; for a ratio of 1, if any measure is called."""
    old, new = (measured(names, by, sd) for by in (1.0, ratio))
    called = called_measures(scene(rng, replicas=2, old=old, new=new))
    return bool(called) if ratio == 1 else called == {f"{names[-1]} regressed"}


def spread(ratio: float, neighbour: str, rng: Rng) -> bool:
    """Return True if the judge calls a change of spread. The new image's spread is ``ratio`` times as large, the
    median equal.

    There are two replicas with three earlier starts. A neighbour, if any, increases the spread of all runs,
    even of two siblings: from time to time, or since the upgrade.
    """
    blocks = int(5 * GAP / EVERY)
    is_busy = np.cumsum(rng.random(blocks) < 1 / 30) % 2 == 1
    if neighbour == "since":
        is_busy = np.arange(blocks) >= 4 * GAP / EVERY

    def wave(times: Floats) -> Floats:
        logs: Floats = is_busy[((times - 1e6) / EVERY).astype(int)] * rng.normal(0.0, 0.015, times.size)
        return logs if neighbour else 0 * times

    def wide(rng: Rng, seconds: Floats) -> dict[str, Any]:
        return {
            "median": (seconds * np.exp(rng.normal(0, 0.01 * math.sqrt(ratio**2 - 1), seconds.size))).tolist()
        }

    noise = partial(lasting, phi=0.3, sd=0.01, heavy=False)
    siblings = 2 if neighbour else 0
    called = called_measures(scene(rng, replicas=2, siblings=siblings, wave=wave, noise=noise, new=wide))
    return any(name.startswith("spread") for name in called)


def aa(rng: Rng) -> tuple[int, int]:
    """Return the number of tried restarts (of ten), and the number of called restarts."""
    found = JUDGE.trials(scene(rng, replicas=2, earlier=5).before, {})
    return len(found), sum(trial.called for trial in found.values())


def aa_figures(row: str, counts: Sequence[tuple[int, int]]) -> Iterator[Figure]:
    """Return the figures of A/A tests: all restarts must be tried, and none called."""
    yield rate(f"{row}: each restart is tried", (tried == 10 for tried, _ in counts))
    yield rate(f"{row}: called", (i < called for tried, called in counts for i in range(tried)))


class Row(NamedTuple):
    """A repeated trial, and the figures of its outcomes."""

    name: str
    trial: Callable[[Rng], Any]
    figures: Figures
    pool: str = ""
    """Name of a group of rows. The table shows the rate over the group, and the group's worst row."""
    worst: Callable[..., Figure] = max
    part: int = 1
    """Divisor of the number of trials; the row itself then has no figure."""


def rows() -> Iterator[Row]:
    def cell(sd: float, replicas: int, earlier: int) -> tuple[str, Callable[..., Scene]]:
        words = f"restart SD {sd:.1%}, {replicas} replicas, {earlier} earlier"
        return words, partial(scene, restart_sd=sd, replicas=replicas, earlier=earlier)

    for size in product((0.005, 0.01, 0.02, 0.03), (1, 2, 4), (0, 2, 8)):
        words, made = cell(*size)
        yield Row(
            f"live, {words}: false call", partial(life, made), false_calls, "live, all cells: false call"
        )
        for effect, ratio in (("×2", 1.0), ("+30 %", 0.3)):
            trial = partial(life, partial(made, image=ratio), looks=LOOKS[:1])
            yield Row(f"live, {words}: {effect}", trial, power(5), f"live, all cells: {effect}", min, 4)
    for (replicas, earlier), sd in product(((1, 8), (2, 1), (2, 8)), (0.005, 0.01)):
        words, made = cell(sd, replicas, earlier)
        for ratio in (0.05, 0.1):
            yield Row(
                f"live, {words}: {ratio:+.0%}", partial(life, partial(made, image=ratio)), power(24, 48)
            )
        trial = partial(life, partial(made, runs=LAST), looks=(LAST,))
        yield Row(f"live, {words}: equivalent after {LAST}", trial, equivalent)
    for name in NOISES:
        yield Row(f"noise, {name}: false call", partial(life, partial(noisy, name, 0.0)), false_calls)
        yield Row(
            f"noise, {name}: +10 %", partial(life, partial(noisy, name, 0.1), looks=LOOKS[:4]), power(24)
        )
    often = partial(scene, old=bursts(0.5), new=bursts(0.5))
    contended = partial(scene, old=bursts(0.5, of_starts=True), new=shared())
    around: tuple[tuple[str, Build, Figures], ...] = (
        ("the replica that stays becomes slower", one_slower, false_calls),
        ("pods under new names", renamed, false_calls),
        ("pods under new names, one throttled", partial(renamed, throttled=1.5), false_calls),
        ("pods under new names, +30 %", partial(renamed, image=0.3), power(24)),
        ("a new pod beside two restless ones", partial(beside, 0.0), false_calls),
        ("a new pod beside two restless ones, +30 %", partial(beside, 0.3), power(24)),
        ("half of the old starts contended", contended, false_calls),
        ("half of the old starts contended, +30 %", partial(contended, image=0.3), power(24)),
        ("a neighbour in half of the runs", often, false_calls),
        ("a neighbour in half of the runs, +30 %", partial(often, image=0.3), power(24)),
    )
    for name, made, figures in around:
        yield Row(f"around it, {name}", partial(life, made), figures)
    for name, shown, right, _ in CAUSES:
        waits = "siblings" in shown or "stay" in shown
        paced = partial(scene, **shown, pace=BURST if waits else 1.0)
        yield Row(f"cause, {name}", partial(life, paced, stop=False), causes(right, waits))
    slower = partial(scene, image=0.3)
    users = partial(slower, old=tagged(GPU_BUSY, 0.05), new=tagged(GPU_BUSY, 0.8))
    load = partial(scene, old=shared(cores=0.1), new=shared(crowds=0.4, cores=0.5, received=150.0))
    verdicts: tuple[tuple[str, Build, Callable[[Any], bool]], ...] = (
        ("cold start, loading ×3: named", partial(cold, 3.0), loads),
        ("cold start, identical: named", partial(cold, 1.0), loads),
        ("GPU neighbour: called", users, is_called),
        ("GPU neighbour: image blamed", users, is_blamed),
        ("load inside: called", load, is_called),
        ("load inside: image blamed", load, is_blamed),
        ("slower class of hardware: called", partial(hardware, 0.0), is_called),
        ("slower class of hardware, +30 %: called", partial(hardware, 0.3), is_called),
    )
    for name, build, is_right in verdicts:
        yield Row(name, partial(says, build, is_right), share)
    yield Row("A/A", aa, aa_figures)
    for words, names, ratio, sd in (
        ("memory", (HOST_MEMORY,), 1.3, 0.01),
        ("throughput at one batch", (AT_1, AT_8), 0.8, 0.02),
    ):
        yield Row(f"{words}, {ratio - 1:+.0%}: called", partial(measure, names, ratio, sd), share)
        yield Row(f"{words}, identical: called", partial(measure, names, 1.0, sd), share)
    neighbours = {"": "", "comes": ", neighbour that comes and goes", "since": ", neighbour since then"}
    for neighbour, words in neighbours.items():
        yield Row(f"spread, identical{words}: called", partial(spread, 1.0, neighbour), share)
        if neighbour != "since":
            yield Row(f"spread ×2{words}: called", partial(spread, 2.0, neighbour), share)


def series(args: argparse.Namespace) -> Iterator[Figure]:
    """Return figures of change points in the labelled series, and of comparisons of 30 points around a place."""
    if args.series is None:
        return
    labelled = importlib.import_module("labelled")
    every, window, rng = labelled.load(args.series), labelled.WINDOW, np.random.default_rng(args.seed)
    quiet, events, made = list[bool](), list[bool](), list[bool]()

    def calls(values: Sequence[float], at: int, by: float = 1.0) -> bool:
        after = [x * by for x in values[at : at + window]]
        return compare(values[at - window : at], after).verdict in CALLED

    found = [[change.index for change in scan(item.values)] for item in every]
    counts = [labelled.counted(item, places) for item, places in zip(every, found, strict=True)]
    points, false, changes, hits = (sum(column) for column in zip(*counts, strict=True))
    yield rate("scan: recall", (i < hits for i in range(changes)))
    yield rate("scan: false alarms per 1,000 points", (i < false for i in range(points)), 1000, "‰")
    for item in every:
        inner = range(window, len(item.values) - window)
        free = [at for at in inner if not any(at - window <= x <= at + window for x in item.marks)]
        quiet += [calls(item.values, at) for at in free]
        made += [calls(item.values, at, 1.1) for at in rng.permutation(free)[:10].tolist()]
        for x in item.agreed:
            is_alone = not any(abs(y - x) > 5 and x - window <= y <= x + window for y in item.marks)
            if (
                window <= x <= len(item.values) - window
                and is_alone
                and labelled.moved(item.values, x, window)
            ):
                events.append(calls(item.values, x))
    yield rate("event: false calls at quiet places", quiet)
    yield rate("event: power at marked changes", events)
    yield rate("event: power at steps of +10 % in quiet places", made)


ROWS = {row.name: row for row in rows()}


def outcome(name: str, seed: int, number: int) -> Any:
    """Return the outcome of a row's trial. A trial draws the same random numbers each time."""
    return ROWS[name].trial(np.random.default_rng([seed, crc32(name.encode()), number]))


def figures(args: argparse.Namespace) -> Iterator[Figure]:
    asked, pools = re.compile(args.rows), defaultdict[str, list[tuple[Row, list[Any]]]](list)
    if asked.search("scan and event"):
        yield from series(args)
    crashes = list[bool]()
    with ProcessPoolExecutor(args.processes) as executor:
        run = executor.map if args.processes > 1 else map
        for row in ROWS.values():
            if asked.search(row.name):
                count = max(1, args.trials // row.part)
                outcomes = [*run(outcome, repeat(row.name), repeat(args.seed), range(count))]
                lives = [each for each in outcomes if isinstance(each, list)]
                crashes += [look.state == "crashed" for look in chain.from_iterable(lives)]
                pools[row.pool].append((row, outcomes))
                if row.part == 1:
                    yield from row.figures(row.name, outcomes)
    pools.pop("", None)
    for pool, several in pools.items():
        yield from several[0][0].figures(pool, [*chain.from_iterable(outcomes for _, outcomes in several)])
        each = [next(row.figures(row.name, outcomes)) for row, outcomes in several]
        worst = several[0][0].worst(each, key=lambda figure: figure.value or 0.0)
        yield worst._replace(row=f"{pool}, worst cell")
    yield rate("verdicts that crash", crashes)


def main() -> int:
    """Print the table; exit with 1 if a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--series", type=Path, help="file with labelled series; without a file, these rows are left out"
    )
    parser.add_argument(
        "--trials", type=int, default=100, help="number of trials of each row (default: %(default)s)"
    )
    parser.add_argument(
        "--rows", default="", metavar="PATTERN", help="only rows whose name matches this pattern"
    )
    parser.add_argument("--processes", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    args = parser.parse_args()
    print("| row | value | 95 % interval | of |\n|---|---:|---|---:|")
    missed = False
    for figure in figures(args):
        goal = FALSE_GOALS.get(figure.row)
        missed |= goal is not None and figure.low > goal
        print(
            f"| {figure.row} | {figure}{f' (goal: {goal} at most)' if goal else ''} | {figure.number} |",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
