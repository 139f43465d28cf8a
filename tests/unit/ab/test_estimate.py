"""Statistics of an experiment, tested on simulated starts with a known truth."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.ab.estimate import (
    FEWEST_PAIRS,
    PairJudge,
    assumed,
    estimate,
    levels,
    restart_sd,
)
from infercanary.judge.policy import FILES
from infercanary.judge.pooling import shift_of_starts
from infercanary.judge.resolution import Resolution
from infercanary.judge.shift import CHANGED, Shift
from tests.scenarios import cases, typed

MOST = 12
logs = st.lists(st.floats(-0.5, 0.5), min_size=FEWEST_PAIRS, max_size=24)


def decide(pairs, most=MOST):
    return PairJudge(most).decide(pairs)


def pairs_needed(pairs, most=99):
    return PairJudge(MOST).pairs_needed(pairs, most)


def shift(a, b):
    return shift_of_starts([a], [b], pool=FILES.pool)


def pair(log, se=0.002):
    return Shift(log, se, 20.0)


def experiment(rng, sd, effect=0.0, trend=0.0, bad_luck=0.0, most=MOST):
    """Simulate `infercanary ab`. Each turn adds ``trend``; a fraction ``bad_luck`` of the starts is up to 60 %
    slower.
    """
    pairs = []
    turn = 0
    while True:
        levels = {}
        for side in "ab" if len(pairs) % 2 == 0 else "ba":
            levels[side] = rng.gauss(0, sd) + trend * turn + (effect if side == "b" else 0.0)
            if rng.random() < bad_luck:
                levels[side] += rng.uniform(0, 0.5)
            turn += 1
        pairs.append(pair(levels["b"] - levels["a"]))
        decision = decide(pairs, most)
        if decision.done:
            return decision.verdict, len(pairs)


def rates(count, seed=1, **kwargs):
    rng = random.Random(seed)
    each = [experiment(rng, **kwargs) for _ in range(count)]
    return {
        "called": sum(verdict in CHANGED for verdict, _ in each) / count,
        "equivalent": sum(verdict == "equivalent" for verdict, _ in each) / count,
        "pairs": sum(pairs for _, pairs in each) / count,
    }


# Experiments | restart SD | ratio of the levels | more | share of calls | most pairs
RATES = """
# No restart variance is assumed.
400 | 0.002 | 1.0  | {}               | [0.0, 0.0076] | 99
400 | 0.01  | 1.0  | {}               | [0.0, 0.0076] | 99
400 | 0.03  | 1.0  | {}               | [0.0, 0.0076] | 99
400 | 0.15  | 1.0  | {}               | [0.0, 0.0076] | 99
400 | 0.01  | 1.0  | {bad_luck: 0.15} | [0.0, 0.005]  | 99
400 | 0.01  | 1.0  | {trend: 0.01}    | [0.0, 0.005]  | 99
150 | 0.01  | 1.05 | {}               | [0.97, 1.0]   | 8
150 | 0.02  | 1.05 | {}               | [0.6, 1.0]    | 99
150 | 0.01  | 1.05 | {bad_luck: 0.05} | [0.6, 1.0]    | 99
100 | 0.02  | 1.3  | {}               | [1.0, 1.0]    | 5.5
"""


@cases(typed(RATES))
def test_how_often_a_change_is_called(count, sd, effect, more, called, pairs):
    found = rates(count, sd=sd, effect=math.log(effect), **more)
    assert called[0] <= found["called"] <= called[1]
    assert found["pairs"] <= pairs
    assert effect > 1 or sd != 0.01 or more or found["equivalent"] >= 0.95


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(3)
    for n in (3, 5, 8, 12, 16):
        inside = 0
        for _ in range(1000):
            low, high = estimate([pair(x, 0.0) for x in rng.normal(0.02, 0.03, n)]).interval(0.95)
            inside += low <= 0.02 <= high
        assert inside / 1000 == pytest.approx(0.95, abs=0.02), n


def test_one_outlying_pair_of_eight_neither_makes_nor_hides_a_change():
    rng = random.Random(5)
    quiet = [pair(math.log(1.1) + rng.gauss(0, 0.005)) for _ in range(7)]
    assert decide([*quiet[:3], pair(1.5), *quiet[3:]], 8).looks[-1].seen.verdict == "unconfirmed"
    same = [pair(rng.gauss(0, 0.004)) for _ in range(11)]
    assert decide([*same[:5], pair(1.5), *same[5:]], 12).verdict == "equivalent"


@given(logs)
def test_swapping_the_images_turns_the_sign(values):
    one = estimate([pair(x) for x in values])
    other = estimate([pair(-x) for x in values])
    assert other.log == pytest.approx(-one.log, abs=1e-12)
    assert other.se == pytest.approx(one.se)
    assert one.se > 0
    mirrored = {"regressed": "improved", "improved": "regressed"}
    there = decide([pair(x) for x in values], MOST).verdict
    assert decide([pair(-x) for x in values], MOST).verdict == mirrored.get(there, there)


def test_scatter_of_runs_leaves_the_verdict_open():
    assert estimate([pair(0.05, 0.03)] * 3).se == pytest.approx(0.03 / math.sqrt(3))
    assert decide([pair(0.05, 0.03)] * 3, MOST).verdict == "inconclusive"


def test_more_pairs_of_a_coarse_clock_show_no_more():
    steps = [
        shift([4.0] * 20, [5.0] * 20),
        shift([4.0] * 19 + [5.0], [5.0] * 20),
        shift([5.0] * 20, [5.0] * 20),
    ]
    for pairs in (steps[:1], steps[:2], steps[2:]):
        assert decide(pairs * 6, MOST).verdict == "inconclusive"
        assert pairs_needed(pairs * 6) is None
    assert decide([shift([4.0] * 20, [7.0] * 19 + [6.0])] * 6, MOST).verdict == "regressed"


# Logarithms of the pairs | largest number of pairs | verdict | True if the experiment is done, and if clear
DECISIONS = """
# Two pairs are enough for what is beyond doubt alone.
[0.3, 0.3]                 | 12 | inconclusive | [false, false]
[0.693, 0.668]             | 12 | regressed    | [true, true]
[-0.693, -0.668]           | 12 | improved     | [true, true]
[1.386, 0.049]             | 12 | inconclusive | [false, false]
# A change counts when two looks show it.
[0.3, 0.301, 0.302]        | 12 | unconfirmed  | [false, false]
[0.3, 0.301, 0.302, 0.303] | 12 | regressed    | [true, true]
# If only the last planned look shows the change, one more pair is needed.
[0.15, 0.151, 0.152]       | 3  | unconfirmed  | [false, false]
[0.3, 0.301, 0.302, 0.303] | 3  | regressed    | [true, true]
[0.2, -0.2, 0.1]           | 3  | inconclusive | [true, false]
"""


@cases(typed(DECISIONS))
def test_when_an_experiment_is_done(logs, most, verdict, is_done):
    found = decide([pair(x) for x in logs], most)
    assert (found.verdict, [found.done, found.clear], len(found.looks)) == (verdict, is_done, len(logs) - 1)


def test_too_few_pairs_or_runs_have_no_error():
    assert estimate([pair(0.3)] * 2).se == math.inf
    assert estimate([shift([1.0] * 3, [2.0] * 3)] * 5).se == math.inf


def test_the_number_of_pairs_that_a_verdict_needs():
    rng = random.Random(7)
    assert 4 < pairs_needed([pair(math.log(1.05) + rng.gauss(0, 0.02)) for _ in range(4)]) <= 40
    assert pairs_needed([pair(x) for x in (0.0294, 0.0296, 0.0295, 0.0297)], most=8) is None
    assert pairs_needed([pair(0.1)]) is None


def test_the_restart_sd():
    rng = np.random.default_rng(2)
    assert restart_sd([pair(x) for x in rng.normal(0, 0.02 * math.sqrt(2), 4000)]) == pytest.approx(
        0.02, rel=0.05
    )


def test_the_error_of_all_looks_together_is_the_promised_one():
    for looks in ((3, 4, 5), range(2, 13)):
        assert sum(1 - level for level in levels(looks, 0.05).values()) == pytest.approx(1 - 0.95)
        assert sum(1 - level for level in levels(looks, 0.002).values()) == pytest.approx(0.002)
        assert len(levels(looks, 0.05)) == len(looks)


def test_one_value_is_said_only_where_all_pairs_have_it():
    still = [Shift(0.0, 0.0, 20.0, Resolution(0.08, 0.09, only=0.1))] * 4
    moving = [Shift(0.0, 0.01, 20.0, Resolution(0.08, 0.09))] * 2
    assert (assumed(still).resolution.only, assumed([*still, *moving]).resolution.only) == (0.1, None)
