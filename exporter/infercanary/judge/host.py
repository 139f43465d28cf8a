"""The host's variation taken out of a canary's runs: what each run waited, and what siblings felt at the same moments.

A shared machine is slower for a while, for every container on it. Starts of one image then differ by when they ran,
and an upgrade's shift disappears in that. Siblings, whose images did not change, show how slow the host was at each
moment; how much of it a canary feels is a slope, fitted to starts of one image, where nothing else changed.

This is regression adjustment by a covariate that the treatment cannot touch (Deng, Xu, Kohavi and Walker, "Improving
the Sensitivity of Online Controlled Experiments by Utilizing Pre-Experiment Data", 2013). Where siblings explain
nothing the slope is not clear of zero, and nothing is adjusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from infercanary.contract.bottleneck import QUEUED
from infercanary.judge.model import Start
from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.resolution import Floats
from infercanary.judge.statistics import Series


class Adjustment(NamedTuple):
    """The starts as they would have been on a host that is always the same."""

    starts: list[Start]
    slope: float
    slope_se: float
    levels: dict[str, float]
    """Boot id → how slow the host was for that start (a logarithm), on average."""
    siblings: int


class _Sibling(NamedTuple):
    times: Floats
    sums: Floats
    """Of its centred log medians, from the first on; one longer than ``times``."""


def adjust(starts: Sequence[Start], siblings: Sequence[Start], policy: Policy = LIVE) -> Adjustment | None:
    """``starts`` without what ``siblings`` felt too.

    Runs with no sibling beside them are left out, and so are starts with too few runs left.

    Args:
        starts: Of one service, in order of time.
        siblings: Starts of other services, in order of time: those of a start's own host count for it.
        policy: Which of a sibling's runs count, and when a slope is believed.

    Returns:
        The adjusted starts; None where siblings explain nothing.
    """
    beside: dict[str, list[_Sibling]] = {}
    for start in siblings:
        if (sibling := _sibling(start, policy)) is not None:
            beside.setdefault(start.generation.host, []).append(sibling)
    if not beside:
        return None
    seen = [
        (start, _host(start, beside[start.generation.host], policy))
        for start in starts
        if start.generation.host in beside
    ]
    kept = [(start, x) for start, x in seen if np.isfinite(x).sum() >= policy.pool.fewest_runs]
    if not kept:
        return None
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    levels = {}
    for start, x in kept:
        g = start.generation
        known = np.isfinite(x)
        y = start.logs[known]
        levels[g.boot_id] = float(x[known].mean())
        groups.setdefault((g.container, *start.work), []).append((levels[g.boot_id], Series(y, policy).level))
    fitted = _slope(list(groups.values()), policy)
    if fitted is None:
        return None
    slope, se = fitted
    middle = float(np.mean(list(levels.values())))
    adjusted = []
    for start, x in kept:
        samples = [
            msgspec.structs.replace(s, median=s.median * math.exp(-slope * (at - middle)))
            for s, at in zip(start.samples, x.tolist(), strict=True)
            if s.median and math.isfinite(at)
        ]
        adjusted.append(Start(start.generation, samples))
    return Adjustment(adjusted, slope, se, levels, sum(map(len, beside.values())))


def ranked(siblings: Sequence[Start], most: int) -> list[list[Start]]:
    """The first sibling of each host, the second of each, and so on.

    Args:
        siblings: Starts of other services, on any hosts.
        most: Of each host.

    Returns:
        At most so many lists.
    """
    hosts: dict[str, list[Start]] = {}
    for start in siblings:
        hosts.setdefault(start.generation.host, []).append(start)
    each = [of_host[:most] for of_host in hosts.values()]
    return [
        [of_host[place] for of_host in each if place < len(of_host)]
        for place in range(max(map(len, each), default=0))
    ]


def left_waiting(starts: Sequence[Start], policy: Policy = LIVE) -> list[Start]:
    """``starts`` without what each run itself waited for CPUs that others on the host had.

    What others in the container had stays in: that is the image's doing. Cold caches after a wait stay in, too.

    Args:
        starts: Of canaries with one thread; of several threads each knows only its own waiting.
        policy: In how many of a start's runs the waiting must be known.

    Returns:
        Those in which it is known often enough, with the runs in which it is known.
    """
    left = []
    for start in starts:
        samples = [
            msgspec.structs.replace(
                s,
                median=s.median - s.waited,
                waited=0.0,
                off_cpu={why: max(0.0, t - s.waited) if why == QUEUED else t for why, t in s.off_cpu.items()},
            )
            for s in start.samples
            if s.median and s.waited is not None and s.waited < s.median
        ]
        if samples and len(samples) >= policy.pool.waiting_known * len(start.samples):
            left.append(Start(start.generation, samples))
    return left


def uncontended(starts: Sequence[Start], new: Sequence[Start], policy: Policy = LIVE) -> list[Start]:
    """``starts`` without the contended ones, of each container and image.

    A contended start is no sign of the restart variance, and no baseline, while others are there. If the new image's
    starts are contended, they are compared with starts that were contended as much; without any, with all. Slight or
    lasting contention stays in: :func:`adjust` subtracts what siblings felt of it.

    Args:
        starts: Of one service, in order of time.
        new: Those of the new image, with the runs that are judged.
        policy: From when on a start is contended.

    Returns:
        At least one of each container and image; those of which the waiting is not known are all among them.
    """
    now = {start.boot: _waiting(start, policy) for start in new}
    images = {start.work for start in new}
    groups: dict[tuple[str, tuple[str, ...]], list[tuple[float, Start]]] = {}
    for start in starts:
        if len(start.samples) >= policy.pool.fewest_runs and (waited := _waiting(start, policy)) is not None:
            groups.setdefault((start.generation.container, start.work), []).append((waited, start))
    most = math.log1p(policy.pool.contended)
    out: set[tuple[str, str]] = set()
    for (container, image), group in groups.items():
        own = [x for (name, _), x in now.items() if x is not None and name == container]
        own = own or [x for x in now.values() if x is not None]
        usual = min(waited for waited, _ in group)
        if own and image not in images and median(own) - usual > most:
            usual = median(own)
        far = {start.boot for waited, start in group if abs(waited - usual) > most}
        out |= far if len(far) < len(group) else set()
    return [start for start in starts if start.boot not in out]


def _waiting(start: Start, policy: Policy) -> float | None:
    """How much longer its runs took for waiting for CPUs that others on the host had: a logarithm, if it is known."""
    longer = [
        s.median / (s.median - s.waited)
        for s in start.samples
        if s.median and s.waited is not None and s.waited < s.median
    ]
    enough = longer and len(longer) >= policy.pool.waiting_known * len(start.samples)
    return math.log(median(longer)) if enough else None


def _sibling(start: Start, policy: Policy) -> _Sibling | None:
    if len(start.samples) < 2 * policy.pool.fewest_runs:
        return None
    y = start.logs - np.nanmedian(start.logs)
    reach = policy.pool.covariate_outlier_sds * 1.4826 * float(np.nanmedian(np.abs(y))) + 1e-9
    y = np.nan_to_num(y.clip(-reach, reach))
    return _Sibling(start.times, np.concatenate(([0.0], np.cumsum(y))))


def _host(start: Start, siblings: Sequence[_Sibling], policy: Policy) -> Floats:
    """How slow the host was at each run: the median of the siblings' means around it; NaN where none ran."""
    at = start.times
    beside, window = policy.pool.covariate_runs, policy.pool.covariate_seconds
    means = np.full((len(siblings), at.size), math.nan)
    for row, sibling in zip(means, siblings, strict=True):
        place = np.searchsorted(sibling.times, at)
        low = np.maximum(np.searchsorted(sibling.times, at - window), place - beside)
        high = np.minimum(np.searchsorted(sibling.times, at + window), place + beside)
        enough = high - low >= beside
        row[enough] = ((sibling.sums[high] - sibling.sums[low])[enough]) / (high - low)[enough]
    known = np.isfinite(means).any(axis=0)
    found = np.full(at.size, math.nan)
    found[known] = np.nanmedian(means[:, known], axis=0)
    return found


def _slope(groups: Sequence[Sequence[tuple[float, float]]], policy: Policy) -> tuple[float, float] | None:
    """Least squares about each group's own mean, and its standard error; None where it is not clear of zero."""
    xs, ys, df = [], [], -1
    for group in groups:
        x, y = (np.array(values) for values in zip(*group, strict=True))
        xs.append(x - x.mean())
        ys.append(y - y.mean())
        df += len(group) - 1
    x, y = np.concatenate(xs), np.concatenate(ys)
    squares = float(x @ x)
    if df < policy.pool.covariate_starts or squares < 1e-8:
        return None
    slope = float(x @ y) / squares
    rest = y - slope * x
    se = math.sqrt(float(rest @ rest) / df / squares)
    return (
        (min(slope, policy.pool.covariate_steepest), se)
        if slope > policy.pool.covariate_clear_ses * se
        else None
    )
