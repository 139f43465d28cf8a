from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infercanary.judge.changepoints import ChangePoint, scan
from infercanary.judge.policy import FILES, LIVE
from infercanary.judge.pooling import pool
from infercanary.judge.resolution import FINE
from infercanary.judge.samples import compare
from infercanary.judge.shift import Restarts
from infercanary.judge.statistics import Series, assess, learn, prior, shift

FEWEST = LIVE.pool.fewest_runs
LEVEL = FILES.decide.confidence
latencies = st.lists(st.floats(1e-6, 1e3), min_size=FEWEST, max_size=40)
CHANGED = ("regressed", "improved")


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


@given(latencies, latencies, st.randoms())
def test_the_shift_and_its_sign_do_not_depend_on_the_order(baseline, candidate, random):
    one = shift(baseline, candidate)
    random.shuffle(baseline)
    random.shuffle(candidate)
    assert shift(baseline, candidate).log == pytest.approx(one.log, abs=1e-12)


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
    same = FILES.for_measures()
    assert compare([5e8] * 10, [5e8] * 10, policy=same).verdict == "equivalent"
    assert compare([5e8] * 10, [6e8] * 10, policy=same).verdict == "regressed"


def test_one_step_of_a_coarse_clock_is_no_scatter_of_zero():
    """Most values alike, and some one tick off: the median absolute deviation is 0."""
    ticks = np.where(np.arange(30) % 3 == 0, 19.0, 18.0)
    assert compare(ticks, ticks[::-1]).verdict not in CHANGED
    assert shift(ticks, ticks).se > 0


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.6])
@pytest.mark.parametrize(("count", "other"), [(12, 48), (30, 30), (192, 384)])
def test_autocorrelated_noise_is_covered(phi, count, other):
    trials = 300
    outside = narrow = 0
    for seed in range(trials):
        between = shift(noise([seed, 1], other, phi=phi), noise([seed, 2], count, phi=phi))
        low, high = between.interval(0.95)
        outside += not low <= 0 <= high
        narrow += not -0.5 < low < high < 0.5
    assert outside / trials <= 0.08
    assert narrow == 0


def test_no_false_alarm_in_stationary_noise():
    verdicts = [
        compare(noise([seed, 3], 30, sd=0.03, phi=0.4), noise([seed, 4], 30, sd=0.03, phi=0.4)).verdict
        for seed in range(1000)
    ]
    assert sum(v in CHANGED for v in verdicts) <= 2


@pytest.mark.parametrize("effect", [0.05, 0.2, 1.0, -0.05, -0.3])
def test_a_known_shift_is_found_and_covered(effect):
    found = [
        compare(noise([seed, 5], 30), (1 + effect) * noise([seed, 6], 30), level=0.99) for seed in range(100)
    ]
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


def modes(seed, count, dwell=1.0, gap=1.2):
    """A clock of two modes with 1 % of noise; each lasts so many runs on average, and 1 is none that lasts."""
    rng = np.random.default_rng(seed)
    stays = 1 - 1 / dwell if dwell > 1 else 0.5
    slow = np.cumsum(rng.random(count) > stays) % 2
    return noise([*seed, 1], count) * np.where(slow, gap, 1.0)


def widths(dwell, count, level=0.99):
    each = [
        shift(modes([s, 1, count], count, dwell), modes([s, 2, count], count, dwell), FILES)
        for s in range(60)
    ]
    ends = [between.interval(level) for between in each]
    return [(high - low) / 2 for low, high in ends], each


def test_two_modes_are_as_precise_as_the_rank_test_says():
    """The winsorized SD would say five times as much: from 48 runs on, the shift cannot jump from mode to mode."""
    of_modes, each = widths(1.0, 96)
    of_one = shift(noise(14, 96), noise(15, 96), FILES).interval(0.99)
    assert np.median(of_modes) < 3 * (of_one[1] - of_one[0]) / 2
    assert sum(abs(between.log) > half for between, half in zip(each, of_modes, strict=True)) <= 2
    of_few, _ = widths(1.0, 12)
    assert np.median(of_few) > 0.15, "of twelve runs a mode may make the shift"


def test_modes_that_last_widen_the_interval():
    for dwell, count in ((5.0, 24), (5.0, 96), (40.0, 240)):
        each, shifts = widths(dwell, count)
        missed = sum(abs(between.log) > half for between, half in zip(shifts, each, strict=True))
        assert missed <= 4, (dwell, count)


@given(latencies, latencies)
def test_a_shift_is_the_median_of_all_differences(baseline, candidate):
    every = np.subtract.outer(np.log(candidate), np.log(baseline))
    assert shift(baseline, candidate).log == pytest.approx(np.median(every), abs=1e-12)


def test_many_points_give_what_all_pairs_would():
    a, b = noise(16, 900), noise(17, 700, level=0.011)
    assert shift(a, b).log == pytest.approx(np.median(np.subtract.outer(np.log(b), np.log(a))), abs=1e-7)


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
    several = [noise([32, i], 100) for i in range(6)]
    assert compare(several[:3], [1.05 * y for y in several[3:]]).verdict == "regressed"
    assert compare(np.array(several[:3]), several[3:]).verdict == "equivalent"


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"values\[3\] is nan"):
        scan([1.0, 1.0, 1.0, math.nan])
    with pytest.raises(ValueError, match="restart_sd is -1"):
        compare([1.0], [1.0], restart_sd=-1)
    with pytest.raises(ValueError, match="level is 1"):
        compare([1.0] * 9, [1.0] * 9, level=1)


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
        tuple([noise([seed, r, side], runs, level=levels[r, side])] for side in (0, 1))
        for r in range(replicas)
    ]


