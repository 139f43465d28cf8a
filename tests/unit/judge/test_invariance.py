"""What must not change a verdict does not: the order of starts and replicas, the unit, another replica that agrees."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.pooling import Pooling, Replica
from infercanary.judge.result import Result
from infercanary.judge.samples import compare
from infercanary.judge.sequential import SequentialTest
from infercanary.judge.shift import Pooled, Restarts
from infercanary.judge.statistics import Series, learn
from infercanary.judge.verdict import Judge

judge = Judge().verdict

CANARY = "canary"
OPPOSITE = {"regressed": "improved", "improved": "regressed"}
seeds = st.integers(0, 10_000)
effects = st.sampled_from([-0.3, -0.05, 0.0, 0.02, 0.05, 0.1, 0.3, 1.0])
units = st.sampled_from([1e-6, 1e-3, 0.37, 60.0, 1e6])

WIDER_BY_FEW = 1.5
"""By what a replica that agrees may widen an interval where it has few runs: these may happen to be far off their
level, and noise that lasts may keep a start there (`sequential`)."""


def latencies(rng: np.random.Generator, runs: int, level: float, phi: float = 0.4) -> list[float]:
    steps = rng.normal(0, 0.02 * math.sqrt(1 - phi**2), runs)
    y, last = [], rng.normal(0, 0.02)
    for step in steps:
        y.append(level * math.exp(last))
        last = phi * last + step
    return y


def starts(rng: np.random.Generator, count: int, effect: float, runs: int = 30) -> list[list[float]]:
    """Of one image: each start has its own level."""
    return [latencies(rng, runs, 0.02 * (1 + effect) * math.exp(rng.normal(0, 0.005))) for _ in range(count)]


def replicas(
    seed: int, count: int, effect: float, runs: int = 30
) -> list[tuple[list[list[float]], list[list[float]]]]:
    """Each with a start of the old image and one of the new, whatever the number of the others."""
    found = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        found.append((starts(rng, 1, 0.0, 60), starts(rng, 1, effect, runs)))
    return found


def numbers(judged: Result) -> list[float | None]:
    return [judged.shift, judged.low, judged.high]


def recorded(
    several: Sequence[tuple[list[list[float]], list[list[float]]]], unit: float = 1.0
) -> list[Start]:
    """What the exporter keeps of an upgrade of these replicas, in order of time."""
    found = []
    for number, (old, new) in enumerate(several):
        for image, ((points,), at) in {"old": (old, 0.0), "new": (new, 1e5)}.items():
            g = Generation(
                service="service", container=f"replica-{number}", boot_id=f"{number}-{image}", image=image,
                image_id=image, started_at=at + number,
            )  # fmt: skip
            samples = [
                Sample(
                    sequence=i, canary=CANARY, started_at=g.started_at + 10.0 * i, outcome="ok", median=unit * x,
                    repeats=9, phases={"compute": 0.7 * unit * x, "copy": 0.3 * unit * x},
                    controls={"cpu_spin": 0.001 * unit * (1 + 0.001 * (i % 5))},
                )
                for i, x in enumerate(points)
            ]  # fmt: skip
            found.append(Start.of(g, samples))
    return sorted(found, key=lambda start: start.generation.started_at)


def pooled(several: Sequence[tuple[list[list[float]], list[list[float]]]], restarts: Restarts) -> Pooled:
    sides = [[[Series.of(points) for points in side] for side in pair] for pair in several]
    found = Pooling().pooled([Replica(old, new) for old, new in sides], restarts)
    assert found is not None
    return found


@given(seeds, st.integers(1, 5), st.integers(1, 5), effects, st.randoms())
def test_the_order_of_starts_does_not_matter(seed, before, after, effect, random):
    rng = np.random.default_rng(seed)
    old, new = starts(rng, before, 0.0), starts(rng, after, effect)
    one = compare(old, new)
    random.shuffle(old)
    random.shuffle(new)
    other = compare(old, new)
    assert other.verdict == one.verdict
    assert other[1:] == pytest.approx(one[1:], rel=1e-9, abs=1e-12)
    assert learn([new, old]) == pytest.approx(learn([old, new]))


@given(seeds, st.integers(1, 5), effects, st.randoms())
def test_the_order_of_replicas_does_not_matter(seed, count, effect, random):
    several = replicas(seed, count, effect)
    one, judged = pooled(several, Restarts(0.006, 5)), judge(recorded(several), [], CANARY)
    random.shuffle(several)
    assert pooled(several, Restarts(0.006, 5))[:5] == pytest.approx(one[:5], rel=1e-9)
    other = judge(recorded(several), [], CANARY)
    assert other.state == judged.state
    assert other.causes.cause == judged.causes.cause
    assert numbers(other) == pytest.approx(numbers(judged), rel=1e-9, abs=1e-12)


@given(seeds, st.integers(1, 3), effects, units)
def test_the_unit_does_not_matter(seed, count, effect, unit):
    several = replicas(seed, count, effect)
    one, other = (judge(recorded(several, by), [], CANARY) for by in (1.0, unit))
    assert other.state == one.state
    assert other.causes.cause == one.causes.cause
    assert numbers(other) == pytest.approx(numbers(one), rel=1e-6, abs=1e-9)
    old, new = ([points for side in several for points in side[which]] for which in (0, 1))
    scaled = ([[unit * x for x in points] for points in side] for side in (old, new))
    plain, scaled_ = compare(old, new), compare(*scaled)
    assert scaled_.verdict == plain.verdict
    assert scaled_[1:] == pytest.approx(plain[1:], rel=1e-6, abs=1e-9)


@settings(max_examples=60)
@given(
    seeds,
    st.integers(1, 4),
    effects,
    st.sampled_from([(5, 5), (12, 12), (48, 48), (12, 5), (48, 5), (48, 12)]),
    st.sampled_from([(0.0, math.inf), (0.003, 4), (0.02, 20)]),
)
def test_a_replica_that_agrees_narrows_the_interval(seed, count, effect, lengths, known):
    """Its shift is the one of all others together; its runs are those of the first, or only the first few of them."""
    runs, few = lengths
    several, restarts = replicas(seed, count, effect, runs), Restarts(*known)
    old, new = several[0][0], several[0][1][0][:few]
    one, alone = pooled(several, restarts), pooled([(old, [new])], restarts)
    alike = [x * math.exp(one.log - alone.log) for x in new]
    more = pooled([*several, (old, [alike])], restarts)
    assert more.log == pytest.approx(one.log, abs=1e-9)
    halves = [SequentialTest(LIVE.decide).half_width(of, LIVE.decide.false_calls) for of in (one, more)]
    assert halves[1] <= (1.01 if few == runs else WIDER_BY_FEW) * halves[0]


@settings(max_examples=60)
@given(seeds, st.integers(1, 3), effects, st.sampled_from([5, 8, 12, 24, 48]))
def test_a_replica_of_the_same_kind_never_turns_a_verdict_over(seed, count, effect, runs):
    several = replicas(seed, count + 1, effect, runs)
    one, more = (judge(recorded(several[: count + extra]), [], CANARY) for extra in (0, 1))
    assert more.state != OPPOSITE.get(one.state, "")
    old, new = ([points for side in several for points in side[which]] for which in (0, 1))
    fewer, every = compare(old[:count], new[:count]), compare(old, new)
    assert every.verdict != OPPOSITE.get(fewer.verdict, "")
