"""Measures the test that ends a warm-up, on recorded warm-ups of real models and on simulated warm-ups.

``is_steady`` is called after each repeat, as in a canary (limit: 100 repeats, 20 s), and compared with other rules.
The truth is found in hindsight:

- The series is cut at its change points, as in Barrett et al. ("Virtual Machine Warmup Blows Hot and Cold", OOPSLA
  2017) and Traini et al. ("Towards effective assessment of steady state performance in Java software", EMSE 2022). The
  cuts minimize absolute deviations (logarithms, optimal partitioning, 3 ln n per change), so a single slow repeat does
  not move a cut.
- The steady level is the median of the last half. A segment is steady if its median is within 5 % of this level, or
  within the scatter (median absolute deviation) of this half.
- The steady state starts with the first steady segment after which four of five repeats are in steady segments, both
  in the next 50 repeats and in all repeats. The papers require all segments to be steady; but on a shared machine a
  neighbour slows some repeats of any start, and no rule could distinguish this from warm-up.
- A series that becomes steady only in its last half has no steady state, and is counted separately.

A first recording was used to choose the window of ``is_steady``; a second recording was held out.

A rule is early if it stops before the true start. Otherwise ``to spare`` is the number of repeats after the true
start, and ``off`` is the distance of the median of the next 50 repeats (the maximum of a run) from the steady level.
The first run is not in a series, because the probe reports it separately.

Exits with 1 if ``is_steady`` is early in more than 12 % of the simulated series, or more often than a fixed count of
50 repeats. The recording program is in git history.
"""

from __future__ import annotations

import gzip
import heapq
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from infercanary.probe.steady import is_steady

DATA = Path(__file__).parent / "data"
CHOSEN_ON, HELD_OUT = DATA / "warm_ups.json.gz", DATA / "warm_ups_held_out.json.gz"

EARLY_GOAL = 0.12
_REPEATS, _SECONDS = 100, 20.0  # limit of a canary's warm-up
_TOLERANCE = 0.05
_SHARE = 0.8


class Series(NamedTuple):
    """Latencies (seconds) of one start, its steady level, and the index of its steady state (None without one)."""

    kind: str
    seconds: Sequence[float]
    level: float
    start: int | None


def deviations(values: Sequence[float], begin: int) -> Iterator[float]:
    """Return the sum of absolute deviations from the median of ``values[begin : begin + n]``, for each n."""
    low: list[float] = []  # smaller half, with negative sign for the heap
    high: list[float] = []
    low_sum = high_sum = 0.0
    for value in values[begin:]:
        if not low or value <= -low[0]:
            heapq.heappush(low, -value)
            low_sum += value
        else:
            heapq.heappush(high, value)
            high_sum += value
        if len(low) > len(high) + 1:
            moved = -heapq.heappop(low)
            heapq.heappush(high, moved)
            low_sum, high_sum = low_sum - moved, high_sum + moved
        elif len(high) > len(low):
            moved = heapq.heappop(high)
            heapq.heappush(low, -moved)
            low_sum, high_sum = low_sum + moved, high_sum - moved
        centre = -low[0]
        yield centre * len(low) - low_sum + high_sum - centre * len(high)


def segments(values: Sequence[float]) -> list[tuple[int, int]]:
    """Return the segments (begin, end) with the smallest deviation plus penalty (optimal partitioning)."""
    noise = max(1e-3, median(abs(b - a) for a, b in pairwise(values)))
    penalty = 3 * math.log(len(values)) * noise
    best = [0.0, *[math.inf] * len(values)]
    cut = [0] * len(best)
    for begin in range(len(values)):
        for end, deviation in enumerate(deviations(values, begin), begin + 1):
            if (cost := best[begin] + penalty + deviation) < best[end]:
                best[end], cut[end] = cost, begin
    found, end = [], len(values)
    while end:
        found.append((cut[end], end))
        end = cut[end]
    return found[::-1]


def in_hindsight(kind: str, seconds: Sequence[float]) -> Series:
    """Return the series with its true level and start; see the module's docstring."""
    logs = [math.log(s) for s in seconds]
    last = logs[len(logs) // 2 :]
    level = median(last)
    tolerance = max(_TOLERANCE, median(abs(x - level) for x in last))
    steady = [False] * len(logs)
    begins = []
    for begin, end in segments(logs):
        if abs(median(logs[begin:end]) - level) <= tolerance:
            steady[begin:end] = [True] * (end - begin)
            begins.append(begin)
    for begin in begins:
        if begin <= len(logs) // 2 and all(
            sum(rest) >= _SHARE * len(rest) for rest in (steady[begin:], steady[begin : begin + 50])
        ):
            return Series(kind, seconds, math.exp(level), begin)
    return Series(kind, seconds, math.exp(level), None)


SHAPES: dict[str, Callable[[int], float]] = {
    # excess of the k-th repeat over the steady level, as a fraction of this level
    "flat": lambda k: 0.0,
    "step, 5 at +100 %": lambda k: 1.0 if k < 5 else 0.0,
    "step, 20 at +50 %": lambda k: 0.5 if k < 20 else 0.0,
    "step, 40 at +20 %": lambda k: 0.2 if k < 40 else 0.0,
    "tiers, 10 at +100 %, 30 at +10 %": lambda k: 1.0 if k < 10 else 0.1 if k < 40 else 0.0,
    "decay, +100 %, 1/e in 5": lambda k: math.exp(-k / 5),
    "decay, +50 %, 1/e in 20": lambda k: 0.5 * math.exp(-k / 20),
    "step, 70 at +20 %": lambda k: 0.2 if k < 70 else 0.0,
    "decay, +50 %, 1/e in 35": lambda k: 0.5 * math.exp(-k / 35),
    "drift, +20 % to 0 in 60": lambda k: max(0.0, 0.2 * (1 - k / 60)),
}


