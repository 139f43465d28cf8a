from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infercanary.judge.changepoints import ChangePoint, scan
from infercanary.judge.policy import FILES, LIVE
from infercanary.judge.pooling import NO_RESTART, Pooling, Replica, shift_of_starts
from infercanary.judge.resolution import FINE
from infercanary.judge.samples import compare, compare_starts
from infercanary.judge.shift import Restarts
from infercanary.judge.statistics import Series, assess, learn

FEWEST = LIVE.pool.fewest_runs
LEVEL = FILES.decide.confidence
latencies = st.lists(st.floats(1e-6, 1e3), min_size=FEWEST, max_size=40)
CHANGED = ("regressed", "improved")
PRIOR = Restarts(LIVE.pool.restart_sd, LIVE.pool.restart_df)


def shift(baseline, candidate):
    """Of two samples, without a restart."""
    return shift_of_starts([baseline], [candidate], pool=FILES.pool)


def noise(seed, count, sd=0.01, phi=0.0, level=0.01):
    """Latencies that scatter around ``level`` by ``sd``, each alike its neighbour by ``phi``."""
    rng = np.random.default_rng(seed)
    y, last = np.empty(count), rng.normal(0, sd)
    for i in range(count):
        y[i] = last
        last = phi * last + rng.normal(0, sd * math.sqrt(1 - phi**2))
    return level * np.exp(y)


def stepped(seed, at, effect, count=300, **kwargs):
    y = noise(seed, count, **kwargs)
    y[at:] *= 1 + effect
    return y


@given(latencies, latencies, st.sampled_from([1e-9, 1e-3, 7.3, 1e6]))
def test_units_do_not_matter(baseline, candidate, unit):
    plain = compare(baseline, candidate)
    other = compare([x * unit for x in baseline], [x * unit for x in candidate])
    assert other[1:] == pytest.approx(plain[1:], rel=1e-6, abs=1e-9)


@given(latencies, st.randoms())
def test_a_level_is_hodges_and_lehmanns_in_any_order(points, random):
    logs = np.log(points)
    means = [(a + b) / 2 for a in logs for b in logs]
    random.shuffle(points)
    level = Series.of(points).level
    assert level == pytest.approx(np.median(means), abs=1e-12)
    assert shift(points, [2 * x for x in points]).log == pytest.approx(math.log(2), abs=1e-12)


@pytest.mark.parametrize("count", [700, 1100, 3000])
def test_the_level_of_many_points_is_found_without_all_pairs(count):
    """It is off by a tenth of its own error at most."""
    points = Series.of(noise([16, count], count) * (1 + 0.1 * (np.arange(count) % 5 == 0)))
    exact = np.median(np.add.outer(points.logs, points.logs)) / 2
    assert points.level == pytest.approx(exact, abs=0.1 * math.sqrt(points.known.variance))


@given(latencies, latencies)
def test_swapping_the_sides_turns_the_shift_over(baseline, candidate):
    there, back = compare(baseline, candidate), compare(candidate, baseline)
    opposite = {"regressed": "improved", "improved": "regressed"}
    assert back.verdict == opposite.get(there.verdict, there.verdict)
    for one, other in ((there.shift, back.shift), (there.low, back.high), (there.high, back.low)):
        if abs(one) < 1e9 and 1 + one > 1e-9:
            assert other == pytest.approx(1 / (1 + one) - 1, rel=1e-6, abs=1e-9)


@given(latencies, latencies)
def test_the_shift_lies_in_its_interval_and_the_verdict_keeps_to_the_rule(baseline, candidate):
    verdict, moved, low, high = compare(baseline, candidate)
    assert -1 <= low <= moved <= high
    if verdict in CHANGED:
        assert max(moved, 1 / (1 + moved) - 1) >= 0.03 - 1e-12
        assert low > 0.01 or 1 / (1 + high) - 1 > 0.01
        assert (verdict == "regressed") == (moved > 0)
    if verdict == "equivalent":
        assert low > -0.03
        assert high < 0.03


