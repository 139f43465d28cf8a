"""Pooling: combines the shifts of a service's replicas into one shift. Pure functions.

A start is one replicate, whatever its number of runs. The shift of replicas that stayed on the old image is
subtracted (difference in differences; Card and Krueger, "Minimum Wages and Employment", 1994). This shift is caused
by the host: it includes no restart and no difference between replicas. If these replicas are the baseline themselves,
the new image may instead be compared with their runs of the same period. Then nothing is subtracted, and noise of
earlier runs does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from infercanary.judge.policy import LIVE, Pool
from infercanary.judge.resolution import FINE, resolution
from infercanary.judge.shift import UNKNOWN, Pooled, Restarts, Shift
from infercanary.judge.statistics import Level, Points, Series, between, mean_of

NO_RESTART = Restarts(0.0, math.inf)
"""Zero restart variance, for siblings (which were not restarted) and controls (which restarts do not affect)."""


class Replica(NamedTuple):
    """Starts of one replica with the old and the new image. All replicas with new names count as one."""

    old: Sequence[Series]
    new: Sequence[Series]
    beside: Sequence[tuple[Series, Series]] = ()
    """Runs before and during the new starts, for each replica that stayed on the old image."""
    is_same_period: bool = False
    """True if ``old`` has the runs of the concurrent baseline during the new starts. Otherwise its shift is
    subtracted.
    """


class _Part(NamedTuple):
    """Shift of one replica (a logarithm), with separate variances due to runs and due to restarts."""

    log: float
    sampling: float
    """Variance due to the replica's own runs."""
    df: float
    """Degrees of freedom of ``sampling`` and ``shared`` together."""
    starting: float
    """Variance due to restarts."""
    shared: float
    """Variance due to the runs of the concurrent baseline, which several parts may share."""
    bound: float
    """Upper bound of the error by runs, as in :attr:`~infercanary.judge.shift.Pooled.bound`."""
    moved: float
    """Subtracted shift of the concurrent baseline; NaN if nothing is subtracted."""


