"""Whether latency changed, and by how much. Pure statistics: numbers in, numbers out.

All is done on logarithms, so that a shift is a ratio and units do not matter; a point is a run's median, in order of
time. What each part rests on:

- A shift is Hodges and Lehmann's ("Estimates of Location Based on Rank Tests", 1963): the median of all differences
  between a candidate's and a baseline's point. A few wild points do not move it.
- Its standard error counts how many independent points there are, not how many points: neighbours in time are alike.
- **A restart is one replicate** (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", 2013): two starts of
  the same image differ, and no number of runs within them shows by how much. ``pool`` adds that variance.
- Verdicts are three-way, as in equivalence testing: changed, the same, or not known yet.

Every threshold is a field of :class:`~infercanary.judge.policy.Policy`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from infercanary.judge.policy import LIVE, SAMPLES, Policy
from infercanary.judge.shift import UNKNOWN, Comparison, Pooled, Restarts, Shift, Verdict, ratio

Floats: TypeAlias = NDArray[np.float64]
Points: TypeAlias = "Sequence[float] | Floats | Series"

_PAIRS = 1 << 16  # up to here all differences are formed; beyond, their median is found by bisection

# Of normal noise: the SD over the MAD; the standard error of Hodges and Lehmann's estimate over the mean's.
_MAD, _RANKS = 1.4826, 1.0233


class Series:
    """Points of one start in order of time, as logarithms, with their own statistics, each computed once.

    Use it where the same points are compared often: every function here takes it in place of a list.
    """

    def __init__(self, logs: Floats, policy: Policy = LIVE) -> None:
        self.logs = logs
        self._policy = policy

    @classmethod
    def of(cls, points: Points, what: str = "points", policy: Policy = LIVE) -> Series:
        """The series of ``points``.

        Args:
            points: Latencies above zero in any unit, in order of time; a series is returned as it is.
            what: Their name in an error.
            policy: How their scatter and autocorrelation are estimated.

        Raises:
            ValueError: A point is not finite or not above zero, or the points are not flat.
        """
        if isinstance(points, Series):
            return points
        values = np.asarray(points, dtype=np.float64)
        if values.ndim != 1:
            raise ValueError(f"{what}: a flat sequence of numbers is needed")
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if bad.size:
            raise ValueError(f"{what}[{bad[0]}] is {values[bad[0]]}: a latency is finite and above zero")
        return cls(np.log(values), policy)

    def __len__(self) -> int:
        return self.logs.size

    @cached_property
    def ordered(self) -> Floats:
        """From the smallest on."""
        return np.sort(self.logs)

    @cached_property
    def level(self) -> float:
        """Hodges and Lehmann's of one sample, the median of all means of two points: as precise as a shift is."""
        return _hodges_lehmann(Series(-self.logs), self) / 2

    @cached_property
    def scatter(self) -> float:
        """A winsorized SD: a few outliers hardly change it, and neither ties nor a second mode make it zero."""
        n = len(self)
        cut = max(1, n // self._policy.outlier_every)
        inner = _clipped(self.ordered, self.ordered[cut], self.ordered[-1 - cut])
        inner -= np.add.reduce(inner) / n
        return math.sqrt(float(inner @ inner) / (n - 1)) * (n - 1) / (n - 2 * cut - 1)

    @cached_property
    def autocorrelation(self) -> Sequence[float]:
        """By lag, from 1 on: of few points that of the first lag, and none where all are the same."""
        n = len(self)
        r = self.logs - _middle(self.ordered)
        if (mad := _MAD * _middle(np.sort(np.abs(r)))) > 1e-9:
            r = _clipped(r, -3 * mad, 3 * mad)
        r -= np.add.reduce(r) / n
        if (power := float(r @ r)) <= 1e-24 * n:
            return ()
        most = self._policy.autocorrelation_lags
        lags = most if n >= 5 * most else 1
        like = [float(r[lag:] @ r[:-lag]) / power for lag in range(1, lags + 1)]
        # A short series shows less of it than there is (Marriott and Pope, 1954).
        return [x + (1 + 3 * x) / n for x in like]


def prior(policy: Policy = LIVE) -> Restarts:
    """How much starts are assumed to differ before any restart was seen."""
    return Restarts(policy.prior_restart_sd, policy.prior_restart_df)


def compare(
    baseline: Points,
    candidate: Points,
    *,
    restart_sd: float | None = None,
    level: float | None = None,
    policy: Policy = SAMPLES,
) -> Comparison:
    """Is ``candidate`` slower than ``baseline``? Use it on the medians of runs before and after an event.

        compare([18.1, 18.3, 18.2, …], [19.4, 19.2, 19.5, …]).verdict  # 'regressed'

    Args:
        baseline: Latencies above zero in order of time, in any unit; at least 8, or the answer is inconclusive.
        candidate: The same, after the event.
        restart_sd: SD of logarithms by which two starts of one image differ (0.01 is 1 %), where one restart lies
            between the sides.
        level: Confidence of the interval, between 0 and 1; the policy's without it.
        policy: What counts as a change.

    Returns:
        The verdict, the shift and its confidence interval as ratios.

    Raises:
        ValueError: A point is no latency, or ``restart_sd`` or ``level`` is out of range.
    """
    between = shift(baseline, candidate, policy)
    if restart_sd is not None:
        if not 0 <= restart_sd < math.inf:
            raise ValueError(f"restart_sd is {restart_sd}: it is finite and not below zero")
        between = _widened(between, 2 * restart_sd**2, math.inf)
    level = policy.confidence if level is None else level
    return assess(between, level, policy=policy)


def assess(between: Shift, level: float, *, policy: Policy = LIVE) -> Comparison:
    """The verdict of one look at a shift, be it of one pair or pooled.

    `equivalent` is two one-sided tests (Schuirmann, "A Comparison of the Two One-Sided Tests Procedure and the Power
    Approach for Assessing the Equivalence of Average Bioavailability", 1987): the whole interval lies within the
    smallest effect. A change takes an estimate of the smallest effect, and an interval beyond the clear zone. Assumes
    that the estimate is about normal, or t with the shift's degrees of freedom.

    Args:
        between: The shift.
        level: Confidence of the interval.
        policy: What counts as a change.
    """
    low, high = between.interval(level)
    verdict: Verdict = "inconclusive"
    if abs(between.log) >= policy.log_effect and (low > policy.log_clear or high < -policy.log_clear):
        verdict = "regressed" if between.log > 0 else "improved"
    elif low > -policy.log_same and high < policy.log_same:
        verdict = "equivalent"
    return Comparison(verdict, ratio(between.log), ratio(low), ratio(high))


def shift(baseline: Points, candidate: Points, policy: Policy = LIVE) -> Shift:
    """How much slower ``candidate`` is, as far as its points show: Hodges and Lehmann's estimate on logarithms.

    Its error assumes that both sides have one shape, that neighbours are correlated as in a first-order process, and
    that no restart lies between: ``pool`` adds what restarts do.

    Args:
        baseline: Latencies above zero in order of time.
        candidate: The same, in the same unit.
        policy: The fewest runs of a side.

    Returns:
        The shift; of infinite error where a side has too few points.

    Raises:
        ValueError: A point is no latency.
    """
    sides = Series.of(baseline, "baseline", policy), Series.of(candidate, "candidate", policy)
    return _shift(*sides, policy)


def pool(
    replicas: Iterable[tuple[Sequence[Points], Sequence[Points]]], restarts: Restarts, policy: Policy = LIVE
) -> Shift:
    """The shift over the replicas of a service, each with its starts of the old and of the new image.

    A start is one replicate, whatever its number of runs: over m replicas with a start each, restarts alone leave a
    variance of 2 sd² / m, on the degrees of freedom that ``restarts`` is known on. The scatter of the replicas' shifts
    adds m - 1 degrees of freedom. Starts with too few runs, and replicas without a start on either side, do not count.

    Weighted by inverse variances, as a random-effects meta-analysis is, and widened where the replicas differ by more
    than that (Hartung and Knapp, "A refined method for the meta-analysis of controlled clinical trials with binary
    outcome", 2001). Replicas that differ by less than restarts should make them differ narrow it, but never below the
    error that the runs' own scatter leaves. Assumes that starts are independent, and that replicas shift alike.

    Args:
        replicas: For each the latencies of each start before, and of each start after.
        restarts: The restart variance.
        policy: The fewest runs of a start.

    Returns:
        The pooled shift; of infinite error where nothing can be compared.
    """
    each = [
        pair
        for before, after in replicas
        if (
            pair := _replica(
                _starts(before, "baseline", policy), _starts(after, "candidate", policy), restarts.sd, policy
            )
        )
    ]
    if not each:
        return UNKNOWN
    runs, starting, df, apart = _together(each, restarts)
    pooled = _widened(runs, starting, df)
    return pooled._replace(se=max(runs.se, pooled.se * apart))


def pool_parts(
    replicas: Iterable[tuple[Sequence[Points], Sequence[Points]]], restarts: Restarts, policy: Policy = LIVE
) -> Pooled | None:
    """As :func:`pool`, with the runs' and the restarts' parts of the error apart, and for few runs of the new image.

    A start of the new image counts from ``policy.fewest_new_runs`` on. So few runs hardly show their own noise, and so
    the baseline's counts for ``policy.noise_df`` degrees of freedom beside it, as the conjugate prior of a normal
    variance does. Replicas that differ by more or less than restarts should make them widen or narrow the restarts'
    part, which is what their differences are about.

    Args:
        replicas: For each the latencies of each start before, and of each start after.
        restarts: The restart variance.
        policy: The fewest runs of a start.

    Returns:
        None where nothing can be compared.
    """
    each = []
    for before, after in replicas:
        old = _starts(before, "baseline", policy)
        new = _starts(after, "candidate", policy, policy.fewest_new_runs)
        if pair := _replica(old, new, restarts.sd, policy, policy.noise_df):
            each.append(pair)
    if not each:
        return None
    runs, starting, df, apart = _together(each, restarts)
    more = (runs.se**2 + starting) * apart**2 - runs.se**2
    return Pooled(runs.log, runs.se, runs.df, math.sqrt(max(more, 0.0)), df)


def _together(
    each: Sequence[tuple[float, float, float, float]], restarts: Restarts
) -> tuple[Shift, float, float, float]:
    """Of several replicas: the shift with the runs' error, the variance of their starts, its freedom, and by how much
    the replicas differ over what restarts and runs should make them differ by (a ratio of SDs)."""
    logs, sampling, starting, freedom = np.array(each).T
    total = sampling + starting
    weights = 1 / total if total.all() else np.ones(len(each))
    weights /= weights.sum()
    log = float(weights @ logs)
    df = restarts.df + len(each) - 1
    more = float(((logs - log) ** 2 / total).sum()) - (len(each) - 1) if total.all() else 0.0
    runs = Shift(log, math.sqrt(weights**2 @ sampling), float(freedom.min()))
    return runs, float(weights**2 @ starting), df, math.sqrt(1 + more / df)


def learn(images: Iterable[Sequence[Points]], policy: Policy = LIVE) -> Restarts:
    """The restart variance, from the starts of each image; the prior counts as so many restarts seen before.

    The scatter of the levels of k starts has k - 1 degrees of freedom; what the runs' own scatter explains of it is
    taken off, because a shift's standard error already has it: the analysis-of-variance estimate of a variance
    component (Searle, Casella and McCulloch, "Variance Components", 1992, chapter 3), not below zero. A level is as
    precise as what is taken off says: medians are not, least of all of two modes, and left 4 % where there was
    nothing. The prior joins as the conjugate one of a normal variance does (Gelman et al., "Bayesian Data Analysis",
    2013, section 2.6). Assumes that all images of a service have one restart SD.

    Args:
        images: For each image the latencies of each of its starts.
        policy: The prior, and the fewest runs of a start.
    """
    squares, df = policy.prior_restart_sd**2 * policy.prior_restart_df, policy.prior_restart_df
    for image in images:
        starts = _starts(image, "start", policy)
        if len(starts) > 1:
            noise = math.fsum(_variance(start, _inflation([start], policy)) for start in starts) / len(starts)
            spread = float(np.var([start.level for start in starts], ddof=1))
            squares += (len(starts) - 1) * max(spread - noise, 0.0)
            df += len(starts) - 1
    return Restarts(math.sqrt(squares / df), df)


def _replica(
    old: list[Series], new: list[Series], sd: float, policy: Policy, noise_df: float = 0.0
) -> tuple[float, float, float, float] | None:
    """Of one replica: its shift, the variance from its runs and from its starts, and the freedom of the former."""
    if not (old and new):
        return None
    pairs = [
        _with_noise_of(a, b, _shift(a, b, policy, min(map(len, (a, b)))), noise_df, policy)
        if noise_df
        else _shift(a, b, policy)
        for a in old
        for b in new
    ]
    log = math.fsum(pair.log for pair in pairs) / len(pairs)
    # Starts of one side are independent; where the sides differ in number, the fewer's average is the safe one.
    sampling = math.fsum(pair.se**2 for pair in pairs) / len(pairs) / min(len(old), len(new))
    return log, sampling, sd**2 * (1 / len(old) + 1 / len(new)), min(pair.df for pair in pairs)


def _with_noise_of(a: Series, b: Series, between: Shift, noise_df: float, policy: Policy) -> Shift:
    """``between`` with an error in which the noise of ``a`` counts for so many degrees of freedom."""
    noise = _variance(a, _inflation([a], policy)) * (1 + len(a) / len(b))
    df = noise_df + between.df
    return between._replace(se=math.sqrt((noise_df * noise + between.df * between.se**2) / df), df=df)


def _starts(starts: Iterable[Points], what: str, policy: Policy, fewest: int | None = None) -> list[Series]:
    each = (Series.of(start, what, policy) for start in starts)
    return [series for series in each if len(series) >= (fewest or policy.fewest_runs)]


def _shift(a: Series, b: Series, policy: Policy, fewest: int | None = None) -> Shift:
    if not (len(a) and len(b)):
        return UNKNOWN
    between = _hodges_lehmann(a, b)
    if min(len(a), len(b)) < (fewest or policy.fewest_runs):
        return Shift(between, math.inf, 0.0)
    inflation = _inflation((a, b), policy)
    one, other = (_variance(side, inflation) for side in (a, b))
    freedom = [max(len(side) / inflation - 1, 1.0) for side in (a, b)]
    # Welch and Satterthwaite's, because the sides may differ in scatter and in length.
    share = one / (one + other) if one + other else 0.5
    df = 1 / (share**2 / freedom[0] + (1 - share) ** 2 / freedom[1])
    return Shift(between, math.sqrt(one + other), df)


def _variance(side: Series, inflation: float) -> float:
    """Of a level: half of a shift's."""
    return (_RANKS * side.scatter) ** 2 * inflation / len(side)


def _hodges_lehmann(one: Series, other: Series) -> float:
    a, b = one.ordered, other.ordered
    pairs = a.size * b.size
    if pairs <= _PAIRS:
        half = pairs // 2
        gaps = np.subtract.outer(b, a).ravel()
        gaps.partition(half)
        upper = float(gaps[half])
        return upper if pairs % 2 else (float(gaps[:half].max()) + upper) / 2
    low, high = float(b[0] - a[-1]), float(b[-1] - a[0])
    for _ in range(48):
        middle = (low + high) / 2
        if 2 * int(np.searchsorted(a, b - middle).sum()) > pairs:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _middle(ordered: Floats) -> float:
    """The median of values that are sorted: numpy's takes ten times as long, for some dozens of them."""
    half = ordered.size // 2
    upper = float(ordered[half])
    return upper if ordered.size % 2 else (float(ordered[half - 1]) + upper) / 2


def _clipped(values: Floats, low: float, high: float) -> Floats:
    return np.minimum(np.maximum(values, low), high)


def _inflation(sides: Sequence[Series], policy: Policy) -> float:
    """By how much autocorrelation widens a variance, from all sides together.

    It is (1 + φ) / (1 - φ), as for a first-order process. Long sides show how much longer it may last: there the sum
    of autocorrelations counts where it is more, up to the first that is not above zero.
    """
    phi = lasting = 0.0
    for lag in range(max(len(side.autocorrelation) for side in sides)):
        known = [side for side in sides if lag < len(side.autocorrelation)]
        mean = sum(len(side) * side.autocorrelation[lag] for side in known) / sum(map(len, known))
        if mean <= 0:
            break
        lasting += mean
        if lag == 0:
            phi = min(mean, policy.most_autocorrelation)
    return max((1 + phi) / (1 - phi), 1 + 2 * lasting)


def _widened(between: Shift, variance: float, df: float) -> Shift:
    """With an independent ``variance`` on ``df`` more (Welch and Satterthwaite)."""
    if not variance or not math.isfinite(between.se):
        return between
    total = between.se**2 + variance
    share = variance / total
    freedom = share**2 / df + (1 - share) ** 2 / between.df
    return Shift(between.log, math.sqrt(total), 1 / freedom if freedom else math.inf)
