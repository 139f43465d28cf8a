"""Whether the interval of a shift holds what it promises, and how wide it is: ours and others, on simulated noise.

Two samples of one process, without a shift; an interval without zero is a miss. Processes are in percent, on
logarithms:

- normal and lognormal (SD .8 of a logarithm) runs, each on its own,
- autocorrelation of .3, .6 and .9, and of .9 with as much noise of each run's own,
- two modes 10 % apart with 1 % of noise: from run to run, and lasting 5 or 40 runs; lasting 40 runs and 3 % apart,
- a clock with ticks of 5 %, under noise of 3 %.

Intervals: Welch's t; the rank test's (exact for independent runs, the narrowest known for modes); the one before,
Hodges and Lehmann's with a winsorized SD and one estimate of autocorrelation; the mean's with a quadratic-spectral
kernel and automatic bandwidth, pre-whitened (Andrews and Monahan, "An Improved Heteroskedasticity and Autocorrelation
Consistent Covariance Matrix Estimator", 1992), on t with as many degrees of freedom as independent runs; the
stationary bootstrap of Hodges and Lehmann's shift (Politis and Romano, 1994; blocks of n^(1/2) runs on average, 200
resamples); and ours.

What makes no start between the sides known is not known to any of them: modes that last as long as a side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.special import ndtri, stdtrit

from infercanary.judge import ranks
from infercanary.judge.policy import FILES
from infercanary.judge.samples import compare
from infercanary.judge.shift import CHANGED
from infercanary.judge.statistics import Series, shift

Floats: TypeAlias = NDArray[np.float64]
Process: TypeAlias = Callable[[np.random.Generator, int], Floats]
Interval: TypeAlias = Callable[[Floats, Floats, float], tuple[float, float]]

SIZES, LEVELS = (12, 24, 48, 96, 240), (0.95, 0.99)


def _ar(phi: float, own: float = 0.0) -> Process:
    """Lasting noise with SD 1 % in all; ``own`` is the share of each run's own variance."""

    def made(rng: np.random.Generator, count: int) -> Floats:
        steps = math.sqrt(1 - phi**2) * rng.normal(size=count + 100)
        lasting: Floats = lfilter([1.0], [1.0, -phi], steps)[100:]
        noise: Floats = 0.01 * (math.sqrt(1 - own) * lasting + math.sqrt(own) * rng.normal(size=count))
        return noise

    return made


def _modes(dwell: float, gap: float = 0.1) -> Process:
    """Two modes of equal weight that last so many runs; 2 is none that lasts."""

    def made(rng: np.random.Generator, count: int) -> Floats:
        changes = rng.random(count) < 1 / dwell
        state = (np.cumsum(changes) + rng.integers(2)) % 2
        noise: Floats = gap * state + 0.01 * rng.normal(size=count)
        return noise

    return made


def _ticks(rng: np.random.Generator, count: int) -> Floats:
    ticks: Floats = np.log(np.round(20 * np.exp(0.03 * rng.normal(size=count))))
    return ticks


PROCESSES: dict[str, Process] = {
    "normal": _ar(0.0),
    "lognormal": lambda rng, count: 0.01 * np.exp(0.8 * rng.normal(size=count)),
    "AR .3": _ar(0.3),
    "AR .6": _ar(0.6),
    "AR .9": _ar(0.9),
    "AR .9 + own": _ar(0.9, 0.5),
    "modes": _modes(2),
    "modes, 5 runs": _modes(5),
    "modes, 40 runs": _modes(40),
    "3 %, 40 runs": _modes(40, 0.03),
    "ticks": _ticks,
}
CHOSEN_ON = ("normal", "AR .6", "modes", "modes, 5 runs", "3 %, 40 runs", "AR .9 + own")
"""What our method was chosen on, with 24, 48 and 96 runs a side, among some 60 variants: the rest had no part in it."""


def ours(a: Floats, b: Floats, level: float) -> tuple[float, float]:
    """The judge's."""
    return shift(Series(a, FILES), Series(b, FILES), FILES).interval(level)


