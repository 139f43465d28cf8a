"""How well ``compare`` does around a known event, in real series that people marked, and how its numbers were chosen.

    python benchmarks/known_event.py series.json.gz

What counts, and the folds, are those of ``labelled.py``: 30 points on either side of a place. Where nobody marked
anything, a call is a false alarm; at an isolated change that three people marked, of 3 % or more, a call is right. Here
up to ``PLACES`` quiet places of each series are asked, not 20, because one in a thousand must be seen.

Such changes are few, and nearly all are found. So a second power is printed: of steps made in quiet places, with
sizes of marked changes; those that are smaller than the scatter of the points are left out, as nobody would mark
them. The setting is chosen by the mean of both powers, among those with at most ``BUDGET`` of false alarms, on four
folds, and scored on the fifth. The budget is half of the goal, because what is chosen so does worse on series that
nobody has seen.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import numpy as np

from infercanary.judge.policy import FILES
from infercanary.judge.shift import CHANGED
from infercanary.judge.statistics import Series, assess, shift
from labelled import EFFECT, FOLDS, RESAMPLED, WINDOW, Labelled, Score, folds, load, moved, note

PLACES, BUDGET = 60, 0.0005

CONFIDENCES = (0.95, 0.98, 0.985, 0.99, 0.995, 0.998, 0.9995)


class Asked(NamedTuple):
    """One place: its test, whether nobody marked a change, somebody did or one was made, and who calls it."""

    test: str
    kind: str
    called: tuple[bool, ...]
    """By each setting, in the order of :data:`SETTINGS`."""


SETTINGS = tuple(replace(FILES, confidence=confidence) for confidence in CONFIDENCES)
"""The smallest effect and the clear zone are what users are promised, and not chosen."""


def places(series: Sequence[Labelled]) -> list[Asked]:
    """What each setting says of each place."""
    rng = random.Random(20261123)
    quiet: list[tuple[Labelled, int]] = []
    events: list[tuple[Labelled, int]] = []
    for item in series:
        inner = range(WINDOW, len(item.values) - WINDOW)
        free = [at for at in inner if not any(abs(at - x) <= WINDOW for x in item.marks)]
        quiet += [(item, at) for at in rng.sample(free, min(PLACES, len(free)))]
        for x in item.agreed:
            alone = not any(abs(y - x) > 5 and x - WINDOW <= y <= x + WINDOW for y in item.marks)
            if WINDOW <= x <= len(item.values) - WINDOW and alone and moved(item.values, x, WINDOW):
                events.append((item, x))
    sizes = [abs(step(*sides(item, at))) for item, at in events]
    found = [asked(item.test, "event", *sides(item, at)) for item, at in events]
    for item, at in quiet:
        before, after = sides(item, at)
        found.append(asked(item.test, "quiet", before, after))
        size = rng.choice(sizes)
        made = [x * math.exp(size) for x in after]
        scatter = max(Series.of(side).scatter for side in (before, after))
        if size >= scatter and abs(step(before, made)) >= EFFECT:
            found.append(asked(item.test, "made", before, made))
    return found


def sides(item: Labelled, at: int) -> tuple[Sequence[float], Sequence[float]]:
    """The points before and after a place."""
    return item.values[at - WINDOW : at], item.values[at : at + WINDOW]


def step(before: Sequence[float], after: Sequence[float]) -> float:
    """By how much the median moved, as a logarithm."""
    return math.log(median(after) / median(before))


def asked(test: str, kind: str, before: Sequence[float], after: Sequence[float]) -> Asked:
    """What each setting says; the shift is the same to all."""
    between = shift(before, after, FILES)
    verdicts = (assess(between, policy.confidence, policy=policy).verdict for policy in SETTINGS)
    return Asked(test, kind, tuple(verdict in CHANGED for verdict in verdicts))


def rates(several: Iterable[Asked], setting: int) -> dict[str, float]:
    """The share of places of each kind that a setting calls."""
    called: defaultdict[str, list[bool]] = defaultdict(list)
    for one in several:
        called[one.kind].append(one.called[setting])
    return {kind: sum(calls) / len(calls) for kind, calls in called.items()}


def by_test(several: Iterable[tuple[Asked, bool]]) -> float:
    """The power at marked changes where every test weighs the same."""
    of_test: defaultdict[str, list[bool]] = defaultdict(list)
    for one, called in several:
        if one.kind == "event":
            of_test[one.test].append(called)
    return mean(mean(calls) for calls in of_test.values())


def best(several: Sequence[Asked]) -> int:
    """The setting with the most power within the budget."""

    def merit(setting: int) -> float:
        rate = rates(several, setting)
        return (rate["event"] + rate["made"]) / 2 if rate["quiet"] <= BUDGET else -rate["quiet"]

    return max(range(len(SETTINGS)), key=merit)


def interval(several: Sequence[tuple[Asked, bool]]) -> dict[str, tuple[float, float, float]]:
    """The share that was called, of each kind, and its 95 % interval by resampling tests."""
    by_test: defaultdict[str, list[tuple[str, bool]]] = defaultdict(list)
    for one, called in several:
        by_test[one.test].append((one.kind, called))
    kinds = ("quiet", "event", "made")
    counts = np.array(
        [
            [(sum(c for k, c in each if k == kind), sum(k == kind for k, _ in each)) for kind in kinds]
            for each in by_test.values()
        ]
    )
    rng = np.random.default_rng(20261123)
    drawn = counts[rng.integers(0, len(counts), (RESAMPLED, len(counts)))].sum(axis=1)
    low, high = np.nanquantile(drawn[..., 0] / drawn[..., 1], (0.025, 0.975), axis=0)
    whole = counts.sum(axis=0)
    return {
        kind: (float(whole[i, 0] / whole[i, 1]), float(low[i]), float(high[i]))
        for i, kind in enumerate(kinds)
    }


def named(setting: int) -> str:
    """A setting in words."""
    return f"confidence {SETTINGS[setting].confidence:g}"


def main() -> None:
    """Print what each setting does, and what the choice between them does on folds that had no part in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    series = load(parser.parse_args().data)
    begin = time.perf_counter()
    every, fold = places(series), folds(series)
    seconds = time.perf_counter() - begin
    print(f"{len(every)} places of {len(series)} series; false alarms, power at marked changes, at made ones")
    for setting in range(len(SETTINGS)):
        rate = rates(every, setting)
        print(f"{named(setting):20} {rate['quiet']:8.3%} {rate['event']:7.3f} {rate['made']:7.3f}")
        chosen_by = f"confidence={SETTINGS[setting].confidence:g} made={rate['made']:g}"
        score = Score(
            1000 * rate["quiet"], rate["event"], by_test((one, one.called[setting]) for one in every)
        )
        note("event", chosen_by, score, len(every) / seconds)
    scored: list[tuple[Asked, bool]] = []
    for out in range(FOLDS):
        chosen = best([one for one in every if fold[one.test] != out])
        own = [one for one in every if fold[one.test] == out]
        scored += [(one, one.called[chosen]) for one in own]
        rate = rates(own, chosen)
        print(f"fold {out}: {named(chosen):20} {rate['quiet']:8.3%} {rate['event']:7.3f} {rate['made']:7.3f}")
    for kind, (rate_, low, high) in interval(scored).items():
        print(f"outer folds, {kind:6} {rate_:8.3%} [{low:.3%}, {high:.3%}]")
    print(f"outer folds, event by test {by_test(scored):.3%}")
    print(f"all folds choose {named(best(every))}")


if __name__ == "__main__":
    main()
