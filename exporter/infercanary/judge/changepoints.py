"""Change points: places where the level of one series changed, without a known event. Pure functions.

The strength of a change combines two criteria. A segmentation of the series pays a price for each change. The global
criterion is the highest price at which the cheapest segmentation still contains this change. The local criterion is the
difference between the medians on both sides, relative to the scatter. The global criterion alone mistakes bursts of
noise for levels. The local criterion alone finds changes on the slopes of a wave.

All constants were tuned on series in which people marked the changes (``benchmarks/labelled.py``).
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
"""Minimum length of a series, in points. A shorter series is not searched for changes."""

STRENGTH = 5.6
"""Minimum strength of a reported change."""

PRICES = (128, 64, 32, 16, 8, 4, 2)
"""Prices of a change, in units of ln(number of points).

The price 2 is the Bayesian information criterion for independent normal noise. Real noise differs, so several prices
are tried.
"""

SIDE = 15  # largest number of points for the median on either side of a change
NEAR = 5  # smallest number of points for a median's error, and smallest distance between two changes


@dataclass(frozen=True)  # a tuple already has a method ``index``
class ChangePoint:
    """A change point: index of the first point at the new level, and the shift with its interval as ratios."""

    index: int
    shift: float
    low: float
    high: float


def scan(values: Points) -> list[ChangePoint]:
    """Find lasting steps in the level of a series, at unknown times.

        [change.index for change in scan(latencies)]

    A slow trend has no step. To detect a trend, use ``compare`` with a frozen baseline.

    Args:
        values: Latencies above zero in order of time, in any unit.

    Returns:
        Change points in order of time. A step as small as the clock's resolution, such as from 4 to 5 ms in whole
        milliseconds, is not reported.

    Raises:
        ValueError: A value is not finite or not above zero.
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
    """Return index and strength of each place where the level may have changed by the smallest effect or more.

    The strength is the geometric mean of two values: the highest price at which the change is kept, and the
    difference of the medians on either side in standard errors. A series that wanders has lower strengths.

    Args:
        logs: The series, as logarithms.

    Returns:
        Pairs in order of the index, with strengths of at least 0. Empty for fewer than ``FEWEST`` points.
    """
    if logs.size < FEWEST:
        return []

    @cache  # most prices give the same segments
    def side(begin: int, end: int) -> tuple[float, float]:
        return _median(sorted(logs[begin:end].tolist()))

    @cache
    def sharpened(cut: int) -> int:
        """Move a cut to the nearby point where both sides fit their medians best."""
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
    """Split a series at the point where both parts fit two given levels best. Return the first part's length.

    Args:
        logs: The series, as logarithms.
        before: Level of the first part (a logarithm).
        after: Level of the second part (a logarithm).
    """
    nearer = abs(logs - before) - abs(logs - after)
    return int(np.argmin(np.cumsum([0.0, *nearer])))


def noise(logs: Floats) -> float:
    """Estimate the SD of a point. Autocorrelated noise gives a larger estimate.

    Neighbouring stretches of 8 points mostly have the same level. So changes of the level and outliers hardly affect
    the median difference between medians of stretches (Wu and Zhao, "Inference of Trends in Time Series", JRSS B 69,
    2007). With a coarse clock all these medians may be equal. So stretches of two points are used as well, because
    their means show the clock's ticks.
    """
    largest = 1e-4  # a smaller SD is only rounding error
    for count in (2, min(8, logs.size // 10 * 2)):
        ordered = np.sort(sliding_window_view(logs, count), axis=1)
        level = ordered[:, count // 2 - 1 : count // 2 + 1].mean(axis=1)
        # For normal noise the variance of a median is pi / 2 times the mean's, and half of the points lie within
        # .6745 SD.
        error = np.median(np.abs(level[count:] - level[:-count])) / 0.6745
        largest = max(largest, float(error) * math.sqrt(count / math.pi))
    return largest


def segmented(logs: Floats, scale: float) -> Iterator[list[int]]:
    """Yield the changes of the cheapest segmentation for each price.

    The cost of a segmentation is the price times the number of changes, plus a cost for each point: its squared
    distance from the segment's level in units of ``scale``, at most 9. This is the biweight loss of Fearnhead and
    Rigaill ("Changepoint Detection in the Presence of Outliers", JASA 2019), with which a single outlier costs less
    than a change. Levels are taken from a grid, so a few array operations find the optimum for all prices.

    Args:
        logs: The series, as logarithms.
        scale: SD of the noise, above zero.

    Yields:
        Index of the first point of each segment except the first, in descending order.
    """
    stride = 3  # distance in points between possible changes
    # Levels are half an SD of the noise apart. If this gives more than 160 levels, use 160 quantiles of the points.
    count = int(2 * np.ptp(logs) / scale) + 2
    grid = np.quantile(logs if count > 160 else [logs.min(), logs.max()], np.linspace(0, 1, min(count, 160)))
    losses = np.minimum((logs[:, None] / scale - grid / scale) ** 2, 9)
    losses = np.add.reduceat(losses, np.arange(0, logs.size, stride))
    most = math.log(logs.size) * np.array(PRICES)[:, None]
    rows = np.arange(most.size)
    costs = np.zeros((most.size, grid.size))
    # ``since`` has the start of the last segment for each level; ``before`` has the start of the previous segment if
    # a segment begins at this step.
    since = np.zeros(costs.shape, dtype=int)
    before = np.zeros((len(losses), most.size), dtype=int)
    for step, loss in enumerate(losses):
        best = costs.argmin(axis=1)
        costs -= costs[rows, best, None]
        before[step] = since[rows, best]
        np.copyto(since, step, where=costs >= most)  # a change to this level is cheaper than staying
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

    The error is derived from the distance between the two order statistics that enclose the median with 99 %
    confidence (McKean and Schrader, "A Comparison of Methods for Studentizing the Sample Median", 1984). With bimodal
    data this error is large, because the median may lie in either mode.
    """
    count, sds = len(ordered), 2.5758
    low = max(int((count - sds * math.sqrt(count)) / 2), 0)
    error = (ordered[-1 - low] - ordered[low]) / 2 / sds
    return median(ordered), error if count >= NEAR else math.inf


def _doubt(logs: Floats, places: Sequence[int]) -> float:
    """Return a divisor (at least 1) for the strength of the changes in a series.

    If the autocorrelation is high even between changes, the series wanders like a random walk or a wave. In such a
    series steps are common.
    """
    rest = np.concatenate([stretch - np.median(stretch) for stretch in np.split(logs, places)])
    alike = autocorrelation(rest)
    return max(1.0, (1 + alike) / (1 - alike) / 3) ** 2  # the divisor is 1 up to an autocorrelation of .5
