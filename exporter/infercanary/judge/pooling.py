"""Pooling: the shift over the replicas of a service, from starts, runs, and replicas that stayed on the old image.
Pure.

A start is one replicate, whatever its number of runs. The shift of replicas that stayed on the old image is
subtracted (difference in differences; Card and Krueger, "Minimum Wages and Employment", 1994): it is the host's,
without restart variance and without differences between replicas. If these replicas are the baseline themselves, they
may be compared over the same period instead; then nothing is subtracted, and earlier noise is no part of the error.
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
"""Restart variance of a sibling or a control: it was not restarted, or restarts do not affect it."""


class Replica(NamedTuple):
    """Starts of one replica (all replicas with new names count as one) with the old image and with the new one."""

    old: Sequence[Series]
    new: Sequence[Series]
    beside: Sequence[tuple[Series, Series]] = ()
    """Replicas that stayed on the old image: their runs before, and in the period."""
    is_same_period: bool = False
    """True if ``old`` has the staying replicas' runs of the same period. Otherwise these replicas' shift is
    subtracted.
    """


class _Part(NamedTuple):
    """Shift of one replica, and its variances by runs and by starts."""

    log: float
    sampling: float
    df: float
    """Degrees of freedom of ``sampling``, and of ``shared``."""
    starting: float
    shared: float
    """Variance due to runs of staying replicas, which may be common to all parts."""
    bound: float
    """See :attr:`~infercanary.judge.shift.Pooled.bound`."""
    moved: float
    """Subtracted shift of staying replicas; NaN if nothing is subtracted."""


class Pooling:
    """Pools shifts.

    Args:
        pool: Which starts count, and the weight of the baseline's noise in a new start's.
    """

    def __init__(self, pool: Pool = LIVE.pool) -> None:
        self._pool = pool

    def pooled(self, replicas: Sequence[Replica], restarts: Restarts) -> Pooled | None:
        """Return the shift over the replicas, with the errors of runs and of restarts apart; None if nothing can be
        compared.

        Over m replicas with one start each, restarts leave a variance of 2 sd² / m, with the degrees of freedom of
        ``restarts``. Replicas are weighted by inverse variances, as in a random-effects meta-analysis. If they differ
        by more than their errors, the restart part is widened (Hartung and Knapp, "A refined method for the
        meta-analysis of controlled clinical trials with binary outcome", 2001); agreement by chance does not narrow
        it. Assumes independent starts and equal shifts of replicas.

        Args:
            replicas: Starts with too few runs, and replicas without a start on either side, do not count.
        """
        counted = [each for replica in replicas if all((each := self._counted(replica))[:2])]
        if not counted:
            return None
        parts = np.array([self._compared(replica, restarts.sd**2) for replica in counted])
        logs, sampling, dfs, starting, shared, bounds, moved = parts.T
        taken_off = moved[~np.isnan(moved)]
        if taken_off.size:  # a replica without staying replicas may have moved as much as those of others
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
        """Return :meth:`pooled` with one error, which is infinite if nothing can be compared."""
        found = self.pooled(replicas, restarts)
        return UNKNOWN if found is None else found.shift

    def _counted(self, replica: Replica) -> Replica:
        """Leave out starts, and staying replicas, with too few runs."""
        fewest, least = self._pool.fewest_runs, self._pool.concurrent_runs
        return replica._replace(
            old=[start for start in replica.old if len(start) >= fewest],
            new=[start for start in replica.new if len(start) >= self._pool.fewest_new_runs],
            beside=[each for each in replica.beside if len(each[0]) >= fewest and len(each[1]) >= least],
        )

    def _compared(self, replica: Replica, square: float) -> _Part:
        """Return the shift of one replica; ``square`` is the restart variance."""
        old, new, beside, is_same = replica
        # For a few minutes a wandering level looks constant, so the autocorrelation is taken from earlier runs.
        lasting = [before for before, _ in beside] if is_same else old
        old_levels = [self._level(s, [s], lasting) if is_same else s.known for s in old]
        new_levels = [self._level(s, old, lasting) for s in new]
        before, after = mean_of(old_levels), mean_of(new_levels)
        # The old image's variance between starts is part of the restart variance. New starts may differ by more: pods
        # with new names are compared at once, and a throttled one moves the mean of all.
        apart = float(np.var([level.log for level in new_levels], ddof=1)) if len(new) > 1 else 0.0
        starting = square / len(old) + max(square, apart - after.variance * len(new)) / len(new)
        shared, bound, moved = 0.0, math.inf, math.nan
        if not is_same and not beside and sum(map(len, old)) >= 200:
            # With fewer runs, by chance none may have been as far off as a new start.
            bound = math.hypot(max(s.reach for s in old), 3 * math.sqrt(before.variance))
        runs = between(before, after)
        log, df = runs.log, runs.df
        if beside:
            # Each of these may have changed by itself. So quiet ones have no larger weight, and replicas that
            # disagree are weak evidence.
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
        """Return the level of a start that may have too few runs to show its own noise.

        The noise of ``usual`` counts for ``noise_df`` degrees of freedom, like the conjugate prior of a normal
        variance. The result is never below it, because a start may be in one of two modes for all its runs. Its
        autocorrelation is at least that of ``lasting``, or of ``usual``.
        """
        noise_df = self._pool.noise_df
        if not noise_df:
            return start.known
        df = noise_df + len(start) - 1
        square = median(each.scatter**2 for each in usual)
        own = (noise_df * square + (len(start) - 1) * start.scatter**2) / df
        alike = median(each.alike for each in lasting or usual)
        if len(start) >= 24:  # with fewer, an autocorrelation is a guess
            alike = max(alike, start.alike)
        return start.level_by(max(own, square), alike, df)


def shift_of_starts(
    old: Sequence[Points], new: Sequence[Points], restarts: Restarts = NO_RESTART, pool: Pool = LIVE.pool
) -> Shift:
    """Return the shift between two sides of starts; its error is infinite if a side has no start that counts.

    Args:
        old: Latencies of each start of one side.
        new: Latencies of each start of the other side.
        restarts: Restart variance; none by default.
    """
    return Pooling(pool).shift([Replica([*map(Series.of, old)], [*map(Series.of, new)])], restarts)


def middle_of(shifts: Sequence[Shift]) -> Shift:
    """Return the median of shifts that should be alike, with the error that their agreement shows.

    The error is that of a median, by the spread of the shifts (1.4826 median absolute deviations are an SD of normal
    values, and a median's error is sqrt(pi / 2) times a mean's) or by their own errors, whichever is larger.

    Args:
        shifts: At least one.
    """
    if len(shifts) == 1:
        return shifts[0]
    middle = median(shift.log for shift in shifts)
    spread = 1.4826 * median(abs(shift.log - middle) for shift in shifts)
    scale = math.sqrt(math.pi / 2 / len(shifts))
    return Shift(middle, scale * max(spread, median(s.se for s in shifts)), min(shift.df for shift in shifts))
