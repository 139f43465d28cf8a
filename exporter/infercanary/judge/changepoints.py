"""Where the level of one series changed, without an event to compare around. Pure: numbers in, change points out.

Two views of a change must agree. The whole series: up to which price does its best segmentation keep the change? And
the points beside it: do their medians differ by more than they scatter? Either alone errs where the other does not: by
the price alone, bursts of noise are levels; by the medians alone, a wave has a change on each slope. Each number and
each mechanism was chosen on series in which people marked the changes (``benchmarks/labelled.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from infercanary.judge.policy import LIVE
from infercanary.judge.resolution import Floats, resolution
from infercanary.judge.shift import ratio
from infercanary.judge.statistics import Points, Series, autocorrelation, between

FEWEST = 24
"""Points without which a series is too short."""

STRENGTH = 5.6
"""Least strength of a change that is reported."""

PRICES = (128, 64, 32, 16, 8, 4, 2)
"""Prices of a change, in units of ln(number of points). 2 is the Bayesian information criterion's where the noise is
what it is taken for; it seldom is, so a range is tried."""

SIDE = 15  # points on either side of a change, at most, whose medians are compared
NEAR = 5  # points on a side, without which its median has no known error; changes that are nearer are one


@dataclass(frozen=True)  # no tuple, because those have a method named index
class ChangePoint:
    """The first point at a new level; the shift to it and its interval as ratios."""

    index: int
    shift: float
    low: float
    high: float


def scan(values: Points) -> list[ChangePoint]:
    """Find where the level of a series steps to another and stays. Use it where no event is known.

        [change.index for change in scan(latencies)]

    A slow trend has no step; to see it is for ``compare``, with a baseline that is frozen.

    Args:
        values: Latencies above zero in order of time, in any unit.

    Returns:
        The change points, in order. A step that the resolution may make, such as from 4 to 5 ms of a clock with whole
        milliseconds, is none.

    Raises:
        ValueError: A value is no latency.
    """
    logs = Series.of(values, "values").logs
    edges = [0, *(at for at, strength in strengths(logs) if strength >= STRENGTH), logs.size]
    found = []
    for begin, at, end in zip(edges, edges[1:], edges[2:], strict=False):
        before, after = Series(logs[max(begin, at - 30) : at]), Series(logs[at : min(end, at + 30)])
        coarse = resolution([before.ordered], [after.ordered], logs)
        step = between(before.known, after.known)._replace(resolution=coarse)
        if max(step.log - coarse.down, -step.log - coarse.up) > LIVE.decide.log_clear:
            ends = step.interval(LIVE.attribute.history_confidence)
            found.append(ChangePoint(at, *map(ratio, (step.log, *ends))))
    return found


def strengths(logs: Floats) -> list[tuple[int, float]]:
    """Weigh each place where the level might have changed by the smallest effect or more.

    The strength is the geometric mean of the highest price at which a change is kept and of the z of the medians beside
    it, less where the series wanders.

    Args:
        logs: The series, as logarithms.

    Returns:
        Index of the first point at the new level, and strength (0 or more), in order of the index. Empty where the
        series has fewer than ``FEWEST`` points.
    """
    if logs.size < FEWEST:
        return []

    @cache  # most prices ask for the same
    def side(begin: int, end: int) -> tuple[float, float]:
        return _median(sorted(logs[begin:end].tolist()))

    @cache
    def sharpened(cut: int) -> int:
        """Move a cut to the split near it that leaves the points nearest to the medians on either side."""
        (before, _), (after, _) = side(max(0, cut - 12), cut), side(cut, cut + 12)
        first = max(0, cut - NEAR)
        return first + split(logs[first : cut + NEAR], before, after)

    found: dict[int, float] = {}
    for price, cuts in zip(PRICES, segmented(logs, noise(logs)), strict=True):
        edges = sorted({0, logs.size, *map(sharpened, cuts)})
        for begin, at, end in zip(edges, edges[1:], edges[2:], strict=False):
            before, error = side(max(begin, at - SIDE), at)
            after, other = side(at, min(end, at + SIDE))
            step = abs(after - before)
            if step >= LIVE.decide.log_effect and all(abs(at - dearer) >= NEAR for dearer in found):
                found[at] = math.sqrt(price * step / (math.hypot(error, other) + 1e-9))
    changes = sorted(found.items())
    doubt = _doubt(logs, [at for at, strength in changes if strength >= 4])
    return [(at, strength / doubt) for at, strength in changes]


def split(logs: Floats, before: float, after: float) -> int:
    """Split a series such that its points are nearest to two levels.

    Args:
        logs: The series, as logarithms.
        before: Level of the first part.
        after: Level of the second part.

    Returns:
        Number of points in the first part.
    """
    nearer = abs(logs - before) - abs(logs - after)
    return int(np.argmin(np.cumsum([0.0, *nearer])))


def noise(logs: Floats) -> float:
    """Estimate the SD of a point, larger by noise that lasts for some points.

    Most neighbouring stretches of 8 points have one level, so how much their medians typically differ is not of
    changes, nor of outliers (Wu and Zhao, "Inference of Trends in Time Series", JRSS B 69, 2007). With a coarse clock
    they may all be the same; means of two then show its ticks.
    """
    largest = 1e-4  # a smaller one is rounding
    for count in (2, min(8, logs.size // 10 * 2)):
        ordered = np.sort(sliding_window_view(logs, count), axis=1)
        level = ordered[:, count // 2 - 1 : count // 2 + 1].mean(axis=1)
        # Normal noise: a median's variance is pi / 2 of the mean's, and half of the points lie within .6745 SD.
        error = np.median(np.abs(level[count:] - level[:-count])) / 0.6745
        largest = max(largest, float(error) * math.sqrt(count / math.pi))
    return largest


def segmented(logs: Floats, scale: float) -> Iterator[list[int]]:
    """Find the cheapest segmentation for each price of a change.

    A segmentation costs the sum over its points of the squared distance to their segment's level, in units of
    ``scale`` and at most 9, and the price of each change: the biweight loss of Fearnhead and Rigaill ("Changepoint
    Detection in the Presence of Outliers", JASA 2019). An outlier costs no more than a change of level that it is not
    worth. Theirs prunes functions; here levels lie on a grid, so that the exact optimum on it is a few operations on an
    array for every few points, for all prices beside each other.

    Args:
        logs: The series, as logarithms.
        scale: SD of its noise, above zero.

    Yields:
        For each price where segments begin, but for the first; from the last on.
    """
    stride = 3  # points between the places at which the level may change
    # Levels half of the noise apart; where those are more than 160, as many that lie where the points do.
    count = int(2 * np.ptp(logs) / scale) + 2
    grid = np.quantile(logs if count > 160 else [logs.min(), logs.max()], np.linspace(0, 1, min(count, 160)))
    losses = np.minimum((logs[:, None] / scale - grid / scale) ** 2, 9)
    losses = np.add.reduceat(losses, np.arange(0, logs.size, stride))
    most = math.log(logs.size) * np.array(PRICES)[:, None]
    rows = np.arange(most.size)
    costs = np.zeros((most.size, grid.size))
    # Where the best segment of each level begins; and at each step where the one before begins, if one begins there.
    since = np.zeros(costs.shape, dtype=int)
    before = np.zeros((len(losses), most.size), dtype=int)
    for step, loss in enumerate(losses):
        best = costs.argmin(axis=1)
        costs -= costs[rows, best, None]
        before[step] = since[rows, best]
        np.copyto(since, step, where=costs >= most)  # a level that costs more than a change to it
        np.minimum(costs, most, out=costs)
        costs += loss
    for row, step in enumerate(since[rows, costs.argmin(axis=1)]):
        cuts = []
        while step:
            cuts.append(stride * int(step))
            step = before[step, row]
        yield cuts


def _median(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the median and its standard error.

    McKean and Schrader ("A Comparison of Methods for Studentizing the Sample Median", 1984) take the distance between
    the two order statistics that enclose the median with 99 %: of two modes it sees that it may lie in either.
    """
    count, sds = len(ordered), 2.5758
    low = max(int((count - sds * math.sqrt(count)) / 2), 0)
    error = (ordered[-1 - low] - ordered[low]) / 2 / sds
    return median(ordered), error if count >= NEAR else math.inf


def _doubt(logs: Floats, places: Sequence[int]) -> float:
    """Return by how much to doubt the changes of a series, 1 or more.

    Where neighbours are very alike even between its changes, no level is left for long: the series wanders, as a random
    walk or a wave does, and steps are its habit.
    """
    rest = np.concatenate([stretch - np.median(stretch) for stretch in np.split(logs, places)])
    alike = autocorrelation(rest)
    return max(1.0, (1 + alike) / (1 - alike) / 3) ** 2  # 1 up to an autocorrelation of .5