@given(*[st.lists(st.integers(1, 4), min_size=FEWEST, max_size=40)] * 2)
def test_ties_are_no_trouble(baseline, candidate):
    verdict, moved, low, high = compare(baseline, candidate)
    assert low <= moved <= high
    assert verdict in (*CHANGED, "equivalent", "inconclusive")
    scan([*baseline, *candidate])


def test_constants():
    assert compare([5.0] * 10, [5.0] * 10) == ("inconclusive", 0, pytest.approx(-0.2), pytest.approx(0.25))
    assert compare([5.0] * 10, [5.0] * 10, restart_sd=0.01).verdict == "inconclusive"
    assert compare([5.0] * 10, [17.0] * 10, restart_sd=0.01).verdict == "regressed"
    assert scan([5.0] * 100) == []


def milliseconds(level: float, sd: float = 0.02, step: float = 1.0, unit: float = 1.0) -> list[float]:
    """As a tool writes them that rounds to steps."""
    exact = np.random.default_rng([int(1e3 * level), 9]).normal(level, sd, 60)
    return [max(1, round(x / step)) * step * unit for x in exact]


COARSE = [
    # before, after, SD, step: verdict, and the shift and its interval in percent
    (12, 12.3, 0.02, 1.0, "inconclusive", (0, -8.3, 9.1)),
    (2, 2.4, 0.05, 1.0, "inconclusive", (0, -50, 100)),
    (4.4, 4.6, 0.02, 1.0, "inconclusive", (25, 0, 66.7)),
    (4.6, 4.4, 0.02, 1.0, "inconclusive", (-20, -40, 0)),
    (10, 24, 0.02, 1.0, "regressed", (140, 20, math.inf)),  # no step is larger than the smallest value
    (12, 14, 0.4, 1.0, "regressed", (16.7, 7.7, 27.3)),  # some values are a step off
    (14, 12, 0.4, 1.0, "improved", (-14.3, -21.4, -7.1)),
    (15.6, 31.2, 0.1, 15.6, "inconclusive", (100, 0, math.inf)),  # the clock of Windows
    (500, 500, 0.4, 1.0, "equivalent", (0, -0.2, 0.2)),
    (500, 500, 0.02, 1.0, "inconclusive", (0, -0.2, 0.2)),  # all are the same: no sign of a timed value
    (0.12, 0.123, 0.0004, 0.01, "inconclusive", (0, -8.3, 9.1)),
    (0.012, 0.012, 0.0, 0.001, "inconclusive", (0, -8.3, 9.1)),  # 1.2e-05 s
]


@pytest.mark.parametrize("unit", [1.0, 1e-3])
@pytest.mark.parametrize(("before", "after", "sd", "step", "verdict", "numbers"), COARSE)
def test_an_interval_is_no_narrower_than_a_step(before, after, sd, step, verdict, numbers, unit):
    found = compare(milliseconds(before, sd, step, unit), milliseconds(after, sd, step, unit))
    assert found.verdict == verdict
    if unit == 1 or not math.isclose(before, after):  # the last digit of 0.5 is another one than of 500
        assert [100 * x for x in found[1:]] == pytest.approx(numbers, abs=0.06)


def test_values_that_scatter_over_several_steps_are_averaged():
    """However few points there are, and whether or not some of them are the same: the interval is as it was."""
    for seed in range(200):
        for count in (8, 9, 12):
            a, b = noise([seed, 30], count), 1.1 * noise([seed, 31], count)
            assert shift(a, b).resolution == FINE
    coarse = [compare(milliseconds(12.2, 1.5), milliseconds(14.4 + seed, 1.5)).verdict for seed in range(5)]
    assert coarse == ["regressed"] * 5


def test_memory_that_is_the_same_in_each_run_is_exact():
    for new, verdict in ((5e8, "equivalent"), (6e8, "regressed")):
        found, *_ = compare_starts([[5e8] * 10], [[new] * 10], restart_sd=0.0, policy=FILES.for_measures())
        assert found.verdict == verdict