def welch(a: Floats, b: Floats, level: float) -> tuple[float, float]:
    """Of the difference of means of independent runs."""
    one, other = a.var(ddof=1) / a.size, b.var(ddof=1) / b.size
    df = (one + other) ** 2 / (one**2 / (a.size - 1) + other**2 / (b.size - 1)) if one + other else 1.0
    return _around(float(b.mean() - a.mean()), math.sqrt(one + other), df, level)


def rank_test(a: Floats, b: Floats, level: float) -> tuple[float, float]:
    """The differences that the rank test of independent runs does not reject."""
    differences = np.sort(np.subtract.outer(b, a).ravel())
    pairs, z = a.size * b.size, float(ndtri((1 + level) / 2))
    low = math.floor(pairs / 2 - z * math.sqrt(pairs * (a.size + b.size + 1) / 12))
    return (
        (float(differences[low]), float(differences[pairs - 1 - low])) if low >= 0 else (-math.inf, math.inf)
    )


def one_estimate(a: Floats, b: Floats, level: float) -> tuple[float, float]:
    """The judge's before: Hodges and Lehmann's shift, a winsorized SD, one estimate of autocorrelation."""
    sizes, sides = np.array([a.size, b.size]), (Series(a, FILES), Series(b, FILES))
    phi = max(0.0, min(0.95, float(sizes @ [_first(x) for x in (a, b)]) / sizes.sum()))
    inflation = (1 + phi) / (1 - phi)
    one, other = ((1.0233 * side.scatter) ** 2 * inflation / len(side) for side in sides)
    freedom = np.maximum(sizes / inflation - 1, 1)
    share = one / (one + other) if one + other else 0.5
    df = 1 / (share**2 / freedom[0] + (1 - share) ** 2 / freedom[1])
    return _around(ranks.shift(np.sort(a), np.sort(b)), math.sqrt(one + other), float(df), level)


def _first(x: Floats) -> float:
    """The first autocorrelation, corrected for a short series (Marriott and Pope, 1954)."""
    middle = np.median(x)
    mad = 1.4826 * np.median(np.abs(x - middle))
    r = np.clip(x - middle, -3 * mad, 3 * mad) if mad > 1e-9 else x - middle
    r = r - r.mean()
    if (power := float(r @ r)) <= 1e-24:
        return 0.0
    found = float(r[1:] @ r[:-1]) / power
    return found + (1 + 3 * found) / x.size


def kernel(a: Floats, b: Floats, level: float) -> tuple[float, float]:
    """Of the difference of means, by Andrews and Monahan's long-run variance."""
    variances, freedom = [], 0.0
    for x in (a, b):
        r = x - x.mean()
        power = float(r @ r) or 1e-30
        phi = float(np.clip(r[1:] @ r[:-1] / power, -0.97, 0.97))
        white = r[1:] - phi * r[:-1]
        rest = float(np.clip(white[1:] @ white[:-1] / (float(white @ white) or 1e-30), -0.97, 0.97))
        width = 1.3221 * (4 * rest**2 / (1 - rest) ** 4 * x.size) ** 0.2
        found = float(white @ white)
        for lag in range(1, white.size if width > 1e-6 else 1):
            z = 6 * math.pi * lag / width / 5
            weight = 3 / z**2 * (math.sin(z) / z - math.cos(z))
            found += 2 * weight * float(white[lag:] @ white[:-lag])
        long_run = max(found, 1e-30) / white.size / (1 - phi) ** 2
        variances.append(long_run / x.size)
        freedom += max(power / long_run - 1, 0.5)
    return _around(float(b.mean() - a.mean()), math.sqrt(sum(variances)), max(freedom, 1.0), level)


def bootstrap(a: Floats, b: Floats, level: float) -> tuple[float, float]:
    """Of Hodges and Lehmann's shift, around it, by its SD over resamples of blocks."""
    rng = np.random.default_rng(1)
    between = ranks.shift(np.sort(a), np.sort(b))
    drawn = [ranks.shift(np.sort(_blocks(a, rng)), np.sort(_blocks(b, rng))) for _ in range(200)]
    return _around(between, float(np.std(drawn)), a.size + b.size - 2.0, level)


