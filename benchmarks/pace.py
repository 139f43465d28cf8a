"""Whether a run's median depends on how long the probe rested before it: what a burst of runs may be compared with.

Two models of ``examples/resnet18`` (about 4 and 40 ms on one thread) run as the probe runs them: the canary in a thread
of its own, as many repeats as the plan has at a steady pace, samples before and after, controls behind. The pauses come
in turns (short, short, long, …), so that whatever a neighbour does for a minute hits both. A long pause is compared
with the mean of the short ones before and after it, in logarithms; the table has the median of these ratios and a
bootstrap interval of 95 %.

``first``, ``second`` … are the run's repeats in their order: what a pause costs, it costs the first ones. ``without
waiting`` is the median less what the run waited for CPUs, which the judge takes out too.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from infercanary.contract.report import Run
from infercanary.probe import TorchTarget
from infercanary.probe.canary import Canary
from infercanary.probe.controls import Controls
from infercanary.probe.histogram import Tally
from infercanary.probe.rounds import Rounds
from infercanary.probe.samplers import make_samplers
from infercanary.probe.sampling import Sampling
from infercanary.probe.schedule import plan
from infercanary.probe.watcher import Memory

MODELS = {"small": 32, "large": 224}
"""Name → height and width of the image."""

PAUSES = ((2.0, 10.0), (1.0, 5.0))

_INTERVAL, _CAP = 10.0, 0.01  # as a probe has them by default
_LATE = 0.2  # s: a run that began so much later had another pause


class Timed(NamedTuple):
    """A run's pause (s) and what it measured (s)."""

    model: str
    short: float
    long: float
    pause: float
    latencies: tuple[float, ...]
    controls: dict[str, float]
    waited: float | None
    tags: tuple[str, ...]


class Bench:
    """One model as a probe has it, opened and warmed up."""

    def __init__(self, name: str, size: int, device: str) -> None:
        sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "resnet18"))
        from model import build

        tally = Tally()
        target = TorchTarget(build().to(device), [{"shape": [1, 3, size, size]}], device=device)
        self.name = name
        self._canary = Canary(name, target, tally, 30.0, 600.0)
        self._controls = Controls(tally)
        self._sampling = Sampling(make_samplers(), tally)
        self._stopping = threading.Event()
        self._rounds = Rounds(
            [self._canary], [], self._controls, self._sampling, Memory({}), tally, self._stopping
        )
        self._canary.open(600.0)
        for _ in range(2):
            self._controls.measure(self._canary.device)
        self._sampling.settle(self._stopping)
        fixed = self._controls.cost(self._canary.device)
        (self.repeats,), _ = plan([self._canary.repeat_cost], _INTERVAL, _CAP, fixed)

    def run(self, pause: float) -> tuple[Run, float]:
        """One run, ``pause`` seconds after the last one ended; and how long that was in truth."""
        slot = self._rounds.worked_until + pause if math.isfinite(self._rounds.worked_until) else 0.0
        time.sleep(max(0.0, slot - self._rounds.lead - time.monotonic()))
        last = self._rounds.worked_until
        (run,), _ = self._rounds.run([(self._canary, self.repeats)], max(slot, time.monotonic()))
        return run, time.monotonic() - last

    def close(self) -> None:
        """Let go of everything."""
        for part in (self._canary, self._controls, self._sampling):
            part.close(2.0)


