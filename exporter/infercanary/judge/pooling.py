"""The shift over the replicas of a service: restarts, runs, and replicas that ran on beside an upgrade. Pure.

A start is one replicate, whatever its number of runs. Where other replicas stayed on the old image, what they moved by
meanwhile is taken off (difference in differences; Card and Krueger, "Minimum Wages and Employment", 1994): the host did
that, nothing was restarted between, and what differs between replicas drops out. Those that are the baseline themselves
may be compared over the same period instead: then nothing is taken off, and noise before is no part of the error.
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
"""Restart variance of a sibling or a control: nothing was restarted between, or a restart does not affect it."""


class Replica(NamedTuple):
    """The starts of one replica, or of all that have new names: with the old image and with the new one."""

    old: Sequence[Series]
    new: Sequence[Series]
    beside: Sequence[tuple[Series, Series]] = ()
    """Replicas that stayed on the old image: their runs before, and meanwhile."""
    is_same_period: bool = False
    """Whether ``old`` are the runs of these meanwhile; else what they moved by is taken off."""


class _Part(NamedTuple):
    """Shift of one replica, and what variance its runs and starts leave."""

    log: float
    sampling: float
    df: float
    """Degrees of freedom of ``sampling``, and of ``shared``."""
    starting: float
    shared: float
    """By the runs of replicas beside it, which may be the same for all."""
    bound: float
    """As :attr:`~infercanary.judge.shift.Pooled.bound`."""
    moved: float
    """What replicas beside it moved by, which is taken off; NaN where nothing is."""


class Pooling:
    """Pools shifts by the numbers of one group.

    Args:
        pool: Which starts count, and how much the baseline's noise counts in a new start's.
    """

    def __init__(self, pool: Pool = LIVE.pool) -> None:
        self._pool = pool

    def pooled(self, replicas: Sequence[Replica], restarts: Restarts) -> Pooled | None:
        """The shift over the replicas, with the runs' and the restarts' parts of the error apart.

        Over m replicas with a start each, restarts alone leave a variance of 2 sd² / m, on the degrees of freedom that
        ``restarts`` is known on. Replicas are weighted by inverse variances, as in a random-effects meta-analysis, and
        the restarts' part is widened where they differ by more than that (Hartung and Knapp, "A refined method for the
        meta-analysis of controlled clinical trials with binary outcome", 2001); those that agree by chance do not
        narrow it. Assumes that starts are independent, and that replicas shift alike.

        Args:
            replicas: Starts with too few runs, and replicas without a start on either side, do not count.
            restarts: The restart variance.

        Returns:
            None where nothing can be compared.
        """
        counted = [each for replica in replicas if all((each := self._counted(replica))[:2])]
        if not counted:
            return None
        parts = np.array([self._compared(replica, restarts.sd**2) for replica in counted])
        logs, sampling, dfs, starting, shared, bounds, moved = parts.T
        taken_off = moved[~np.isnan(moved)]
        if taken_off.size:  # a replica without any beside it may have moved by as much as those beside others
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
        """As :meth:`pooled`, with one error; it is infinite where nothing can be compared."""
        found = self.pooled(replicas, restarts)
        return UNKNOWN if found is None else found.shift

    def _counted(self, replica: Replica) -> Replica:
        """Without starts, and replicas beside it, that have too few runs."""
        fewest, least = self._pool.fewest_runs, self._pool.concurrent_runs
        return replica._replace(
            old=[start for start in replica.old if len(start) >= fewest],
            new=[start for start in replica.new if len(start) >= self._pool.fewest_new_runs],
            beside=[each for each in replica.beside if len(each[0]) >= fewest and len(each[1]) >= least],
        )

    def _compared(self, replica: Replica, square: float) -> _Part:
        """Shift of one replica, whose starts differ by the restart variance ``square``."""
        old, new, beside, is_same = replica
        # In a few minutes a level that wanders looks like one that stands: how long noise lasts is known from before.
        lasting = [before for before, _ in beside] if is_same else old
        old_levels = [self._level(s, [s], lasting) if is_same else s.known for s in old]
        new_levels = [self._level(s, old, lasting) for s in new]
        before, after = mean_of(old_levels), mean_of(new_levels)
        # How much starts of the old image differ is learned, as restarts. New ones may differ by more: pods under new
        # names are compared at once, and one that is throttled moves the mean of all.
        apart = float(np.var([level.log for level in new_levels], ddof=1)) if len(new) > 1 else 0.0
        starting = square / len(old) + max(square, apart - after.variance * len(new)) / len(new)
        shared, bound, moved = 0.0, math.inf, math.nan
        if not is_same and not beside and sum(map(len, old)) >= 200:
            # Of fewer runs, none may have been as far off as a new start.
            bound = math.hypot(max(s.reach for s in old), 3 * math.sqrt(before.variance))
        runs = between(before, after)
        log, df = runs.log, runs.df
        if beside:
            # Any of these may have changed by itself. So none is weighted by how quiet it is, and those that do not
            # agree tell little.
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
        """Level of a start that may have few runs: they hardly show their own noise.

        So that of ``usual`` counts for ``noise_df`` degrees of freedom beside it, as the conjugate prior of a normal
        variance does. It is never less than theirs: a start may be in one of two modes for all of its runs. Nor does it
        last less long than that of ``lasting``, or of ``usual`` without any.
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
    """The shift from the starts of one side to those of another; of infinite error where a side has none that counts.

    Args:
        old: Latencies of each start.
        new: The same of the other side.
        restarts: The restart variance; none without it.
        pool: Which starts count.
    """
    return Pooling(pool).shift([Replica([*map(Series.of, old)], [*map(Series.of, new)])], restarts)


def middle_of(shifts: Sequence[Shift]) -> Shift:
    """Middle one of several shifts that should be alike, as surely as they agree.

    The error is that of a median, by their spread (1.4826 median absolute deviations are an SD of normal values, and a
    median's error is sqrt(pi / 2) of a mean's) or by their own, whichever is larger.

    Args:
        shifts: At least one.
    """
    if len(shifts) == 1:
        return shifts[0]
    middle = median(shift.log for shift in shifts)
    spread = 1.4826 * median(abs(shift.log - middle) for shift in shifts)
    scale = math.sqrt(math.pi / 2 / len(shifts))
    return Shift(middle, scale * max(spread, median(s.se for s in shifts)), min(shift.df for shift in shifts))
