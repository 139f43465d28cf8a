"""Level, shift, verdict and restart variance: properties, simulations, and extreme values."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.judge.policy import FILES, LIVE
from infercanary.judge.pooling import NO_RESTART, Pooling, Replica, shift_of_starts
from infercanary.judge.resolution import FINE
from infercanary.judge.samples import compare, compare_starts
from infercanary.judge.shift import CHANGED, Restarts
from infercanary.judge.statistics import Series, assess, learn
from tests.factories import latencies
from tests.scenarios import cases, typed

FEWEST = LIVE.pool.fewest_runs
PRIOR = Restarts(LIVE.pool.restart_sd, LIVE.pool.restart_df)
OPPOSITE = {"regressed": "improved", "improved": "regressed"}
points = st.lists(st.floats(1e-6, 1e3), min_size=FEWEST, max_size=40)


def shift(baseline, candidate):
    return shift_of_starts([baseline], [candidate], pool=FILES.pool)


# Two samples -------------------------------------------------------------------------------------------------------


@given(points, points, st.sampled_from([1e-9, 7.3, 1e6]))
def test_a_verdict_keeps_to_its_rule_in_any_unit_and_direction(baseline, candidate, unit):
    verdict, moved, low, high = found = compare(baseline, candidate)
    assert -1 <= low <= moved <= high
    if verdict in CHANGED:
        assert max(moved, 1 / (1 + moved) - 1) >= 0.03 - 1e-12
        assert low > 0.01 or 1 / (1 + high) - 1 > 0.01
        assert (verdict == "regressed") == (moved > 0)
    assert verdict != "equivalent" or (low > -0.03 and high < 0.03)
    scaled = compare([x * unit for x in baseline], [x * unit for x in candidate])
    assert scaled[1:] == pytest.approx(found[1:], rel=1e-6, abs=1e-9)
    back = compare(candidate, baseline)
    assert back.verdict == OPPOSITE.get(verdict, verdict)
    for one, other in ((moved, back.shift), (low, back.high), (high, back.low)):
        if abs(one) < 1e9 and 1 + one > 1e-9:
            assert other == pytest.approx(1 / (1 + one) - 1, rel=1e-6, abs=1e-9)


@given(points, st.randoms())
def test_a_level_is_hodges_and_lehmanns_in_any_order(values, random):
    means = np.add.outer(np.log(values), np.log(values)) / 2
    random.shuffle(values)
    assert Series.of(values).level == pytest.approx(np.median(means), abs=1e-12)
    assert shift(values, [2 * x for x in values]).log == pytest.approx(math.log(2), abs=1e-12)


@cases([1100, 3000])
def test_the_level_of_many_points_is_found_without_all_pairs(count):
    """The error of the approximation is at most a tenth of the level's standard error."""
    many = Series.of(latencies([16, count], count) * (1 + 0.1 * (np.arange(count) % 5 == 0)))
    exact = np.median(np.add.outer(many.logs, many.logs)) / 2
    assert many.level == pytest.approx(exact, abs=0.1 * math.sqrt(many.known.variance))


def milliseconds(level, sd=0.02, step=1.0, unit=1.0):
    exact = np.random.default_rng([int(1e3 * level), 9]).normal(level, sd, 60)
    return [max(1, round(x / step)) * step * unit for x in exact]


# Before, after, SD, step | verdict, shift and interval in percent
STEPS = """
[12, 12.3, 0.02, 1.0]          | inconclusive | [0, -8.3, 9.1]
[2, 2.4, 0.05, 1.0]            | inconclusive | [0, -50, 100]
[4.4, 4.6, 0.02, 1.0]          | inconclusive | [25, 0, 66.7]
[10, 24, 0.02, 1.0]            | regressed    | [140, 20, .inf]  # the smallest value limits the step
[14, 12, 0.4, 1.0]             | improved     | [-14.3, -21.4, -7.1]  # some values differ by a step
[15.6, 31.2, 0.1, 15.6]        | inconclusive | [100, 0, .inf]  # clock of Windows
[500, 500, 0.4, 1.0]           | equivalent   | [0, -0.2, 0.2]
[500, 500, 0.02, 1.0]          | inconclusive | [0, -0.2, 0.2]  # all values are equal: they may not be times
[0.012, 0.012, 0.0, 0.001]     | inconclusive | [0, -8.3, 9.1]  # 1.2e-05 s
"""


@pytest.mark.parametrize("unit", [1.0, 1e-3])
@pytest.mark.parametrize(("values", "verdict", "numbers"), typed(STEPS))
def test_an_interval_is_no_narrower_than_a_step(values, verdict, numbers, unit):
    before, after, sd, step = values
    found = compare(milliseconds(before, sd, step, unit), milliseconds(after, sd, step, unit))
    assert found.verdict == verdict
    if unit == 1 or not math.isclose(before, after):  # 0.5 has another last digit than 500
        assert [100 * x for x in found[1:]] == pytest.approx(numbers, abs=0.06)


