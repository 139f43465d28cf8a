"""Whether latency changed, by how much, and where in a series. Pure statistics: numbers in, numbers out.

All is done on logarithms, so that a shift is a ratio and units do not matter; a point is a run's median, in order of
time. What each part rests on:

- A shift is Hodges and Lehmann's ("Estimates of Location Based on Rank Tests", 1963): the median of all differences
  between a candidate's and a baseline's point. A few wild points do not move it.
- Its standard error counts how many independent points there are, not how many points: neighbours in time are alike.
- **A restart is one replicate** (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", 2013): two starts of
  the same image differ, and no number of runs within them tells by how much. ``pool`` adds that variance.
- Verdicts are three-way, as in equivalence testing: changed, the same, or not known yet.
- Without an event to compare around, ``scan`` looks for a step that is large beside the scatter around it and beside
  what the level of the same series does at other times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.special import stdtrit

Verdict = Literal["regressed", "improved", "equivalent", "inconclusive"]
CHANGED = ("regressed", "improved")
Floats: TypeAlias = NDArray[np.float64]
Points: TypeAlias = "Sequence[float] | Floats | Series"

EFFECT, CLEAR = 0.03, 0.01
# As logarithms, alike for slower and faster, and such that a verdict holds in ratios of either direction.
_EFFECT, _CLEAR, _SAME = -math.log1p(-EFFECT), -math.log1p(-CLEAR), math.log1p(EFFECT)
_RESTART_SDS = 3.0

# Of an interval by default, for a single look at 30 points a side. Real series err more often than their intervals say,
# because their levels wander; at this confidence, by less than 1 in 1,000 of those in which people see no change.
LEVEL = 0.9995
LOOKS = (12, 24, 48, 96, 192)  # runs of the candidate's

FEWEST = 8  # points a side: with fewer, a scatter and an autocorrelation are guesses
_PAIRS = 1 << 16  # up to here all differences are formed; beyond, their median is sought by bisection

_PER_WILD = 30  # one wild point in so many, at either end, does not count in a scatter
_LAGS, _MOST_ALIKE = 20, 0.95

# For ``scan``: points before and after, as Perfherder has them after. How many standard errors a step must have, and
# how many times the SD of the series' other steps; both were chosen on real series in which people marked the changes,
# and from 4 to 4.75 little depends on them. Beyond doubt is what no false alarm came near to; there a series in which
# steps are the rule, and not the exception, has them found too. Without other steps it takes Perfherder's t.
WINDOW = 12
_BEYOND_SCATTER, _BEYOND_WANDER, _BEYOND_DOUBT, _ALONE = 4.5, 4.25, 15.0, 7.0
_AROUND = 30  # points on either side that a change's shift is taken from

# Of normal noise: the SD over the MAD; the standard errors of the median and of Hodges and Lehmann's over the mean's.
_MAD, _MEDIAN, _RANKS = 1.4826, 1.2533, 1.0233


class Shift(NamedTuple):
    """How much slower, as a logarithm, with its standard error and the degrees of freedom of that."""

    log: float
    se: float
    df: float

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Logarithms between which the shift lies, at this two-sided confidence."""
        if not 0 < level < 1:
            raise ValueError(f"level is {level}: it lies between 0 and 1")
        if not math.isfinite(self.se):
            return -math.inf, math.inf
        half = float(stdtrit(self.df, (1 + level) / 2)) * self.se
        return self.log - half, self.log + half


