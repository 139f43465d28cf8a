"""Simulated starts with memory, energy and the throughput of a sweep, in the form for ``compare`` and ``ab``.

All SDs are relative. Latency is equal on both sides: a level for each start (SD .5 %), and runs around it (SD
1 %). Memory has a level for each start (SD 1 %), and grows by half a percent in the first 50 runs. Throughput
has a level for each start (SD 2 %) and the noise of a second's requests (SD 1.5 %); the clock is 3 % slower
for one value in five, and one value in 50 is throttled by 20 %. Energy has an SD of 2 % between starts and
between runs.
"""

from __future__ import annotations

import math

import numpy as np

from infercanary.ab.answer import ExperimentJudge
from infercanary.ab.experiment import Result, TurnPair
from infercanary.ab.turn import ArmSummary, Turn
from infercanary.compare.comparison import compare_runs
from infercanary.compare.recording import RecordedRuns
from infercanary.contract.measures import ENERGY, HOST_MEMORY, throughput_of
from infercanary.judge.model import Generation, Sample, Start

AT_1, AT_8 = throughput_of(1, 1), throughput_of(8, 1)
CANARY = "resnet18"
CHANGES = {
    "none": {},
    "+30 % host memory": {HOST_MEMORY: 1.3},
    "-20 % throughput at batch 8": {AT_8: 0.8},
}
"""Measure → ratio of the new image to the old image."""
MOST = 12  # largest number of starts of each side, as in `--restarts`


def start(rng, change, runs, every):
    """Simulate one start of an image.

    Args:
        rng: Random numbers.
        change: Ratios by measure.
        runs: Number of runs, 10 s apart.
        every: Each ``every``-th run has the points of a sweep.

    Returns:
        The start with its settled runs.
    """

    def scattered(usual, sd):
        return usual * math.exp(rng.normal(0, sd))

    def level(name, usual, sd):
        return scattered(usual, sd) * change.get(name, 1)

    seconds = scattered(0.02, 0.005)
    memory, energy = level(HOST_MEMORY, 3e9, 0.01), level(ENERGY, 0.5, 0.02)
    rates = {AT_1: level(AT_1, 50.0, 0.02), AT_8: level(AT_8, 250.0, 0.02)}

    def measures(i):
        crept = memory * (1.005 - 0.005 * math.exp(-i / 15))
        taken = 3e4 * rng.integers(-20, 40) * (rng.random() < 0.1)
        found = {HOST_MEMORY: 4096.0 * round((crept + taken) / 4096), ENERGY: scattered(energy, 0.02)}
        for name, rate in rates.items() if i % every == every - 1 else ():
            slower = (0.97 if rng.random() < 0.2 else 1) * (0.8 if rng.random() < 0.02 else 1)
            found[name] = scattered(rate, 0.015) * slower
        return found

    samples = [
        Sample(i, CANARY, 1.7e9 + 10 * i, "ok", measures=measures(i), median=scattered(seconds, 0.01))
        for i in range(runs)
    ]
    boot = Generation(service="", container="", boot_id=str(rng.random()), started_at=1.7e9 - 10)
    return Start(boot, samples)


def compared(change, starts, seed):
    """Return the result of ``compare`` for two simulated journals.

    Args:
        change: Ratios of the new image by measure.
        starts: Number of starts of each side.
        seed: Seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    sides = ([start(rng, own, 240, 10) for _ in range(starts)] for own in (dict[str, float](), change))
    return compare_runs(CANARY, *(_recorded(side) for side in sides))


def experiment(change, seed):
    """Return the final result of a simulated ``ab``.

    Args:
        change: Ratios of side B by measure.
        seed: Seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    pairs = []
    judge = ExperimentJudge(MOST)
    while not pairs or not all(each.done for each in judge.decisions(pairs).values()):
        a, b = (Turn({CANARY: start(rng, own, 12, 12)}, {}, 9.0) for own in (dict[str, float](), change))
        pairs.append(TurnPair(a, b))
    return judge.answer(CANARY, Result([ArmSummary(name=name) for name in "ab"], pairs, (), "clear", 1.0))


def _recorded(starts):
    points = [np.array([s.median for s in each.samples], dtype=np.float64) for each in starts]
    return RecordedRuns(points, starts, [[] for _ in starts])