def _blocks(x: Floats, rng: np.random.Generator) -> Floats:
    begins = rng.random(x.size) < x.size**-0.5
    begins[0] = True
    block = np.cumsum(begins) - 1
    firsts = rng.integers(0, x.size, int(block[-1]) + 1)
    since = np.arange(x.size) - np.flatnonzero(begins)[block]
    drawn: Floats = x[(firsts[block] + since) % x.size]
    return drawn


def _around(middle: float, se: float, df: float, level: float) -> tuple[float, float]:
    half = float(stdtrit(df, (1 + level) / 2)) * se
    return middle - half, middle + half


INTERVALS: dict[str, Interval] = {
    "InferCanary": ours,
    "one estimate (before)": one_estimate,
    "Welch t": welch,
    "rank test": rank_test,
    "pre-whitened kernel": kernel,
    "stationary bootstrap": bootstrap,
}
SLOW = ("stationary bootstrap",)


def intervals(trials: int, seed: int) -> None:
    """Print misses of each interval, and its half width; then how often each rule calls a change where there is none.

    Args:
        trials: Pairs of samples of each process and size; a tenth of them, and no more than 96 runs, for the bootstrap.
        seed: Of the random numbers.
    """
    errors = " and ".join(
        f"{100 * math.sqrt((1 - level) * level / trials):.1f} at {1 - level:.0%}" for level in LEVELS
    )
    print(
        f"{trials} pairs of samples of one process: % of intervals at 95 / 99 % without zero, half width at 99 %\n"
        f"(median, in %); SD of the simulation: {errors}. * the method was chosen on these"
    )
    print(f"{'':18}{'':22}" + "".join(f"{f'{count} runs':>20}" for count in SIZES))
    for number, (name, make) in enumerate(PROCESSES.items()):
        for method, interval in INTERVALS.items():
            cells = []
            for count in SIZES:
                if method in SLOW and count > 96:
                    continue
                tried = max(trials // 10, 1) if method in SLOW else trials
                cells.append(_cell(make, interval, count, tried, [seed, number, count]))
            title = f"{name}{' *' * (name in CHOSEN_ON)}" if method == next(iter(INTERVALS)) else ""
            print(f"{title:18}{method:22}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def _cell(make: Process, interval: Interval, count: int, trials: int, seed: Sequence[int]) -> str:
    missed, halves = np.zeros(len(LEVELS)), []
    for trial in range(trials):
        rng = np.random.default_rng([*seed, trial])
        a, b = make(rng, count), make(rng, count)
        ends = [interval(a, b, level) for level in LEVELS]
        missed += [not low <= 1e-12 or not high >= -1e-12 for low, high in ends]
        halves.append((ends[-1][1] - ends[-1][0]) / 2)
    shares = " / ".join(f"{100 * share:.1f}" for share in missed / trials)
    return f"{shares}  {min(100 * float(np.median(halves)), 999):5.2f}"


Calls: TypeAlias = Callable[[Floats, Floats], bool]


def calls(rules: dict[str, Calls], trials: int, seed: int) -> None:
    """Print how often each rule calls a change between two samples of one process, of 48 runs each.

    Args:
        rules: By name, whether it calls a change between two samples of latencies.
        trials: Pairs of samples.
        seed: Of the random numbers.
    """
    own: dict[str, Calls] = {
        "InferCanary": lambda a, b: compare(a, b).verdict in CHANGED,
        "Welch t, 99.5 %": lambda a, b: _excludes_zero(welch(np.log(a), np.log(b), 0.995)),
    }
    own["InferCanary, 95 %"] = lambda a, b: compare(a, b, level=0.95).verdict in CHANGED
    print(f"\n{trials} pairs of samples of 48 runs, without a change: % that are called")
    every = own | rules
    print(f"{'':18}" + "".join(f"{name:>22}" for name in every))
    for number, (name, make) in enumerate(PROCESSES.items()):
        called = dict.fromkeys(every, 0)
        for trial in range(trials):
            rng = np.random.default_rng([seed, number, 48, trial])
            a, b = (0.01 * np.exp(make(rng, 48)) for _ in range(2))
            for rule, call in every.items():
                called[rule] += call(a, b)
        print(f"{name:18}" + "".join(f"{count / trials:22.2%}" for count in called.values()), flush=True)


def _excludes_zero(ends: tuple[float, float]) -> bool:
    return ends[0] > 0 or ends[1] < 0
