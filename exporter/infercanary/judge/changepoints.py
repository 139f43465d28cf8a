"""Where the level of one series changed, without an event to compare around. Pure: numbers in, change points out.

Two views of each candidate must agree. Near it: does the level differ by more than the points on either side scatter?
And in the whole series: does the best segmentation still need it when changes are made more and more expensive? Each
alone errs where the other does not: a level that wanders makes clear steps, of which a good segmentation needs few; and
a segmentation by the noise of neighbours explains a slow mode by many changes, of which few are clear.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import ndtri

from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.resolution import Floats, resolution
from infercanary.judge.segmentation import persistence
from infercanary.judge.shift import ratio
from infercanary.judge.statistics import Points, Series, shift

_MAD = 1.4826  # of normal noise, the SD over the MAD
_MIDDLE = 2.5758  # of the normal distribution: 99 % lie within so many SDs
_FEWEST = 5  # points on a side, without which its median has no known error


@dataclass(frozen=True)  # no tuple, because those have a method named index
class ChangePoint:
    """The first point at a new level; the shift to it and its interval as ratios."""

    index: int
    shift: float
    low: float
    high: float


def scan(values: Points, policy: Policy = LIVE) -> list[ChangePoint]:
    """Where the level of a series steps to another and stays. Use it where no event is known.

        [change.index for change in scan(latencies)]

    A slow trend has no step; to see it is for ``compare``, with a baseline that is frozen. What is asked of a step was
    chosen on series in which people marked the changes, by nested cross-validation (``benchmarks/labelled.py``).

    Args:
        values: Latencies above zero in order of time, in any unit.
        policy: What a step must exceed.

    Returns:
        The change points, in order. A step that the resolution may make, such as from 4 to 5 ms of a clock with whole
        milliseconds, is none.

    Raises:
        ValueError: A value is no latency.
    """
    y = Series.of(values, "values").logs
    found = [at for at, strength in strengths(y, policy) if strength >= policy.drift.scan_strength]
    return _with_shifts(y, found, policy)


def strengths(logs: Floats, policy: Policy = LIVE) -> list[tuple[int, float]]:
    """Where a level might change by the smallest effect or more, in order, and how clear each of these changes is.

    The strength is the geometric mean of a change's z near it and of its persistence in the whole series, less where
    the series wanders.

    Args:
        logs: The series, as logarithms.
        policy: How candidates are found and weighed.

    Returns:
        For each the index of the first point at the new level, and the strength (0 or more; ``scan_strength`` is in the
        same unit). Empty where the series has fewer than ``scan_fewest`` points.
    """
    if logs.size < policy.drift.scan_fewest:
        return []
    values = logs.tolist()
    places = sorted({_sharpened(values, at, policy) for at in _candidates(logs, policy)})
    clear = _eliminated(values, places, policy)
    if not clear:
        return []
    noise, doubt = _noise(logs, clear, policy)
    lasting = persistence(logs, noise, policy)
    return [
        (at, math.sqrt(min(clear[at], policy.drift.scan_penalties[-1]) * lasting[at]) / doubt)
        for at in sorted(clear)
    ]


def _candidates(y: Floats, policy: Policy) -> list[int]:
    """Where the medians of points before and after differ most clearly, none near to a clearer one."""
    clear = np.zeros(y.size)
    for window in policy.drift.scan_windows:
        if y.size >= 2 * window:
            level, error = _windows(y, window)
            size = np.abs(level[window:] - level[:-window])
            t = size / (np.hypot(error[window:], error[:-window]) + 1e-9)
            t[(size < policy.drift.scan_least) | (t < policy.drift.scan_least_ses)] = 0
            view = clear[window : window + t.size]
            np.maximum(view, t, out=view)
    free = clear > 0
    found: list[int] = []
    for place in np.argsort(-clear, kind="stable")[: np.count_nonzero(free)].tolist():
        if free[place]:
            free[max(0, place - policy.drift.scan_near + 1) : place + policy.drift.scan_near] = False
            found.append(place)
    return found


def _windows(y: Floats, window: int) -> tuple[Floats, Floats]:
    """Median of each ``window`` points, and its standard error by the winsorized SD."""
    ordered = np.sort(sliding_window_view(y, window), axis=1)
    level = (ordered[:, (window - 1) // 2] + ordered[:, window // 2]) / 2
    inner = ordered.clip(ordered[:, 1:2], ordered[:, -2:-1])
    scatter = inner.std(axis=1, ddof=1) * (window - 1) / (window - 3)
    return level, scatter / math.sqrt(window)


def _sharpened(y: Sequence[float], at: int, policy: Policy) -> int:
    """The split near ``at`` from which on points lie nearer to the later level: medians step some points around it."""
    width, reach = policy.drift.scan_split, policy.drift.scan_near
    before, after = (_middle(sorted(side)) for side in (y[max(0, at - width) : at], y[at : at + width]))
    split = first = max(_FEWEST, at - reach)
    gained = most = 0.0
    for place, value in enumerate(y[first : len(y) - _FEWEST][: at + reach - first], first + 1):
        gained += abs(value - after) - abs(value - before)
        if gained > most:
            split, most = place, gained
    return split


def _middle(ordered: Sequence[float]) -> float:
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _median(ordered: Sequence[float]) -> tuple[float, float]:
    """The median and its variance: of the winsorized scatter or by McKean and Schrader, whichever is larger.

    The latter ("A Comparison of Methods for Studentizing the Sample Median", 1984) takes the distance between two order
    statistics around the median: of two modes it sees that the median may lie in either.
    """
    n = len(ordered)
    middle = _middle(ordered)
    if n < _FEWEST:
        return middle, math.inf
    inner = [ordered[1], *ordered[1:-1], ordered[-2]]
    mean = math.fsum(inner) / n
    scatter = math.fsum((x - mean) ** 2 for x in inner) / (n - 1) * ((n - 1) / (n - 3)) ** 2
    k = max(int((n + 1) / 2 - _MIDDLE * math.sqrt(n / 4) + 0.5), 1)
    return middle, max(scatter / n, ((ordered[n - k] - ordered[k - 1]) / (2 * _MIDDLE)) ** 2)


def _eliminated(y: Sequence[float], places: Sequence[int], policy: Policy) -> dict[int, float]:
    """How clear each place is among those that are no weaker: z of the medians on either side.

    The weakest place is taken out again and again, and those beside it are weighed anew, with more points. A place's z
    is the largest with which one was taken out until then, so that a threshold leaves what elimination up to it would.
    Places with less than the smallest effect between their sides go first, and have none.
    """
    reach = policy.drift.scan_reach
    edges = [0, *places, len(y)]
    before, after = list(range(-1, len(edges) - 1)), list(range(1, len(edges) + 1))
    versions = [0] * len(edges)
    gone = [False] * len(edges)

    @cache  # the same stretches are asked for again and again
    def side(begin: int, end: int) -> tuple[float, float]:
        return _median(sorted(y[begin:end]))

    def weighed(i: int) -> tuple[bool, float, int, int]:
        at = edges[i]
        one, variance = side(max(edges[before[i]], at - reach), at)
        other, more = side(at, min(edges[after[i]], at + reach))
        step = abs(other - one)
        versions[i] += 1
        return step >= policy.decide.log_effect, step / (math.sqrt(variance + more) + 1e-9), i, versions[i]

    queue = [weighed(i) for i in range(1, len(edges) - 1)]
    heapq.heapify(queue)
    found: dict[int, float] = {}
    so_far = 0.0
    while queue:
        is_large, z, i, version = heapq.heappop(queue)
        if gone[i] or version != versions[i]:
            continue
        gone[i] = True
        if is_large:
            so_far = max(so_far, z)
            found[edges[i]] = so_far
        left, right = before[i], after[i]
        after[left], before[right] = right, left
        for beside in (left, right):
            if 0 < beside < len(edges) - 1:
                heapq.heappush(queue, weighed(beside))
    return found


def _noise(y: Floats, clear: dict[int, float], policy: Policy) -> tuple[float, float]:
    """The SD of the series' noise, and by how much to doubt its changes, 1 or more.

    The SD is from differences of neighbours, which changes of level hardly touch, and larger by as much as neighbours
    are alike between the rough changes. Of two modes half of them may be small, so the larger ones count too. Those of
    zero do not: with a coarse clock most may be. Where
    neighbours are very alike even there, no level is left for long: such a series wanders, as a random walk does, and
    its steps are its habit. Taking medians off makes neighbours less alike, which is corrected (Marriott and Pope,
    "Bias in the Estimation of Autocorrelations", 1954). A series with two modes that last has such a habit, too: points
    off its level are followed by more of them.
    """
    edges = [0, *(at for at in sorted(clear) if clear[at] >= policy.drift.scan_rough), y.size]
    rest = np.concatenate([y[a:b] - np.median(y[a:b]) for a, b in pairwise(edges)])
    most = policy.drift.scan_off_level * (_MAD * float(np.median(np.abs(rest))) or float(rest.std()) or 1.0)
    off = np.sign(rest) * (np.abs(rest) > most)
    in_turn = np.count_nonzero(off[1:] * off[:-1] > 0) / (np.count_nonzero(off) + _FEWEST)
    rest = rest.clip(-most, most)
    rest -= rest.mean()
    power = float(rest @ rest)
    phi = max(float(rest[1:] @ rest[:-1]) / power, 0.0) if power else 0.0
    differing = np.abs(np.diff(y))
    differing = differing[differing > policy.drift.scan_least_noise]
    noise = policy.drift.scan_least_noise
    if differing.size:
        shares = np.array((0.5, policy.drift.scan_larger))
        usual, larger = np.quantile(differing, shares) / ndtri((1 + shares) / 2) / math.sqrt(2)
        noise = max(float(usual), policy.drift.scan_larger_counts * float(larger))
    alike = max(phi + (1 + 3 * phi) * (len(edges) - 1) / y.size, in_turn)
    doubt = (
        max(1.0, _inflation(alike, policy) / _inflation(policy.drift.scan_alike, policy))
        ** policy.drift.scan_doubt
    )
    return noise * math.sqrt(_inflation(phi, policy)), doubt


def _inflation(phi: float, policy: Policy) -> float:
    """By how much neighbours that are so alike widen the variance of a mean, as in a first-order process."""
    phi = min(phi, policy.pool.most_autocorrelation)
    return (1 + phi) / (1 - phi)


def _with_shifts(y: Floats, places: Sequence[int], policy: Policy) -> list[ChangePoint]:
    points = []
    all_values = np.unique(y)
    around, fewest = policy.drift.change_points, policy.pool.fewest_runs
    for i, at in enumerate(places):
        begin = min(max([0, at - around, *places[:i][-1:]]), at - fewest)
        end = max(min([y.size, at + around, *places[i + 1 :][:1]]), at + fewest)
        before, after = Series(y[max(begin, 0) : at]), Series(y[at:end])
        coarse = resolution([before.ordered], [after.ordered], all_values)
        between = shift(before, after, policy.pool)._replace(resolution=coarse)
        if (
            abs(between.log) - (coarse.down if between.log > 0 else coarse.up)
            <= policy.decide.log_clear
            < abs(between.log)
        ):
            continue
        low, high = between.interval(policy.attribute.history_confidence)
        points.append(ChangePoint(at, ratio(between.log), ratio(low), ratio(high)))
    return points
