"""How good the judge's verdicts are: false calls, power, causes, abilities, speed and size, as one table.

    python benchmarks/verdicts.py --series series.json.gz --json after.json
    python benchmarks/verdicts.py --rows 'cause, .*siblings' --trials 400 --beside before.json

Each figure is a rate with its interval (Wilson, 95 %), or a median with that of its order statistics. ``simulation.py``
makes the services; a row draws the same ones whatever judge is measured, so ``--beside`` compares like with like. A
life is looked at after 5, 8, 12, 24 and 48 runs of the new starts: each look is a whole verdict on all runs until then.

**Causes.** Each cell names its right answers and why (``CAUSES``); another named cause is wrong. Where there are
siblings or replicas on the old image, a new start runs 2.5 times as often as they do, as in the burst after a start.
While they have too few runs to be compared, before 12 of the new start, `unknown` is right beside the cell's own
answer. One cell is not asked: a host that neither a control nor a sibling feels shows the same evidence as a slower
image, so no judge can tell them apart, and `image` is the convention.

The data of ``--series`` is that of ``labelled.py``. Quiet are all places with no mark within 30 points.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import math
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, product, repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import msgspec
import numpy as np
from scipy.stats import binom, binomtest

import infercanary.judge
from infercanary.contract.bottleneck import QUEUED
from infercanary.contract.measures import HOST_MEMORY, throughput_of
from infercanary.contract.profile import Profile, ProfileRow
from infercanary.contract.vocabulary import GPU_BUSY, THROTTLED
from infercanary.judge import compare, scan
from infercanary.judge.measures import Measures
from infercanary.judge.model import Sample, Start
from simulation import (
    CANARY,
    EVERY,
    GAP,
    NOISES,
    RUNS,
    Floats,
    Scene,
    beside,
    bursts,
    cold,
    environments,
    hardware,
    lasting,
    measured,
    noisy,
    one_slower,
    renamed,
    scene,
    shared,
    start,
    tagged,
)  # fmt: skip

ROOT = Path(__file__).parents[1]
LOOKS, LAST, COMPARED, CALLED = (5, 8, 12, 24, 48), 192, 12, ("regressed", "improved")
AT_1, AT_8 = throughput_of(1, 1), throughput_of(8, 1)
BURST = 2.5  # siblings then have five runs, the fewest to compare, when a new start has 12
Rng: TypeAlias = np.random.Generator
Build: TypeAlias = Callable[[Rng], Scene]


def entry(method: str, module: str, function: str) -> Callable[..., Any] | None:
    """The adapter: a method of the judge, or the function of older code; None where there is neither."""
    if hasattr(judge := getattr(infercanary.judge, "Judge", None), method):
        found: Callable[..., Any] = getattr(judge(), method)  # type: ignore[misc]
        return found
    try:
        return getattr(importlib.import_module(f"infercanary.judge.{module}"), function, None)
    except ImportError:
        return None


VERDICT = entry("verdict", "stages", "judge")
MEASURES = Measures().judge
TRIALS = entry("trials", "trials", "trials")
PACK = entry("pack", "profiles", "pack")


def ask(starts: Sequence[Start], siblings: Sequence[Start] = (), canary: str = CANARY) -> Any:
    """A whole verdict; of copies, since a start keeps what was computed of it."""
    assert VERDICT is not None
    fresh = [[Start(s.generation, s.samples) for s in side] for side in (starts, siblings)]
    return VERDICT(*fresh, canary)


class Look(NamedTuple):
    """State and cause after so many runs; an error is the state `crashed`."""

    runs: int
    state: str
    cause: str


Lives: TypeAlias = Sequence[Sequence[Look]]


def life(made: Build, rng: Rng, looks: Sequence[int] = LOOKS, stop: bool = True) -> list[Look]:
    """The looks at a scene, up to the first call where it is to ``stop``."""
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
    """A value with its interval; None where nothing was counted, without a unit where the judge has no such thing."""

    row: str
    value: float | None
    low: float
    high: float
    number: int
    unit: str = "%"
    better: int = 0
    """1 where more is better, -1 where less is, 0 where neither is."""

    def __str__(self) -> str:
        if self.value is None:
            return f"{'no case' if self.unit else 'absent'} | "
        return f"{self.value:,.2f} {self.unit} | {self.low:,.2f} to {self.high:,.2f}"

    def beside(self, before: Figure | None) -> str:
        """Cells with the figure of an earlier judge, and whether the intervals lie apart."""
        if before is None:
            return " | | |"
        is_above, is_below = bool(self.low > before.high), bool(self.high < before.low)
        apart = is_above - is_below if self.number and before.number else 0
        return f" {before} | {('', 'better', 'WORSE')[apart * self.better]} |"


def rate(row: str, hits: Iterable[bool], better: int = 1, scale: float = 100, unit: str = "%") -> Figure:
    """The share of hits."""
    each = [*hits]
    if not each:
        return Figure(row, None, 0.0, 0.0, 0, unit, better)
    share, ends = sum(each) / len(each), binomtest(sum(each), len(each)).proportion_ci(method="wilson")
    return Figure(row, scale * share, scale * ends.low, scale * ends.high, len(each), unit, better)


def middle(row: str, values: Iterable[float], unit: str = "runs") -> Figure:
    """The median, and the interval that order statistics give; less is better."""
    each = sorted(values)
    place = max(int(binom.ppf(0.025, len(each), 0.5)) - 1, 0)
    return Figure(row, float(np.median(each)), each[place], each[-1 - place], len(each), unit, -1)


Figures: TypeAlias = Callable[[str, Sequence[Any]], Iterator[Figure]]


def share(better: int = 1) -> Figures:
    """Rate of trials that say yes, without those that say None: there the judge cannot say."""

    def figures(row: str, outcomes: Sequence[bool | None]) -> Iterator[Figure]:
        known = [x for x in outcomes if x is not None]
        yield rate(row, known, better, unit="%" if known else "")

    return figures


def first(looks: Iterable[Look], states: Sequence[str] = CALLED, causes: Sequence[str] = ()) -> float:
    """The runs at the first look that says so."""
    right = (each.runs for each in looks if each.state in states and (not causes or each.cause in causes))
    return next(right, math.inf)


def false_calls(row: str, lives: Lives) -> Iterator[Figure]:
    """Lives of which any look calls a change."""
    yield rate(row, (first(looks) < math.inf for looks in lives), -1)


def power(*within: int) -> Figures:
    """Lives that are called `regressed` within so many runs; then the median of these runs."""

    def figures(row: str, lives: Lives) -> Iterator[Figure]:
        called = [first(looks, ("regressed",)) for looks in lives]
        yield from (rate(f"{row}: called within {runs}", (x <= runs for x in called)) for runs in within)
        yield middle(f"{row}: runs to the call", called)

    return figures


def equivalent(row: str, lives: Lives) -> Iterator[Figure]:
    """Lives whose last look says so."""
    yield rate(row, (looks[-1].state == "equivalent" for looks in lives))


class Cell(NamedTuple):
    """A kind of upgrade, which causes may be named, and why these."""

    name: str
    made: Build
    right: tuple[str, ...]
    reason: str
    waits: bool
    """Whether siblings or replicas that stay must be compared first: until then `unknown` is right, too."""

    def figures(self, row: str, lives: Lives) -> Iterator[Figure]:
        """By look, of the lives that are called then; when a right cause is named first; contradictions."""
        for runs, looks in zip(LOOKS, zip(*lives, strict=True), strict=True):
            right = (*self.right, "unknown") if self.waits and runs < COMPARED else self.right
            causes = [look.cause for look in looks if look.state in CALLED]
            yield rate(f"{row}, {runs:2} runs: called", (look.state in CALLED for look in looks), 0)
            yield rate(f"{row}, {runs:2} runs: right", (cause in right for cause in causes))
            yield rate(f"{row}, {runs:2} runs: unknown", (cause == "unknown" for cause in causes), 0)
            yield rate(
                f"{row}, {runs:2} runs: wrong", (cause not in (*right, "unknown") for cause in causes), -1
            )
        yield middle(f"{row}: runs to a right cause", (first(looks, CALLED, self.right) for looks in lives))
        yield rate(f"{row}: looks that contradict each other", map(contradicts, lives), -1)


def contradicts(looks: Sequence[Look]) -> bool:
    """Whether two looks name different causes, or a call is taken back."""
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
        "a control's work is of another kind, and two siblings agree: `image` hides the neighbour",
    ),
    (
        "slower host, control flat, one sibling", {"host": 0.3, "felt": 0.3, "siblings": 1}, ("host", "unknown"),
        "one sibling may have changed by itself: nothing tells",
    ),
    (
        "slower image, own quota", QUOTA, ("unknown", "image"),
        "the quota slows the control as well, and no sibling shows the host: nothing tells, but `host` is false",
    ),
    ("slower image, own quota, two siblings", {**QUOTA, "siblings": 2}, ("image",), "the host is as before"),
    (
        "slower image and host, two siblings",
        {"image": 0.25, "host": 0.25, "control": 0.25, "felt": 0.25, "siblings": 2}, ("both",),
        "all else shows half of it",
    ),
    ("neighbour, identical rebuild", BUSY, ("host",), "each run measures its waiting for others on the host"),
    (
        "neighbour, identical rebuild, two siblings", {**BUSY, "beside": shared(0.5), "siblings": 2}, ("host",),
        "waiting is measured, and siblings feel it",
    ),
    ("slower image, two replicas stay", {"image": 0.3, "stay": 2}, ("image",), "these are flat"),
    (
        "slower image and host, two replicas stay", {"image": 0.3, "host": 0.15, "control": 0.15, "stay": 2},
        ("image",), "the shift is beyond that of these replicas",
    ),
)  # fmt: skip
"""Name, scene, right causes and the reason: before the judge was asked."""


# Abilities: each a trial that says whether it is as it should be.


def says(made: Build, right: Callable[[Any], bool], rng: Rng) -> bool:
    """Whether the verdict after 24 runs is right."""
    return right(ask(*made(rng).at(24)))


def is_called(result: Any) -> bool:
    """Whether it is slower."""
    return bool(result.state == "regressed")


def is_upgrade(changed: str, result: Any) -> bool:
    """Whether it is slower since another image or model."""
    return is_called(result) and bool(result.changed == changed)


def is_blamed(result: Any) -> bool:
    """Whether the image is said to be slower."""
    return is_called(result) and result.causes.cause in ("image", "both")


def loads(result: Any) -> bool:
    """Whether a slower cold start is named."""
    return "load" in result.causes.cold_start


def grew(result: Any) -> bool:
    """Whether the convolution is named first."""
    operators = result.causes.operators
    return bool(operators and operators.shifts and operators.shifts[0].operator == "aten::conv2d")


def profiled(conv: float) -> dict[str, Any]:
    """A generation with two profiles, of which a convolution takes so many seconds."""
    assert PACK is not None
    rows = (
        ProfileRow("aten::conv2d", "aten::mkldnn_convolution", "cpu", "1x3x8x8 float", 1.0, (conv,) * 5),
        ProfileRow("aten::linear", "aten::addmm", "cpu", "8x256 float", 1.0, (0.003,) * 5),
    )
    profiles = (
        Profile(at, "torch", "ok", (conv + 0.004,) * 5, (0.001,) * 5, (0.0,) * 5, rows) for at in (1e6, 2e6)
    )
    return {"profiles": {CANARY: tuple(map(PACK, profiles))}}


def rolled_back(rng: Rng) -> bool:
    """Whether a rollback is known as one, and compared with what that image did before."""
    images = (("old", 1.0), ("old", 1.0), ("new", 1.3), ("old", 1.0))
    starts = [
        start(rng, "r0", image, 1e6 + i * GAP, RUNS, canary=math.log(by))
        for i, (image, by) in enumerate(images)
    ]
    found = ask(starts)
    return bool(found.state == "improved" and found.rollback and found.own is not None)


def called_measures(shown: Scene) -> set[str] | None:
    """The measures that any look calls, each with its state; None where the judge has none to judge."""
    verdicts = [each for runs in LOOKS for each in MEASURES(*shown.at(runs)).items()]
    return {f"{name} {v.state}" for name, v in verdicts if v.state in CALLED} if verdicts else None


def measure(names: Sequence[str], ratio: float, sd: float, rng: Rng) -> bool | None:
    """Whether exactly the last measure is called, and as worse; of a ratio of 1, whether any is."""
    old, new = (measured(names, by, sd) for by in (1.0, ratio))
    called = called_measures(scene(rng, replicas=2, old=old, new=new))
    return called if called is None else bool(called) if ratio == 1 else called == {f"{names[-1]} regressed"}


def spread(ratio: float, neighbour: str, rng: Rng) -> bool | None:
    """Whether a spread of runs is called that is so many times as large, at the same median.

    Of two replicas with three earlier starts. A neighbour that makes runs scatter, those of two siblings as well, comes
    and goes, or has come with the upgrade.
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
    return called if called is None else any(name.startswith("spread") for name in called)


