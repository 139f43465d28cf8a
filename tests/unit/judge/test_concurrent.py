"""Replicas that stay on the old image beside an upgrade: a baseline of the same minutes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from infercanary.judge.align import Alignment
from infercanary.judge.model import Start
from infercanary.judge.policy import LIVE
from infercanary.judge.pooling import Pooling, Replica
from infercanary.judge.sequential import SequentialTest
from infercanary.judge.shift import CHANGED, Pooled, Restarts
from infercanary.judge.statistics import Series
from infercanary.judge.verdict import Judge
from tests.factories import changed, since, start

judge, trials = Judge().verdict, Judge().trials
pairs = Alignment(LIVE.pool).pairs

UPGRADE = 10_000.0


def made(
    container: str, at: float, runs: int, image: str = "old", *, slower: float = 0.0, later: float = 0.0,
    host: float = 0.0, **fields: Any,
) -> Start:  # fmt: skip
    """A start slower by ``slower``, and from the upgrade on by ``later`` and, as its control is, by ``host``."""
    level = 0.02 * (1 + slower) * math.exp(random.Random(f"{container} {at}").gauss(0, 0.003))
    seconds, control = since(UPGRADE, (1 + host) * (1 + later), level), since(UPGRADE, 1 + host, 0.001)
    return start(container, image, at, seconds, runs, control=control, **fields)


def new(container: str = "canary", runs: int = 48, after: float = 0.0, **fields: Any) -> Start:
    """A start of the new image, so long after the upgrade."""
    return made(container, UPGRADE + after, runs, "new", **fields)


def earlier(containers: int, runs: int = 110, **last: Any) -> list[Start]:
    """Seven starts of each, the last of which runs until the upgrade; of all but the first one, on beside it."""
    return [
        made(f"r{i}", at + i, runs if i and at > 9000 else 60, **last if at > 9000 else {})
        for at in (*(1000.0 * n for n in range(1, 7)), 9399.0)
        for i in range(containers)
    ]


def old(count: int, at: float = 8000.0, runs: int = 300, **fields: Any) -> list[Start]:
    """Replicas that stay."""
    return [made(f"r{i}", at + i, runs, **fields) for i in range(count)]


def slowed(
    made: Start, factor: float, after: float = -math.inf, until: float = math.inf, **values: Any
) -> Start:
    """``made`` with that factor, and these values, in its runs of some minutes."""
    there = [after <= s.started_at < until for s in made.samples]
    samples = changed(made, median=lambda s: factor * s.median, **values).samples
    return Start(
        made.generation,
        [a if is_there else b for a, b, is_there in zip(samples, made.samples, there, strict=True)],
    )


def restless(starts: Sequence[Start], sd: float) -> list[Start]:
    """With noise of the host until the upgrade, which lasts from run to run."""
    rng, last = random.Random(2), 0.0

    def noisy(s: Any) -> float:
        nonlocal last
        last = 0.8 * last + rng.gauss(0, 0.6 * sd)
        return float(s.median * math.exp(last * (s.started_at < UPGRADE)))

    return [changed(each, median=noisy) for each in starts]


# Replicas that stay, what the host did, what the image did, what one that stays did by itself, the name of the new one.
@pytest.mark.parametrize(
    ("stay", "host", "slower", "later", "name", "states"),
    [
        (0, 0.1, 0.0, 0.0, "r0", "regressed"),
        (0, -0.1, 0.0, 0.0, "r0", "improved"),
        (1, 0.1, 0.0, 0.0, "r0", "inconclusive"),  # one alone may have changed by itself
        (2, 0.1, 0.0, 0.0, "r0", "equivalent"),
        (3, -0.1, 0.0, 0.0, "r0", "equivalent"),
        (2, 0.1, 0.1, 0.0, "r0", "regressed"),
        (2, 0.0, 0.1, 0.0, "r0", "regressed"),
        (2, -0.1, 0.1, 0.0, "r0", "regressed"),
        (2, 0.1, 0.0, 0.0, "canary", "equivalent"),
        (2, -0.1, 0.1, 0.0, "canary", "regressed"),
        (1, 0.0, 0.0, 0.1, "r0", "unconfirmed"),
        (1, 0.0, 0.1, 0.1, "r0", "inconclusive"),
        (1, 0.0, 0.1, 0.0, "r0", "regressed"),  # the runs as they are show it
        (1, 0.1, 0.1, 0.0, "r0", "regressed"),
        (2, 0.0, 0.0, 0.1, "r0", "inconclusive unconfirmed equivalent"),
        (3, 0.0, 0.0, 0.1, "canary", "inconclusive unconfirmed equivalent"),
        (4, 0.0, 0.1, 0.2, "r0", "regressed"),
        (4, 0.0, 0.1, 0.2, "canary", "regressed"),
    ],
)
def test_what_the_host_did_to_all_replicas_is_not_the_images(
    stay: int, host: float, slower: float, later: float, name: str, states: str
) -> None:
    before = earlier(stay + 1, host=host)
    before[-1] = (
        made(f"r{stay}", before[-1].generation.started_at, 110, host=host, later=later)
        if later
        else before[-1]
    )
    found = judge([*before, new(name, slower=slower, host=host)], [], "c")
    assert found.state in states, found
    assert found.concurrent == stay
    if stay and stay < 3:
        moved = host + later * (stay == 1)
        assert found.concurrent_shift == pytest.approx(moved, abs=0.02 + later / 2 * (stay > 1))
    if slower and stay > 1 and not later:
        assert (found.causes.cause, found.shift) == ("image", pytest.approx(slower, abs=0.02))
    assert found.looks.needs_starts or found.state != "unconfirmed"


def test_the_image_is_not_credited_if_others_came_to_the_gpu_of_the_replicas_that_stayed() -> None:
    stayed = [
        slowed(s, 1.6, UPGRADE, tags=("gpu_busy",)) if s.generation.container != "r0" else s
        for s in earlier(3)
    ]
    found = judge([*stayed, new("r0")], [], "c")
    assert (found.state, found.causes.cause) == ("improved", "unknown"), found.causes


@pytest.mark.parametrize(("stay", "sd"), [(1, 0.1), (4, 0.3)])
def test_replicas_that_stay_and_are_the_baseline_count_by_their_runs_of_the_same_minutes(
    stay: int, sd: float
) -> None:
    """What the host did to them before is no noise of the shift: a canary's pod is beside the stable version."""
    stays = restless(old(stay), sd)
    same, slower = judge([*stays, new()], [], "c"), judge([*stays, new(slower=0.3)], [], "c")
    assert same.state not in CHANGED and same.concurrent == stay
    assert slower.state == "regressed" and slower.shift == pytest.approx(0.3, abs=0.02)
    assert slower.low is not None and slower.low > 0.1


