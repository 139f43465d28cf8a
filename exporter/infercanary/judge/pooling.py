"""The shift over the replicas of a service: restarts, runs, and replicas that ran on beside an upgrade. Pure.

A start is one replicate, whatever its number of runs. Where other replicas stayed on the old image, what they moved by
meanwhile is taken off (difference in differences; Card and Krueger, "Minimum Wages and Employment", 1994): the host did
that, nothing was restarted between, and what differs between replicas drops out. Those that are the baseline themselves
may be compared in the same minutes instead: then nothing is taken off, and noise before is no part of the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeAlias

import numpy as np

from infercanary.judge.policy import LIVE, Policy
from infercanary.judge.resolution import Floats
from infercanary.judge.shift import UNKNOWN, Pooled, Restarts, Shift
from infercanary.judge.statistics import Points, Series, resolution_of, shift_of, variance_of

Replica: TypeAlias = "tuple[Sequence[Points], Sequence[Points]]"
Stayed: TypeAlias = "Mapping[tuple[int, int], Points]"
"""By the place of a start before, and of one after: what the former did in the minutes of the latter."""


def pool(
    replicas: Iterable[Replica],
    restarts: Restarts,
    policy: Policy = LIVE,
    concurrent: Sequence[Sequence[tuple[Points, Points]]] = (),
    stayed: Sequence[Stayed] = (),
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
        concurrent: For each replica others that ran on: their latencies before, and meanwhile. What these moved by is
            taken off, but where there is something ``stayed``.
        stayed: For each replica the starts before that ran on themselves: where there are any, these are compared.

    Returns:
        The pooled shift; of infinite error where nothing can be compared.
    """
    each = _compared(replicas, restarts, policy, concurrent, stayed)
    if not each or any(one.beside is not None and not math.isfinite(one.beside.shift.se) for one in each):
        return UNKNOWN
    runs, starting, df, apart = _together(_beyond(each), restarts)
    pooled = runs.widened(starting, df)
    return pooled._replace(
        se=max(runs.se, pooled.se * apart), resolution=resolution_of(*_sides(each), policy)
    )


def pool_parts(
    replicas: Iterable[Replica],
    restarts: Restarts,
    policy: Policy = LIVE,
    concurrent: Sequence[Sequence[tuple[Points, Points]]] = (),
    stayed: Sequence[Stayed] = (),
) -> Pooled | None:
    """As :func:`pool`, with the runs' and the restarts' parts of the error apart, and for few runs of the new image.

    A start of the new image counts from ``fewest_new_runs`` on. So few runs hardly show their own noise, and so
    the baseline's counts for ``noise_df`` degrees of freedom beside it, as the conjugate prior of a normal
    variance does. Replicas that differ by more than restarts should make them widen the restarts' part;
    those that agree by chance do not narrow it. Noise that looks as if it lasted for ever makes a standard error
    without bound; so how far runs lie from their levels is given, too: a start that is in one mode is off by that.

    A replica that agrees narrows the interval, or one of few runs widens it by half at most. Another order of starts
    or replicas changes nothing.

    Args:
        replicas: For each the latencies of each start before, and of each start after.
        restarts: The restart variance.
        policy: The fewest runs of a start.
        concurrent: As in :func:`pool`.
        stayed: As in :func:`pool`.

    Returns:
        None where nothing can be compared.
    """
    each = _compared(replicas, restarts, policy, concurrent, stayed, policy.pool.noise_df)
    if not each:
        return None
    runs, starting, df, apart = _together(_beyond(each), restarts)
    known = [one.beside.shift.log for one in each if one.beside is not None]
    moved = median(known) if known else None
    more = (runs.se**2 + starting) * max(apart, 1.0) ** 2 - runs.se**2
    error = math.sqrt(max(more, 0.0))
    old, new = _sides(each)
    others = [Series.of(points, policy=policy) for one in each for both in one.around for points in both]
    lasting = [[series.deviations for series in side] for side in (old, new, others)]
    coarse = resolution_of(old, new, policy)
    return Pooled(runs.log, runs.se, runs.df, error, df, lasting[:2], lasting[2], moved, coarse)


class Beside(NamedTuple):
    """What replicas moved by in which nothing changed."""

    shift: Shift
    """With the error that their runs leave."""
    apart: float = 0.0
    """The variance that they differ by beyond that: one changed by itself, and no number of runs shows which."""

    @property
    def whole(self) -> Shift:
        """The shift with all of its error."""
        return self.shift._replace(se=math.sqrt(self.shift.se**2 + self.apart))