def aa(rng: Rng) -> tuple[int, int]:
    """How many of ten restarts were tried, and how many of these called."""
    found = TRIALS(scene(rng, replicas=2, earlier=5).before, {}) if TRIALS else {}
    return len(found), sum(trial.called for trial in found.values())


def aa_figures(row: str, counts: Sequence[tuple[int, int]]) -> Iterator[Figure]:
    """All are to be tried, and none called."""
    yield rate(f"{row}: each restart is tried", (tried == 10 for tried, _ in counts))
    yield rate(f"{row}: called", (i < called for tried, called in counts for i in range(tried)), -1)


class Row(NamedTuple):
    """A trial that is repeated, and the figures of its outcomes."""

    name: str
    trial: Callable[[Rng], Any]
    figures: Figures
    pool: str = ""
    """A figure of all rows of that name together, and their worst."""
    part: int = 1
    """Trials are divided by it; then the row itself has no figure."""


def rows() -> Iterator[Row]:
    """All that are repeated."""

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
            yield Row(f"live, {words}: {effect}", trial, power(5), f"live, all cells: {effect}", 4)
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
    for name, shown, right, reason in CAUSES:
        waits = "siblings" in shown or "stay" in shown
        paced = partial(scene, **shown, pace=BURST if waits else 1.0)
        each = Cell(f"cause, {name}", paced, right, reason, waits)
        yield Row(each.name, partial(life, each.made, stop=False), each.figures)
    slower = partial(scene, image=0.3)
    weights, settings = (environments(f"{name}:{CANARY}", image_id="one") for name in ("model", "settings"))
    package = environments("torch", image_id="")
    users = partial(slower, old=tagged(GPU_BUSY, 0.05), new=tagged(GPU_BUSY, 0.8))
    load = partial(scene, old=shared(cores=0.1), new=shared(crowds=0.4, cores=0.5, received=150.0))
    verdicts: tuple[tuple[str, Build, Callable[[Any], bool], int], ...] = (
        ("new weights in one image: upgrade", partial(slower, known=weights), partial(is_upgrade, "model"), 1),
        ("changed settings: upgrade", partial(slower, known=settings), is_called, -1),
        ("changed package without an image: upgrade", partial(slower, known=package),
         partial(is_upgrade, "image"), 1),
        ("operator that grew: named", lambda rng: slower(rng, known=(profiled(0.006), profiled(0.009))), grew, 1),
        ("operator, identical: named", lambda rng: scene(rng, known=(profiled(0.006), profiled(0.006))), grew, -1),
        ("cold start, loading ×3: named", partial(cold, 3.0), loads, 1),
        ("cold start, identical: named", partial(cold, 1.0), loads, -1),
        ("GPU neighbour: called", users, is_called, 0),
        ("GPU neighbour: image blamed", users, is_blamed, -1),
        ("load inside: called", load, is_called, 0),
        ("load inside: image blamed", load, is_blamed, -1),
        ("slower class of hardware: called", partial(hardware, 0.0), is_called, -1),
        ("slower class of hardware, +30 %: called", partial(hardware, 0.3), is_called, 1),
    )  # fmt: skip
    for name, build, is_right, better in verdicts:
        yield Row(name, partial(says, build, is_right), share(better))
    yield Row("rollback, against its own history", rolled_back, share())
    yield Row("A/A", aa, aa_figures)
    for words, names, ratio, sd in (
        ("memory", (HOST_MEMORY,), 1.3, 0.01),
        ("throughput at one batch", (AT_1, AT_8), 0.8, 0.02),
    ):
        yield Row(f"{words}, {ratio - 1:+.0%}: called", partial(measure, names, ratio, sd), share())
        yield Row(f"{words}, identical: called", partial(measure, names, 1.0, sd), share(-1))
    for neighbour in ("", "comes", "since"):
        words = (
            f", neighbour {'that comes and goes' if neighbour == 'comes' else 'since then'}"
            if neighbour
            else ""
        )
        yield Row(f"spread, identical{words}: called", partial(spread, 1.0, neighbour), share(-1))
        if neighbour != "since":
            yield Row(f"spread ×2{words}: called", partial(spread, 2.0, neighbour), share())