def test_siblings_did_not_move_between_the_same_minutes() -> None:
    """What the replicas that stay recovered from was taken off siblings, which then blamed the host."""
    stays = [slowed(s, 1.5, until=UPGRADE) for s in old(2)]
    siblings = [made(f"x{i}", 8000.0 + i, 300, "other", service=f"x{i}") for i in range(3)]
    found = judge([*stays, new(slower=0.5)], siblings, "c")
    assert (found.state, found.causes.cause) == ("regressed", "image"), found.causes
    assert found.shift == pytest.approx(0.5, abs=0.02)
    assert (found.baseline, found.current) == (pytest.approx(0.02, rel=0.02), pytest.approx(0.03, rel=0.02))


@pytest.mark.parametrize(("host", "cause"), [("B", "host"), ("C", "image")])
def test_siblings_beside_the_new_image_on_another_host_show_that_host(host: str, cause: str) -> None:
    """Three replicas stay on host A; the new one is on host B."""
    stays = [s.reporting(host="A") for s in restless(old(3), 0.3)]
    beside = [made(f"x{i}", 8000.0 + i, 300, "other", service=f"x{i}", later=0.3, host=0.0) for i in range(3)]
    found = judge(
        [*stays, new(slower=0.3).reporting(host="B")], [s.reporting(host=host) for s in beside], "c"
    )
    assert (found.state, found.causes.cause) == ("regressed", cause), found.causes


@pytest.mark.parametrize("stay", [2, 4])
@pytest.mark.parametrize("moved", [-0.1, -0.3])
def test_by_what_those_that_stay_differ_is_not_smaller_for_many_restarts(stay: int, moved: float) -> None:
    rng = np.random.default_rng(3)
    before, after = ([np.exp(rng.normal(0, 0.005, 96)) for _ in range(count)] for count in (stay, 1))
    during = [np.exp(rng.normal(moved if not i else 0, 0.005, 96)) for i in range(stay)]
    ran, was, now = ([Series.of(points) for points in side] for side in (during, before, after))
    same = Replica(ran, now, [*zip(was, ran, strict=True)], is_same_period=True)
    found = Pooling().pooled([same], Restarts(0.005, 60.0))
    assert found is not None and abs(found.log) < 2.6 * found.restart_se + 0.005
    assert SequentialTest(LIVE.decide).assess(found).verdict not in CHANGED


