"""A shared host: contended starts, measured CPU wait of runs, and a varying run interval."""

import random

import pytest

from infercanary.contract.bottleneck import QUEUED
from infercanary.judge.policy import LIVE
from infercanary.judge.restarts import taught_by
from tests import factories
from tests.scenarios import cases

# (median, CPU wait) in ms: the first 72 runs of a ResNet-18 in a stack test, whose only core other processes
# often used.
CROWDED = """
59 14 44 1 45 0 43 0 65 20 45 1 43 0 45 0 54 9 42 0 43 0 64 18 48 3 45 1 43 0 43 0 48 4 87 41 42 0 41 0
45 0 41 0 43 0 41 0 52 8 47 2 44 0 45 1 42 0 46 1 42 0 41 0 41 0 43 0 42 0 45 0 45 0 104 56 82 35 65 17
426 360 50 7 49 6 51 5 44 0 79 35 44 3 48 5 44 2 102 54 182 118 50 6 61 15 135 78 140 92 86 40 103 58 55
11 45 4 45 2 391 320 139 92 117 70 50 7 47 3 46 3 86 40 54 9 89 40 79 34
"""
NUMBERS = [*map(float, CROWDED.split())]
BASELINE = [*zip(NUMBERS[::2], NUMBERS[1::2], strict=True)]


def start(image, number, points, threads="1"):
    waits = [None if waited is None else waited / 1e3 for _, waited in points]
    return factories.start(
        "a", image, 1e6 + 1000 * number, [median / 1e3 for median, _ in points], control=0, every=1.0,
        environment={"torch_intra_op_threads": threads}, waited=lambda i: waits[i],
        off_cpu=lambda i: {QUEUED: waits[i] or 0.0},
    )  # fmt: skip


def judge(*starts):
    return factories.judge(starts)


def runs_of(ms, runs, waits=0.0, seed=1, *, share=0.0, noise=0.01):
    """Return runs of ``ms`` of work, often with a wait up to ``waits`` ms, always with ``share`` times the work."""
    rng, found = random.Random(seed), []
    for _ in range(runs):
        work, waited = ms * rng.lognormvariate(0, noise), max(0.0, rng.uniform(-waits, waits))
        waited += ms * share * rng.lognormvariate(0, 0.5)
        found.append((work + waited, waited))
    return found


@cases([("1", 1, True), ("4", 1, False), ("1", 3, False)]
)  # fmt: skip
def test_twice_as_slow_is_called_although_others_crowded_the_baseline(threads, known, is_unwaited):
    new = [(m, w if i % known == 0 else None) for i, (m, w) in enumerate(runs_of(90, 48))]
    # A start that ended before its first run has no effect.
    found = judge(start("old", 0, BASELINE, threads), start("new", 1, []), start("new", 2, new, threads))
    assert found.is_unwaited == is_unwaited
    assert (found.state == "regressed") == is_unwaited
    if is_unwaited:
        assert found.shift == pytest.approx(1.0, abs=0.15)
        assert "scheduling" not in found.causes.bottlenecks  # the judge subtracts CPU wait on both sides


@pytest.mark.parametrize("runs", [12, 192])
@pytest.mark.parametrize("waits", [0.0, 40.0, 150.0])
def test_the_same_work_is_never_called(runs, waits):
    """A wait that leaves the caches cold costs another tenth of the wait; even then, the judge calls no change."""
    for seed in range(5):
        points = [(m + 0.1 * (w or 0.0), w) for m, w in runs_of(44, runs, waits, seed)]
        assert judge(start("old", 0, BASELINE), start("new", 1, points)).state not in (
            "regressed",
            "improved",
        )


@cases(range(3))
def test_waiting_that_is_not_what_makes_the_runs_scatter_stays_in(seed):
    """Without the CPU wait, the runs keep more than half of their scatter, so a subtraction would hide their
    variation.
    """
    old = runs_of(44, 60, 12, seed, noise=0.09)
    new = runs_of(44 * 1.3, 8, 12, seed + 99, noise=0.09)
    found = judge(start("old", 0, old), start("new", 1, new))
    assert found.state in ("inconclusive", "unconfirmed")
    assert not found.is_unwaited


@cases([5, 9])
def test_a_short_start_is_not_called_alone_if_the_waiting_of_a_longer_one_is_unknown(few):
    longer = start("new", 1, [(median, None) for median, _ in BASELINE[:60]])
    found = judge(start("old", 0, BASELINE), longer, start("new", 2, runs_of(90, few)))
    assert found.state == "inconclusive"
    assert not found.is_unwaited


def quiet(number, threads="1"):
    return start("old", number, runs_of(44, 60, 1.0, number), threads)


def contended(number, threads="1"):
    return start("old", number, runs_of(44, 60, seed=9, share=5.0), threads)


@pytest.mark.parametrize("threads", ["1", "4"])
@pytest.mark.parametrize("earlier", [1, 3])
@pytest.mark.parametrize("runs", [12, 48])
def test_a_contended_start_teaches_no_restart_variance(threads, earlier, runs):
    """Regression: a contended start counted as restart variance. The next change was inconclusive, [-65 %, ×84]."""
    old = [*(quiet(number, threads) for number in range(earlier)), contended(earlier, threads)]
    slow, same = (start("new", earlier + 1, runs_of(44 * by, runs, 1.0, 7), threads) for by in (1.62, 1.0))
    found = judge(*old, slow)
    assert found.state == "regressed" and found.shift == pytest.approx(0.62, abs=0.02), found.causes
    assert found.contended == 1
    assert found.restart.sd < 0.02
    assert judge(*old, same).state in ("equivalent", "inconclusive")
    if earlier > 1:
        taught = taught_by(old, LIVE.pool)
        # other services do not learn this variance either
        assert taught is not None and taught.sd < 0.005 and taught.df == pytest.approx(2)


def test_a_contended_start_is_compared_with_those_that_were_as_much():
    old = quiet(0, "4"), contended(1, "4")
    alike = judge(*old, contended(2, "4").reporting(image_id="new"))
    assert alike.contended == 1
    assert alike.shift == pytest.approx(0.0, abs=0.02)
    # Without a baseline start of similar contention, no start is excluded: a neighbour that comes and goes is
    # not a change of the image.
    for seed in range(5):
        found = judge(*old, start("new", 2, runs_of(44, 48, seed=seed, share=2.0), "4"))
        assert found.contended == 0
        assert found.state == "inconclusive"
    # With one thread, the CPU wait of each run is known.
    found = judge(quiet(0), contended(1), start("new", 2, runs_of(71, 48, seed=5, share=2.0)))
    assert found.state == "regressed"
    assert found.is_unwaited
    assert found.shift == pytest.approx(0.61, abs=0.05)


def test_a_start_stays_where_no_other_is_there_or_nothing_is_known_of_its_waiting():
    new = start("new", 2, runs_of(90, 12))
    assert judge(contended(0), new).contended == 0
    unknown = start("old", 1, [(s.median * 1e3, None) for s in contended(1).samples if s.median])
    found = judge(quiet(0), unknown, new)
    assert found.contended == 0
    assert found.state == "inconclusive"


@cases([0, 1, 7])
def test_a_start_of_a_few_runs_takes_no_verdict_back(few):
    old = [start("old", number, runs_of(44, 60, seed=number)) for number in range(3)]
    assert (
        judge(*old, start("new", 3, runs_of(90, few)), start("new", 4, runs_of(90, 24))).state == "regressed"
    )