# Rows measured once.


def recorded(args: argparse.Namespace) -> Iterator[Figure]:
    """Two stacks, recorded in real Docker: a slow image that must be called, and its cause."""
    sys.path.append(str(ROOT / "tests" / "tools"))

    def since(s: Sample) -> Sample:  # a probe of today knows that it hardly waited
        is_little = s.waited is None and s.off_cpu.get(QUEUED, math.inf) <= 0.03 * (s.median or 0.0)
        return msgspec.structs.replace(s, waited=0.0, crowded=0.0) if is_little else s

    for name in ("neighbour_gone", "second_rollout"):
        stack: dict[str, list[Start]] = importlib.import_module("recorded").starts(name)
        if name == "neighbour_gone":
            stack = {
                key: [Start(s.generation, [*map(since, s.samples)]) for s in of] for key, of in stack.items()
            }
        *before, last = stack["classify"]
        for runs in (5, 12, 28):
            result = ask(
                [*before, Start(last.generation, last.samples[:runs])], stack["moderate"], "resnet18"
            )
            yield rate(f"recorded, {name}, {runs:2} runs: called", [is_called(result)])
            yield rate(f"recorded, {name}, {runs:2} runs: image", [result.causes.cause == "image"])


def series(args: argparse.Namespace) -> Iterator[Figure]:
    """Change points in the labelled series, and comparisons of 30 points on either side of a place."""
    if args.series is None:
        return
    labelled = importlib.import_module("labelled")
    every, window, rng = labelled.load(args.series), labelled.WINDOW, np.random.default_rng(args.seed)
    quiet, events, made = list[bool](), list[bool](), list[bool]()

    def calls(values: Sequence[float], at: int, by: float = 1.0) -> bool:
        after = [x * by for x in values[at : at + window]]
        return compare(values[at - window : at], after).verdict in CALLED

    begin = time.process_time()
    found = [[change.index for change in scan(item.values)] for item in every]
    spent = time.process_time() - begin
    counts = [labelled.counted(item, places) for item, places in zip(every, found, strict=True)]
    points, false, changes, hits = (sum(column) for column in zip(*counts, strict=True))
    yield rate("scan: recall", (i < hits for i in range(changes)))
    yield rate("scan: false alarms per 1,000 points", (i < false for i in range(points)), -1, 1000, "‰")
    yield Figure("scan: points a second", points / spent, points / spent, points / spent, points, "/s", 1)
    for item in every:
        inner = range(window, len(item.values) - window)
        free = [at for at in inner if not any(at - window <= x <= at + window for x in item.marks)]
        quiet += [calls(item.values, at) for at in free[:: 10 if args.quick else 1]]
        made += [calls(item.values, at, 1.1) for at in rng.permutation(free)[:10].tolist()]
        for x in item.agreed:
            is_alone = not any(abs(y - x) > 5 and x - window <= y <= x + window for y in item.marks)
            if (
                window <= x <= len(item.values) - window
                and is_alone
                and labelled.moved(item.values, x, window)
            ):
                events.append(calls(item.values, x))
    yield rate("event: false calls at quiet places", quiet, -1)
    yield rate("event: power at marked changes", events)
    yield rate("event: power at steps of +10 % in quiet places", made)


