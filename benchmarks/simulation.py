"""Simulated starts of containers: the services that ``verdicts.py`` gives to the judge.

The latency of a run is a level multiplied by independent factors:

- one factor for all runs of a start (restart SD);
- noise of runs, by default with first-order autocorrelation .6, SD 1 % and the tail of Student's t with 3 degrees of
  freedom, multiplied by the noise of the median of ten repeats;
- the SM clock: two modes 3 % apart that last 40 runs on average, and throttling (20 % slower for 5 to 60 runs, once in
  2,000 runs); the canary follows the clock with exponent .7, the control with .9;
- the image's effect, which the judge must find, and the host's effect on canary, controls or siblings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from infercanary.contract.measures import HOST_MEMORY
from infercanary.contract.vocabulary import CPU_WAIT_INSIDE, CPU_WAIT_OUTSIDE
from infercanary.judge.model import Generation, Sample, Start

Floats: TypeAlias = NDArray[np.float64]
Noise: TypeAlias = Callable[[np.random.Generator, int], Floats]
"""Function that returns noise (logarithms) for a number of runs."""

Fields: TypeAlias = Callable[[np.random.Generator, Floats], dict[str, Any]]
"""Function from each run's latency in seconds to fields of samples. A field `median` replaces the latency."""

CANARY, LEVEL, EVERY = "canary", 0.010, 10.0  # duration of a run, and time between two runs, in seconds
# runs of an old and of a new start; seconds between two starts of a replica
RUNS, NEW_RUNS, GAP = 60, 48, 700.0
THREADS = {"torch_intra_op_threads": "1"}  # one thread, so that CPU wait is known


def lasting(rng: np.random.Generator, runs: int, phi: float, sd: float, heavy: bool = True) -> Floats:
    """Return noise with this SD and first-order autocorrelation ``phi``.

    With ``heavy``, the noise has the tail of Student's t with 3 degrees of freedom.
    """
    steps = rng.standard_t(3, runs + 50) / math.sqrt(3) if heavy else rng.normal(size=runs + 50)
    noise: Floats = lfilter([sd * math.sqrt(1 - phi**2)], [1.0, -phi], steps)[50:]
    return noise


def usual(rng: np.random.Generator, runs: int) -> Floats:
    """Return the noise of runs, including the noise of the median of repeats (SD 2 %)."""
    repeats = rng.standard_t(3, (runs, 10)) * 0.02 / math.sqrt(3)
    noise: Floats = lasting(rng, runs, 0.6, 0.01) + np.median(repeats, axis=1)
    return noise


def clock(rng: np.random.Generator, runs: int) -> Floats:
    """Return the SM clock relative to its usual value."""
    found = np.empty(runs)
    at, is_slow = 0, rng.random() < 0.2
    while at < runs:
        until = at + int(rng.geometric(1 / (16 if is_slow else 64)))
        found[at:until] = 0.97 if is_slow else 1.0
        at, is_slow = until, not is_slow
    for begin in np.flatnonzero(rng.random(runs) < 1 / 2000):
        found[begin : begin + int(rng.integers(5, 61))] = 0.8
    return found


def modes(gap: float, dwell: float) -> Noise:
    """Return noise of two modes with equal weight; ``dwell`` is the mean length of a stay in runs (2:
    independent runs).
    """

    def noise(rng: np.random.Generator, runs: int) -> Floats:
        state = (np.cumsum(rng.random(runs) < 1 / dwell) + rng.integers(2)) % 2
        logs: Floats = gap * state + rng.normal(0, 0.01, runs)
        return logs

    return noise


def periodic(runs: int, height: float, *, sawtooth: bool = False) -> Noise:
    """Return noise with a sine wave or a sawtooth, with a period of ``runs`` runs and a random phase in each start."""

    def noise(rng: np.random.Generator, count: int) -> Floats:
        phase = (np.arange(count) / runs + rng.random()) % 1
        wave = phase if sawtooth else np.sin(2 * math.pi * phase)
        logs: Floats = height * wave + rng.normal(0, 0.01, count)
        return logs

    return noise


def outliers(rng: np.random.Generator, runs: int) -> Floats:
    """Return noise with outliers: about every 20th run takes up to five times as long."""
    logs: Floats = rng.normal(0, 0.01, runs) + np.log(rng.uniform(1.5, 5, runs)) * (rng.random(runs) < 0.05)
    return logs