def phase(bench: Bench, short: float, long: float, seconds: float) -> Iterator[Timed]:
    """Short, short, long, … for so long."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        for pause in (short, short, long):
            run, since = bench.run(pause)
            took = sum(run.latencies)
            yield Timed(
                bench.name,
                short,
                long,
                pause if since - took < pause + _LATE + 0.1 * took else math.nan,
                run.latencies,
                run.controls,
                run.waited,
                run.tags,
            )


Measure = Callable[[Timed], float]


def ratios(runs: Sequence[Timed], measure: Measure) -> list[float]:
    """Of each long pause, the logarithm of its measure over that of the short ones beside it."""
    found = []
    for before, now, after in zip(runs, runs[1:], runs[2:], strict=False):
        if (now.pause, before.pause, after.pause) == (now.long, now.short, now.short):
            values = [measure(each) for each in (before, now, after)]
            if all(math.isfinite(value) and value > 0 for value in values):
                found.append(math.log(values[1]) - (math.log(values[0]) + math.log(values[2])) / 2)
    return found


def interval(values: Sequence[float], seed: int = 1) -> str:
    """The median as a ratio less 1, and its bootstrap interval of 95 %."""
    if len(values) < 8:
        return f"{'too few':>24}"
    rng = np.random.default_rng(seed)
    medians = np.median(rng.choice(values, (4000, len(values))), axis=1)
    low, high = (math.expm1(x) for x in np.quantile(medians, (0.025, 0.975)))
    return f"{math.expm1(statistics.median(values)):+7.2%} [{low:+6.2%}, {high:+6.2%}]"


def _nth(index: int) -> Measure:
    return lambda run: run.latencies[index] if len(run.latencies) > index else math.nan


def _running(run: Timed) -> float:
    return statistics.median(run.latencies) - run.waited if run.waited is not None else math.nan


def _control(name: str) -> Measure:
    return lambda run: run.controls.get(name, math.nan)


def _read(path: Path) -> list[Timed]:
    rows: list[list[Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [Timed(*row) for row in rows]


def table(several: Sequence[Sequence[Timed]]) -> None:
    """Print the ratios of each model and pair of pauses, of one measurement or of several side by side."""
    controls = sorted({name for runs in several for run in runs for name in run.controls})
    measures: dict[str, Measure] = {
        "median of a run": lambda run: statistics.median(run.latencies),
        "without waiting": _running,
        **{name: _nth(i) for i, name in enumerate(("first", "second", "third", "fourth", "fifth"))},
        **{f"control {name}": _control(name) for name in controls},
    }
    together: dict[str, list[float]] = {}
    for short, long in PAUSES:
        for model in MODELS:
            parts = [
                [r for r in runs if (r.model, r.short, r.long) == (model, short, long)] for runs in several
            ]
            those = [run for part in parts for run in part]
            if not those:
                continue
            middle = statistics.median(statistics.median(run.latencies) for run in those)
            repeats = statistics.median(len(run.latencies) for run in those)
            print(
                f"\n{model}: {1e3 * middle:.2f} ms, {repeats:g} repeats; a pause of {long:g} s over {short:g} s"
            )
            for name, measure in measures.items():
                found = [ratio for part in parts for ratio in ratios(part, measure)]
                together.setdefault(name, []).extend(found)
                print(f"  {name:24}{interval(found)}  n {len(found)}", flush=True)
    print("\nall of these together")
    for name in ("median of a run", "without waiting"):
        found = together.get(name, [])
        print(f"  {name:24}{interval(found)}  n {len(found)}")


def main() -> None:
    """Measure, and print; or print what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=3, help="of one phase (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=4, help="phases of each kind (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="where to write the runs, a line of JSON each")
    parser.add_argument("--print", type=Path, nargs="+", help="print what such files hold, measure nothing")
    args = parser.parse_args()
    runs: list[Timed] = []
    if args.print:
        table([_read(path) for path in args.print])
    else:
        benches = [Bench(name, size, args.device) for name, size in MODELS.items()]
        for _ in range(args.turns):
            for bench in benches:
                for short, long in PAUSES:
                    for run in phase(bench, short, long, 60 * args.minutes):
                        runs.append(run)
                        if args.data is not None:
                            with args.data.open("a") as file:
                                file.write(json.dumps(run) + "\n")
        for bench in benches:
            bench.close()
        table([runs])


if __name__ == "__main__":
    main()