def made() -> Iterator[Series]:
    """Yield every shape with noise of 0.5 to 10 %, independent or autocorrelated, and series with two levels."""
    count = 200
    for sigma in (0.005, 0.02, 0.05, 0.10):
        for i in range(10):
            for carry in (0.0, 0.7):
                for kind, above in SHAPES.items():
                    rng = random.Random(f"{kind} {sigma} {carry} {i}")
                    noise, seconds = rng.gauss(0, sigma), []
                    for k in range(count):
                        seconds.append(0.01 * (1 + above(k)) * math.exp(noise))
                        noise = carry * noise + rng.gauss(0, sigma * math.sqrt(1 - carry**2))
                    tolerance = max(_TOLERANCE, 0.6745 * sigma)  # scatter of normal noise
                    start = max((k + 1 for k in range(count) if above(k) > tolerance), default=0)
                    yield Series(kind, seconds, 0.01, start)
            rng = random.Random(f"two levels {sigma} {i}")
            seconds = [
                0.01 * (1.3 if rng.random() < 0.3 else 1) * math.exp(rng.gauss(0, sigma))
                for _ in range(count)
            ]
            yield Series("two levels, 30 % at +30 %", seconds, median(seconds), 0)


Rule = Callable[[Sequence[float]], bool]


def fixed(count: int) -> Rule:
    """Return the rule of most scripts: a fixed number of repeats."""
    return lambda latencies: len(latencies) >= count


def georges(latencies: Sequence[float]) -> bool:
    """Return True if the coefficient of variation of the last 10 repeats is below 2 %.

    Georges et al., "Statistically Rigorous Java Performance Evaluation", 2007.
    """
    last = latencies[-10:]
    return len(last) == 10 and statistics.stdev(last) < 0.02 * statistics.mean(last)


RULES: dict[str, Rule] = {
    "is_steady": is_steady,
    "10 repeats": fixed(10),
    "50 repeats": fixed(50),
    "CV of 10 < 2 %": georges,
}


def stop(rule: Rule, seconds: Sequence[float]) -> tuple[int, bool]:
    """Return the number of repeats after which warm-up ends, and True if the rule ended it (False: the limit)."""
    spent = 0.0
    for count in range(1, _REPEATS + 1):
        spent += seconds[count - 1]
        if rule(seconds[:count]):
            return count, True
        if spent > _SECONDS:
            return count, False
    return _REPEATS, False


class Score(NamedTuple):
    """Result of one rule on one series."""

    repeats: int
    decided: bool
    start: int
    off: float

    @property
    def early(self) -> bool:
        """True if the rule ended warm-up before the steady state."""
        return self.decided and self.repeats < self.start


def score(rule: Rule | None, series: Series) -> Score:
    """Score a rule. With None, warm-up ends at the true start, so the remaining distance is due to noise."""
    assert series.start is not None
    repeats, decided = (series.start, True) if rule is None else stop(rule, series.seconds)
    off = abs(median(series.seconds[repeats : repeats + 50]) / series.level - 1)
    return Score(repeats, decided, series.start, off)


def line(name: str, scores: Sequence[Score]) -> str:
    n = len(scores)
    early, undecided = sum(s.early for s in scores), sum(not s.decided for s in scores)
    beyond = [s.repeats - s.start for s in scores if s.repeats >= s.start]
    offs = sorted(s.off for s in scores)
    return (
        f"{name:34}{n:6} {median(s.repeats for s in scores):14.0f}  {early / n:6.1%}  {undecided / n:9.1%}"
        f"  {median(offs):5.1%}, {offs[math.ceil(0.9 * n) - 1]:5.1%}"
        f"  {sum(off > 0.05 for off in offs) / n:9.1%}  {median(beyond) if beyond else math.nan:8.0f}"
    )


def table(title: str, series: Sequence[Series]) -> dict[str, float]:
    """Print the results of every rule on all ``series``; return the share of early stops by rule."""
    settled = [s for s in series if s.start is not None]
    early = {}
    print(f"{title}\n{'':34}starts  stopped after   early  undecided  off: median, p90  > 5 % off  to spare")
    for name, rule in [("in hindsight", None), *RULES.items()]:
        scores = [score(rule, s) for s in settled]
        early[name] = statistics.mean(s.early for s in scores)
        print(line(name, scores))
    return early


def main() -> int:
    for path in (CHOSEN_ON, HELD_OUT):
        recorded = json.loads(gzip.decompress(path.read_bytes()))
        real = [in_hindsight(each["kind"], each["seconds"]) for each in recorded["starts"]]
        table(f"{path.name}: recorded with {recorded['about']}", real)
        left_out = sum(series.start is None for series in real)
        print(f"{len(real)} starts; no steady state in hindsight, and left out: {left_out}\n")
    early = table("simulated", list(made()))
    ours, fixed_count = early["is_steady"], early["50 repeats"]
    print(
        f"early: {ours / fixed_count:.2f} times as often as 50 repeats (goal: 1 at most); {ours:.1%} of the simulated "
        f"series (goal: {EARLY_GOAL:.0%} at most)"
    )
    return int(ours > min(fixed_count, EARLY_GOAL))


if __name__ == "__main__":
    sys.exit(main())