def speed(args: argparse.Namespace) -> Iterator[Figure]:
    """Milliseconds of a verdict after 48 runs, eight earlier starts; and over those of ``numpy.median`` of its runs."""
    for replicas, siblings in product((1, 2, 4), (0, 2)):
        shown = scene(np.random.default_rng(args.seed), replicas=replicas, siblings=siblings, earlier=8).at(
            48
        )
        values = np.array([s.median for start in shown[0] for s in start.samples])
        spent, medians = [], []
        for _ in range(15):
            begin = time.process_time()
            ask(*shown)
            spent.append(1e3 * (time.process_time() - begin))
            begin = time.process_time()
            for _ in range(50):
                np.median(values)
            medians.append(1e3 * (time.process_time() - begin) / 50)
        row = f"speed, {replicas} replicas, {siblings} siblings"
        yield middle(f"{row}: verdict", spent, "ms")
        yield middle(f"{row}: over numpy.median", (x / float(np.median(medians)) for x in spent), "×")


def size(args: argparse.Namespace) -> Iterator[Figure]:
    """Nodes of the package's syntax trees, without docstrings."""
    nodes = 0
    for path in Path(infercanary.judge.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            nodes += -1 if is_text else not isinstance(node, ast.expr_context)
    yield Figure("size, nodes of the package", nodes, nodes, nodes, 1, "", -1)


WHOLE: Mapping[str, Callable[[argparse.Namespace], Iterator[Figure]]] = {
    "scan and event": series, "recorded": recorded, "speed": speed, "size": size,
}  # fmt: skip
ROWS = {row.name: row for row in rows()}


def outcome(name: str, seed: int, number: int) -> Any:
    """Result of a row's trial; the same trial draws the same numbers each time."""
    return ROWS[name].trial(np.random.default_rng([seed, crc32(name.encode()), number]))


def figures(args: argparse.Namespace) -> Iterator[Figure]:
    """Figures of all rows that are asked for."""
    asked, pools = re.compile(args.rows), defaultdict[str, list[tuple[Row, list[Any]]]](list)
    for name, whole in WHOLE.items():
        if asked.search(name):
            yield from whole(args)
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
        worst = min(each, key=lambda figure: (figure.value or 0.0) * figure.better)
        yield worst._replace(row=f"{pool}, worst cell")
    yield rate("verdicts that crash", crashes, -1)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", type=Path, help="labelled series; without it there are no such rows")
    parser.add_argument("--quick", action="store_true", help="ask at every tenth quiet place")
    parser.add_argument("--trials", type=int, default=100, help="of each row (default: %(default)s)")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="only rows in whose name it is found")
    parser.add_argument("--processes", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--beside", type=Path, help="such a file, to be shown beside")
    args = parser.parse_args()
    kept = json.loads(args.beside.read_text("utf-8")) if args.beside else []
    before = {each["row"]: Figure(**each) for each in kept}
    print(f"| row | value | 95 % interval | of |{' before | 95 % interval | |' if before else ''}")
    print(f"|---|---:|---|---:|{'---:|---|---|' if before else ''}")
    found = []
    for figure in figures(args):
        found.append(figure)
        beside = figure.beside(before.get(figure.row)) if before else ""
        print(f"| {figure.row} | {figure} | {figure.number} |{beside}", flush=True)
    if args.json:
        args.json.write_text(json.dumps([each._asdict() for each in found], indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