def test_one_step_of_a_coarse_clock_is_no_scatter_of_zero():
    """Most values alike, and some one tick off: the median absolute deviation is 0."""
    ticks = np.where(np.arange(30) % 3 == 0, 19.0, 18.0)
    assert compare(ticks, ticks[::-1]).verdict not in CHANGED
    assert shift(ticks, ticks).se > 0


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.6, 0.8])
@pytest.mark.parametrize(("count", "other"), [(12, 48), (30, 30), (192, 384)])
def test_autocorrelated_noise_is_covered(phi, count, other):
    each = [shift(noise([i, 1], other, phi=phi), noise([i, 2], count, phi=phi)) for i in range(300)]
    outside = sum(abs(one.log) > one.interval(0.95)[1] - one.log for one in each)
    assert outside / 300 <= (0.08 if phi < 0.6 else 0.14)
    # Not by intervals that say nothing: the error is about what it should be.
    assert np.median([one.se for one in each]) == pytest.approx(np.std([one.log for one in each]), rel=0.35)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_the_error_of_a_level_is_what_levels_scatter_by(phi):
    several = [Series.of(noise([i, 40], 96, phi=phi)) for i in range(300)]
    true = np.std([one.level for one in several])
    assert math.sqrt(np.median([one.known.variance for one in several])) == pytest.approx(true, rel=0.15)


def test_scatter_is_that_of_most_points():
    assert np.median([Series.of(noise([i, 41], 30)).scatter for i in range(200)]) == pytest.approx(
        0.01, rel=0.1
    )
    wild = noise(42, 30)
    wild[[3, 20]] *= 9
    assert Series.of(wild).scatter < 0.015
    assert Series.of([1.0] * 20 + [2.0] * 10).scatter > 0.3, "a second mode is no outlier"


def test_no_false_alarm_in_stationary_noise():
    verdicts = [
        compare(noise([seed, 3], 30, sd=0.03, phi=0.4), noise([seed, 4], 30, sd=0.03, phi=0.4)).verdict
        for seed in range(1000)
    ]
    assert sum(v in CHANGED for v in verdicts) <= 2


@pytest.mark.parametrize("effect", [0.05, 0.2, 1.0, -0.05, -0.3])
def test_a_known_shift_is_found_and_covered(effect):
    found = [compare(noise([seed, 5], 30), (1 + effect) * noise([seed, 6], 30)) for seed in range(100)]
    assert all(c.verdict == ("regressed" if effect > 0 else "improved") for c in found)
    assert sum(c.low <= effect <= c.high for c in found) >= 96
    assert np.median([c.shift for c in found]) == pytest.approx(effect, abs=0.003)


def test_equal_sides_are_equivalent_given_enough_points():
    verdicts = [compare(noise([seed, 7], 60), noise([seed, 8], 60)).verdict for seed in range(100)]
    assert verdicts.count("equivalent") >= 98
    assert compare(noise(1, 8, sd=0.05), noise(2, 8, sd=0.05)).verdict == "inconclusive"


def test_more_points_narrow_the_interval():
    widths = []
    for count in (8, 30, 120, 480, 1920):
        each = [shift(noise([s, 9], count, phi=0.3), noise([s, 10], count, phi=0.3)) for s in range(40)]
        widths.append(np.median([high - low for low, high in (b.interval(LEVEL) for b in each)]))
    assert all(late < 0.75 * early for early, late in pairwise(widths))


def test_a_few_wild_points_change_little():
    baseline, candidate = noise(11, 30), noise(12, 30)
    plain = compare(baseline, candidate)
    candidate[[4, 17]] *= 50
    assert compare(baseline, candidate).shift == pytest.approx(plain.shift, abs=0.003)
    assert compare(baseline, candidate).verdict not in CHANGED


