"""Where the level of one series changed, without an event to compare around. Pure: numbers in, change points out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.shift import ratio
from infercanary.judge.statistics import Floats, Points, Series, shift

# Of normal noise: the SD over the MAD, and the standard error of the median over the mean's.
_MAD, _MEDIAN = 1.4826, 1.2533


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

    A step lies between the medians of the ``window`` points before and after a place. It counts if it is large, beyond
    the scatter within both, and beyond the same difference elsewhere in the series: a level that varies makes steps of
    its own. Nothing is found nearer to an end or to a larger step. A slow trend has no step; to see it is for
    ``compare``, with a baseline that is frozen. Medians instead of Perfherder's means, because single outliers are
    common. Assumes one step at most within a window, and that most of a series has none.

    Args:
        values: Latencies above zero in order of time, in any unit.
        policy: The window, and what a step must exceed.

    Returns:
        The change points, in order.

    Raises:
        ValueError: A value is no latency.
    """
    window = policy.window
    y = Series.of(values, "values", policy).logs
    if y.size < 2 * window:
        return []
    level, error = _windows(y, window)
    step = level[window:] - level[:-window]
    size = np.abs(step)
    beyond = size / (np.hypot(error[window:], error[:-window]) + 1e-9)
    elsewhere = size / (_typical(size) + 1e-9)
    found: list[int] = []
    free = (size >= policy.log_effect) & (beyond >= policy.beyond_scatter)
    order = np.argsort(
        -np.minimum(beyond / policy.beyond_scatter, elsewhere / policy.beyond_typical), kind="stable"
    )
    for place in order:
        if free[place]:
            near = slice(max(0, place - window + 1), place + window)
            free[near] = False
            others = size
            if size.size < 10 * window:  # short enough for the step itself to be most of what there is
                others = np.concatenate((size[: near.start], size[near.stop :]))
            is_alone = others.size < window
            if beyond[place] >= (policy.beyond_alone if is_alone else policy.beyond_doubt) or (
                not is_alone and size[place] >= policy.beyond_typical * _typical(others)
            ):
                found.append(_sharpened(y, place + window, policy))
    return _with_shifts(y, sorted(set(found)), policy)


def _typical(size: Floats) -> float:
    """The SD of steps where none is real, from their median: it takes no notice of the few that are."""
    return _MAD * float(np.median(size))


def _windows(y: Floats, window: int) -> tuple[Floats, Floats]:
    """Median of each ``window`` points, and the standard error of that."""
    ordered = np.sort(sliding_window_view(y, window), axis=1)
    level = (ordered[:, window // 2 - 1] + ordered[:, window // 2]) / 2
    mad = np.median(np.abs(ordered - level[:, None]), axis=1)
    inner = ordered.clip(ordered[:, 1:2], ordered[:, -2:-1])
    winsorized = inner.std(axis=1, ddof=1) * (window - 1) / (window - 3)
    scatter = np.maximum(winsorized, _MEDIAN * _MAD * mad)
    # A coarse clock has its median half a tick off, which more points do not improve: the median gap between values.
    gaps = np.sort(np.diff(ordered, axis=1), axis=1)
    distinct = (gaps > 1e-9).sum(axis=1)
    middle = np.minimum(gaps.shape[1] - distinct + distinct // 2, gaps.shape[1] - 1)
    tick = gaps[np.arange(len(gaps)), middle]
    return level, np.sqrt(scatter**2 / window + tick**2 / 4)


def _sharpened(y: Floats, at: int, policy: Policy) -> int:
    """The split near ``at`` from which on points lie nearer to the later level: medians step some points around it."""
    window = policy.window
    before, after = np.median(y[at - window : at]), np.median(y[at : at + window])
    reach = window - policy.fewest_runs
    begin = at - reach
    near = y[begin : at + reach]
    nearer_before = np.abs(near - after) - np.abs(near - before)
    return begin + int(np.argmax(np.concatenate(([0.0], np.cumsum(nearer_before)))))


def _with_shifts(y: Floats, places: Sequence[int], policy: Policy) -> list[ChangePoint]:
    points = []
    around, fewest = policy.change_points, policy.fewest_runs
    for i, at in enumerate(places):
        begin = min(max([0, at - around, *places[:i][-1:]]), at - fewest)
        end = max(min([y.size, at + around, *places[i + 1 :][:1]]), at + fewest)
        between = shift(Series(y[begin:at], policy), Series(y[at:end], policy), policy)
        low, high = between.interval(policy.change_confidence)
        points.append(ChangePoint(int(at), ratio(between.log), ratio(low), ratio(high)))
    return points
