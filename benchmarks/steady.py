"""How well the test that ends a warm-up works: on recorded warm-ups of real models, and on simulated ones.

``score`` (the default) asks ``is_steady`` after each repeat, as a canary does (limit: 100 repeats, 20 s), and the
rules of others. It compares where they stop with the truth in hindsight:

- The series is cut at its change points, as Barrett et al. ("Virtual Machine Warmup Blows Hot and Cold", OOPSLA 2017)
  and Traini et al. ("Towards effective assessment of steady state performance in Java software", EMSE 2022) do. Here
  the cut is the one of least absolute deviation (logarithms, optimal partitioning, 3 ln n per change), which one slow
  repeat does not move.
- The steady level is the median of the last half. A segment is steady where its median is within 5 % of that, or
  within the scatter (median absolute deviation) of that half.
- The steady state starts with the first steady segment from which on four of five repeats lie in steady segments,
  of the next 50 and of all. Theirs is stricter (all segments); but on a shared machine a neighbour slows some repeats
  of any start, and no rule could know that as warm-up.
- A series whose start lies beyond its half has no steady state; it is counted apart.

A first recording chose how wide the windows of ``is_steady`` are; a second one, held out, did not.

A rule stops early where it stops before that start. ``to spare`` is by how many repeats it stops after it otherwise,
``off`` how far the median of the next 5 and 50 repeats (the fewest and most in a run) lies from the steady level. The
first run is not in a series: the probe reports it apart.

``record`` starts fresh processes, and takes ten minutes; ``--data`` says where to.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import json
import math
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from infercanary.probe.steady import is_steady
from infercanary.probe.timing import HostClock, Phase

EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet18"
DATA = Path(__file__).parent / "data"
CHOSEN_ON, HELD_OUT = DATA / "warm_ups.json.gz", DATA / "warm_ups_held_out.json.gz"

KINDS = {  # fresh processes, and latencies of each after the first run
    "resnet18 eager": (8, 200),
    "resnet18 TorchScript": (8, 200),
    "resnet18 compiled": (3, 200),
    "mlp eager": (8, 300),
    "mlp TorchScript": (8, 300),
    "mlp compiled": (3, 300),
    "transformer eager": (8, 300),
    "transformer TorchScript": (8, 300),
}

_REPEATS, _SECONDS = 100, 20.0  # a canary's limit
_TOLERANCE = 0.05
_SHARE = 0.8


class Series(NamedTuple):
    """Latencies (s) of one start, the level they settle at, and from where on; None where they do not."""

    kind: str
    seconds: Sequence[float]
    level: float
    start: int | None


def deviations(values: Sequence[float], begin: int) -> Iterator[float]:
    """The sum of absolute deviations from the median of ``values[begin : begin + 1]``, ``[begin : begin + 2]``, …"""
    low: list[float] = []  # the smaller half, negated
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
    """Optimal partitioning: the cut with the least deviation and penalty, as (begin, end)."""
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
    """With its true level and start: see the head of this file."""
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
    # how far above its level the k-th repeat is
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


def made(starts: int = 10, count: int = 200) -> Iterator[Series]:
    """Every shape with noise of 0.5 to 10 %, each repeat's own or lasting (autocorrelation 0.7); and two levels."""
    for sigma in (0.005, 0.02, 0.05, 0.10):
        for i in range(starts):
            for carry in (0.0, 0.7):
                for kind, above in SHAPES.items():
                    rng = random.Random(f"{kind} {sigma} {carry} {i}")
                    noise, seconds = rng.gauss(0, sigma), []
                    for k in range(count):
                        seconds.append(0.01 * (1 + above(k)) * math.exp(noise))
                        noise = carry * noise + rng.gauss(0, sigma * math.sqrt(1 - carry**2))
                    tolerance = max(
                        _TOLERANCE, 0.6745 * sigma
                    )  # as in_hindsight: the scatter of normal noise
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
    """A fixed count, as most scripts have."""
    return lambda latencies: len(latencies) >= count


def georges(latencies: Sequence[float]) -> bool:
    """Georges et al. ("Statistically Rigorous Java Performance Evaluation", 2007): the last 10 vary by under 2 %."""
    last = latencies[-10:]
    return len(last) == 10 and statistics.stdev(last) < 0.02 * statistics.mean(last)


def perf_analyzer(latencies: Sequence[float]) -> bool:
    """Triton's perf_analyzer: the means of three windows within 10 % of their mean. Windows of 10 here, not of 50."""
    if len(latencies) < 30 or len(latencies) % 10:
        return False
    means = [statistics.mean(latencies[len(latencies) - at :][:10]) for at in (30, 20, 10)]
    return all(abs(mean / statistics.mean(means) - 1) <= 0.1 for mean in means)