def test_a_restart_between_widens_the_interval():
    baseline, candidate = noise(18, 200), 1.05 * noise(19, 200)
    plain = compare(baseline, candidate)
    assert plain.verdict == "regressed"
    assert compare(baseline, candidate, restart_sd=0.0) == plain
    widths = [plain.high - plain.low]
    for restart_sd in (0.005, 0.01, 0.02):
        apart = compare(baseline, candidate, restart_sd=restart_sd)
        assert apart.shift == plain.shift
        widths.append(apart.high - apart.low)
    assert widths == sorted(widths)
    assert apart.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("baseline", "candidate", "place"),
    [
        ([1.0, math.nan], [1.0], r"baseline\[1\] is nan"),
        ([1.0], [math.inf], r"candidate\[0\] is inf"),
        ([1.0], [1.0, 1.0, 0.0], r"candidate\[2\] is 0.0"),
        ([-1.0], [1.0], r"baseline\[0\] is -1.0"),
        ([[1.0, 2.0]], [1.0], "two samples, or two lists of starts; here is one of each"),
        ([[1.0], [[1.0]]], [[1.0]], "baseline: a flat sequence"),
    ],
)
def test_what_is_no_latency_is_named(baseline, candidate, place):
    with pytest.raises(ValueError, match=place):
        compare(baseline, candidate)


def test_starts_bring_what_restarts_do():
    """A list of starts is judged as files of starts are; two samples are one series."""
    old, new = noise([31, 1], 100), 1.05 * noise([31, 2], 100)
    assert compare(old, new).verdict == "regressed"
    assert compare([old], [new]).verdict == "inconclusive", "a restart of one image may do so much"
    assert compare([old], [new], restart_sd=0.0) == compare(old, new)
    assert compare([old], [new], restart_sd=0.002) == compare(old, new, restart_sd=0.002)
    several = [noise([32, i], 100) for i in range(10)]
    assert compare(several[:5], [1.05 * y for y in several[5:]]).verdict == "regressed"
    assert compare(np.array(several[:5]), several[5:]).verdict == "equivalent"


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"values\[3\] is nan"):
        scan([1.0, 1.0, 1.0, math.nan])
    with pytest.raises(ValueError, match="restart_sd is -1"):
        compare([1.0], [1.0], restart_sd=-1)


@pytest.mark.parametrize(
    ("baseline", "candidate"), [([], []), ([1.0], []), ([1.0] * 50, [2.0] * (FEWEST - 1))]
)
def test_too_few_points_are_inconclusive(baseline, candidate):
    said = compare(baseline, candidate)
    assert said.verdict == "inconclusive"
    assert (said.low, said.high) == (-1, math.inf)
    assert math.isfinite(said.shift) == bool(candidate)
    assert scan(baseline) == []


def restarted(seed, effect, replicas, sd=0.01, runs=48):
    """Replicas with a start of either image each; every start has its own level."""
    rng = np.random.default_rng(seed)
    levels = 0.01 * np.exp(rng.normal(0, sd, (replicas, 2)))
    levels[:, 1] *= 1 + effect
    return [
        replica(*([noise([seed, r, side], runs, level=levels[r, side])] for side in (0, 1)))
        for r in range(replicas)
    ]


def replica(old, new):
    return Replica([Series.of(points) for points in old], [Series.of(points) for points in new])


def pooled(replicas, restarts=PRIOR):
    return Pooling(FILES.pool).shift(replicas, restarts)


def test_restarts_of_the_same_image_rarely_alarm_and_replicas_bring_the_power():
    known = Restarts(0.01, 7)

    def changed(effect, replicas):
        said = (assess(pooled(restarted(s, effect, replicas), known), 0.98) for s in range(200))
        return sum(c.verdict in CHANGED for c in said) / 200

    assert changed(0.0, 1) <= 0.01
    assert changed(0.0, 4) <= 0.005
    power = [changed(0.05, replicas) for replicas in (1, 2, 4)]
    assert power == sorted(power)
    assert power[0] >= 0.3
    assert power[2] >= 0.95


def test_pooled_intervals_cover_restarts():
    each = [pooled(restarted(seed, 0.05, 3), Restarts(0.01, 20)).interval(0.95) for seed in range(300)]
    assert sum(low <= math.log(1.05) <= high for low, high in each) / 300 >= 0.94