def test_a_replica_without_any_beside_it_may_have_moved_as_those_beside_others_did() -> None:
    rng = np.random.default_rng(1)
    quiet = [np.exp(rng.normal(0, 0.005, 60)) for _ in range(6)]

    def found(beside: Sequence[tuple[Any, Any]]) -> Pooled:
        near = [(Series.of(was), Series.of(ran)) for was, ran in beside]
        sides = [([Series.of(quiet[i])], [Series.of(quiet[i + 1])]) for i in (0, 2)]
        replicas = [Replica(*pair, others) for pair, others in zip(sides, (near, []), strict=True)]
        pooled = Pooling().pooled(replicas, Restarts(0.01, 20.0))
        assert pooled is not None
        return pooled

    none, same, moved = found([]), found([(quiet[4], quiet[5])]), found([(quiet[4], 1.2 * quiet[5])])
    assert same.restart_se == pytest.approx(none.restart_se, rel=0.2)
    assert moved.restart_se > 1.3 * none.restart_se


# Which runs are of the same minutes --------------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "is_called"), [(0.3, True), (0.0, False)])
def test_a_few_new_starts_answer_for_all_if_these_do_not_contradict(others: float, is_called: bool) -> None:
    """A canary beside the old image, and then the rest of the rollout, when the old one is gone."""
    stays, rest = (
        restless(old(2, runs=260), 0.05),
        [new(f"m{i}", after=2000.0, slower=others) for i in range(2)],
    )
    canary = new(slower=0.3)
    assert (judge([*stays, canary, *rest], [], "c").state == "regressed") == is_called
    (pair,) = pairs(stays, [canary, *rest])
    assert pair.meanwhile is None, "less than half of them are beside it"


def test_a_few_new_starts_are_never_enough_for_equivalent() -> None:
    starts = [*(made(f"e{i}", 100.0 * i, 60) for i in range(8)), *restless(old(2, 5000.0, 560), 0.3), new()]
    bold = Judge(LIVE.but(smallest_effect=0.05)).verdict
    assert bold(starts, [], "c").state == "equivalent"
    rest = [new(f"m{i}", after=2000.0) for i in range(2)]
    assert bold([*starts, *rest], [], "c").state == "inconclusive"


def test_the_runs_of_the_same_minutes_are_those_of_every_class_of_hardware_or_of_none() -> None:
    """Replicas that run more seldom have six runs meanwhile: too few for a baseline."""
    classes = []
    for cpu, every, slower in (("Xeon", 10.0, 0.0), ("EPYC", 40.0, 0.5)):
        stays = [made(cpu + x, UPGRADE - 50 * every, 50 + int(250 / every), every=every) for x in "ab"]
        ran = restless([*stays, new(cpu, 24, slower=slower)], 0.3)
        classes += [s.reporting(host=cpu, environment={"cpu_model": cpu}) for s in ran]
    classes.sort(key=lambda s: s.generation.started_at)
    assert judge(classes, [], "c").shift == pytest.approx(math.sqrt(1.5) - 1, abs=0.1)


@pytest.mark.parametrize("count", [16, 17])
def test_the_first_16_new_starts_count(count: int) -> None:
    stays = restless(old(2, runs=240), 0.3)
    several = [new(f"n{i}", 24, float(i), slower=0.3) for i in range(count)]
    found = judge([*stays, *several], [], "c")
    assert found.state == "regressed" and found.low is not None and found.low > 0.2
    (pair,) = pairs(stays, several)
    assert pair.meanwhile is not None and len(pair.meanwhile.after) == 16


def test_a_replica_beside_one_of_many_new_starts_confirms_nothing() -> None:
    """Two stay beside the first new start; then one of them ends, and the other one becomes faster by itself."""
    a, b = restless([made("a", 8000.0, 230), made("b", 8000.0, 600)], 0.1)
    before = [*(made(f"e{i}", 100.0 * i, 60) for i in range(16)), a, slowed(b, 0.67, UPGRADE + 900)]
    after = [new("n1", 30), *(new(f"n{i}", after=1500.0 + i) for i in range(2, 10))]
    assert judge([*before, *after], [], "c").state not in CHANGED


