"""What is judged beside the latency, in ``ab``: from pairs of starts, as the latency is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from measured_starts import AT_8, CANARY, CHANGES, MOST, experiment
from msgspec.structs import replace

from infercanary.ab import answer, measures
from infercanary.ab.answer import ArmSummary
from infercanary.ab.experiment import Result, TurnPair
from infercanary.ab.turn import Turn
from infercanary.compare.measured import Gate
from infercanary.contract.measures import HOST_MEMORY
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import EXPERIMENT


def start(values: Mapping[str, Sequence[float]], runs: int = 12, seconds: float = 0.02) -> Start:
    samples = [
        Sample(
            i, CANARY, 1.7e9 + i, "ok", seconds + 1e-6 * i,
            measures={n: v[i] for n, v in values.items() if i < len(v)},
        )
        for i in range(runs)
    ]  # fmt: skip
    return Start(Generation(service="", container="", boot_id=str(id(samples)), started_at=1.7e9), samples)


@pytest.mark.parametrize("words", [*CHANGES])
def test_what_changed_is_called_and_nothing_else(words: str) -> None:
    for seed in range(8):
        found = experiment(CHANGES[words], (seed,))
        assert [*found.regressed] == [*CHANGES[words]]
        assert found.verdict != "regressed" and (found.exit_code == 1) == bool(CHANGES[words])


@pytest.mark.parametrize(
    ("name", "ratio", "state", "shift"),
    [
        (HOST_MEMORY, 1.3, "regressed", 0.3), (HOST_MEMORY, 0.7, "improved", -0.3),
        (HOST_MEMORY, 1.0, "equivalent", 0.0), (HOST_MEMORY, 1.04, "equivalent", 0.04),
        (AT_8, 0.8, "regressed", -0.2), (AT_8, 1.25, "improved", 0.25),
    ],
)  # fmt: skip
def test_a_verdict_is_in_the_measures_own_direction(
    name: str, ratio: float, state: str, shift: float
) -> None:
    """One value a start is enough, and starts that are the same to the byte make it certain."""
    pairs = [(start({name: [2e9]}), start({name: [2e9 * ratio]})) for _ in range(4)]
    (decision,) = measures.decide(pairs, MOST, EXPERIMENT)
    found = measures.verdict(decision)
    assert found.state == state and found.shift == pytest.approx(shift)
    assert found.low is not None and found.high is not None and found.low <= found.shift <= found.high  # type: ignore[operator]
    assert (found.before, found.after) == (pytest.approx(2e9), pytest.approx(2e9 * ratio))


def test_a_pair_that_lacks_a_measure_does_not_count_for_it() -> None:
    known, missing = start({AT_8: [250.0]}), start({})
    (decision,) = measures.decide([(known, known), (known, missing), (missing, known)], MOST, EXPERIMENT)
    assert len(decision.pairs) == 1
    assert measures.verdict(decision).state == "inconclusive" and measures.verdict(decision).shift is None
    assert measures.decide([(known, missing)], MOST, EXPERIMENT) == []


def pairs(ratios: Sequence[float], latency: float = 1.0) -> list[TurnPair]:
    """Of each pair, the throughput of B over that of A at batch 8; and of all, its latency over that of A."""
    sides = [
        [
            Turn({CANARY: start({AT_8: [250.0 * r]}, seconds=0.02 * slower)}, 0.4, {}, 9.0, 0.5)
            for r, slower in ((1.0, 1.0), (ratio, latency))
        ]
        for ratio in ratios
    ]
    return [TurnPair(a, b, i % 2 == 0) for i, (a, b) in enumerate(sides)]


def test_an_experiment_goes_on_while_something_looks_worse() -> None:
    unclear = pairs([1.0, 0.75, 1.0, 0.75])
    assert answer.decisions(unclear, MOST, gate="latency")[CANARY].done
    assert not answer.decisions(unclear, MOST)[CANARY].done
    assert answer.decisions(unclear, len(unclear))[CANARY].done  # but not for ever
    assert answer.decisions(pairs([1.0, 0.75], latency=2.0), MOST)[CANARY].done, "slower is the answer"
    better = pairs([1.0, 1.25, 1.0, 1.25])
    assert answer.decisions(better, MOST)[CANARY].done


@pytest.mark.parametrize(("gate", "code"), [("all", 1), ("latency", 0)])
def test_the_exit_code(gate: Gate, code: int) -> None:
    found = pairs([0.8, 0.81, 0.79, 0.8, 0.8])
    a, b = (ArmSummary(name=n, starts=0, failed_starts=0, runs=0) for n in "ab")
    b = replace(b, settings={"cpus": "2"})
    each = answer.summarize(CANARY, Result(found, (), "clear", 9.0), a, b, MOST, gate=gate).compared
    assert (each.exit_code, each.regressed, each.verdict) == (code, [AT_8], "equivalent")
    assert "; B: cpus=2; throughput at batch 8 regressed -20.0 % [" in each.sentence
    claimed = answer.summarize(CANARY, Result(found, (), "clear", 9.0), a, b, MOST, claimed=0.0, gate=gate)
    assert claimed.compared.exit_code == 0  # the claim is about latency
