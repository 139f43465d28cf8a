"""Changes that must not affect a verdict: order of starts and replicas, unit, and a replica with the same shift."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infercanary.judge.pooling import Pooling, Replica
from infercanary.judge.samples import compare
from infercanary.judge.shift import Restarts
from infercanary.judge.statistics import Series, learn
from tests.factories import judge, latencies, start

OPPOSITE = {"regressed": "improved", "improved": "regressed"}
seeds = st.integers(0, 10_000)
effects = st.sampled_from([-0.3, -0.05, 0.0, 0.02, 0.05, 0.1, 0.3, 1.0])


def replicas(seed, count, effect, runs=30):
    """Return runs of replicas. The level of each start does not depend on the number of replicas."""
    levels = 0.02 * np.exp(np.random.default_rng(seed).normal(0, 0.005, (9, 2))) * (1.0, 1 + effect)
    return [
        tuple(latencies([seed, n, side], (60, runs)[side], 0.02, 0.4, levels[n, side]) for side in (0, 1))
        for n in range(count)
    ]


def judged(several, unit=1.0):
    starts = [
        start(f"r{n}", image, 1e5 * side + n, (unit * pair[side]).tolist(), control=0.001 * unit)
        for side, image in enumerate(("old", "new"))
        for n, pair in enumerate(several)
    ]
    return judge(starts)


def same(one, other):
    words = all((a.state, a.causes.cause) == (one.state, one.causes.cause) for a in (one, other))
    numbers = [[found.shift, found.low, found.high] for found in (one, other)]
    return words and numbers[0] == pytest.approx(numbers[1], rel=1e-6, abs=1e-9)


def pooled(several, restarts):
    return Pooling().pooled([Replica([Series.of(old)], [Series.of(new)]) for old, new in several], restarts)


@given(seeds, st.integers(1, 5), effects, st.sampled_from([1e-6, 0.37, 1e6]), st.randoms())
def test_neither_order_nor_unit_matters(seed, count, effect, unit, random):
    several = replicas(seed, count, effect)
    old, new = ([pair[side] for pair in several] for side in (0, 1))
    one, pool, starts = judged(several), pooled(several, Restarts(0.006, 5)), compare(old, new)
    assert same(judged(several, unit), one)
    assert learn([new, old]) == pytest.approx(learn([old, new]))
    for each in (several, old, new):
        random.shuffle(each)
    other = judged(several)
    # The cause is not compared, because the noise of controls depends on the replica's number.
    assert other.state == one.state
    assert [other.shift, other.low, other.high] == pytest.approx(
        [one.shift, one.low, one.high], rel=1e-9, abs=1e-12
    )
    assert pooled(several, Restarts(0.006, 5))[:5] == pytest.approx(pool[:5], rel=1e-9)
    shuffled = compare(old, new)
    assert shuffled.verdict == starts.verdict
    assert shuffled[1:] == pytest.approx(starts[1:], rel=1e-9, abs=1e-12)


@settings(max_examples=60)
@given(seeds, st.integers(1, 3), effects, st.sampled_from([5, 8, 12, 24, 48]))
def test_a_replica_of_the_same_kind_never_turns_a_verdict_over(seed, count, effect, runs):
    several = replicas(seed, count + 1, effect, runs)
    one, more = judged(several[:-1]), judged(several)
    assert more.state != OPPOSITE.get(one.state, "")
    fewer, every = (
        compare(*([pair[side] for pair in each] for side in (0, 1))) for each in (several[:-1], several)
    )
    assert every.verdict != OPPOSITE.get(fewer.verdict, "")