def test_values_without_scatter_or_of_several_steps():
    assert compare([5.0] * 10, [5.0] * 10)[2:] == (pytest.approx(-0.2), pytest.approx(0.25))
    assert compare([5.0] * 10, [17.0] * 10, restart_sd=0.01).verdict == "regressed"
    for new, verdict in ((5e8, "equivalent"), (6e8, "regressed")):
        found, *_ = compare_starts([[5e8] * 10], [[new] * 10], restart_sd=0.0, policy=FILES.for_measures())
        assert found.verdict == verdict
    # Most values are equal, and some differ by one step, so the median absolute deviation is 0.
    ticks = np.where(np.arange(30) % 3 == 0, 19.0, 18.0)
    assert compare(ticks, ticks[::-1]).verdict not in CHANGED
    assert shift(ticks, ticks).se > 0
    assert compare(milliseconds(12.2, 1.5), milliseconds(14.4, 1.5)).verdict == "regressed"
    for seed in range(100):
        assert shift(latencies([seed, 30], 8), 1.1 * latencies([seed, 31], 8)).resolution == FINE


@pytest.mark.parametrize("alike", [0.0, 0.6, 0.8])
@pytest.mark.parametrize(("runs", "others"), [(12, 48), (192, 384)])
def test_autocorrelated_noise_is_covered(alike, runs, others):
    each = [
        shift(latencies([i, 1], others, alike=alike), latencies([i, 2], runs, alike=alike))
        for i in range(200)
    ]
    outside = sum(abs(one.log) > one.interval(0.95)[1] - one.log for one in each)
    assert outside / 200 <= (0.08 if alike < 0.6 else 0.14)
    # The intervals must not be too wide: the standard error is about equal to the SD of the shifts.
    assert np.median([one.se for one in each]) == pytest.approx(np.std([one.log for one in each]), rel=0.35)


def test_scatter_is_that_of_most_points():
    assert np.median([Series.of(latencies([i, 41], 30)).shape.scatter for i in range(200)]) == pytest.approx(
        0.01, rel=0.1
    )
    wild = latencies(42, 30)
    wild[[3, 20]] *= 9
    assert Series.of(wild).shape.scatter < 0.015
    assert compare(latencies(11, 30), wild).verdict not in CHANGED
    assert Series.of([1.0] * 20 + [2.0] * 10).shape.scatter > 0.3  # a second mode must not count as outliers


INVALID = r"""
[1.0, .nan]    | [1.0]           | 'baseline\[1\] is nan'
[1.0]          | [.inf]          | 'candidate\[0\] is inf'
[1.0]          | [1.0, 1.0, 0.0] | 'candidate\[2\] is 0.0'
[-1.0]         | [1.0]           | 'baseline\[0\] is -1.0'
[[1.0, 2.0]]   | [1.0]           | two samples or two lists of starts, not one of each
[[1.0], [[1.0]]] | [[1.0]]       | 'baseline: expected a one-dimensional'
"""


@cases(typed(INVALID))
def test_invalid_latencies_are_named(baseline, candidate, place):
    with pytest.raises(ValueError, match=place):
        compare(baseline, candidate)
    with pytest.raises(ValueError, match="restart_sd is -1"):
        compare([1.0], [1.0], restart_sd=-1)


@cases(
    [([], []), ([1.0], []), ([1.0], [2.0]), ([1.0, 2.0], [2.0] * 3), ([1.0] * 50, [2.0] * (FEWEST - 1))],
)
def test_too_few_points_are_inconclusive(baseline, candidate):
    said = compare(baseline, candidate)
    assert (said.verdict, said.low, said.high) == ("inconclusive", -1, math.inf)
    assert math.isfinite(said.shift) == bool(candidate)


# Starts and replicas -----------------------------------------------------------------------------------------------


def test_starts_bring_what_restarts_do():
    """A list of starts is judged like files of starts. Each of two samples counts as one start."""
    old, new = latencies([31, 1], 100), 1.05 * latencies([31, 2], 100)
    plain = compare(old, new)
    assert plain.verdict == "regressed"
    assert compare([old], [new]).verdict == "inconclusive"  # this shift is within the restart variance
    assert compare([old], [new], restart_sd=0.0) == compare(old, new, restart_sd=0.0) == plain
    assert compare([old], [new], restart_sd=0.002) == compare(old, new, restart_sd=0.002)
    several = [latencies([32, i], 100) for i in range(10)]
    assert compare(several[:5], [1.05 * y for y in several[5:]]).verdict == "regressed"
    assert compare(np.array(several[:5]), several[5:]).verdict == "equivalent"