def moved_beside(
    beside: Sequence[tuple[Points, Points]], policy: Policy = LIVE, noise_df: float = 0.0
) -> Beside | None:
    """What replicas moved by in which nothing changed, as surely as they agree.

    Args:
        beside: Of each its latencies before, and meanwhile: in one start, so that nothing was restarted between.
        policy: The fewest runs of a start, before.
        noise_df: Degrees of freedom that the noise before counts for, where there may be few runs meanwhile.

    Returns:
        Of three or more the one in the middle, of two the mean by inverse variances; None where there is none.
    """
    each = [moved(before, during, policy, noise_df) for before, during in beside]
    if len(each) < 2:
        return Beside(each[0]) if each else None
    df = min(one.df for one in each)
    if len(each) > 2 or not all(0 < one.se < math.inf for one in each):
        middle, error, spread = _middle(each)
        return Beside(Shift(middle, error, df), max(spread**2 - error**2, 0.0))
    # One that was throttled for a while says little, and of two the other one is all that is left.
    weights = np.array([one.se**-2 for one in each])
    mean = float(weights @ [one.log for one in each] / weights.sum())
    apart = float(weights @ [(one.log - mean) ** 2 for one in each])
    return Beside(Shift(mean, 1 / math.sqrt(weights.sum()), df), max(apart - 1, 0.0) / float(weights.sum()))


def moved(before: Points, during: Points, policy: Policy = LIVE, noise_df: float = 0.0) -> Shift:
    """What a start that ran on moved by.

    Args:
        before: Its latencies before.
        during: Those since.
        policy: The fewest runs of either.
        noise_df: As in :func:`moved_beside`: then fewer do.

    Returns:
        The shift (a logarithm), without any restart in its error.
    """
    a, b = Series.of(before, policy=policy), Series.of(during, policy=policy)
    if not noise_df:
        return shift_of(a, b, policy)
    return _with_noise_of(a, a, b, shift_of(a, b, policy, min(len(a), len(b))), noise_df, policy)


def middle_of(each: Sequence[Shift]) -> Shift | None:
    """How far several moved that should move alike: the one in the middle, as surely as they agree.

    Any of them may have changed by itself at that time. So none is weighted by how quiet it is, and those that do not
    agree tell little: the error is that of a median, by their spread (1.4826 median absolute deviations are an SD of
    normal values, and a median's error is sqrt(pi / 2) of a mean's) or by their own, whichever is larger.

    Args:
        each: Their shifts.

    Returns:
        None where there are none; the shift itself of one.
    """
    if len(each) < 2:
        return each[0] if each else None
    middle, own, spread = _middle(each)
    return Shift(middle, max(own, spread), min(shift.df for shift in each))


def _middle(each: Sequence[Shift]) -> tuple[float, float, float]:
    """The median of several shifts, and its error by their own and by their spread."""
    middle = median(shift.log for shift in each)
    scale = math.sqrt(math.pi / 2 / len(each))
    spread = 1.4826 * median(abs(shift.log - middle) for shift in each)
    return middle, scale * median(shift.se for shift in each), scale * spread


class _Part(NamedTuple):
    """Of one replica: its shift, and what variance runs and starts leave."""

    log: float
    sampling: float
    starting: float
    freedom: float
    """Degrees of freedom of what the runs leave."""
    shared: float = 0.0
    """By the runs of replicas beside it, which may be the same for all."""
    is_beside: bool = False
    """Whether these are its baseline: nothing was taken off."""


class _Sides(NamedTuple):
    """The starts of a replica that count, and what those of the old image did in the minutes of new ones."""

    old: list[Series]
    new: list[Series]
    stayed: dict[tuple[int, int], Series]

    @classmethod
    def of(cls, replica: Replica, stayed: Stayed, policy: Policy, fewest_new: int) -> _Sides:
        """Without those that have too few runs."""
        old, new = (
            [(i, s) for i, points in enumerate(side) if len(s := Series.of(points, what, policy)) >= fewest]
            for side, what, fewest in zip(
                replica, ("baseline", "candidate"), (policy.pool.fewest_runs, fewest_new), strict=True
            )
        )
        known = {(i, j) for i, _ in old for j, _ in new if (i, j) in stayed}
        if known:  # the others are compared with nothing
            rows, columns = (set(places) for places in zip(*known, strict=True))
            old, new = [each for each in old if each[0] in rows], [each for each in new if each[0] in columns]
        same = {
            (row, column): Series.of(stayed[i, j], policy=policy)
            for row, (i, _) in enumerate(old)
            for column, (j, _) in enumerate(new)
            if (i, j) in known
        }
        return cls([s for _, s in old], [s for _, s in new], same)