def nvbench(latencies: Sequence[float]) -> bool:
    """nvbench's ``stdrel``: 10 or more, relative SD under 0.5 %, or one that stays within 5 % (without its 0.5 s)."""
    if len(latencies) < 10:
        return False
    noise, total, squares = [], 0.0, 0.0
    for n, latency in enumerate(latencies, 1):
        total, squares = total + latency, squares + latency**2
        if n > 1:
            noise.append(math.sqrt(max(0.0, squares - total**2 / n) / (n - 1)) / (total / n))
    if noise[-1] < 0.005:
        return True
    rms = math.sqrt(statistics.mean((x - noise[-1]) ** 2 for x in noise))
    return len(noise) > 64 and len(latencies) % 16 == 0 and rms < 0.05 * noise[-1]


def windows(size: int) -> Rule:
    """As ``is_steady``, with windows of one size."""

    def rule(latencies: Sequence[float]) -> bool:
        if len(latencies) < 2 * size:
            return False
        before, after = latencies[-2 * size : -size], latencies[-size:]
        a, b = median(before), median(after)
        scatter = median([abs(x - a) for x in before] + [abs(x - b) for x in after])
        return abs(b - a) <= max(0.02 * a, 0.93 * math.sqrt(8 / size) * scatter)

    return rule


RULES: dict[str, Rule] = {
    "is_steady": is_steady,
    "windows of 8 (the rule before)": windows(8),
    "windows of 16": windows(16),
    "windows of 24": windows(24),
    "3 repeats": fixed(3),
    "10 repeats": fixed(10),
    "30 repeats": fixed(30),
    "50 repeats": fixed(50),
    "CV of 10 < 2 %": georges,
    "perf_analyzer's": perf_analyzer,
    "nvbench's": nvbench,
}


def stop(rule: Rule, seconds: Sequence[float]) -> tuple[int, bool]:
    """After how many repeats the warm-up ends, and whether the rule said so or the limit."""
    spent = 0.0
    for count in range(1, _REPEATS + 1):
        spent += seconds[count - 1]
        if rule(seconds[:count]):
            return count, True
        if spent > _SECONDS:
            return count, False
    return _REPEATS, False


class Score(NamedTuple):
    """What one rule did with one series."""

    repeats: int
    decided: bool
    start: int
    seconds: float
    off5: float
    off50: float

    @property
    def early(self) -> bool:
        """Whether it called steady what was not."""
        return self.decided and self.repeats < self.start


def score(rule: Rule | None, series: Series) -> Score:
    """``rule`` None stops at the true start: what is then still off is the noise's."""
    assert series.start is not None
    repeats, decided = (series.start, True) if rule is None else stop(rule, series.seconds)
    off5, off50 = (abs(median(series.seconds[repeats : repeats + n]) / series.level - 1) for n in (5, 50))
    return Score(repeats, decided, series.start, sum(series.seconds[:repeats]), off5, off50)


_HEAD = (
    f"{'':34}starts   stopped after       took   early  undecided    off, next 5   off, next 50  > 5 % off  to spare\n"
    f"{'':34}         median (mean)       mean                      median, p90    median, p90    next 50    median"
)


def line(name: str, scores: Sequence[Score]) -> str:
    """One line of a table."""
    n = len(scores)
    early, undecided = sum(s.early for s in scores), sum(not s.decided for s in scores)
    beyond = [s.repeats - s.start for s in scores if s.repeats >= s.start]
    offs = "".join(
        f"  {median(off):5.1%}, {sorted(off)[math.ceil(0.9 * n) - 1]:5.1%}"
        for off in ([s.off5 for s in scores], [s.off50 for s in scores])
    )
    return (
        f"{name:34}{n:6}  {median(s.repeats for s in scores):5.0f} ({statistics.mean(s.repeats for s in scores):5.1f})"
        f"  {statistics.mean(s.seconds for s in scores):7.2f} s  {early / n:6.1%}  {undecided / n:9.1%} {offs}"
        f"  {sum(s.off50 > 0.05 for s in scores) / n:9.1%}  {median(beyond) if beyond else math.nan:8.0f}"
    )


def table(title: str, series: Sequence[Series]) -> None:
    """Print every rule over all of ``series``, and ``is_steady`` for each kind."""
    settled = [s for s in series if s.start is not None]
    late = [s for s in settled if s.start is not None and s.start > 16]
    print(f"{title}\n{_HEAD}")
    for name, rule in [("in hindsight", None), *RULES.items()]:
        print(line(name, [score(rule, s) for s in settled]))
    print(f"{len(late)} of them that settle after more than 16 repeats")
    for name, rule in [("in hindsight", None), *RULES.items()]:
        print(line(name, [score(rule, s) for s in late]))
    print("is_steady by kind")
    for kind in dict.fromkeys(s.kind for s in settled):
        print(line(kind, [score(is_steady, s) for s in settled if s.kind == kind]))


