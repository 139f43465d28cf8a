"""Starts of containers, made of random numbers: what the judges of ``drift.py`` and ``lives.py`` are shown.

Simulated are, per start of a container, the repeats of each run, a control's runs and the SM clock. Latency is a level
times, all independent and all as ratios,

- what this start drew (``restart SD``; the same for all its runs),
- run noise that lasts: first-order autocorrelation 0.6, SD 1 %, Student's t with 3 degrees of freedom,
- the clock: two modes 3 % apart that last 40 runs on average, and throttling (20 % off for 5 to 60 runs, once in 2,000
  runs); the canary follows it at 0.7, the control at 0.9,
- what the host does to all its containers, the control included,
- the repeats' own noise, SD 2 %, Student's t with 3 degrees of freedom,
- and the image's effect, which is what a judge must find.

At another pace, all that lasts takes the same time, and so more runs, or fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from infercanary.judge.model import Generation, Sample
from infercanary.judge.model import Start as KeptStart
from infercanary.judge.policy import LIVE

Floats: TypeAlias = NDArray[np.float64]

REPEATS, BEFORE, PAST = 10, 384, 8


class Start(NamedTuple):
    """One start of one container: repeats (runs by repeats, s), and of each run the control (s) and the clock (MHz)."""

    repeats: Floats
    control: Floats
    clock: Floats

    @property
    def medians(self) -> Floats:
        """What is judged."""
        medians: Floats = np.median(self.repeats, axis=1)
        return medians

    def first(self, runs: int) -> Start:
        """As it stood after so many runs."""
        return Start(*(part[:runs] for part in self))


class Upgrade(NamedTuple):
    """What a judge is shown: each replica's start before and after it, and earlier starts of the old image."""

    replicas: Sequence[tuple[Start, Start]]
    past: Sequence[Start]


def lasting(rng: np.random.Generator, runs: int, phi: float, sd: float) -> Floats:
    """Noise (logarithms) of that SD, with first-order autocorrelation ``phi`` and the tail of Student's t with 3."""
    steps = rng.standard_t(3, runs + 50) * sd * math.sqrt((1 - phi**2) / 3)
    noise, last = np.empty_like(steps), 0.0
    for i, step in enumerate(steps):
        noise[i] = last = phi * last + step
    return noise[50:]


def _clock(rng: np.random.Generator, runs: int, pace: float) -> Floats:
    clock = np.empty(runs)
    at, slow = 0, rng.random() < 0.2
    while at < runs:
        until = at + int(rng.geometric(1 / (pace * (16 if slow else 64))))
        clock[at:until] = 0.97 if slow else 1.0
        at, slow = until, not slow
    for begin in np.flatnonzero(rng.random(runs) < 1 / (2000 * pace)):
        clock[begin : begin + int(pace * rng.integers(5, 61))] = 0.8
    return clock


def start(
    rng: np.random.Generator,
    runs: int,
    *,
    restart_sd: float = 0.0,
    image: float = 0.0,
    host: float = 0.0,
    pace: float = 1.0,
) -> Start:
    """One start of a container; ``image`` and ``host`` are how much slower they make it (0.05 is 5 %).

    ``pace`` is how many times as often as usual it runs.
    """
    clock = _clock(rng, runs, pace)
    phi = 0.6 ** (1 / pace)
    shared = math.log1p(host) + rng.normal(0, 0.002)
    level = math.log(0.01) + math.log1p(image) + shared + rng.normal(0, restart_sd)
    run = level + lasting(rng, runs, phi, 0.01) - 0.7 * np.log(clock)
    repeats = run[:, None] + rng.standard_t(3, (runs, REPEATS)) * 0.02 / math.sqrt(3)
    control = math.log(0.001) + shared + lasting(rng, runs, phi, 0.005) - 0.9 * np.log(clock)
    return Start(np.exp(repeats), np.exp(control), 1980 * clock)


def upgrade(
    rng: np.random.Generator, *, replicas: int, restart_sd: float, image: float = 0.0, host: float = 0.0
) -> Upgrade:
    """An upgrade of all replicas at once, on a host that may get slower in the same moment."""
    return Upgrade(
        [
            (
                start(rng, BEFORE, restart_sd=restart_sd),
                start(rng, LIVE.decide.looks[-1], restart_sd=restart_sd, image=image, host=host),
            )
            for _ in range(replicas)
        ],
        [start(rng, BEFORE, restart_sd=restart_sd) for _ in range(PAST)],
    )


CANARY = "canary"
HOUR = 3600.0


def kept(start: Start, replica: int, hour: int, image: str, every: float = 5.0) -> KeptStart:
    """``start`` as the store has it, a run in so many seconds from that hour on."""
    at = (hour + 100) * HOUR + replica
    generation = Generation(
        service="service",
        container=f"replica-{replica}",
        boot_id=f"{replica}-{hour}",
        started_at=at,
        image_id=image,
    )
    return KeptStart(generation, samples(start.medians, start.control, start.clock, at, every))


def samples(
    medians: Floats, control: Floats, clock: Floats, begin: float, every: float, runs: int = 1
) -> list[Sample]:
    """Runs as the store has them, one in ``every`` seconds from ``begin`` on."""
    return [
        Sample(
            sequence=i * runs, canary=CANARY, started_at=begin + i * every, outcome="ok", median=m, repeats=REPEATS,
            controls={"cpu_spin": c}, sm_clock=1e6 * mhz, runs=runs,
        )
        for i, (m, c, mhz) in enumerate(zip(medians.tolist(), control.tolist(), clock.tolist(), strict=True))
    ]  # fmt: skip