def test_a_new_start_counts_as_long_as_an_old_one_ran_beside_it() -> None:
    """Of a rolling update, in whose minutes pulls and loads of models make the host slower."""
    (pair,) = pairs([made("r0", 8000.0, 206), made("r1", 8000.0, 240)], [new(runs=96)])
    assert pair.meanwhile is not None and len(pair.meanwhile.after[0].samples) == 42
    assert [s.generation.container for s in pair.meanwhile.before] == ["r1"]
    (few,) = pairs(old(1), [new(runs=5)])
    assert few.concurrent and few.meanwhile is None, "five runs on the old image are no baseline"


def test_the_picture_of_the_same_minutes_has_the_same_minutes() -> None:
    every = [*restless(old(2, runs=400), 0.3), new(runs=192, slower=0.1)]
    found = judge([slowed(each, 1.5, 11_000.0) for each in every], [], "c")
    before, after = (float(np.median(side)) for side in found.medians)
    assert after / before == pytest.approx(1.1, abs=0.05)


def test_memory_is_compared_with_nobodys_same_minutes() -> None:
    assert LIVE.for_measures(loads=True).pool.concurrent_starts == LIVE.pool.concurrent_starts
    (pair,) = Alignment(LIVE.for_measures().pool).pairs(old(2, 9000.0, 200), [new()])
    assert not pair.concurrent and pair.meanwhile is None


def test_pods_that_ended_do_not_differ_from_those_that_stay_by_what_the_host_did() -> None:
    ended = [made(f"e{i}", 7000.0 + i, 100, host=0.2) for i in range(4)]
    several = [new(f"n{i}", after=float(i), slower=0.15, host=0.2) for i in range(2)]
    found = judge([*ended, *old(4, host=0.2), *several], [], "c")
    assert found.state == "regressed" and found.shift == pytest.approx(0.15, abs=0.02)
    assert found.low is not None and found.low > 0.12


def test_a_start_is_compared_with_the_minutes_in_which_it_ran_itself() -> None:
    """The first rollout was beside a neighbour that slowed all; the second one was not."""
    stays = [slowed(s, 1.5, until=UPGRADE + 500) for s in old(1, runs=450)]
    several = [new("n0", 40, slower=1.1 * 1.5 - 1), new("n1", 40, 2000.0, slower=0.1)]
    assert judge([*stays, *several], [], "c").shift == pytest.approx(0.1, abs=0.01)
    (whole,) = pairs(stays, several)
    assert whole.meanwhile is not None
    (ran,) = whole.meanwhile.before
    assert ran.times.size == 80 and not ((ran.times > UPGRADE + 500) & (ran.times < UPGRADE + 2000)).any()


def test_the_judge_waits_for_runs_of_the_same_minutes() -> None:
    """A new start may run more often than others at first, and its first runs are no others' minutes."""
    stays, quick = [made("r0", 9000.0, 60), made("r1", 9000.0, 200)], new("r0", 200, every=2.0)
    looks = {runs: pairs(stays, [quick.first(runs)]) for runs in LIVE.decide.looks}
    assert not looks[5] and not looks[12] and len(looks[24]) == 1
    (beside,) = looks[24][0].concurrent
    assert [s.started_at - UPGRADE for s in beside.during.samples] == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert beside.before.samples[-1].started_at == UPGRADE - 10
    assert judge([*(s.until(UPGRADE + 9) for s in stays), quick.first(5)], [], "c").state == "settling"
    # A replica that runs more seldom than that is not waited for, and counts once it has run often enough.
    seldom = [stays[0], made("r1", 0.0, 300, every=60.0)]
    assert [pair.concurrent for pair in pairs(seldom, [quick.first(5)])] == [[]]
    assert [len(pair.concurrent) for pair in pairs(seldom, [quick])] == [1]


@pytest.mark.parametrize(("slower", "states"), [(0.0, "equivalent inconclusive"), (0.3, "regressed")])
def test_replicas_that_are_upgraded_seconds_later_are_not_waited_for(slower: float, states: str) -> None:
    before = [made(f"r{i}", 9400.0 + 5 * i, 60 + i) for i in range(3)]
    found = judge([*before, *(new(f"r{i}", 24, 20.0 * i, slower=slower) for i in range(3))], [], "c")
    assert found.state in states and not found.concurrent and found.starts == 6


