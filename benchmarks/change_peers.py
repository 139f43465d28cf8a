"""What ``labelled.py`` compares: families of change point detectors, ours and others, and noise without a change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from infercanary.judge.changepoints import strengths
from infercanary.judge.policy import LIVE

try:
    from otava.analysis import compute_change_points
except ImportError:
    compute_change_points = None

Floats: TypeAlias = NDArray[np.float64]
Found: TypeAlias = list[tuple[int, float]]
"""Where the level changes, and how strongly: a threshold is chosen of that."""


class Family(NamedTuple):
    """A way to find changes: what it does, its parameters to choose from, and its own threshold."""

    find: Callable[[Sequence[float] | Floats, Mapping[str, float]], Found]
    grid: Mapping[str, Sequence[float]]
    thresholds: Sequence[float]
    usual: float
    is_peer: bool = True


def ours(values: Sequence[float] | Floats, settings: Mapping[str, float]) -> Found:
    """The scan as it is shipped, but for the fields of the policy that are set."""
    # A field that counts points stays an int, as one slices by it.
    typed = {name: type(getattr(LIVE, name))(value) for name, value in settings.items()}
    return strengths(np.log(np.asarray(values, dtype=float)), LIVE.but(**typed))


def highest(strength: Floats, apart: int) -> Found:
    """Local maxima, the strongest first, none nearer than ``apart`` to a stronger one."""
    free = strength > 0
    found: Found = []
    for place in np.argsort(-strength, kind="stable"):
        if free[place]:
            free[max(0, place - apart + 1) : place + apart] = False
            found.append((int(place), float(strength[place])))
    return found


def hodges_lehmann(values: Sequence[float] | Floats, settings: Mapping[str, float]) -> Found:
    """The plain z of Hodges and Lehmann's shift between the 20 points before and after, where it is 3 % or more."""
    width = int(settings.get("window", 20))
    y = np.log(np.asarray(values, dtype=float))
    if y.size < 2 * width:
        return []
    parts = sliding_window_view(y, width)
    before, after = parts[:-width], parts[width:]
    shift = np.concatenate(
        [
            np.median((b[:, :, None] - a[:, None, :]).reshape(len(a), -1), axis=1)
            for a, b in zip(
                np.array_split(before, 1 + len(before) // 256),
                np.array_split(after, 1 + len(before) // 256),
                strict=True,
            )
        ]
    )
    error = np.sqrt((before.var(axis=1, ddof=1) + after.var(axis=1, ddof=1)) * 1.0472 / width) + 1e-9
    strength = np.zeros(y.size)
    strength[width : width + shift.size] = np.where(np.abs(shift) >= math.log(1.03), np.abs(shift) / error, 0)
    return highest(strength, width)


def perfherder(values: Sequence[float] | Floats, settings: Mapping[str, float]) -> Found:
    """Perfherder's weighted t of the 12 points after a place against 24 before (treeherder, perfalert), at 3 %.

    Points nearer to the place weigh more, linearly; of places beyond the threshold, the local maxima count.
    """
    back, fore = 24, 12
    x = np.asarray(values, dtype=float)
    if x.size < back + fore:
        return []

    def analyzed(parts: Floats, weights: Floats) -> tuple[Floats, Floats]:
        means: Floats = parts @ weights / weights.sum()
        return means, parts.var(axis=1, ddof=1)

    one, var_one = analyzed(sliding_window_view(x, back)[:-fore], np.arange(1.0, back + 1))
    other, var_other = analyzed(sliding_window_view(x, fore)[back:], np.arange(fore, 0.0, -1))
    t = np.abs(other - one) / (np.sqrt(var_one / back + var_other / fore) + 1e-12)
    strength = np.zeros(x.size)
    strength[back : back + t.size] = np.where(np.abs(np.log(other / one)) >= math.log(1.03), t, 0)
    return highest(strength, fore)


def otava(values: Sequence[float] | Floats, settings: Mapping[str, float]) -> Found:
    """Apache Otava's change points of 3 % or more (the real one), at a p-value of 10 to the power of minus ``digits``.

    All are as strong: the weakest are taken away until each has the p-value that is asked for, so a stricter one is
    another run.
    """
    p = 10 ** -settings.get("digits", 3)
    # A list, because 0.8 does not cut an array into windows.
    series = np.asarray(values, dtype=float).tolist()
    found, _ = compute_change_points(series, max_pvalue=p, min_magnitude=0.03)
    return [(int(point.index), 1.0) for point in found]


def _steps(first: float, last: float, count: int) -> list[float]:
    return [float(x) for x in np.geomspace(first, last, count).round(3)]


OURS = {"scan_split": (12, 16, 20), "scan_near": (5, 8), "scan_least_ses": (2.5, 3.0)}

FAMILIES: dict[str, Family] = {
    "ours": Family(ours, OURS, _steps(3, 12, 40), LIVE.drift.scan_strength, is_peer=False),
    "Hodges-Lehmann z": Family(hodges_lehmann, {}, _steps(3, 30, 30), 7.0),
    "Perfherder t": Family(perfherder, {}, _steps(3, 30, 30), 7.0),
}
if compute_change_points is not None:  # pip install --no-deps apache-otava==0.8.0: it asks for an older numpy
    FAMILIES["Otava"] = Family(
        otava, {"digits": (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17, 22)}, (1.0,), 1.0
    )


# Noise, as latencies around 0.01 s.


def _lasting(rng: np.random.Generator, count: int, phi: float, sd: float) -> Floats:
    steps = rng.normal(0, sd * math.sqrt(1 - phi**2), count)
    noise = np.empty(count)
    last = rng.normal(0, sd)
    for i, step in enumerate(steps):
        noise[i] = last = phi * last + step
    return noise


def _autocorrelated(phi: float) -> Callable[[np.random.Generator, int], Floats]:
    def made(rng: np.random.Generator, count: int) -> Floats:
        noise: Floats = 0.01 * np.exp(_lasting(rng, count, phi, 0.02))
        return noise

    return made


def _walk(sd: float) -> Callable[[np.random.Generator, int], Floats]:
    def made(rng: np.random.Generator, count: int) -> Floats:
        walk: Floats = 0.01 * np.exp(np.cumsum(rng.normal(0, sd, count)))
        return walk

    return made


def _even_modes(rng: np.random.Generator, count: int) -> Floats:
    """Two modes 5 % apart that each hold half of the points, without order; hardly any scatter within."""
    modes: Floats = 0.01 * np.exp(0.05 * (rng.random(count) < 0.5) + rng.normal(0, 0.002, count))
    return modes


def _walk_in_noise(rng: np.random.Generator, count: int) -> Floats:
    walk: Floats = 0.01 * np.exp(np.cumsum(rng.normal(0, 0.003, count)) + rng.normal(0, 0.01, count))
    return walk


def _modes(lasting: float) -> Callable[[np.random.Generator, int], Floats]:
    """Two modes 5 % apart; the slow one holds 30 % of the points, and a stay in it lasts so long on average."""

    def made(rng: np.random.Generator, count: int) -> Floats:
        slow = np.empty(count, dtype=bool)
        now = bool(rng.random() < 0.3)
        leave = (1 / lasting * 3 / 7, 1 / lasting) if lasting > 1 else (0.3, 0.7)
        for i in range(count):
            slow[i] = now
            now = now != bool(rng.random() < leave[now])
        modes: Floats = 0.01 * np.exp(0.05 * slow + rng.normal(0, 0.005, count))
        return modes

    return made


def _ticks(rng: np.random.Generator, count: int) -> Floats:
    """A clock whose ticks are 5 % of the latency, which itself drifts by less than one."""
    level = rng.uniform(18, 20) + rng.uniform(-0.3, 0.3) * np.linspace(0, 1, count)
    ticks: Floats = np.round(level + rng.normal(0, 0.25, count))
    return ticks


def _trend(rng: np.random.Generator, count: int) -> Floats:
    trend: Floats = 0.01 * np.linspace(1, 1.3, count) * np.exp(rng.normal(0, 0.01, count))
    return trend


def _heavy(rng: np.random.Generator, count: int) -> Floats:
    heavy: Floats = 0.01 * np.exp(0.02 / math.sqrt(3) * rng.standard_t(3, count))
    return heavy


NOISES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "white": _autocorrelated(0.0),
    "heavy tails": _heavy,
    "AR .3": _autocorrelated(0.3),
    "AR .6": _autocorrelated(0.6),
    "AR .9": _autocorrelated(0.9),
    "walk": _walk(0.01),
    "wide walk": _walk(0.02),
    "walk in noise": _walk_in_noise,
    "two modes": _modes(1),
    "even modes": _even_modes,
    "sticky modes": _modes(5),
    "ticks": _ticks,
    "trend": _trend,
}
