"""What must not change a verdict does not: the order of starts and replicas, the unit, another replica that agrees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infercanary.judge.policy import LIVE
from infercanary.judge.pooling import Pooling, Replica
from infercanary.judge.result import Result
from infercanary.judge.samples import compare
from infercanary.judge.sequential import SequentialTest
from infercanary.judge.shift import Pooled, Restarts
from infercanary.judge.statistics import Series, learn
from infercanary.judge.verdict import Judge
from tests.factories import latencies, start

OPPOSITE = {"regressed": "improved", "improved": "regressed"}
Pair = tuple[Any, Any]
"""Latencies of the old image's start and of the new one's."""
seeds = st.integers(0, 10_000)
effects = st.sampled_from([-0.3, -0.05, 0.0, 0.02, 0.05, 0.1, 0.3, 1.0])

WIDER_BY_FEW = 1.5
"""By what a replica that agrees may widen an interval where it has few runs: these may happen to be far off their
level, and noise that lasts may keep a start there (`sequential`)."""


def replicas(seed: int, count: int, effect: float, runs: int = 30) -> list[Pair]:
    """Each start has its own level, whatever the number of the others."""
    levels = 0.02 * np.exp(np.random.default_rng(seed).normal(0, 0.005, (9, 2))) * (1.0, 1 + effect)
    return [
        tuple(latencies([seed, n, side], (60, runs)[side], 0.02, 0.4, levels[n, side]) for side in (0, 1))  # type: ignore[misc]
        for n in range(count)
    ]


def judged(several: Sequence[Pair], unit: float = 1.0) -> Result:
    """What the exporter keeps of an upgrade of these replicas, in order of time."""
    starts = [
        start(f"r{n}", image, 1e5 * side + n, (unit * pair[side]).tolist(), control=0.001 * unit)
        for side, image in enumerate(("old", "new"))
        for n, pair in enumerate(several)
    ]
    return Judge().verdict(starts, [], "c")


def same(one: Result, other: Result) -> bool:
    words = all((a.state, a.causes.cause) == (one.state, one.causes.cause) for a in (one, other))
    numbers = [[found.shift, found.low, found.high] for found in (one, other)]
    return words and numbers[0] == pytest.approx(numbers[1], rel=1e-6, abs=1e-9)


def pooled(several: Sequence[Pair], restarts: Restarts) -> Pooled:
    found = Pooling().pooled([Replica([Series.of(old)], [Series.of(new)]) for old, new in several], restarts)
    assert found is not None
    return found


@given(seeds, st.integers(1, 5), effects, st.sampled_from([1e-6, 0.37, 1e6]), st.randoms())
def test_neither_order_nor_unit_matters(
    seed: int, count: int, effect: float, unit: float, random: Any
) -> None:
    several = replicas(seed, count, effect)
    old, new = ([pair[side] for pair in several] for side in (0, 1))
    one, pool, starts = judged(several), pooled(several, Restarts(0.006, 5)), compare(old, new)
    assert same(judged(several, unit), one)
    assert learn([new, old]) == pytest.approx(learn([old, new]))
    for each in (several, old, new):
        random.shuffle(each)
    other = judged(several)
    # Controls are those of the place of a replica.
    assert other.state == one.state
    assert [other.shift, other.low, other.high] == pytest.approx(
        [one.shift, one.low, one.high], rel=1e-9, abs=1e-12
    )
    assert pooled(several, Restarts(0.006, 5))[:5] == pytest.approx(pool[:5], rel=1e-9)
    shuffled = compare(old, new)
    assert shuffled.verdict == starts.verdict and shuffled[1:] == pytest.approx(
        starts[1:], rel=1e-9, abs=1e-12
    )


@settings(max_examples=60)
@given(
    seeds,
    st.integers(1, 4),
    effects,
    st.sampled_from([(5, 5), (48, 48), (12, 5), (48, 5), (48, 12)]),
    st.sampled_from([(0.0, math.inf), (0.003, 4), (0.02, 20)]),
)
def test_a_replica_that_agrees_narrows_the_interval(
    seed: int, count: int, effect: float, lengths: tuple[int, int], known: tuple[float, float]
) -> None:
    """Its shift is the one of all others together; its runs are those of the first, or only the first few of them."""
    runs, few = lengths
    several, restarts = replicas(seed, count, effect, runs), Restarts(*known)
    old, new = several[0][0], several[0][1][:few]
    one, alone = pooled(several, restarts), pooled([(old, new)], restarts)
    more = pooled([*several, (old, new * math.exp(one.log - alone.log))], restarts)
    assert more.log == pytest.approx(one.log, abs=1e-9)
    halves = [SequentialTest(LIVE.decide).half_width(of, LIVE.decide.false_calls) for of in (one, more)]
    assert halves[1] <= (1.01 if few == runs else WIDER_BY_FEW) * halves[0]


@settings(max_examples=60)
@given(seeds, st.integers(1, 3), effects, st.sampled_from([5, 8, 12, 24, 48]))
def test_a_replica_of_the_same_kind_never_turns_a_verdict_over(
    seed: int, count: int, effect: float, runs: int
) -> None:
    several = replicas(seed, count + 1, effect, runs)
    one, more = judged(several[:-1]), judged(several)
    assert more.state != OPPOSITE.get(one.state, "")
    fewer, every = (
        compare(*([pair[side] for pair in each] for side in (0, 1))) for each in (several[:-1], several)
    )
    assert every.verdict != OPPOSITE.get(fewer.verdict, "")
