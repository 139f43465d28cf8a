"""Verdicts of ``ab`` on measures other than latency, from pairs of starts."""

from uuid import uuid4

import pytest
from measured_starts import AT_8, CANARY, CHANGES, MOST, experiment

from infercanary.ab import measures
from infercanary.ab.answer import ExperimentJudge
from infercanary.ab.estimate import PairJudge
from infercanary.ab.experiment import Result, TurnPair
from infercanary.ab.turn import ArmSummary, Turn
from tests import factories
from tests.scenarios import cases, typed


def start(values, seconds=0.02):
    """Return a start of 12 runs; ``values`` has the values of each measure for the first runs."""
    return factories.start(
        seconds=[seconds + 1e-6 * i for i in range(12)], control=0, canary=CANARY, boot_id=str(uuid4()),
        measures=lambda i: {name: each[i] for name, each in values.items() if i < len(each)},
    )  # fmt: skip


@pytest.mark.parametrize("words", [*CHANGES])
def test_only_changed_measures_are_called(words):
    for seed in range(8):
        found = experiment(CHANGES[words], (seed,))
        assert [*found.regressed] == [*CHANGES[words]]
        assert found.verdict != "regressed"
        assert (found.exit_code == 1) == bool(CHANGES[words])


DIRECTIONS = """
host_memory    | 1.3  | regressed  | 0.3
host_memory    | 0.7  | improved   | -0.3
host_memory    | 1.0  | equivalent | 0.0
host_memory    | 1.04 | equivalent | 0.04
throughput@8x1 | 0.8  | regressed  | -0.2
throughput@8x1 | 1.25 | improved   | 0.25
"""


@cases(typed(DIRECTIONS))
def test_a_verdict_is_in_the_measures_own_direction(name, ratio, state, shift):
    """One value of a measure for each start is enough; equal values in all pairs make the verdict certain."""
    pairs = [(start({name: [2e9]}), start({name: [2e9 * ratio]})) for _ in range(4)]
    (found,) = measures.decide(pairs, PairJudge(MOST))[0].values()
    assert found.state == state
    assert found.shift == pytest.approx(shift)
    assert found.low <= found.shift <= found.high  # type: ignore[operator]
    assert (found.before, found.after) == (pytest.approx(2e9), pytest.approx(2e9 * ratio))


def test_a_pair_that_lacks_a_measure_does_not_count_for_it():
    known, missing = start({AT_8: [250.0]}), start({})
    pairs = [(known, known), (known, missing), (missing, known)]
    (found,) = measures.decide(pairs, PairJudge(MOST))[0].values()
    assert found.state == "inconclusive"
    assert found.shift is None
    assert measures.decide([(known, missing)], PairJudge(MOST)) == ({}, False)


def pairs(ratios, latency=1.0):
    sides = [
        [
            Turn({CANARY: start({AT_8: [250.0 * r]}, seconds=0.02 * slower)}, {}, 9.0)
            for r, slower in ((1.0, 1.0), (ratio, latency))
        ]
        for ratio in ratios
    ]
    return [TurnPair(a, b) for a, b in sides]


GATES = """
[1.0, 0.75, 1.0, 0.75] | 1.0 | 12 | latency | true
[1.0, 0.75, 1.0, 0.75] | 1.0 | 12 | all     | false
[1.0, 0.75, 1.0, 0.75] | 1.0 | 4  | all     | true  # the number of starts is limited
[1.0, 0.75]            | 2.0 | 12 | all     | true  # slower is a clear result
[1.0, 1.25, 1.0, 1.25] | 1.0 | 12 | all     | true
"""


@cases(typed(GATES))
def test_an_experiment_goes_on_while_something_looks_worse(ratios, latency, most, gate, done):
    assert ExperimentJudge(most, gate=gate).decisions(pairs(ratios, latency))[CANARY].done is done


@cases([("all", None, 1), ("latency", None, 0), ("all", 0.0, 0)])
def test_the_exit_code(gate, claimed, code):
    """A claim concerns only latency, so it has no effect on the exit code for other measures."""
    arms = ArmSummary(name="a"), ArmSummary(name="b", settings={"cpus": "2"})
    result = Result(arms, pairs([0.8, 0.81, 0.79, 0.8, 0.8]), (), "clear", 9.0)
    found = ExperimentJudge(MOST, claimed=claimed, gate=gate).answer(CANARY, result)
    assert (found.exit_code, found.regressed, found.verdict) == (code, [AT_8], "equivalent")
    assert "B: cpus=2; throughput at batch 8 regressed -20.0 % [" in found.sentence
