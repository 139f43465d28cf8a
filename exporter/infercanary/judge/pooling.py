"""The shift over the replicas of a service: restarts, runs, and replicas that ran on beside an upgrade. Pure.

A start is one replicate, whatever its number of runs. Where other replicas stayed on the old image, what they moved by
meanwhile is taken off (difference in differences; Card and Krueger, "Minimum Wages and Employment", 1994): the host did
that, nothing was restarted between, and what differs between replicas drops out. Those that are the baseline themselves
may be compared over the same period instead: then nothing is taken off, and noise before is no part of the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from infercanary.judge.policy import LIVE, Pool
from infercanary.judge.resolution import FINE, Floats, resolution
from infercanary.judge.shift import UNKNOWN, Pooled, Restarts, Shift
from infercanary.judge.statistics import Level, Points, Series, between

NO_RESTART = Restarts(0.0, math.inf)
"""Restart variance of a sibling or a control: nothing was restarted between, or a restart does not affect it."""


class Replica(NamedTuple):
    """The starts of one replica, or of all that have new names: with the old image and with the new one."""

    old: Sequence[Series]
    new: Sequence[Series]
    beside: Sequence[tuple[Series, Series]] = ()
    """Replicas that stayed on the old image: their runs before, and meanwhile."""
    stayed: Mapping[tuple[int, int], Series] = MappingProxyType({})
    """By the place of a start of ``old`` and of one of ``new``: runs of the former in the minutes of the latter. Where
    there are any, these are compared; else what ``beside`` moved by is taken off."""


class Beside(NamedTuple):
    """Shift of replicas in which nothing changed."""

    shift: Shift
    """With the error that their runs leave."""
    excess: float = 0.0
    """Variance between them beyond that: one changed by itself, and no number of runs shows which."""

    @property
    def whole(self) -> Shift:
        """The shift with all of its error."""
        return self.shift._replace(se=math.sqrt(self.shift.se**2 + self.excess))


class _Part(NamedTuple):
    """Shift of one replica, and what variance its runs and starts leave."""

    log: float
    sampling: float
    starting: float
    df: float
    """Degrees of freedom of ``sampling``."""
    shared: float = 0.0
    """By the runs of replicas beside it, which may be the same for all."""
    bound: float = math.inf
    """As :attr:`~infercanary.judge.shift.Pooled.bound`."""
    excess: float = 0.0
    """By how much its starts of one image differ beyond what runs and restarts explain: a sum of squares over its
    expectation, less ``free``."""
    free: int = 0
    """Degrees of freedom of that."""


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
        each = [part for replica in replicas if (part := self._compared(replica, restarts)) is not None]
        if not each:
            return None
        old = [start.ordered for replica, _, _ in each for start in replica.old]
        new = [start.ordered for replica, _, _ in each for start in replica.new]
        logs, sampling, starting, dfs, shared, bounds, apart, free = np.array([part for _, part, _ in each]).T
        moved = [beside.shift.log for _, _, beside in each if beside is not None]
        if moved:  # a replica without any beside it may have moved by as much as those beside others
            alone = [beside is None and not replica.stayed for replica, _, beside in each]
            starting = starting + np.where(alone, np.mean(np.square(moved)), 0.0)
        total = sampling + shared + starting
        weights = 1 / total if total.all() else np.ones(len(each))
        weights /= weights.sum()
        log = float(weights @ logs)
        df = restarts.df + len(each) - 1
        excess = float(((logs - log) ** 2 / total).sum()) - (len(each) - 1) if total.all() else 0.0
        wider = 1 + max(excess + apart.sum(), 0.0) / (df + free.sum())
        runs_variance = float(weights**2 @ sampling + (weights @ np.sqrt(shared)) ** 2)
        of_starts = (runs_variance + float(weights**2 @ starting)) * wider - runs_variance
        return Pooled(
            log,
            math.sqrt(runs_variance),
            _df(weights**2 * (sampling + shared), dfs),
            math.sqrt(max(of_starts, 0.0)),
            df,
            bound=float(weights @ bounds),
            moved=median(moved) if moved else None,
            resolution=resolution(old, new) if self._pool.reads_clock else FINE,
        )

    def shift(self, replicas: Sequence[Replica], restarts: Restarts) -> Shift:
        """As :meth:`pooled`, with one error; it is infinite where nothing can be compared."""
        found = self.pooled(replicas, restarts)
        return UNKNOWN if found is None else found.shift

    def beside(self, pairs: Sequence[tuple[Series, Series]]) -> Beside | None:
        """Shift of replicas in which nothing changed: the middle one's, as surely as they agree.

        Any of them may have changed by itself at that time. So none is weighted by how quiet it is, and those that do
        not agree tell little.

        Args:
            pairs: Of each its runs before, and meanwhile: in one start, so that nothing was restarted between.

        Returns:
            None where there is none.
        """
        shifts = [self.moved(*pair) for pair in pairs]
        if len(shifts) < 2:
            return Beside(shifts[0]) if shifts else None
        middle = middle_of(shifts)
        own = math.sqrt(math.pi / 2 / len(shifts)) * median(each.se for each in shifts)
        return Beside(middle._replace(se=own), max(middle.se**2 - own**2, 0.0))

    def moved(self, before: Series, during: Series) -> Shift:
        """Shift of a start that ran on, without any restart in its error."""
        return between(before.known, self._level(during, [before]))

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

    def _compared(self, replica: Replica, restarts: Restarts) -> tuple[Replica, _Part, Beside | None] | None:
        fewest = self._pool.fewest_runs, self._pool.fewest_new_runs
        places = [
            [place for place, start in enumerate(side) if len(start) >= least]
            for side, least in zip(replica[:2], fewest, strict=True)
        ]
        known = {(i, j): s for (i, j), s in replica.stayed.items() if i in places[0] and j in places[1]}
        if known:  # the others are compared with nothing
            places = [sorted({place[side] for place in known}) for side in (0, 1)]
        old, new = ([side[i] for i in of_side] for side, of_side in zip(replica[:2], places, strict=True))
        if not (old and new):
            return None
        counted = replica._replace(old=old, new=new, stayed=known)
        if known:
            stayed = {(places[0].index(i), places[1].index(j)): s for (i, j), s in known.items()}
            return counted, self._same_period(old, new, stayed, restarts.sd**2), None
        sides = [s.known for s in old], [self._level(s, old) for s in new]
        before, after = map(_mean, sides)
        runs = between(before, after)
        starting = restarts.sd**2 * (1 / len(old) + 1 / len(new))
        is_long = sum(map(len, old)) >= 200  # of fewer runs, none may have been as far off as a new start
        reach = math.hypot(max(s.reach for s in old), 3 * math.sqrt(before.variance)) if is_long else math.inf
        part = _Part(runs.log, runs.se**2, starting, runs.df, bound=reach)
        beside = self.beside(replica.beside)
        if beside is not None:
            shared = beside.shift.se**2
            df = _df(np.array([part.sampling, shared]), np.array([part.df, beside.shift.df]))
            part = _Part(part.log - beside.shift.log, part.sampling, starting + beside.excess, df, shared)
        if len(new) > 1:  # how much those of the old image differ by themselves is learned, as restarts
            excess, free = _apart(sides, restarts.sd**2)
            part = part._replace(excess=excess, free=free)
        return counted, part, beside

    def _same_period(
        self,
        old: Sequence[Series],
        new: Sequence[Series],
        stayed: Mapping[tuple[int, int], Series],
        square: float,
    ) -> _Part:
        """Shift of new starts compared with other replicas over the same period.

        Each new start is compared with the others' middle: any of these may have changed by itself. The noise of that
        period counts, where it is known. How long noise lasts is known from what the others did before, too: in a few
        minutes a level that wanders looks like one that stands.

        Args:
            square: The restart variance.
        """
        logs, variances = np.full((2, len(old), len(new)), math.nan)
        after, dfs = [], []
        for column, start in enumerate(new):
            beside = {row: stayed[row, column] for row in range(len(old)) if (row, column) in stayed}
            usual = [ran for ran in beside.values() if len(ran) >= self._pool.fewest_runs]
            after.append(
                self._level(start, usual or [old[row] for row in beside], [old[row] for row in beside])
            )
            for row, ran in beside.items():
                level = self._level(ran, [ran] if ran in usual else [old[row]], [old[row]])
                logs[row, column] = after[-1].log - level.log
                variances[row, column] = level.variance
                dfs.append(level.df)
        middle = np.nanmedian(logs, axis=0)
        counts = (~np.isnan(logs)).sum(axis=0)
        several = (logs - middle)[:, counts > 1]  # of one alone nobody knows by how much it differs
        beyond = (
            np.nanmean(several[(~np.isnan(several)).any(axis=1)], axis=1) if several.size else np.zeros(0)
        )
        noise = float(np.nanmedian(variances))
        excess = max(float(beyond.var(ddof=1)) - noise - square, 0.0) if beyond.size > 1 else 0.0
        fewest = int(counts.min())
        of_middle = (math.pi / 2 if fewest > 2 else 1.0) / fewest  # a median's variance over a single one's
        mean = _mean(after)
        starting = square * (of_middle + 1 / len(new)) + excess * of_middle
        shared = noise * of_middle
        shifts = [
            Level(x, level.variance + shared, 0.0) for x, level in zip(middle.tolist(), after, strict=True)
        ]
        apart, free = _apart([shifts], square)
        df = min(*dfs, mean.df)
        return _Part(float(middle.mean()), mean.variance, starting, df, shared, excess=apart, free=free)


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
    sides = Replica([Series.of(p, "baseline") for p in old], [Series.of(p, "candidate") for p in new])
    return Pooling(pool).shift([sides], restarts)


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


def _mean(levels: Sequence[Level]) -> Level:
    """Mean level of independent starts. The middle variance counts: a start throttled for a while has a large one."""
    return Level(
        sum(level.log for level in levels) / len(levels),
        median(level.variance for level in levels) / len(levels),
        sum(level.df for level in levels),
    )


def _apart(sides: Iterable[Sequence[Level]], square: float) -> tuple[float, int]:
    """Excess of the sum of squares between the starts of a side over what runs and the restart variance ``square``
    explain, and its degrees of freedom.

    Pods that come back under new names are compared at once: one that is throttled moves the mean of all. Replicas that
    keep their names are compared one by one.
    """
    excess, free = 0.0, 0
    for side in sides:
        expected = median(level.variance for level in side) + square
        if expected and len(side) > 1:
            free += len(side) - 1
            excess += (len(side) - 1) * (float(np.var([level.log for level in side], ddof=1)) / expected - 1)
    return excess, free


def _df(variances: Floats, dfs: Floats) -> float:
    """Degrees of freedom of a sum of independent estimates of variances (Welch and Satterthwaite)."""
    if dfs.size == 1 or not variances.any():
        return float(dfs.min())
    shares = variances / variances.sum()
    return float(1 / (shares**2 @ (1 / dfs)))