class _Compared(NamedTuple):
    """A replica of which both images have starts that count."""

    sides: _Sides
    part: _Part
    beside: Beside | None
    """Shift of the concurrent replicas."""
    around: Sequence[tuple[Points, Points]]
    """Latencies of these."""


def _compared(
    replicas: Iterable[Replica],
    restarts: Restarts,
    policy: Policy,
    concurrent: Sequence[Sequence[tuple[Points, Points]]],
    stayed: Sequence[Stayed],
    noise_df: float = 0.0,
) -> list[_Compared]:
    fewest = policy.pool.fewest_new_runs if noise_df else policy.pool.fewest_runs
    each = []
    for place, replica in enumerate(replicas):
        sides = _Sides.of(replica, stayed[place] if stayed else {}, policy, fewest)
        around = concurrent[place] if concurrent else ()
        if part := _replica(sides, restarts, policy, noise_df):
            beside = None if sides.stayed else moved_beside(around, policy, noise_df)
            each.append(_Compared(sides, part, beside, around))
    return each


def _sides(each: Sequence[_Compared]) -> tuple[list[Series], list[Series]]:
    """The starts of the old image and of the new one."""
    return [s for one in each for s in one.sides.old], [s for one in each for s in one.sides.new]


def _beyond(each: Sequence[_Compared]) -> list[_Part]:
    """Each replica without what those beside it moved by. That much a replica without any may have moved, too."""
    known = [one.beside.shift.log for one in each if one.beside is not None]
    moved = math.fsum(log**2 for log in known) / len(known) if known else 0.0
    found = []
    for _, part, beside, _ in each:
        if beside is None:
            found.append(part if part.is_beside else part._replace(starting=part.starting + moved))
            continue
        own, shared = part.sampling, beside.shift.se**2
        freedom = (
            (own + shared) ** 2 / (own**2 / part.freedom + shared**2 / beside.shift.df)
            if own
            else part.freedom
        )
        log, starting = part.log - beside.shift.log, part.starting + beside.apart
        found.append(_Part(log, own, starting, freedom, shared))
    return found


def _together(each: Sequence[_Part], restarts: Restarts) -> tuple[Shift, float, float, float]:
    """Of several replicas: the shift with the runs' error, the variance of their starts, its freedom, and by how much
    the replicas differ over what restarts and runs should make them differ by (a ratio of SDs)."""
    logs, sampling, starting, freedom, shared, _ = np.array(each).T
    total = sampling + shared + starting
    weights = 1 / total if total.all() else np.ones(len(each))
    weights /= weights.sum()
    log = float(weights @ logs)
    df = restarts.df + len(each) - 1
    more = float(((logs - log) ** 2 / total).sum()) - (len(each) - 1) if total.all() else 0.0
    error = math.sqrt(weights**2 @ sampling + (weights @ np.sqrt(shared)) ** 2)
    runs = Shift(log, error, _freedom(weights**2 * (sampling + shared), freedom))
    return runs, float(weights**2 @ starting), df, math.sqrt(1 + more / df)


def _freedom(variances: Floats, freedom: Floats) -> float:
    """Of a sum of independent estimates of variances (Welch and Satterthwaite): one on few degrees counts as far as it
    is a part of the sum."""
    if freedom.size == 1 or not variances.any():
        return float(freedom.min())
    shares = variances / variances.sum()
    return float(1 / (shares**2 @ (1 / freedom)))


