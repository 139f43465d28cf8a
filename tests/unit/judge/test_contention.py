"""A host that others use: contended starts, CPU wait that each run measured itself, and a pace that varies."""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections import Counter
from collections.abc import Callable

import pytest

from infercanary.contract.bottleneck import QUEUED
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.restarts import taught_by
from infercanary.judge.result import Result
from infercanary.judge.verdict import Judge

judge = Judge().verdict

# (median, waited) in ms: the first 72 runs of a ResNet-18 whose one core others took again and again, of a stack test.
CROWDED = """
59 14 44 1 45 0 43 0 65 20 45 1 43 0 45 0 54 9 42 0 43 0 64 18 48 3 45 1 43 0 43 0 48 4 87 41 42 0 41 0
45 0 41 0 43 0 41 0 52 8 47 2 44 0 45 1 42 0 46 1 42 0 41 0 41 0 43 0 42 0 45 0 45 0 104 56 82 35 65 17
426 360 50 7 49 6 51 5 44 0 79 35 44 3 48 5 44 2 102 54 182 118 50 6 61 15 135 78 140 92 86 40 103 58 55
11 45 4 45 2 391 320 139 92 117 70 50 7 47 3 46 3 86 40 54 9 89 40 79 34
"""
BASELINE = list(zip(map(float, CROWDED.split()[::2]), map(float, CROWDED.split()[1::2]), strict=True))


def start(image: str, number: int, points: list[tuple[float, float | None]], threads: str = "1") -> Start:
    """A start whose runs took so many ms, of which so many were waiting (None: not known)."""
    generation = Generation(
        service="s", container="s", boot_id=f"{image}-{number}", image=image, image_id=image,
        started_at=1e6 + 1000 * number, environment={"torch_intra_op_threads": threads},
    )  # fmt: skip
    samples = [
        Sample(
            sequence=i, canary="c", started_at=generation.started_at + i, outcome="ok", repeats=10,
            median=median / 1e3, waited=None if waited is None else waited / 1e3,
            off_cpu={QUEUED: (waited or 0.0) / 1e3},
        )
        for i, (median, waited) in enumerate(points)
    ]  # fmt: skip
    return Start(generation, samples)


def steady(ms: float, runs: int, waits: float = 0.0, seed: int = 1) -> list[tuple[float, float | None]]:
    """Runs of so many ms of work, 1 % of noise, and now and then a wait of up to ``waits`` ms."""
    rng = random.Random(seed)
    each = [(ms * rng.lognormvariate(0, 0.01), max(0.0, rng.uniform(-waits, waits))) for _ in range(runs)]
    return [(work + waited, waited) for work, waited in each]


def judged(candidate: list[tuple[float, float | None]], threads: str = "1") -> Result:
    before = [(median, waited) for median, waited in BASELINE]
    return judge([start("old", 0, [*before], threads), start("new", 1, candidate, threads)], [], "c")


def test_twice_as_slow_is_called_although_others_crowded_the_baseline() -> None:
    found = judged(steady(90, 12))
    assert found.state == "regressed" and found.is_unwaited
    assert found.shift == pytest.approx(1.0, abs=0.15)
    assert "scheduling" not in found.causes.bottlenecks, "what each run waited is in neither"


def test_a_start_that_ended_before_its_first_run_changes_nothing() -> None:
    """As in the Compose stack's own trouble, made twice in a row."""
    old, new = start("old", 0, [*BASELINE]), start("new", 2, steady(90, 12))
    found = judge([old, start("new", 1, []), new], [], "c")
    assert found.state == "regressed" and found.is_unwaited


@pytest.mark.parametrize("runs", [12, 48, 192])
@pytest.mark.parametrize("waits", [0.0, 40.0, 150.0])
def test_the_same_work_is_never_called(runs: int, waits: float) -> None:
    """Also where a wait leaves the caches cold, which takes a tenth of it again."""
    for seed in range(5):
        points = [(m + 0.1 * (w or 0.0), w) for m, w in steady(44, runs, waits, seed)]
        assert judged(points).state not in ("regressed", "improved")


@pytest.mark.parametrize("seed", range(3))
def test_waiting_that_is_not_what_makes_the_runs_scatter_stays_in(seed: int) -> None:
    """Without it, the runs would still scatter by more than half: how long the rest lasts would be hidden."""

    def half_waiting(ms: float, runs: int, seed: int) -> list[tuple[float, float | None]]:
        rng = random.Random(seed)
        each = [(ms * rng.lognormvariate(0, 0.06), abs(rng.gauss(0, 6))) for _ in range(runs)]
        return [(work + waited, waited) for work, waited in each]

    old, new = half_waiting(44, 60, seed), half_waiting(44 * 1.3, 8, seed + 99)
    found = judge([start("old", 0, old), start("new", 1, new)], [], "c")
    assert found.state in ("inconclusive", "unconfirmed") and not found.is_unwaited


def test_of_several_threads_or_of_unknown_waiting_nothing_is_taken_out() -> None:
    assert not judged(steady(90, 12), threads="4").is_unwaited
    unknown = [(median, None if i % 3 else waited) for i, (median, waited) in enumerate(steady(90, 48))]
    assert not judged(unknown).is_unwaited


@pytest.mark.parametrize("few", [5, 7, 9])
def test_a_short_start_is_not_called_alone_if_the_waiting_of_a_longer_one_is_unknown(few: int) -> None:
    longer = start("new", 1, [(median, None) for median, _ in BASELINE[:60]])
    found = judge([start("old", 0, [*BASELINE]), longer, start("new", 2, steady(90, few))], [], "c")
    assert found.state == "inconclusive" and not found.is_unwaited