class Series:
    """Points of one start in order of time, as logarithms, with what they tell by themselves: each worked out once.

    One who compares the same points often gives them as such: ``Series.of`` takes seconds, or what unit there is.
    """

    def __init__(self, logs: Floats) -> None:
        self.logs = logs

    @classmethod
    def of(cls, points: Points, what: str = "points") -> Series:
        """A point that is no latency is a ``ValueError``, in which they are called ``what``."""
        if isinstance(points, Series):
            return points
        values = np.asarray(points, dtype=np.float64)
        if values.ndim != 1:
            raise ValueError(f"{what}: a flat sequence of numbers is needed")
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if bad.size:
            raise ValueError(f"{what}[{bad[0]}] is {values[bad[0]]}: a latency is finite and above zero")
        return cls(np.log(values))

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
        """An SD that a few wild points hardly move, and that neither ties nor a second mode make zero: winsorized."""
        n = len(self)
        cut = max(1, n // _PER_WILD)
        inner = _clipped(self.ordered, self.ordered[cut], self.ordered[-1 - cut])
        inner -= np.add.reduce(inner) / n
        return math.sqrt(float(inner @ inner) / (n - 1)) * (n - 1) / (n - 2 * cut - 1)

    @cached_property
    def likeness(self) -> Sequence[float]:
        """Autocorrelation by lag, from 1 on: of few points that of the first lag, and none where all are the same."""
        n = len(self)
        r = self.logs - _middle(self.ordered)
        if (mad := _MAD * _middle(np.sort(np.abs(r)))) > 1e-9:
            r = _clipped(r, -3 * mad, 3 * mad)
        r -= np.add.reduce(r) / n
        if (power := float(r @ r)) <= 1e-24 * n:
            return ()
        lags = _LAGS if n >= 5 * _LAGS else 1
        like = [float(r[lag:] @ r[:-lag]) / power for lag in range(1, lags + 1)]
        # A short series shows less of it than there is (Marriott and Pope, 1954).
        return [x + (1 + 3 * x) / n for x in like]


class Comparison(NamedTuple):
    """A verdict, the shift and its interval as ratios: 0.05 is 5 % slower."""

    verdict: Verdict
    shift: float
    low: float
    high: float


@dataclass(frozen=True)  # no tuple, because those have a method named index
class ChangePoint:
    """The first point at a new level; the shift to it and its interval as ratios."""

    index: int
    shift: float
    low: float
    high: float


class Restarts(NamedTuple):
    """How much starts of one image differ: an SD of logarithms (0.01 is 1 %), known on so many degrees of freedom."""

    sd: float
    df: float


# What is assumed before any restart was seen. It weighs as much as five starts of an image do: with fewer degrees of
# freedom no first upgrade would get a verdict below 10 %, with more a service whose starts differ more would alarm.
PRIOR = Restarts(0.01, 4)


def compare(
    baseline: Points, candidate: Points, *, restart_sd: float | None = None, level: float = LEVEL
) -> Comparison:
    """Whether ``candidate`` is slower than ``baseline``; with ``restart_sd`` where one restart lies between them.

    A side with fewer than ``FEWEST`` points is inconclusive; a point that is no latency is a ``ValueError``.
    """
    between = shift(baseline, candidate)
    if restart_sd is not None:
        if not 0 <= restart_sd < math.inf:
            raise ValueError(f"restart_sd is {restart_sd}: it is finite and not below zero")
        between = _widened(between, 2 * restart_sd**2, math.inf)
    return judge(between, restart_sd=restart_sd or 0.0, level=level)


def judge(between: Shift, *, restart_sd: float = 0.0, level: float = LEVEL) -> Comparison:
    """The verdict on a shift, be it of one pair or pooled.

    `equivalent` is two one-sided tests (Schuirmann, "A Comparison of the Two One-Sided Tests Procedure and the Power
    Approach for Assessing the Equivalence of Average Bioavailability", 1987): the whole interval within ``EFFECT``. A
    change takes an estimate of ``EFFECT`` and of three restart SDs, and an interval clear of ``CLEAR``, because what is
    merely not zero wakes nobody. Assumes that the estimate is about normal, or t with the shift's freedom.
    """
    low, high = between.interval(level)
    verdict: Verdict = "inconclusive"
    if abs(between.log) >= max(_EFFECT, _RESTART_SDS * restart_sd) and (low > _CLEAR or high < -_CLEAR):
        verdict = "regressed" if between.log > 0 else "improved"
    elif low > -_SAME and high < _SAME:
        verdict = "equivalent"
    return Comparison(verdict, _ratio(between.log), _ratio(low), _ratio(high))


def shift(baseline: Points, candidate: Points) -> Shift:
    """How much slower ``candidate`` is, as far as its points can tell; of infinite error where they are too few.

    Hodges and Lehmann's estimate on logarithms. Its error assumes that both sides have one shape, that neighbours are
    alike as in a first-order process, and that no restart lies between: ``pool`` adds what restarts do.
    """
    return _shift(Series.of(baseline, "baseline"), Series.of(candidate, "candidate"))


def pool(replicas: Iterable[tuple[Sequence[Points], Sequence[Points]]], restarts: Restarts = PRIOR) -> Shift:
    """The shift over the replicas of a service, each with its starts of the old and of the new image.

    A start is one replicate, whatever its number of runs: over m replicas with a start each, restarts alone leave a
    variance of 2 sd² / m, on the degrees of freedom that ``restarts`` is known on. How far the replicas' shifts lie
    apart tells m - 1 degrees of freedom more of it. Starts with too few runs, and replicas without a start on either
    side, do not count.

    Weighted by inverse variances, as a random-effects meta-analysis is, and widened where the replicas differ by more
    than that (Hartung and Knapp, "A refined method for the meta-analysis of controlled clinical trials with binary
    outcome", 2001). Replicas that differ by less than restarts should make them differ narrow it, but never below the
    error that the runs' own scatter leaves. Assumes that starts are independent, and that replicas shift alike.
    """
    each = [
        pair
        for before, after in replicas
        if (pair := _replica(_starts(before, "baseline"), _starts(after, "candidate"), restarts.sd))
    ]
    if not each:
        return Shift(math.nan, math.inf, 0.0)
    logs, sampling, starting, freedom = np.array(each).T
    total = sampling + starting
    weights = 1 / total if total.all() else np.ones(len(each))
    weights /= weights.sum()
    log = float(weights @ logs)
    df = restarts.df + len(each) - 1
    more = float(((logs - log) ** 2 / total).sum()) - (len(each) - 1) if total.all() else 0.0
    runs = Shift(log, math.sqrt(weights**2 @ sampling), float(freedom.min()))
    pooled = _widened(runs, float(weights**2 @ starting), df)
    return pooled._replace(se=max(runs.se, pooled.se * math.sqrt(1 + more / df)))


def learn(images: Iterable[Sequence[Points]], prior: Restarts = PRIOR) -> Restarts:
    """What restarts do, from the starts of each image: ``prior`` counts as so many restarts seen before.

    The scatter of the levels of k starts has k - 1 degrees of freedom; what the runs' own scatter explains of it is
    taken off, because a shift's standard error already has it: the analysis-of-variance estimate of a variance
    component (Searle, Casella and McCulloch, "Variance Components", 1992, chapter 3), not below zero. A level is as
    precise as what is taken off says: medians are not, least of all of two modes, and left 4 % where there was
    nothing. The prior joins as the conjugate one of a normal variance does (Gelman et al., "Bayesian Data Analysis",
    2013, section 2.6). Assumes that all images of a service have one restart SD.
    """
    squares, df = prior.sd**2 * prior.df, prior.df
    for image in images:
        starts = _starts(image, "start")
        if len(starts) > 1:
            noise = math.fsum(_variance(start, _inflation([start])) for start in starts) / len(starts)
            spread = float(np.var([start.level for start in starts], ddof=1))
            squares += (len(starts) - 1) * max(spread - noise, 0.0)
            df += len(starts) - 1
    return Restarts(math.sqrt(squares / df), df)


def look_levels(alpha: float = 0.05, looks: Sequence[int] = LOOKS) -> tuple[float, ...]:
    """The confidence for the interval at each look, so that all of them together err ``alpha`` of the times.

    Spent as Lan and DeMets ("Discrete Sequential Boundaries for Clinical Trials", 1983) do for a constant boundary:
    alpha ln(1 + (e - 1) t) by the share t of the runs. Each look gets what is added there, which holds however much
    the looks depend on each other (Bonferroni); a restart is in all of them, so independent increments would not.
    """
    spent = [alpha * math.log1p((math.e - 1) * n / looks[-1]) for n in (0, *looks)]
    return tuple(1 - (now - before) for before, now in pairwise(spent))


def confirmed(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of the looks so far: a change counts when two looks in a row say so."""
    last: Sequence[Verdict] = verdicts[-2:]
    if not last or (last[-1] in CHANGED and (len(last) < 2 or last[0] != last[1])):
        return "inconclusive"
    return last[-1]


def scan(values: Points) -> list[ChangePoint]:
    """Where the level of a series steps to another and stays, in order.

    A step lies between the medians of the ``WINDOW`` points before and after a place. It counts if it is large, beyond
    the scatter within both, and beyond what the same difference is elsewhere in the series: a level that wanders
    makes steps of its own. Nothing is found nearer to an end or to a larger step. A slow trend has no step; to see it
    is for ``compare``, with a baseline that is frozen.

    The windows of 12 on either side are those of Perfherder, whose t of 7 is taken where nothing else is known
    (https://github.com/mozilla/treeherder, perfalert); medians for its means, because single wild points
    are common. Assumes one step at most within a window, and that most of a series has none.
    """
    y = Series.of(values, "values").logs
    if y.size < 2 * WINDOW:
        return []
    level, error = _windows(y)
    step = level[WINDOW:] - level[:-WINDOW]
    size = np.abs(step)
    beyond = size / (np.hypot(error[WINDOW:], error[:-WINDOW]) + 1e-9)
    elsewhere = size / (_typical(size) + 1e-9)
    found: list[int] = []
    free = (size >= _EFFECT) & (beyond >= _BEYOND_SCATTER)
    order = np.argsort(-np.minimum(beyond / _BEYOND_SCATTER, elsewhere / _BEYOND_WANDER), kind="stable")
    for place in order:
        if free[place]:
            near = slice(max(0, place - WINDOW + 1), place + WINDOW)
            free[near] = False
            others = size
            if size.size < 10 * WINDOW:  # short enough for the step itself to be most of what there is
                others = np.concatenate((size[: near.start], size[near.stop :]))
            if beyond[place] >= (_ALONE if others.size < WINDOW else _BEYOND_DOUBT) or (
                others.size >= WINDOW and size[place] >= _BEYOND_WANDER * _typical(others)
            ):
                found.append(_sharpened(y, place + WINDOW))
    return _with_shifts(y, sorted(set(found)))


def _typical(size: Floats) -> float:
    """The SD of steps where none is real, from their median: it takes no notice of the few that are."""
    return _MAD * float(np.median(size))


def _windows(y: Floats) -> tuple[Floats, Floats]:
    """Median of each ``WINDOW`` points, and the standard error of that."""
    ordered = np.sort(sliding_window_view(y, WINDOW), axis=1)
    level = (ordered[:, WINDOW // 2 - 1] + ordered[:, WINDOW // 2]) / 2
    mad = np.median(np.abs(ordered - level[:, None]), axis=1)
    inner = ordered.clip(ordered[:, 1:2], ordered[:, -2:-1])
    winsorized = inner.std(axis=1, ddof=1) * (WINDOW - 1) / (WINDOW - 3)
    scatter = np.maximum(winsorized, _MEDIAN * _MAD * mad)
    # A coarse clock has its median half a tick off, which more points do not mend: the median gap between values.
    gaps = np.sort(np.diff(ordered, axis=1), axis=1)
    distinct = (gaps > 1e-9).sum(axis=1)
    middle = np.minimum(gaps.shape[1] - distinct + distinct // 2, gaps.shape[1] - 1)
    tick = gaps[np.arange(len(gaps)), middle]
    return level, np.sqrt(scatter**2 / WINDOW + tick**2 / 4)


def _sharpened(y: Floats, at: int) -> int:
    """The split near ``at`` from which on points lie nearer to the later level: medians step some points around it."""
    before, after = np.median(y[at - WINDOW : at]), np.median(y[at : at + WINDOW])
    reach = WINDOW - FEWEST
    begin = at - reach
    near = y[begin : at + reach]
    nearer_before = np.abs(near - after) - np.abs(near - before)
    return begin + int(np.argmax(np.concatenate(([0.0], np.cumsum(nearer_before)))))


def _with_shifts(y: Floats, places: Sequence[int]) -> list[ChangePoint]:
    points = []
    for i, at in enumerate(places):
        begin = min(max([0, at - _AROUND, *places[:i][-1:]]), at - FEWEST)
        end = max(min([y.size, at + _AROUND, *places[i + 1 :][:1]]), at + FEWEST)
        between = _shift(Series(y[begin:at]), Series(y[at:end]))
        points.append(ChangePoint(int(at), _ratio(between.log), *(_ratio(x) for x in between.interval())))
    return points


def _replica(old: list[Series], new: list[Series], sd: float) -> tuple[float, float, float, float] | None:
    """Of one replica: its shift, the variance from its runs and from its starts, and the freedom of the former."""
    if not (old and new):
        return None
    pairs = [_shift(a, b) for a in old for b in new]
    log = math.fsum(pair.log for pair in pairs) / len(pairs)
    # Starts of one side are independent; where the sides differ in number, the fewer's average is the safe one.
    sampling = math.fsum(pair.se**2 for pair in pairs) / len(pairs) / min(len(old), len(new))
    return log, sampling, sd**2 * (1 / len(old) + 1 / len(new)), min(pair.df for pair in pairs)


def _starts(starts: Iterable[Points], what: str) -> list[Series]:
    return [series for start in starts if len(series := Series.of(start, what)) >= FEWEST]


def _shift(a: Series, b: Series) -> Shift:
    if not (len(a) and len(b)):
        return Shift(math.nan, math.inf, 0.0)
    between = _hodges_lehmann(a, b)
    if min(len(a), len(b)) < FEWEST:
        return Shift(between, math.inf, 0.0)
    alike = _inflation((a, b))
    one, other = (_variance(side, alike) for side in (a, b))
    freedom = [max(len(side) / alike - 1, 1.0) for side in (a, b)]
    # Welch and Satterthwaite's, because the sides may differ in scatter and in length.
    share = one / (one + other) if one + other else 0.5
    df = 1 / (share**2 / freedom[0] + (1 - share) ** 2 / freedom[1])
    return Shift(between, math.sqrt(one + other), df)


def _variance(side: Series, alike: float) -> float:
    """Of a level: half of a shift's."""
    return (_RANKS * side.scatter) ** 2 * alike / len(side)


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


def _inflation(sides: Sequence[Series]) -> float:
    """By how much the likeness of neighbours widens a variance, from all sides together.

    It is (1 + φ) / (1 - φ), as for a first-order process. Long sides show how much longer it may last: there the sum
    of autocorrelations counts where it is more, up to the first that is not above zero.
    """
    phi = lasting = 0.0
    for lag in range(max(len(side.likeness) for side in sides)):
        known = [side for side in sides if lag < len(side.likeness)]
        likeness = sum(len(side) * side.likeness[lag] for side in known) / sum(map(len, known))
        if likeness <= 0:
            break
        lasting += likeness
        if lag == 0:
            phi = min(likeness, _MOST_ALIKE)
    return max((1 + phi) / (1 - phi), 1 + 2 * lasting)


def _widened(between: Shift, variance: float, df: float) -> Shift:
    """With an independent ``variance`` on ``df`` more (Welch and Satterthwaite)."""
    if not variance or not math.isfinite(between.se):
        return between
    total = between.se**2 + variance
    share = variance / total
    freedom = share**2 / df + (1 - share) ** 2 / between.df
    return Shift(between.log, math.sqrt(total), 1 / freedom if freedom else math.inf)


def _ratio(log: float) -> float:
    return math.inf if log > 700 else math.expm1(log)  # NaN stays NaN: nothing is known