@pytest.mark.parametrize("every", [3.0, 29.0])
def test_any_number_of_runs_beside_is_judged(every: float) -> None:
    stays, after = made("r1", 9000.0, int(2900 / every), every=every), new("r0", 60, slower=0.3)
    states = [
        judge([made("r0", 9400.0, 60), stays.until(after.times[runs - 1]), after.first(runs)], [], "c").state
        for runs in range(5, 60, 2)
    ]
    assert states[-1] == "regressed" and {*states} <= {"settling", "inconclusive", "unconfirmed", "regressed"}


def test_the_runs_after_a_look_do_not_change_it() -> None:
    """What replicas do hours later is no part of a shift."""
    starts = [*earlier(3, 300, host=0.05), new(runs=200, host=0.05)]
    verdict = Judge(LIVE.but(looks=(8, 24))).verdict
    early, late = (verdict(each, [], "c") for each in ([s.until(UPGRADE + 235) for s in starts], starts))
    assert early.state == late.state == "equivalent"
    assert (early.shift, early.low, early.concurrent) == (late.shift, late.low, late.concurrent)


def test_the_last_replica_of_a_rolling_update_has_none_beside_it() -> None:
    """What the host did to all when the update came is not taken off its shift, and is no change of the image."""
    before = [s for s in earlier(3) if s.generation.started_at < 9000]
    before += [made(f"r{i}", 9399.0 + i, 60 + 60 * i, host=0.1) for i in range(3)]
    found = judge([*before, *(new(f"r{i}", 150, 600.0 * i + 5, host=0.1) for i in range(3))], [], "c")
    assert found.state in ("equivalent", "inconclusive") and found.shift == pytest.approx(0, abs=0.02)


def test_trials_compare_with_replicas_that_ran_on() -> None:
    tried = [*earlier(3, host=0.1), made("r0", UPGRADE, 48, host=0.1)]
    boot = tried[-1].boot
    assert not trials(tried)[boot].called
    assert trials([s for s in tried if s.boot[0] == "r0"])[boot].called


def test_of_a_hundred_replicas_that_stay_16_are_compared_with() -> None:
    stays = [made(f"r{i}", 9000.0, 200 + i, host=0.1) for i in range(100)]
    (named,) = pairs([made("r0", 9000.0, 60), *stays[1:]], [new("r0", 60)])
    assert {ran.before.generation.container for ran in named.concurrent} == {f"r{i}" for i in range(1, 17)}
    (renamed,) = pairs(stays, [new(runs=60)])
    assert len(renamed.concurrent) == LIVE.pool.concurrent_starts == 16 and len(renamed.before) == 100
    assert max(s.samples[-1].started_at for s in renamed.before) < UPGRADE, (
        "no baseline reaches into the new image"
    )


def test_replicas_that_started_after_the_upgrade_take_the_place_of_none_that_was_there_before() -> None:
    """They have most runs meanwhile and none before, so nothing can be compared with them."""
    upgraded = {f"r{i}" for i in range(3)}
    before = [s.until(UPGRADE) if s.generation.container in upgraded else s for s in earlier(11, host=0.1)]
    after = [new(f"r{i}", after=0.1 * i, host=0.1) for i in range(3)]
    young = [made(f"y{i}", UPGRADE + 5 + i, 90, every=5.0, host=0.1) for i in range(24)]
    cut, whole = (
        Judge(policy).verdict([*before, *after, *young], [], "c")
        for policy in (LIVE, LIVE.but(concurrent_starts=1000))
    )
    assert cut.concurrent == whole.concurrent == 8
    assert cut.state == whole.state not in CHANGED and cut.shift == whole.shift


def test_a_look_has_the_same_replicas_beside_it_when_more_runs_came() -> None:
    fast = [made(f"f{i}", 9000.0, 240, every=5.0) for i in range(16)]  # until 200 s after the upgrade
    slow = [made(f"s{i}", 9000.0, 200) for i in range(16)]

    def beside(until: float) -> set[str]:
        (pair,) = pairs([fast[0].first(100), *(s.until(until) for s in [*fast[1:], *slow])], [new("f0", 12)])
        return {ran.before.generation.container for ran in pair.concurrent}

    assert beside(UPGRADE + 150) == beside(UPGRADE + 900)