def start(
    rng: np.random.Generator,
    name: str,
    image: str,
    at: float,
    runs: int,
    *,
    restart_sd: float = 0.005,
    noise: Noise = usual,
    canary: float | Floats = 0.0,
    control: float | Floats = 0.0,
    tick: float = 0.0,
    every: float = EVERY,
    service: str = "service",
    fields: Fields | None = None,
    **generation: Any,
) -> Start:
    """Make one start of a container.

    Args:
        name: Name of the container.
        image: Id of the image.
        at: Time of the start, in seconds.
        runs: Number of runs.
        restart_sd: SD of the factor of the start, on the log scale.
        noise: Noise of the runs.
        canary: Shift of the canary from ``LEVEL``, on the log scale: one for all runs, or one for each run.
        control: Shift of the control, on the log scale.
        tick: Resolution of latencies in seconds; 0 for none.
        every: Seconds between two runs.
        fields: Further fields of the samples.
        generation: Further fields of the generation.
    """
    mhz = clock(rng, runs)
    shared = rng.normal(0, 0.002)
    logs = math.log(LEVEL) + rng.normal(0, restart_sd) + shared + canary + noise(rng, runs)
    seconds = np.exp(logs - 0.7 * np.log(mhz))
    spin = np.exp(math.log(0.001) + shared + control + lasting(rng, runs, 0.6, 0.005) - 0.9 * np.log(mhz))
    if tick:
        seconds = tick * np.maximum(np.round(seconds / tick), 1)
    columns = {"median": seconds.tolist(), "sm_clock": (1.98e9 * mhz).tolist()}
    columns |= fields(rng, seconds) if fields else {}
    times, controls = (at + every * np.arange(runs)).tolist(), spin.tolist()
    samples = [
        Sample(
            sequence=i, canary=CANARY, started_at=times[i], outcome="ok", repeats=10,
            controls={"cpu_spin": controls[i]}, **{field: values[i] for field, values in columns.items()},
        )
        for i in range(runs)
    ]  # fmt: skip
    known = {"environment": THREADS, "image_id": image, **generation}
    began = Generation(service=service, container=name, boot_id=f"{name} {at:g}", started_at=at, **known)
    return Start(began, samples)


class Scene(NamedTuple):
    """Starts of a service before and after an upgrade, and its siblings."""

    before: list[Start]
    after: list[Start]
    siblings: list[Start]

    def at(self, runs: int) -> tuple[list[Start], list[Start]]:
        """Return starts and siblings at the time when each new start had this number of runs."""
        after = [Start(s.generation, s.samples[:runs]) for s in self.after]
        until = max(s.samples[-1].started_at for s in after)
        before, siblings = (
            [Start(s.generation, [run for run in s.samples if run.started_at <= until]) for s in side]
            for side in (self.before, self.siblings)
        )
        return [*before, *after], siblings


def scene(
    rng: np.random.Generator,
    *,
    replicas: int = 1,
    earlier: int = 3,
    siblings: int = 0,
    stay: int = 0,
    image: float = 0.0,
    host: float = 0.0,
    control: float = 0.0,
    felt: float = 0.0,
    wave: Callable[[Floats], Floats] | None = None,
    old: Fields | None = None,
    new: Fields | None = None,
    beside: Fields | None = None,
    known: Sequence[Mapping[str, Any]] = ({}, {}),
    runs: int = NEW_RUNS,
    pace: float = 1.0,
    **noise: Any,
) -> Scene:
    """Make an upgrade of several replicas at once.

    Args:
        replicas: Number of replicas that are upgraded.
        earlier: Number of a replica's starts before its last start with the old image.
        siblings: Number of siblings (replicas of other services).
        stay: Number of further replicas that stay on the old image.
        image: Relative slowdown by the new image.
        host: Relative slowdown of the canary by the host, from the upgrade on.
        control: Relative slowdown of the control by the host, from the upgrade on.
        felt: Relative slowdown of siblings by the host, from the upgrade on.
        wave: Function that returns the host's effect on canaries at each time, on the log scale.
        old: Fields of samples of the old image.
        new: Fields of samples of the new image; default: ``old``.
        beside: Fields of samples of siblings since the upgrade.
        known: Fields of the generations: of the old image, and of the new image.
        runs: Number of runs of each start since the upgrade.
        pace: Rate of runs of a new start, relative to all other starts (as in the burst after a start).
        noise: Further arguments of :func:`start` for all starts of the service.
    """
    at = GAP * (earlier + 1) + 1e6
    moved, spin, own = math.log1p(host), math.log1p(control), {**noise, "fields": old, **known[0]}

    def made(name: str, label: str, begin: float, count: int, *logs: float, **more: Any) -> Start:
        times = begin + more.get("every", EVERY) * np.arange(count, dtype=float)
        canary = sum(logs) + (wave(times) if wave else 0.0)
        return start(rng, name, label, begin, count, canary=canary, **more)

    def ongoing(
        name: str, label: str, back: float, log: float, later: Mapping[str, Any], **more: Any
    ) -> Start:
        before = made(name, label, at - back, int(back / EVERY), **more)
        since = made(name, label, at, runs, log, **{**more, **later})
        samples = (*before.samples, *since.samples)
        return Start(
            before.generation, [msgspec.structs.replace(s, sequence=i) for i, s in enumerate(samples)]
        )

    before = [
        made(f"r{replica}", "old", at - GAP * back + replica, RUNS, **own)
        for back in range(earlier + 1, 0, -1)
        for replica in range(replicas)
    ]
    stays = {**own, "restart_sd": 0.0}
    before += [ongoing(f"stays{i}", "old", GAP, moved, {"control": spin}, **stays) for i in range(stay)]
    own = {**noise, "fields": new or old, "control": spin, "every": EVERY / pace, **known[1]}
    logs = math.log1p(image), moved
    after = [made(f"r{i}", "new", at + i, runs, *logs, **own) for i in range(replicas)]
    back = GAP * (earlier + 1 if wave else 1)
    others = [
        ongoing(name, "same", back, math.log1p(felt), {"fields": beside}, service=name, restart_sd=0.0)
        for name in (f"sibling-{i}" for i in range(siblings))
    ]
    return Scene(before, after, others)


