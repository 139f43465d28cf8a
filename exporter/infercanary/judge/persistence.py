"""How long the noise of a series lasts, and what that does to the error of its level. Pure.

Neighbouring runs are alike: a clock stays in a mode, a neighbour stays busy. The error of a level is then wider than
that of independent runs, by a factor that few runs show only roughly. One estimate of it is too small half of the
time, and intervals made of it miss more often than they say. So the factor is not estimated once: its logarithm is
averaged over all that the runs leave likely, as Müller does ("HAC Corrections for Strongly Autocorrelated Time
Series", Journal of Business & Economic Statistics 32, 2014, section 3: a weighted average over processes of
increasing persistence, on the cosine transform of the series).

The processes are first-order autocorrelation with noise of each run's own on top: a two-state clock is one of them in
its first two moments, with any dwell. Their likelihood is Whittle's ("Estimation and Information in Stationary Time
Series", 1953) on the discrete cosine transform, which is nearly uncorrelated for them (Ahmed, Natarajan and Rao,
"Discrete Cosine Transform", 1974).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import fft

from infercanary.judge.policy import Policy
from infercanary.judge.resolution import Floats

_STEPS = 10  # of autocorrelations, evenly in the logarithm of 1 less the autocorrelation; more change nothing
_LEAST = 0.15  # of them; below it the error grows by less than a sixth
_SHARES = {0.25: 0.05, 0.5: 0.15, 0.75: 0.3, 1.0: 0.5}
"""Share of the variance that lasts, and how likely that is: what is measured has mostly little noise of its own."""

_FREQUENCIES = 512  # the lowest; of long series they alone say what lasts


class Likely(NamedTuple):
    """How likely each process is, from one series, and what it does to the error of that series' level."""

    logs: Floats
    """Log-likelihood, up to a constant."""
    inflation: Floats
    """By how much the variance of the level is larger than that of as many independent points, as a logarithm."""
    variance: float
    """Of a point, in the unit of the points, squared."""


class _Processes(NamedTuple):
    """What each process expects of a series of one length."""

    inverse: Floats
    """One over the variance of each coefficient: coefficients by processes."""
    logs: Floats
    level: Floats
    """Variance of the coefficient that is the level, where a point's is 1."""


def likely(points: Floats, policy: Policy) -> Likely | None:
    """What ``points`` say of each process.

    Args:
        points: At least two logarithms in order of time, winsorized: one wild point would hide what lasts.
        policy: The longest that noise is thought to last.

    Returns:
        Arrays with one number a process, independent noise first; None where all points are the same.
    """
    count = points.size
    processes = _processes(count, policy.pool.most_autocorrelation)
    power = fft.dct(points, norm="ortho")[1:] ** 2
    variance = float(power.sum()) / (count - 1)
    if variance <= 1e-24:
        return None
    used = power[:_FREQUENCIES]
    scale = used @ processes.inverse / used.size
    logs = processes.logs - used.size / 2 * np.log(scale)
    return Likely(logs, np.log(processes.level * scale / variance), variance)


def weights(several: list[Likely], policy: Policy) -> Floats:
    """How likely each process is from several series together, which are thought to last alike.

    A series counts by its variance, as a share of the largest: the error of the shift is mostly made by what scatters
    most, so that must not be taken for lasting because small noise beside it lasts, nor for independent.

    Args:
        several: What each series says; none leaves the prior.
        policy: How likely independent noise is before any run, and the longest that noise is thought to last.

    Returns:
        One probability a process, in the order of :class:`Likely`; together 1.
    """
    logs = _prior(policy.pool.independent_share, policy.pool.most_autocorrelation)
    most = max((one.variance for one in several), default=1.0)
    for one in several:
        logs = logs + one.logs * (one.variance / most)
    found: Floats = np.exp(logs - logs.max())
    found /= found.sum()
    return found


def _autocorrelations(most: float) -> Floats:
    found: Floats = 1 - np.geomspace(1 - _LEAST, 1 - most, _STEPS)
    return found


@lru_cache(maxsize=8)
def _prior(independent: float, most: float) -> Floats:
    """The logarithm of how likely each process is before a run was seen; the first is independent noise.

    Those that last weigh with the square root of 1 less their autocorrelation: the longer, the rarer.
    """
    lasting = np.sqrt(1 - _autocorrelations(most))
    weights = np.outer(lasting / lasting.sum(), list(_SHARES.values())).ravel() * (1 - independent)
    logs: Floats = np.log(np.concatenate(([independent], weights)))
    return logs


@lru_cache(maxsize=64)
def _processes(count: int, most: float) -> _Processes:
    frequency = np.cos(np.pi * np.arange(1, min(count, _FREQUENCIES + 1)) / count)
    variances, levels = [np.ones_like(frequency)], [1.0]
    for phi in _autocorrelations(most):
        lasting = (1 - phi**2) / (1 - 2 * phi * frequency + phi**2)
        level = (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**count) / (count * (1 - phi) ** 2)
        for share in _SHARES:
            variances.append(share * lasting + 1 - share)
            levels.append(share * level + 1 - share)
    every = np.array(variances)
    return _Processes(np.ascontiguousarray(1 / every.T), -np.log(every).sum(axis=1) / 2, np.array(levels))