def test_pooling_one_pair_without_restarts_is_its_shift():
    ((old, new, *_),) = restarted(3, 0.05, 1)
    assert pooled([Replica(old, new)], NO_RESTART)[:3] == pytest.approx(shift(old[0], new[0])[:3])
    flat = [replica([[5.0] * 10], [[6.0] * 10])] * 3
    assert pooled(flat, NO_RESTART)[:2] == pytest.approx((math.log(1.2), 0.0))
    assert pooled(flat, Restarts(0.01, math.inf)).se == pytest.approx(0.01 * math.sqrt(2 / 3))


def test_more_starts_narrow_it():
    old, new = [noise([20, i], 48) for i in range(4)], [noise([21, i], 48) for i in range(4)]
    one, four = pooled([replica(old[:1], new[:1])]), pooled([replica(old, new)])
    assert four.se == pytest.approx(one.se / 2, rel=0.2)


# Where all are compared at once, old starts that disagree teach the restart variance.
@pytest.mark.parametrize(("renamed", "slow_is_new"), [(True, True), (False, True), (False, False)])
def test_starts_that_disagree_widen_it(renamed, slow_is_new):
    """One pod of four that was throttled is no change, be the four compared one by one or at once."""
    old, new = [noise([20, i], 48) for i in range(4)], [noise([21, i], 48) for i in range(4)]

    def found():
        one_by_one = [replica([a], [b]) for a, b in zip(old, new, strict=True)]
        return pooled([replica(old, new)] if renamed else one_by_one, Restarts(0.003, 12))

    agree = found()
    slow = new if slow_is_new else old
    slow[0] = [1.2 * y for y in slow[0]]
    disagree = found()
    low, high = disagree.interval(0.99)
    assert disagree.se > 3 * agree.se and low < 0 < high
    assert disagree.df == pytest.approx(agree.df, rel=0.5)


@given(st.integers(0, 200), st.floats(0.002, 0.05), st.integers(5, 40))
def test_the_noise_of_a_new_start_is_never_below_the_usual(seed, sd, runs):
    """Few runs hardly show their own: a start may be in one of two modes for all of them."""
    usual = Series.of(noise([seed, 50], 60, phi=0.5))
    calm = Series.of(noise([seed, 51], runs, sd=sd, level=0.01))
    live = Pooling(LIVE.pool).pooled([Replica([usual], [calm])], NO_RESTART)
    as_usual = calm.level_by(usual.scatter**2, usual.alike, 1.0)
    least = usual.known.variance + as_usual.variance
    assert live is not None and live.runs_se >= 0.999 * math.sqrt(least)
    wild = Series(2 * calm.logs - calm.level)
    wider = Pooling(LIVE.pool).pooled([Replica([usual], [wild])], NO_RESTART)
    assert wider is not None and wider.runs_se >= live.runs_se


def test_points_that_were_compared_before_give_the_same():
    kept = Series.of(noise(1, 48))
    assert Series.of(kept) is kept and learn([[kept, kept]]) == learn([[np.exp(kept.logs)] * 2])
    with pytest.raises(ValueError, match=r"baseline\[1\] is -1.0"):
        Series.of([1.0, -1.0], "baseline")


def test_what_has_too_few_runs_is_left_out_of_the_pool():
    few = Series.of([1.0] * (FEWEST - 1))
    ((old, new, *_),) = restarted(4, 0.0, 1)
    some = [Replica(old, [*new, few]), Replica([few], new), Replica([], [])]
    assert pooled(some) == pooled([Replica(old, new)])
    for nothing in ([], [Replica([few], [few])]):
        assert assess(pooled(nothing), LEVEL).verdict == "inconclusive"
    assert shift_of_starts([few], [few]).se == math.inf