def tagged(tag: str, share: float) -> Fields:
    """Return fields with a tag in this share of the runs."""
    return lambda rng, seconds: {"tags": [(tag,) if hit else () for hit in rng.random(seconds.size) < share]}


def shared(waits: float = 0.0, crowds: float = 0.0, cores: float = 0.1, received: float = 30.0) -> Fields:
    """Return fields of runs whose CPU wait is measured.

    Args:
        waits: CPU wait caused by other containers, as a share of the latency.
        crowds: CPU wait caused by processes inside the container, as a share of the latency.
        cores: CPU use inside the container, in cores.
        received: TCP segments received per second.
    """

    def fields(rng: np.random.Generator, seconds: Floats) -> dict[str, Any]:
        runs = seconds.size
        waited = seconds * waits * np.where(rng.random(runs) < 0.7, rng.uniform(0.5, 1.5, runs), 0.0) + 1e-5
        crowded = seconds * crowds * rng.uniform(0.8, 1.2, runs)
        tags = (CPU_WAIT_OUTSIDE,) if waits else (CPU_WAIT_INSIDE,) if crowds else ()
        return {
            "median": (seconds + 1.1 * waited + crowded).tolist(),  # caches are cold after a wait
            "waited": waited.tolist(),
            "crowded": crowded.tolist(),
            "inside": (cores * rng.lognormal(0, 0.03, runs)).tolist(),
            "received": (received * rng.lognormal(0, 0.03, runs)).tolist(),
            "tags": [tags if x > 1e-4 else () for x in waited + crowded],
        }

    return fields


def bursts(share: float, of_starts: bool = False) -> Fields:
    """Return fields with a neighbour on the host in this share of the runs, or of the starts.

    Beside the neighbour, CPU wait is about as long as computing.
    """

    def fields(rng: np.random.Generator, seconds: Floats) -> dict[str, Any]:
        busy, quiet = shared(1.0)(rng, seconds), shared()(rng, seconds)
        is_busy = np.full(seconds.size, rng.random()) if of_starts else rng.random(seconds.size)
        return {
            name: [a if x < share else b for a, b, x in zip(busy[name], quiet[name], is_busy, strict=True)]
            for name in busy
        }

    return fields


def slowed(
    starts: Sequence[Start], name: str, ratio: float, since: float, until: float = math.inf
) -> list[Start]:
    """Return ``starts``, with the runs of container ``name`` slower by factor ``ratio`` in a period."""
    return [
        Start(
            s.generation,
            [
                msgspec.structs.replace(x, median=x.median * ratio)
                if x.median and s.generation.container == name and since <= x.started_at < until
                else x
                for x in s.samples
            ],
        )
        for s in starts
    ]


def one_slower(rng: np.random.Generator) -> Scene:
    """Make a scene whose only replica on the old image becomes slower by itself; the new image is as fast."""
    made = scene(rng, stay=1)
    at = made.after[0].generation.started_at
    return made._replace(before=slowed(made.before, "stays0", 1.15, at))