def test_restarts_of_the_same_image_rarely_alarm_and_replicas_bring_the_power():
    known = Restarts(0.01, 7)

    def changed(effect, replicas):
        said = (assess(pool(restarted(s, effect, replicas), known), 0.98) for s in range(200))
        return sum(c.verdict in CHANGED for c in said) / 200

    assert changed(0.0, 1) <= 0.01
    assert changed(0.0, 4) <= 0.005
    power = [changed(0.05, replicas) for replicas in (1, 2, 4)]
    assert power == sorted(power)
    assert power[0] >= 0.3
    assert power[2] >= 0.95


def test_pooled_intervals_cover_restarts():
    known = Restarts(0.01, 20)
    inside = 0
    for seed in range(300):
        low, high = pool(restarted(seed, 0.05, 3), known).interval(0.95)
        inside += low <= math.log(1.05) <= high
    assert inside / 300 >= 0.94


def test_pooling_one_pair_without_restarts_is_its_shift():
    ((old, new),) = restarted(3, 0.05, 1)
    assert pool([(old, new)], Restarts(0.0, 1))[:3] == pytest.approx(shift(old[0], new[0])[:3])
    flat = [([[5.0] * 10], [[6.0] * 10])] * 3
    assert pool(flat, Restarts(0.0, math.inf))[:2] == pytest.approx((math.log(1.2), 0.0))
    assert pool(flat, Restarts(0.01, math.inf)).se == pytest.approx(0.01 * math.sqrt(2 / 3))


def test_more_starts_of_a_replica_narrow_it_and_replicas_that_disagree_widen_it():
    old, new = [noise([20, i], 48) for i in range(4)], [noise([21, i], 48) for i in range(4)]
    one, four = pool([(old[:1], new[:1])], prior()), pool([(old, new)], prior())
    assert four.se == pytest.approx(one.se / 2, rel=0.2)
    agree = pool([(old[:2], new[:2]), (old[2:], new[2:])], prior())
    disagree = pool([(old[:2], new[:2]), (old[2:], [1.2 * y for y in new[2:]])], prior())
    assert disagree.se > 3 * agree.se


@pytest.mark.parametrize("slow_is_new", [True, False])
def test_starts_of_one_comparison_that_disagree_widen_it(slow_is_new):
    old, new = [noise([20, i], 48) for i in range(4)], [noise([21, i], 48) for i in range(4)]
    known = Restarts(0.003, 12)
    agree = pool([(old, new)], known)
    slow = new if slow_is_new else old
    slow[0] = [1.2 * y for y in slow[0]]
    disagree = pool([(old, new)], known)
    low, high = disagree.interval(0.99)
    assert disagree.se > 3 * agree.se and low < 0 < high, "one pod of four that was throttled is no change"
    assert disagree.df == pytest.approx(agree.df, rel=0.5)


def test_points_that_were_compared_before_give_the_same():
    ((old, new),) = restarted(5, 0.05, 1)
    kept = [[Series.of(points) for points in side] for side in (old, new)]
    before, after = kept
    for _ in range(2):
        assert pool([(before, after)], prior()) == pool([(old, new)], prior())
    assert learn([kept[0]]) == learn([old])
    assert [len(series) for series in kept[0]] == [len(points) for points in old]
    with pytest.raises(ValueError, match=r"baseline\[1\] is -1.0"):
        Series.of([1.0, -1.0], "baseline")


def test_what_has_too_few_runs_is_left_out_of_the_pool():
    few = [1.0] * (FEWEST - 1)
    ((old, new),) = restarted(4, 0.0, 1)
    assert pool([(old, [*new, few]), ([few], new), ([], [])], prior()) == pool([(old, new)], prior())
    assert assess(pool([], prior()), LEVEL).verdict == "inconclusive"
    assert assess(pool([([few], [few])], prior()), LEVEL).verdict == "inconclusive"


def test_restarts_are_learned():
    assert learn([]) == prior()
    assert learn([[noise(1, 30)]]) == prior()
    for sd in (0.005, 0.01, 0.03):
        rng = np.random.default_rng(22)
        starts = [noise([22, i], 60, level=0.01 * math.exp(rng.normal(0, sd))) for i in range(60)]
        many = learn([starts[:30], [7 * np.array(y) for y in starts[30:]]])
        assert many.sd == pytest.approx(sd, rel=0.3)
        assert many.df == prior().df + 58


def test_the_runs_own_scatter_is_not_taken_for_the_restarts():
    assert learn([[noise([23, i], 12, sd=0.05) for i in range(40)]]).sd < 0.004
    assert learn([[noise([24, i], 48, sd=0.1) for i in range(40)]]).sd < 0.004
    rng = np.random.default_rng(25)
    modes = [noise([25, i], 48) * np.where(rng.random(48) < 0.4, 1.2, 1.0) for i in range(40)]
    assert learn([modes]).sd < 0.02, "their medians differ by 5 %"


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