def _replica(sides: _Sides, restarts: Restarts, policy: Policy, noise_df: float = 0.0) -> _Part | None:
    """Of one replica, or of all that have new names; None where a side has no start."""
    old, new, stayed = sides
    if not (old and new):
        return None
    if stayed:
        return _same_minutes(sides, restarts, policy, noise_df)
    pairs = [moved(a, b, policy, noise_df) for a in old for b in new]
    logs = np.array([pair.log for pair in pairs]).reshape(len(old), len(new))
    # Starts of one side are independent; where the sides differ in number, the fewer's average is the safe one. The
    # median, since one start that was throttled for a while would make the noise of all look as if it lasted.
    noise = float(np.median([pair.se**2 for pair in pairs]))
    sampling, each = noise / min(len(old), len(new)), restarts.sd**2
    # By how much the old image's differ is learned, as restarts.
    levels = (logs.mean(axis=0), logs.mean(axis=1)) if len(new) > 1 else ()
    wider = _wider(levels, noise + each, restarts.df)
    starting = (sampling + each * (1 / len(old) + 1 / len(new))) * wider - sampling
    return _Part(float(logs.mean()), sampling, starting, min(pair.df for pair in pairs))


def _same_minutes(sides: _Sides, restarts: Restarts, policy: Policy, noise_df: float) -> _Part:
    """Of starts that are compared with what others did in the same minutes.

    Each new start is compared with the others' middle: any of these may have changed by itself, and what they differ by
    beyond restarts is no smaller for all the restarts that there were. How long noise lasts is known from what the
    others did before, too: in a few minutes a level that wanders looks like one that stands.
    """
    logs, levels = np.full((2, len(sides.old), len(sides.new)), math.nan)
    each = []
    for (row, column), ran in sides.stayed.items():
        before, new = sides.old[row], sides.new[column]
        between = shift_of(ran, new, policy, min(len(ran), len(new)), (before,))
        if noise_df:
            between = _with_noise_of(before, ran, new, between, noise_df, policy)
        each.append(between)
        logs[row, column] = between.log
        levels[row, column] = variance_of(ran, max(ran.inflation, before.inflation))
    middle = np.nanmedian(logs, axis=0)
    counts = (~np.isnan(logs)).sum(axis=0)
    several = (logs - middle)[:, counts > 1]  # of one alone nobody knows by how much it differs
    beyond = np.nanmean(several[(~np.isnan(several)).any(axis=1)], axis=1) if several.size else np.zeros(0)
    fewest, columns, variance = int(counts.min()), middle.size, restarts.sd**2
    noise, level = float(np.median([one.se**2 for one in each])), float(np.nanmedian(levels))
    apart = max(float(beyond.var(ddof=1)) - level - variance, 0.0) if beyond.size > 1 else 0.0
    of_middle = (math.pi / 2 if fewest > 2 else 1.0) / fewest  # a median's variance over a single one's
    sampling = noise * max(of_middle, 1 / columns)
    shared = min(level * of_middle, sampling)
    wider = _wider([middle], noise + variance, restarts.df)
    starting = (sampling + variance * (of_middle + 1 / columns)) * wider - sampling + apart * of_middle
    freedom = min(one.df for one in each)
    return _Part(float(middle.mean()), sampling - shared, starting, freedom, shared, is_beside=True)


def _wider(sides: Iterable[Floats], variance: float, df: float) -> float:
    """By how much the starts of a side differ over what restarts and runs should make them differ by, never below 1 (a
    ratio of variances).

    Where pods come back under new names, all are compared at once: one that is throttled moves the mean of all.
    Replicas that keep their names are compared one by one, and :func:`_together` sees that they differ.

    Args:
        sides: Of each side the levels of its starts (logarithms).
        variance: That is expected of a start.
        df: Degrees of freedom that restarts are known on.
    """
    several = [side for side in sides if side.size > 1]
    if not variance or not several:
        return 1.0
    free: int = sum(side.size - 1 for side in several)
    squares = math.fsum(float(x) for side in several for x in (side - side.mean()) ** 2) / variance
    return 1.0 + max(squares - free, 0.0) / (df + free)


def _with_noise_of(
    known: Series, a: Series, b: Series, between: Shift, noise_df: float, policy: Policy
) -> Shift:
    """The shift from ``a`` to ``b``; in its error the noise of ``known`` counts for so many degrees of freedom.

    Where ``a`` has enough runs it scatters as that does: ``known`` may be of other minutes. It lasts as long as that of
    either.
    """
    side = a if len(a) >= policy.pool.fewest_runs else known
    noise = variance_of(side, max(side.inflation, known.inflation)) * len(side) * (1 / len(a) + 1 / len(b))
    df = noise_df + between.df
    return between._replace(se=math.sqrt((noise_df * noise + between.df * between.se**2) / df), df=df)
