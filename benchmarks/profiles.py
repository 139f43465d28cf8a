"""What profiled repeats do to the timed ones of their canary, and what they cost: ResNet-18 by torch, on the CPU.

Pairs of rounds, in turns: before one of them five repeats are profiled, before the other the same number is just run.
The ratio of the timed repeats that follow is the effect; ``--null`` profiles neither, and shows what two equal rounds
differ by here. Exits with 1 where a ratio is above its goal by more than chance: its whole interval is. A profile's own
cost, the memory that stays after many of them, and how much slower a repeat is under the profiler are printed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from goals import TENANT
from infercanary.probe import TorchTarget
from infercanary.probe.measures import resident
from infercanary.probe.memory import give_back

EXAMPLE = Path(__file__).parents[1] / "examples" / "resnet18"
_PROFILED = 5
_TIMED = 20


class Pair(NamedTuple):
    """Seconds of timed repeats, after a profile and without one."""

    after: list[float]
    without: list[float]


def target() -> TorchTarget:
    """The example's model, opened and warm."""
    sys.path.insert(0, str(EXAMPLE))
    from model import SHAPE, build

    made = TorchTarget(build(), [{"shape": list(SHAPE)}])
    made.open()
    for _ in range(10):
        made.clock.measure(made.run)
    return made


def round_of(canary: TorchTarget, is_profiled: bool) -> list[float]:
    """Timed repeats, right after a profile or after as many plain ones."""
    if is_profiled:
        canary.profile(_PROFILED)
        give_back()
        canary.clock.measure(canary.run)  # all as the probe does it
    else:
        for _ in range(_PROFILED + 1):
            canary.clock.measure(canary.run)
    return [canary.clock.measure(canary.run)[0].wall for _ in range(_TIMED)]


def pairs(canary: TorchTarget, count: int, is_null: bool) -> list[Pair]:
    """Measure so many pairs; which comes first alternates."""
    found = []
    for i in range(count):
        sides: dict[bool, list[float]] = {}
        for is_profiled in (True, False) if i % 2 else (False, True):
            sides[is_profiled] = round_of(canary, is_profiled and not is_null)
        found.append(Pair(sides[True], sides[False]))
    return found


def p50(found: list[Pair]) -> float:
    """The median of the pairs' ratios of medians: what the machine does for longer than a pair is in none."""
    return statistics.median(statistics.median(p.after) / statistics.median(p.without) for p in found)


def p99(found: list[Pair]) -> float:
    """The ratio of the 99th percentiles of all repeats."""
    after, without = (
        statistics.quantiles([x for pair in found for x in pair[side]], n=100, method="inclusive")[98]
        for side in (0, 1)
    )
    return after / without


def interval(ratio: Callable[[list[Pair]], float], found: list[Pair]) -> tuple[float, float]:
    """95 %, by bootstrap: pairs are resampled whole, since repeats beside each other are alike."""
    rng = random.Random(1)
    drawn = sorted(ratio(rng.choices(found, k=len(found))) for _ in range(400))
    return drawn[9], drawn[389]


def memory(canary: TorchTarget, profiles: int) -> tuple[float, float]:
    """MiB that are resident after a tenth of so many profiles, and after all of them."""
    first = 0.0
    for i in range(1, profiles + 1):
        canary.profile(1)
        if i == max(1, profiles // 10):
            give_back()
            first = resident() / 2**20
    give_back()
    return first, resident() / 2**20


def main() -> None:
    """Print the ratios, and what a profile costs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=30, help="(default: %(default)s)")
    parser.add_argument("--profiles", type=int, default=1000, help="for memory (default: %(default)s)")
    parser.add_argument("--null", action="store_true", help="profile neither side")
    arguments = parser.parse_args()
    canary = target()
    found = pairs(canary, arguments.pairs, arguments.null)
    begin = time.perf_counter()
    profile = canary.profile(_PROFILED)
    cost = time.perf_counter() - begin
    plain = statistics.median(x for pair in found for x in pair.without)
    print(f"timed repeats after a profile over those without, {arguments.pairs} pairs of {_TIMED}")
    missed = False
    for percent, ratio in ((50, p50), (99, p99)):
        low, high = interval(ratio, found)
        missed = missed or low > TENANT[percent]
        print(f"p{percent}  {ratio(found):7.4f} [{low:.4f}, {high:.4f}]  (goal: {TENANT[percent]} at most)")
    under = statistics.median(profile.wall)
    print(f"a profile of {_PROFILED} repeats takes {cost:.3f} s")
    print(f"a repeat {plain * 1e3:.2f} ms, under the profiler {under * 1e3:.2f} ms ({under / plain:.3f})")
    if arguments.profiles:
        before, last = memory(canary, arguments.profiles)
        print(
            f"memory after a tenth of {arguments.profiles} profiles {before:.1f} MiB, after all {last:.1f} MiB"
        )
    sys.exit(missed)


if __name__ == "__main__":
    main()
