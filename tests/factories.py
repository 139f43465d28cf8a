"""Builders of starts for several test modules."""

import math
import random
from collections.abc import Callable, Iterable

import numpy as np
from msgspec.structs import replace

from infercanary.judge.model import Generation, Sample, Start

HOUR = 3600.0
Level = float | Callable[[float], float]
"""A number, or a function of when the run began."""


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
    """One start of service ``s`` with runs of canary ``c``; its noise differs from that of any other start.

    Args:
        container: Name of the container.
        image: Id of the image.
        at: Start, and first run.
        seconds: Latency; several are those of the runs, without noise.
        runs: Number of runs.
        noise: SD of the logarithms of latencies and controls.
        control: Seconds of ``cpu_spin``; 0 for no control.
        every: Seconds from run to run.
        seed: Another one gives other noise.
        fields: Of the generation, or of each sample; what is callable takes the number of the run.
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
    """``made`` with these values in each of its runs; what is callable takes the run."""
    samples = [replace(s, **{k: x(s) if callable(x) else x for k, x in values.items()}) for s in made.samples]
    return Start(made.generation, samples)


def since(at, factor, level=0.05):
    """A level that is multiplied by ``factor`` from ``at`` on."""
    return lambda time: level * (factor if time >= at else 1.0)


def history(containers="ab", before=4, runs=60, **new):
    """Starts of image ``old`` an hour apart, ``before`` of each container; then one of ``new``.

    Args:
        containers: A letter each.
        before: Number of starts of the old image.
        runs: Of each start.
        new: What :func:`start` takes, of the new image's starts.
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
    """One start of another service, an hour before ``at`` and an hour after, that takes so many times as long since."""
    usual = {"service": service, "runs": int(2 * HOUR / fields.get("every", 10.0))}
    return start("x", "same", at - HOUR, since(at, factor), **usual | fields)


def latencies(seed, runs, sd=0.01, alike=0.0, level=0.01):
    """Runs that scatter around a level.

    Args:
        seed: Of their noise: a number, or several.
        runs: Number of runs.
        sd: SD of the logarithms.
        alike: Autocorrelation of neighbours.
        level: Seconds.
    """
    rng = np.random.default_rng(seed)
    steps, last = rng.normal(0, sd * math.sqrt(1 - alike**2), runs), rng.normal(0, sd)
    for i, step in enumerate(steps):
        steps[i] = last
        last = alike * last + step
    return level * np.exp(steps)