def report(paths: Sequence[Path]) -> None:
    """Print how the rules did."""
    for path in paths:
        recorded = json.loads(gzip.decompress(path.read_bytes()))
        real = [in_hindsight(each["kind"], each["seconds"]) for each in recorded["starts"]]
        starts = [series.start for series in real if series.start is not None]
        table(f"{path.name}: recorded with {recorded['about']}", real)
        quartiles = ", ".join(f"{q:.0f}" for q in statistics.quantiles(starts, n=4, method="inclusive"))
        print(
            f"{len(real)} starts; no steady state in hindsight, and left out: {len(real) - len(starts)}; "
            f"start of the others: quartiles {quartiles}, last {max(starts)}\n"
        )
    table("made", list(made()))


def _model(name: str) -> tuple[Any, Any]:
    """A model and an input for it."""
    import torch

    torch.manual_seed(0)
    if name == "resnet18":
        sys.path.insert(0, str(EXAMPLE))
        from model import SHAPE, build

        return build(), torch.randn(*SHAPE)
    if name == "mlp":
        layers = (torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
        return torch.nn.Sequential(*layers).eval(), torch.randn(1, 32)
    return torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True).eval(), torch.randn(1, 64, 256)


def save(name: str, path: str) -> None:
    """Write TorchScript: tracing runs the model, so whoever traces it in the same process has warmed it up."""
    import torch

    model, example = _model(name)
    with torch.inference_mode():
        torch.jit.save(torch.jit.trace(model, example), path)


def start(name: str, mode: str, count: int, path: str) -> list[float]:
    """In this process, which nothing has warmed: the first run and ``count`` more, as a canary times them (s)."""
    import torch

    latencies: list[float] = []

    def work() -> None:
        model, example = _model(name)
        if mode == "TorchScript":
            model = torch.jit.load(path)
        elif mode == "compiled":
            model = torch.compile(model)

        def run(phase: Phase) -> Any:
            with torch.inference_mode(), phase("compute"):
                return model(example)

        clock = HostClock()
        latencies.extend(clock.measure(run)[0].wall for _ in range(1 + count))

    # As a canary does: in a thread of its own, which has a pool of OpenMP threads of its own.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return [float(f"{seconds:.5g}") for seconds in latencies]


def record(path: Path) -> None:
    """Every kind in fresh processes, the kinds in turns: what a neighbour does for a minute then hits all."""
    kinds = {kind: n for kind, n in KINDS.items() if "compiled" not in kind or shutil.which("c++")}
    starts: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for kind in kinds:
            name, _, mode = kind.partition(" ")
            if mode == "TorchScript":
                subprocess.run([sys.executable, __file__, "save", name, f"{scratch}/{name}.pt"], check=True)
        for turn in range(max(processes for processes, _ in kinds.values())):
            for kind, (processes, count) in kinds.items():
                if turn >= processes:
                    continue
                name, _, mode = kind.partition(" ")
                done = subprocess.run(
                    [sys.executable, __file__, "start", name, mode, str(count), f"{scratch}/{name}.pt"],
                    stdout=subprocess.PIPE,
                    # An empty cache each time, or the second start would find what the first one compiled.
                    env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/{turn}-{name}"},
                    check=True,
                )
                first, *seconds = json.loads(done.stdout)
                starts.append({"kind": kind, "first_run": first, "seconds": seconds})
                print(f"turn {turn + 1}: {kind}", file=sys.stderr, flush=True)
    about = f"Python {platform.python_version()}, torch {version('torch')}, {os.cpu_count()} CPUs"
    text = json.dumps({"about": about, "starts": starts}, separators=(",", ":"))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> None:
    """Score, or record; ``save`` and ``start`` are what ``record`` runs in fresh processes."""
    if sys.argv[1:2] == ["save"]:
        save(*sys.argv[2:])
        return
    if sys.argv[1:2] == ["start"]:
        name, mode, count, path = sys.argv[2:]
        print(json.dumps(start(name, mode, int(count), path)))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("score", "record"), default="score")
    parser.add_argument("--data", type=Path, help="one recording (default: both that are here)")
    args = parser.parse_args()
    if args.what == "record":
        record(args.data or CHOSEN_ON)
    else:
        report([args.data] if args.data else [CHOSEN_ON, HELD_OUT])


if __name__ == "__main__":
    main()
