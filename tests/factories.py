"""Builders of starts and latencies for several test modules."""

import math
import random
from collections.abc import Callable, Iterable

import numpy as np
from msgspec.structs import replace

from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.verdict import Judge

HOUR = 3600.0
Level = float | Callable[[float], float]
"""A number, or a function of a run's start time."""


def start(
    container="a",
    image="old",
    at=0.0,
    seconds=0.02,
    runs=60,
    *,
    noise=0.005,
    control=0.001,
    every=10.0,
    seed=0,
    **fields,
):
    """Return one start of service ``s`` with runs of canary ``c``. The noise differs between starts.

    Args:
        container: Name of the container.
        image: Id of the image.
        at: Time of the start and of the first run.
        seconds: Latency with noise, or a sequence of latencies without noise.
        runs: Number of runs.
        noise: SD of the logarithms of latencies and controls.
        control: Seconds of ``cpu_spin``; 0 for no control.
        every: Seconds between runs.
        seed: Seed of the noise.
        fields: Fields of the generation or of the samples. A function returns the value for a run's number.
    """
    facts = {name: fields.pop(name) for name in [*fields] if name in Generation.__struct_fields__}
    known = {"service": "s", "container": container, "boot_id": f"{container}-{at}"}
    generation = Generation(**known | {"image_id": image, "started_at": at} | facts)
    rng = random.Random(f"{generation.service} {container} {image} {at} {seed}")
    medians = [*seconds] if isinstance(seconds, Iterable) else None
    samples = []
    for i in range(runs if medians is None else len(medians)):
        time = at + every * i
        spin = 0.0
        if medians is None or "controls" not in fields:
            spin = rng.lognormvariate(0, noise) * _level(control, time)
        median = medians[i] if medians is not None else rng.lognormvariate(0, noise) * _level(seconds, time)
        run = {
            "sequence": i,
            "canary": "c",
            "started_at": time,
            "outcome": "ok",
            "median": median,
        }
        run |= {"controls": {"cpu_spin": spin} if spin else {}}
        samples.append(Sample(**run | {name: x(i) if callable(x) else x for name, x in fields.items()}))
    return Start(generation, samples)


def _level(level, time):
    return level(time) if callable(level) else level


def changed(made, **values):
    samples = [replace(s, **{k: x(s) if callable(x) else x for k, x in values.items()}) for s in made.samples]
    return Start(made.generation, samples)


def since(at, factor, level=0.05):
    return lambda time: level * (factor if time >= at else 1.0)


def judge(starts, siblings=(), **policy):
    """Return the verdict on canary ``c``; ``policy`` replaces values of the live policy."""
    return Judge(LIVE.but(**policy)).verdict(starts, siblings, "c")


def history(containers="ab", before=4, runs=60, **new):
    """Return starts of image ``old`` an hour apart, ``before`` for each container, and then one start of
    image ``new``.

    Args:
        containers: One letter for each container.
        before: Number of starts of the old image.
        runs: Number of runs of each start.
        new: Arguments of :func:`start` for the new image's starts.
    """
    old = [
        start(name, "old", HOUR * n + i, runs=runs)
        for n in range(before)
        for i, name in enumerate(containers)
    ]
    return [
        *old,
        *(start(name, "new", HOUR * before + i, **{"runs": runs} | new) for i, name in enumerate(containers)),
    ]


def sibling(service, at, factor, **fields):
    """Return a start of another service: an hour before and after ``at``, and slower by ``factor`` from ``at`` on."""
    usual = {"service": service, "runs": int(2 * HOUR / fields.get("every", 10.0))}
    return start("x", "same", at - HOUR, since(at, factor), **usual | fields)


def latencies(seed, runs, sd=0.01, alike=0.0, level=0.01):
    """Return latencies that scatter around a level.

    Args:
        seed: Seed of the noise: one or more numbers.
        runs: Number of runs.
        sd: SD of the logarithms.
        alike: Autocorrelation of neighbours.
        level: Level in seconds.
    """
    rng = np.random.default_rng(seed)
    steps, last = rng.normal(0, sd * math.sqrt(1 - alike**2), runs), rng.normal(0, sd)
    for i, step in enumerate(steps):
        steps[i] = last
        last = alike * last + step
    return level * np.exp(steps)