def restarted(seed, effect, replicas):
    levels = 0.01 * np.exp(np.random.default_rng(seed).normal(0, 0.01, (replicas, 2)))
    levels[:, 1] *= 1 + effect
    return [
        replica(*([latencies([seed, r, side], 48, level=levels[r, side])] for side in (0, 1)))
        for r in range(replicas)
    ]


def replica(old, new):
    return Replica([Series.of(each) for each in old], [Series.of(each) for each in new])


def pooled(replicas, restarts=PRIOR):
    return Pooling(FILES.pool).shift(replicas, restarts)


POWER = """
0.0  | 1 | 0.0  | 0.01
0.0  | 4 | 0.0  | 0.005
0.05 | 1 | 0.3  | 0.7
0.05 | 2 | 0.6  | 1.0
0.05 | 4 | 0.95 | 1.0
"""


@cases(typed(POWER))
def test_restarts_rarely_alarm_and_replicas_bring_the_power(effect, replicas, least, most):
    each = [pooled(restarted(seed, effect, replicas), Restarts(0.01, 7)) for seed in range(200)]
    assert least <= sum(assess(one, 0.98).verdict in CHANGED for one in each) / 200 <= most
    covered = [low <= math.log1p(effect) <= high for low, high in (one.interval(0.95) for one in each)]
    assert sum(covered) / 200 >= 0.93


def test_pooling_one_pair_without_restarts_is_its_shift():
    ((old, new, *_),) = restarted(3, 0.05, 1)
    assert pooled([Replica(old, new)], NO_RESTART)[:3] == pytest.approx(shift(old[0], new[0])[:3])
    flat = [replica([[5.0] * 10], [[6.0] * 10])] * 3
    assert pooled(flat, NO_RESTART)[:2] == pytest.approx((math.log(1.2), 0.0))
    assert pooled(flat, Restarts(0.01, math.inf)).se == pytest.approx(0.01 * math.sqrt(2 / 3))
    few = Series.of([1.0] * (FEWEST - 1))
    some = [Replica(old, [*new, few]), Replica([few], new), Replica([], [])]
    assert pooled(some) == pooled([Replica(old, new)])  # starts with too few runs do not count
    assert pooled([]).se == pooled([Replica([few], [few])]).se == math.inf


# In a comparison of all starts at once, old starts that differ add to the restart variance.
@cases([(True, True), (False, True), (False, False)])
def test_starts_that_disagree_widen_it(renamed, slow_is_new):
    """One throttled pod of four is no change, whether the four are compared one by one or at once."""
    old, new = ([latencies([seed, i], 48) for i in range(4)] for seed in (20, 21))

    def found():
        one_by_one = [replica([a], [b]) for a, b in zip(old, new, strict=True)]
        return pooled([replica(old, new)] if renamed else one_by_one, Restarts(0.003, 12))

    agree = found()
    assert pooled([replica(old, new)]).se == pytest.approx(
        pooled([replica(old[:1], new[:1])]).se / 2, rel=0.2
    )
    slow = new if slow_is_new else old
    slow[0] = 1.2 * slow[0]
    disagree = found()
    low, high = disagree.interval(0.99)
    assert disagree.se > 3 * agree.se
    assert low < 0 < high
    assert disagree.df == pytest.approx(agree.df, rel=0.5)


@cases([0.005, 0.03])
def test_restarts_are_learned(sd):
    levels = 0.01 * np.exp(np.random.default_rng(22).normal(0, sd, 60))
    starts = [latencies([22, i], 60, level=level) for i, level in enumerate(levels)]
    many = learn([starts[:30], [7 * each for each in starts[30:]]])
    assert many.sd == pytest.approx(sd, rel=0.3)
    assert many.df == PRIOR.df + 58
    assert learn([]) == learn([starts[:1]]) == PRIOR
    kept = Series.of(starts[0])
    assert Series.of(kept) is kept
    assert learn([[kept, kept]]) == learn([starts[:1] * 2])


@cases([(48, 0.1, 0.0), (96, 0.05, 0.6)])
def test_the_runs_own_scatter_is_not_taken_for_the_restarts(runs, sd, alike):
    assert learn([[latencies([23, i], runs, sd, alike) for i in range(40)]]).sd < 0.006
    # Regression: the starts' mean error was subtracted from the variance of all levels, so that one contended
    # start hid the variance.
    starts = [1.03 ** (i % 3) * latencies([40, i], 60) for i in range(9)]
    disturbed = starts[8] * np.exp(0.4 * np.sin(np.arange(60) * 2 * math.pi / 60))
    assert learn([[*starts[:8], disturbed]]).sd > 0.8 * learn([starts]).sd > 0.015