class Pooling:
    """Pools the shifts of replicas.

    Args:
        pool: Limits that select starts, and the weight of the baseline's noise for a new start.
    """

    def __init__(self, pool: Pool = LIVE.pool) -> None:
        self._pool = pool

    def pooled(self, replicas: Sequence[Replica], restarts: Restarts) -> Pooled | None:
        """Return the shift over the replicas, with separate errors by runs and by restarts.

        With m replicas that have one start on each side, the variance by restarts is 2 sd² / m, with the degrees of
        freedom of ``restarts``. Replicas are weighted by inverse variances, as in a random-effects meta-analysis. If
        replicas differ by more than their errors, the error by restarts is widened (Hartung and Knapp, "A refined
        method for the meta-analysis of controlled clinical trials with binary outcome", 2001). If replicas agree by
        chance, this error is not narrowed. Starts are assumed to be independent, and replicas to have equal shifts.

        Args:
            replicas: Replicas to pool. Starts with too few runs do not count.
            restarts: Restart variance of a start.

        Returns:
            None if no replica has a counted start on both sides.
        """
        counted = [each for replica in replicas if all((each := self._counted(replica))[:2])]
        if not counted:
            return None
        parts = np.array([self._compared(replica, restarts.sd**2) for replica in counted])
        logs, sampling, dfs, starting, shared, bounds, moved = parts.T
        taken_off = moved[~np.isnan(moved)]
        if taken_off.size:  # the host may have shifted the other replicas by about as much
            starting = starting + np.where(np.isnan(moved), np.mean(taken_off**2), 0.0)
        total = sampling + shared + starting
        weights = 1 / total if total.all() else np.ones(len(total))
        weights /= weights.sum()
        log = float(weights @ logs)
        free_between = len(counted) - 1
        excess = float(((logs - log) ** 2 / total).sum()) - free_between if total.all() else 0.0
        df = restarts.df + free_between
        wider = 1 + max(excess, 0.0) / df
        independent = Shift(log, 0.0, math.inf)
        for variance, freedom in np.array([weights**2 * (sampling + shared), dfs]).T.tolist():
            independent = independent.widened(variance, freedom)
        runs_variance = float(weights**2 @ sampling + (weights @ np.sqrt(shared)) ** 2)
        of_starts = (runs_variance + float(weights**2 @ starting)) * wider - runs_variance
        old = [start.ordered for replica in counted for start in replica.old]
        new = [start.ordered for replica in counted for start in replica.new]
        return Pooled(
            log,
            math.sqrt(runs_variance),
            independent.df,
            math.sqrt(max(of_starts, 0.0)),
            df,
            bound=float(weights @ bounds),
            moved=float(np.median(taken_off)) if taken_off.size else None,
            resolution=resolution(old, new) if self._pool.reads_clock else FINE,
        )

    def shift(self, replicas: Sequence[Replica], restarts: Restarts) -> Shift:
        """Return the pooled shift with one combined error, which is infinite if nothing can be compared."""
        found = self.pooled(replicas, restarts)
        return UNKNOWN if found is None else found.shift

    def _counted(self, replica: Replica) -> Replica:
        """Leave out starts and concurrent baselines with too few runs."""
        fewest, least = self._pool.fewest_runs, self._pool.concurrent_runs
        return replica._replace(
            old=[start for start in replica.old if len(start) >= fewest],
            new=[start for start in replica.new if len(start) >= self._pool.fewest_new_runs],
            beside=[each for each in replica.beside if len(each[0]) >= fewest and len(each[1]) >= least],
        )

    def _compared(self, replica: Replica, square: float) -> _Part:
        """Return the shift of one replica and its variances.

        Args:
            replica: Replica with counted starts only.
            square: Restart variance.
        """
        old, new, beside, is_same = replica
        # A wandering level looks constant for a few minutes. So the autocorrelation is estimated from earlier runs.
        lasting = [before for before, _ in beside] if is_same else old
        old_levels = [self._level(s, [s], lasting) if is_same else s.known for s in old]
        new_levels = [self._level(s, old, lasting) for s in new]
        before, after = mean_of(old_levels), mean_of(new_levels)
        # New starts may differ by more than the restart variance: all pods with new names are one replica, and a
        # throttled pod changes their mean.
        apart = float(np.var([level.log for level in new_levels], ddof=1)) if len(new) > 1 else 0.0
        starting = square / len(old) + max(square, apart - after.variance * len(new)) / len(new)
        shared, bound, moved = 0.0, math.inf, math.nan
        if not is_same and not beside and sum(map(len, old)) >= 200:
            # A shorter baseline may have no run that deviates as much as a new start does.
            bound = math.hypot(max(s.reach for s in old), 3 * math.sqrt(before.variance))
        runs = between(before, after)
        log, df = runs.log, runs.df
        if beside:
            # A replica on the old image may have changed for its own reason. So the median shift is used: all replicas
            # have equal weight, and disagreement increases the median's error.
            shifts = [between(a.known, self._level(b, [a])) for a, b in beside]
            others = middle_of(shifts)
            if is_same:
                log = after.log - median(level.log for level in old_levels)
                df = min(level.df for level in (*old_levels, *new_levels))
                by_runs = math.pi / 2 / len(shifts) * median(each.se for each in shifts) ** 2
                starting += max(others.se**2 - by_runs, 0.0)
            else:
                moved, shared = others.log, others.se**2
                df = runs.widened(shared, others.df).df
                log -= moved
        return _Part(log, runs.se**2, df, starting, shared, bound, moved)

    def _level(self, start: Series, usual: Sequence[Series], lasting: Sequence[Series] = ()) -> Level:
        """Return the level of a start that may have too few runs to estimate its own noise.

        Args:
            start: Runs of the start.
            usual: Baseline starts. Their noise is a prior with ``noise_df`` degrees of freedom. The estimated noise is
                at least this prior, because all runs of a start may be in one of two modes.
            lasting: Longer series whose autocorrelation is the lower limit; ``usual`` if empty.
        """
        noise_df = self._pool.noise_df
        if not noise_df:
            return start.known
        df = noise_df + len(start) - 1
        square = median(each.shape.scatter**2 for each in usual)
        own = (noise_df * square + (len(start) - 1) * start.shape.scatter**2) / df
        alike = median(each.shape.alike for each in lasting or usual)
        if len(start) >= 24:  # with fewer runs, the autocorrelation is a guess
            alike = max(alike, start.shape.alike)
        return start.level_by(max(own, square), alike, df)


def shift_of_starts(
    old: Sequence[Points], new: Sequence[Points], restarts: Restarts = NO_RESTART, pool: Pool = LIVE.pool
) -> Shift:
    """Return the shift between two sides of starts. Its error is infinite if no start of a side counts.

    Args:
        old: Latencies of each start of one side.
        new: Latencies of each start of the other side.
        restarts: Restart variance; zero by default.
        pool: Limits that select starts.
    """
    return Pooling(pool).shift([Replica([*map(Series.of, old)], [*map(Series.of, new)])], restarts)


def middle_of(shifts: Sequence[Shift]) -> Shift:
    """Return the median of shifts that are expected to be equal, with the standard error of this median.

    The error is based on the scatter of the shifts or on their own errors, whichever is larger. For normal values
    1.4826 median absolute deviations are one SD, and a median's error is sqrt(pi / 2) times a mean's error.

    Args:
        shifts: At least one shift.
    """
    if len(shifts) == 1:
        return shifts[0]
    middle = median(shift.log for shift in shifts)
    spread = 1.4826 * median(abs(shift.log - middle) for shift in shifts)
    scale = math.sqrt(math.pi / 2 / len(shifts))
    return Shift(middle, scale * max(spread, median(s.se for s in shifts)), min(shift.df for shift in shifts))