def renamed(rng: np.random.Generator, image: float = 0.0, throttled: float = 1.0) -> Scene:
    """Make a scene in which three pods return under new names, and one of them is throttled."""
    made = scene(rng, replicas=3, earlier=8, image=image)
    after = [
        Start(msgspec.structs.replace(s.generation, container=f"new{i}"), s.samples)
        for i, s in enumerate(made.after)
    ]
    return made._replace(after=slowed(after, "new0", throttled, 0.0))


def beside(image: float, rng: np.random.Generator) -> Scene:
    """Make a scene with a new pod beside two pods on the old image, which a neighbour slowed until the upgrade."""
    made = scene(rng, stay=2, image=image)
    new = [Start(msgspec.structs.replace(s.generation, container="new"), s.samples) for s in made.after]
    at, before = new[0].generation.started_at, made.before
    for begin in np.arange(at - GAP, at, 120.0):
        for name in ("stays0", "stays1"):
            before = slowed(before, name, rng.uniform(1.0, 1.6), begin, min(begin + 120.0, at))
    return made._replace(before=before, after=new)


def cold(ratio: float, rng: np.random.Generator) -> Scene:
    """Make an upgrade of two replicas; with the new image, loading takes ``ratio`` times as long."""
    made = scene(rng, replicas=2)

    def starting(start: Start, seconds: float) -> Start:
        steps = {CANARY: {"load": seconds * rng.lognormal(0, 0.05), "first_run": 1.0}}
        return Start(msgspec.structs.replace(start.generation, cold_start=steps), start.samples)

    return Scene([starting(s, 3.0) for s in made.before], [starting(s, 3.0 * ratio) for s in made.after], [])


def hardware(slower: float, rng: np.random.Generator) -> Scene:
    """Make three old pods on each of two classes of hosts, and three new pods only on the class that is half as
    fast.
    """

    def pods(name: str, at: float, image: str, ratio: float, model: str) -> list[Start]:
        known, log = {**THREADS, "cpu_model": model}, math.log(ratio)
        names = (f"{name}-{i}" for i in range(3))
        return [start(rng, n, image, at, RUNS, canary=log, host=f"of-{n}", environment=known) for n in names]

    before = [*pods("fast", 1e6, "old", 1.0, "Xeon"), *pods("slow", 1e6 + 5, "old", 2.0, "Graviton")]
    return Scene(before, pods("new", 1e6 + GAP, "new", 2.0 * (1 + slower), "Graviton"), [])


def measured(names: Sequence[str], ratio: float, sd: float) -> Fields:
    """Return measures of each run; the last measure is multiplied by ``ratio``. Each start has its own levels."""

    def fields(rng: np.random.Generator, seconds: Floats) -> dict[str, Any]:
        runs, columns = seconds.size, []
        for name in names:
            level = 1e9 * math.exp(rng.normal(0, sd)) * (ratio if name == names[-1] else 1)
            noise = np.exp(rng.normal(0, 0.015, runs)) * np.where(rng.random(runs) < 0.2, 0.97, 1.0)
            pages = 1 + 1e-5 * rng.integers(-20, 40, runs) * (rng.random(runs) < 0.1)
            columns.append(level * (pages if name == HOST_MEMORY else noise))
        return {"measures": [dict(zip(names, row, strict=True)) for row in np.array(columns).T.tolist()]}

    return fields


NOISES: dict[str, dict[str, Any]] = {
    "white": {"noise": partial(lasting, phi=0.0, sd=0.02, heavy=False)},
    **{f"AR {phi}": {"noise": partial(lasting, phi=phi, sd=0.02, heavy=False)} for phi in (0.3, 0.6, 0.9)},
    "ticks of 5 %": {"noise": partial(lasting, phi=0.0, sd=0.03, heavy=False), "tick": 0.0005},
    "heavy tails": {"noise": partial(lasting, phi=0.0, sd=0.02)},
    "outliers": {"noise": outliers},
    "two modes": {"noise": modes(0.1, 2)},
    "sticky modes": {"noise": modes(0.1, 20)},
    "sawtooth": {"noise": periodic(25, 0.1, sawtooth=True)},
    "slow wave": {"noise": periodic(80, 0.05)},
    "periodic host": {"siblings": 2},
}


def noisy(name: str, image: float, rng: np.random.Generator) -> Scene:
    """Make an upgrade with this noise: one replica, eight earlier starts, restart SD 1 %."""
    phase = rng.random()

    def wave(times: Floats) -> Floats:
        logs: Floats = math.log(1.15) * np.sin(2 * math.pi * (times / 3600 + phase))
        return logs

    host = wave if name == "periodic host" else None
    return scene(rng, earlier=8, restart_sd=0.01, image=image, wave=host, **NOISES[name])