def test_restarts_are_learned():
    assert learn([]) == learn([[noise(1, 30)]]) == PRIOR
    for sd in (0.005, 0.01, 0.03):
        rng = np.random.default_rng(22)
        starts = [noise([22, i], 60, level=0.01 * math.exp(rng.normal(0, sd))) for i in range(60)]
        many = learn([starts[:30], [7 * np.array(y) for y in starts[30:]]])
        assert many.sd == pytest.approx(sd, rel=0.3)
        assert many.df == PRIOR.df + 58


@pytest.mark.parametrize(("runs", "sd", "phi"), [(12, 0.05, 0.0), (48, 0.1, 0.0), (96, 0.05, 0.6)])
def test_the_runs_own_scatter_is_not_taken_for_the_restarts(runs, sd, phi):
    assert learn([[noise([23, i], runs, sd=sd, phi=phi) for i in range(40)]]).sd < 0.006


@pytest.mark.parametrize("effect", [0.06, 0.5, -0.06, -0.4])
@pytest.mark.parametrize("at", [13, 150, 287])
def test_a_step_is_found_where_it_is(effect, at):
    for seed in range(10):
        (found,) = scan(stepped([seed, at], at, effect))
        assert abs(found.index - at) <= 1
        assert found.shift == pytest.approx(effect, abs=0.02)
        assert found.low <= found.shift <= found.high


def test_steps_are_found_in_order():
    y = noise(24, 400)
    for at, effect in ((100, 0.1), (200, 0.08), (300, -0.12)):
        y[at:] *= 1 + effect
    assert [c.index for c in scan(y)] == pytest.approx([100, 200, 300], abs=1)


def test_a_short_series_has_its_step_found():
    (found,) = scan(stepped(25, 30, 0.1, count=60))
    assert found.index == 30
    assert isinstance(found, ChangePoint)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("sd", [0.003, 0.03, 0.1])
def test_nothing_is_found_in_stationary_noise(phi, sd):
    assert sum(len(scan(noise([seed, 26], 400, sd=sd, phi=phi))) for seed in range(25)) <= (
        0 if phi < 0.8 else 2
    )


@pytest.mark.parametrize("count", [24, 40, 60, 90])
def test_a_short_series_rarely_alarms(count):
    assert sum(len(scan(noise([seed, count], count, sd=0.03, phi=0.4))) for seed in range(200)) <= 4


def test_a_coarse_clock_that_ticks_over_is_no_step():
    """Latency moves by less than its rounding; medians jump by a whole tick."""
    rng = np.random.default_rng(30)
    for _ in range(20):
        y = np.round(rng.normal(18.5, 0.25, 400) + np.where(np.arange(400) < 200, -0.02, 0.02))
        assert scan(y) == []


def test_spikes_and_short_episodes_are_not_steps():
    y = noise(27, 400)
    y[[50, 120, 121, 200]] *= 3
    y[300:304] *= 1.3
    assert scan(y) == []


def test_a_slow_trend_is_no_step_and_a_fast_one_is():
    """What takes longer than the windows is for ``compare`` with a frozen baseline to see."""
    slow = noise(28, 600) * np.linspace(1, 1.3, 600)
    assert scan(slow) == []
    assert compare(slow[:100], slow[-100:]).verdict == "regressed"


@settings(max_examples=30)
@given(st.integers(0, 99), st.sampled_from([1e-6, 1e3, 12.7]))
def test_units_do_not_matter_to_a_scan(seed, unit):
    y = stepped([seed, 29], 80, 0.1, count=160)
    plain, other = scan(y), scan(y * unit)
    assert [c.index for c in plain] == [c.index for c in other]


def test_a_start_that_was_disturbed_does_not_hide_how_much_starts_differ():
    """The mean of their own errors was taken off the scatter of all levels, and nothing was left of it."""
    starts = [1.03 ** (i % 3) * noise([40, i], 60) for i in range(9)]
    disturbed = starts[8] * np.exp(0.4 * np.sin(np.arange(60) * 2 * math.pi / 60))
    assert learn([[*starts[:8], disturbed]]).sd > 0.8 * learn([starts]).sd > 0.015