def contended(ms: float, runs: int, seed: int, share: float = 5.0) -> list[tuple[float, float | None]]:
    """Runs of so many ms of work that waited for a neighbour for about ``share`` times as long."""
    rng = random.Random(seed)
    each = [(ms * rng.lognormvariate(0, 0.01), ms * share * rng.lognormvariate(0, 0.5)) for _ in range(runs)]
    return [(work + waited, waited) for work, waited in each]


@pytest.mark.parametrize("threads", ["1", "4"])
@pytest.mark.parametrize("earlier", [1, 3])
def test_a_contended_start_teaches_no_restart_variance(threads: str, earlier: int) -> None:
    """The README's broken stack, all troubles at once: the next change was inconclusive, [-65 %, ×84]."""
    quiet = [start("old", number, steady(44, 60, 1.0, number), threads) for number in range(earlier)]
    old = [*quiet, start("old", earlier, contended(44, 60, 9), threads)]
    for runs in (12, 48):
        new = start("new", earlier + 1, steady(44 * 1.62, runs, 1.0, 7), threads)
        found = judge([*old, new], [], "c")
        assert found.state == "regressed" and found.shift == pytest.approx(0.62, abs=0.02), found.causes
        assert found.contended == 1 and found.restart.sd < 0.02
        same = start("new", earlier + 1, steady(44, runs, 1.0, 7), threads)
        assert judge([*old, same], [], "c").state in ("equivalent", "inconclusive")


def test_a_contended_start_is_compared_with_those_that_were_as_much() -> None:
    steady_load = [start("old", 0, steady(44, 60, 1.0), "4"), start("old", 1, contended(44, 60, 9), "4")]
    alike = judge([*steady_load, start("new", 2, contended(44, 60, 9), "4")], [], "c")
    assert alike.contended == 1 and alike.shift == pytest.approx(0.0, abs=0.02)
    # Without one that was as much, nothing is left out: a neighbour that comes and goes is no change of the image.
    for seed in range(5):
        found = judge([*steady_load, start("new", 2, contended(44, 48, seed, 2.0), "4")], [], "c")
        assert found.contended == 0 and found.state == "inconclusive"
    # Of one thread the runs know themselves what they waited.
    both = [start("old", 0, steady(44, 60, 1.0)), start("old", 1, contended(44, 60, 9))]
    found = judge([*both, start("new", 2, contended(71, 48, 5, 2.0))], [], "c")
    assert found.state == "regressed" and found.is_unwaited and found.shift == pytest.approx(0.61, abs=0.05)


def test_a_start_stays_where_no_other_is_there_or_nothing_is_known_of_its_waiting() -> None:
    alone = judge([start("old", 0, contended(44, 60, 9)), start("new", 1, steady(90, 12))], [], "c")
    assert alone.contended == 0
    unknown = [(median, None) for median, _ in contended(44, 60, 9)]
    found = judge(
        [start("old", 0, steady(44, 60)), start("old", 1, [*unknown]), start("new", 2, steady(90, 12))],
        [],
        "c",
    )
    assert found.contended == 0 and found.state == "inconclusive"


def test_a_contended_start_teaches_other_services_nothing_either() -> None:
    quiet = [start("old", number, steady(44, 60, 1.0, number)) for number in range(3)]
    taught = taught_by([*quiet, start("old", 3, contended(44, 60, 9))], LIVE.pool)
    assert taught is not None and taught.sd < 0.005 and taught.df == pytest.approx(2)


def varying(seed: int, sd: float) -> Callable[[float], float]:
    """A host that is at another level every 20 to 90 s: seconds to a factor."""
    rng = random.Random(seed)
    ends = [0.0]
    while ends[-1] < 5000:
        ends.append(ends[-1] + rng.uniform(20, 90))
    levels = [math.exp(abs(rng.gauss(0, sd))) for _ in ends]
    return lambda at: levels[bisect(ends, at) - 1]


@pytest.mark.parametrize(("slower", "call"), [(1.0, ""), (1.5, "regressed"), (0.6, "improved")])
def test_a_host_that_varies_is_no_change_and_hides_no_large_one(slower: float, call: str) -> None:
    calls = Counter[str]()
    for seed in range(20):
        rng, host = random.Random(seed), varying(seed, 0.12)

        def points(number: int, ms: float) -> list[tuple[float, float | None]]:
            times = [62.0 * number + 2 * i for i in range(26)]
            return [(ms * host(at) * rng.lognormvariate(0, 0.01), None) for at in times]  # noqa: B023 - called at once

        old = [start("old", number, points(number, 40.0)) for number in range(12)]
        new = [start("new", number, points(number, 40.0 * slower)) for number in (12, 13, 14)]
        calls[judge([*old, *new], [], "c").state] += 1
    assert set(calls) <= {call, "inconclusive", "unconfirmed", "equivalent"}
    assert not call or calls[call] >= 15, calls


@pytest.mark.parametrize("few", [0, 1, 7])
def test_a_start_of_a_few_runs_takes_no_verdict_back(few: int) -> None:
    old = [start("old", number, steady(44, 60, seed=number)) for number in range(3)]
    short, new = start("new", 3, steady(90, few)), start("new", 4, steady(90, 24))
    assert judge([*old, short, new], [], "c").state == "regressed"
