"""Replicas that stay on the old image during an upgrade form a concurrent baseline."""

import functools
import math
import random
from typing import Any

import numpy as np
import pytest

from infercanary.judge.align import Alignment
from infercanary.judge.model import Start
from infercanary.judge.policy import LIVE
from infercanary.judge.pooling import Pooling, Replica
from infercanary.judge.sequential import SequentialTest
from infercanary.judge.shift import CHANGED, Restarts
from infercanary.judge.statistics import Series
from infercanary.judge.verdict import Judge
from tests.factories import changed, judge, since, start
from tests.scenarios import cases, named

trials = Judge().trials
pairs: Any = Alignment(LIVE.pool).pairs
pooled: Any = Pooling().pooled

UPGRADE = 10_000.0


def made(
    container, at, runs, image="old", *, slower=0.0, later=0.0,
    host=0.0, **fields,
):  # fmt: skip
    """Return a start slower by ``slower``, and from the upgrade on by ``later`` and ``host`` (like its control)."""
    level = 0.02 * (1 + slower) * math.exp(random.Random(f"{container} {at}").gauss(0, 0.003))
    seconds, control = since(UPGRADE, (1 + host) * (1 + later), level), since(UPGRADE, 1 + host, 0.001)
    return start(container, image, at, seconds, runs, control=control, **fields)


def new(container="canary", runs=48, after=0.0, **fields):
    return made(container, UPGRADE + after, runs, "new", **fields)


def earlier(containers, runs=110, itself=0.0, **last):
    """Return seven starts of each replica. The last start runs until the upgrade, and beyond it for all but the
    first replica.

    From the upgrade on, the last replica changes by ``itself``.
    """
    changes = [0.0] * (containers - 1) + [itself]
    return [
        made(
            f"r{i}",
            at + i,
            runs if i and at > 9000 else 60,
            **last | {"later": changes[i]} if at > 9000 else {},
        )
        for at in (*(1000.0 * n for n in range(1, 7)), 9399.0)
        for i in range(containers)
    ]


def old(count, at=8000.0, runs=300, **fields):
    return [made(f"r{i}", at + i, runs, **fields) for i in range(count)]


def slowed(made, factor, after=-math.inf, until=math.inf, **values):
    there = [after <= s.started_at < until for s in made.samples]
    samples = changed(made, median=lambda s: factor * s.median, **values).samples
    return Start(
        made.generation,
        [a if is_there else b for a, b, is_there in zip(samples, made.samples, there, strict=True)],
    )


def restless(starts, sd):
    rng, last = random.Random(2), 0.0

    def noisy(s):
        nonlocal last
        last = 0.8 * last + rng.gauss(0, 0.6 * sd)
        return float(s.median * math.exp(last * (s.started_at < UPGRADE)))

    return [changed(each, median=noisy) for each in starts]


# Each line: name | starts | siblings | states; then cause, shift, and lowest lower end of its interval
# (percent), if known. A start is `container:at*runs`, then words after commas; a start of the new image is
# `+container:after*runs`. `x2` means two starts, a second apart. `earlier:3` means three replicas, of which
# the first is upgraded.
TABLE = """
the host, nobody stays | earlier:1,host=.1 +r0,host=.1 | | regressed
the host, faster, nobody stays | earlier:1,host=-.1 +r0,host=-.1 | | improved
the host, one stays, may be itself | earlier:2,host=.1 +r0,host=.1 | | inconclusive
the host, two stay | earlier:3,host=.1 +r0,host=.1 | | equivalent
the host, faster, three stay | earlier:4,host=-.1 +r0,host=-.1 | | equivalent
host and image | earlier:3,host=.1 +r0,host=.1,slower=.1 | | regressed image 10
image alone | earlier:3 +r0,slower=.1 | | regressed image 10
a faster host, a slower image | earlier:3,host=-.1 +r0,host=-.1,slower=.1 | | regressed image 10
the host, another name | earlier:3,host=.1 +canary,host=.1 | | equivalent
faster host, image, another name | earlier:3,host=-.1 +canary,host=-.1,slower=.1 | | regressed image 10
one stays, and changed by itself | earlier:2,itself=.1 +r0 | | unconfirmed
one stays, and hides the image | earlier:2,itself=.1 +r0,slower=.1 | | inconclusive
one stays, as it was | earlier:2 +r0,slower=.1 | | regressed
one stays, host and image | earlier:2,host=.1 +r0,host=.1,slower=.1 | | regressed
one of two changed by itself | earlier:3,itself=.1 +r0 | | UNCHANGED
one of three, another name | earlier:4,itself=.1 +canary | | UNCHANGED
one of four, and the image | earlier:5,itself=.2 +r0,slower=.1 | | regressed
the same, another name | earlier:5,itself=.2 +canary,slower=.1 | | regressed

others came to the GPU of those that stayed | earlier:3,factor=1.6,since=0,tags=gpu_busy +r0 | | improved unknown
a restless baseline, the same | r:8000*300,restless=.1 +canary | | UNCHANGED
a restless baseline, slower | r:8000*300,restless=.1 +canary,slower=.3 | | regressed image 30 10
four restless ones, the same | r:8000*300,x4,restless=.3 +canary | | UNCHANGED
four restless ones, slower | r:8000*300,x4,restless=.3 +canary,slower=.3 | | regressed image 30 10
siblings stood still | r:8000*300,x2,factor=1.5,until=0 +canary,slower=.5 | s:8000*300,x3 | regressed image 50
all felt | r:8000*300,x3,restless=.3,later=.3 +canary,slower=.3,later=.3 | s:8000*300,x3,later=.3 | regressed image 30
siblings there felt | ON_A | s:8000*300,x3,later=.3,on=B | regressed host
elsewhere they did | ON_A | s:8000*300,x3,later=.3,on=C | regressed image
the rest agrees | r:8000*260,x2,restless=.05 +canary,slower=.3 +m:2000,x2,slower=.3 | | regressed
the rest does not | r:8000*260,x2,restless=.05 +canary,slower=.3 +m:2000,x2 | | UNCHANGED
more than 16 new starts | r:8000*240,x2,restless=.3 +n:0*24,x17,slower=.3 | | regressed image 30 20
one of many | e:0*60,x9 a:8000*230 b:8000*400,restless=.1,factor=.67,since=900 +n:0*30 +m:1500,x8 | | UNCHANGED
pods ended | e:7000*100,x4,host=.2 r:8000*300,x4,host=.2 +n,x2,slower=.15,host=.2 | | regressed image 15 12
rolling update | ROLLING | | UNCHANGED
seconds later, the same | LATER +r0:0*24 +r1:20*24 +r2:40*24 | | UNCHANGED
seconds later, slower | LATER +r0:0*24,slower=.3 +r1:20*24,slower=.3 +r2:40*24,slower=.3 | | regressed
"""
SHORT = {
    "LATER": "r0:9400*60 r1:9405*61 r2:9410*62",
    "ROLLING": "r0:9399*60,host=.1 r1:9400*120,host=.1 r2:9401*180,host=.1 "
    "+r0:5*150,host=.1 +r1:605*150,host=.1 +r2:1205*150,host=.1",
    "ON_A": "r:8000*300,x3,restless=.3,on=A +canary,slower=.3,on=B",
    "UNCHANGED": "equivalent/inconclusive/unconfirmed",
}
TEXT = functools.reduce(lambda text, name: text.replace(name, SHORT[name]), SHORT, TABLE)


def starts_of(text):
    word, *words = text.split(",")
    place, _, runs = word.partition("*")
    name, _, at = place.partition(":")
    given = {key: value for key, _, value in (each.partition("=") for each in words if "=" in each)}
    on, tags, sd = given.pop("on", ""), given.pop("tags", ""), float(given.pop("restless", 0))
    values = {key: float(value) for key, value in given.items()}
    factor, after, until = (
        values.pop("factor", 1.0),
        values.pop("since", -UPGRADE),
        values.pop("until", UPGRADE),
    )
    numbers = range(next((int(each[1:]) for each in words if "=" not in each), 1))
    if name == "earlier":
        found = earlier(int(at), **values)
    elif name[0] == "+":
        found = [new(f"{name[1:]}{i or ''}", int(runs or 48), float(at or 0) + i, **values) for i in numbers]
    else:
        named = [(f"{name}{i}", float(at) + i) for i in numbers]
        found = [made(*each, int(runs), service=each[0] if name == "s" else "s", **values) for each in named]
    felt = {"tags": (tags,)} if tags else {}
    there = [s.generation.container != "r0" or not tags for s in found]
    found = restless(found, sd) if sd else found
    found = [
        slowed(s, factor, UPGRADE + after, UPGRADE + until, **felt) if is_there else s
        for s, is_there in zip(found, there, strict=True)
    ]
    return [s.reporting(host=on) for s in found]


@cases(named(TEXT))
def test_verdicts_with_staying_replicas(starts, siblings, expected):
    every = sorted(
        (s for word in starts.split() for s in starts_of(word)), key=lambda s: s.generation.started_at
    )
    found = judge(every, [s for word in siblings.split() for s in starts_of(word)])
    words = expected.split()
    states, cause, shift, low = words + ["", "", "", "-inf"][len(words) :]
    assert found.state in states, found
    assert cause in ("", found.causes.cause), found.causes
    if shift:
        assert found.shift == pytest.approx(float(shift) / 100, abs=0.02)
        assert found.low > float(low) / 100
    assert found.looks.needs_starts or found.state != "unconfirmed"


def test_the_shift_of_staying_replicas_is_shown():
    for stay, host in ((1, 0.1), (2, -0.1)):
        found = judge([*earlier(stay + 1, host=host), new("r0", host=host)])
        assert (found.concurrent, found.concurrent_shift) == (stay, pytest.approx(host, abs=0.01))
    found = judge([*[slowed(s, 1.5, until=UPGRADE) for s in old(2)], new(slower=0.5)])
    assert (found.baseline, found.current) == (pytest.approx(0.02, rel=0.02), pytest.approx(0.03, rel=0.02))
    (pair,) = pairs(old(2, runs=260), [new(), *(new(f"m{i}", after=2000.0) for i in range(2))])
    assert pair.meanwhile is None
    (pair,) = pairs(old(2, runs=240), [new(f"n{i}", 24, float(i)) for i in range(17)])
    assert len(pair.meanwhile.after) == 16


@pytest.mark.parametrize("stay", [2, 4])
@pytest.mark.parametrize("moved", [-0.1, -0.3])
def test_by_what_those_that_stay_differ_is_not_smaller_for_many_restarts(stay, moved):
    rng = np.random.default_rng(3)
    before, after = ([np.exp(rng.normal(0, 0.005, 96)) for _ in range(count)] for count in (stay, 1))
    during = [np.exp(rng.normal(moved if not i else 0, 0.005, 96)) for i in range(stay)]
    ran, was, now = ([Series.of(points) for points in side] for side in (during, before, after))
    same = Replica(ran, now, [*zip(was, ran, strict=True)], is_same_period=True)
    found = pooled([same], Restarts(0.005, 60.0))
    assert abs(found.log) < 2.6 * found.restart_se + 0.005
    assert SequentialTest(LIVE.decide).assess(found).verdict not in CHANGED


def test_a_replica_without_any_beside_it_may_have_moved_as_those_beside_others_did():
    """Two shifts in opposite directions must not cancel: only their sizes count."""
    rng = np.random.default_rng(1)

    def error(*factors):
        was, ran = ([Series.of(np.exp(rng.normal(0, 0.005, 60))) for _ in "abc"] for _ in "12")
        moved = [Series.of(factor * np.exp(y.logs)) for factor, y in zip(factors, ran, strict=True)]
        near = [Replica([a], [b], [(a, b)]) for a, b in zip(was, moved, strict=False)]
        return pooled([*near, Replica(was[2:], ran[2:])], Restarts(0.01, 20.0)).restart_se

    assert error(1.2, 1 / 1.2, 1.0) > 1.1 * error(1.0, 1.0, 1.0)


# Concurrent runs -------------------------------------------------------------------------------------------------


def test_a_few_new_starts_are_never_enough_for_equivalent():
    starts = [*(made(f"e{i}", 100.0 * i, 60) for i in range(8)), *restless(old(2, 5000.0, 560), 0.3), new()]
    assert judge(starts, smallest_effect=0.05).state == "equivalent"
    rest = [new(f"m{i}", after=2000.0) for i in range(2)]
    assert judge([*starts, *rest], smallest_effect=0.05).state == "inconclusive"


def test_the_runs_of_the_same_minutes_are_those_of_every_class_of_hardware_or_of_none():
    """Replicas with rare runs have six runs in the period, which are too few for a baseline."""
    classes = []
    for cpu, every, slower in (("Xeon", 10.0, 0.0), ("EPYC", 40.0, 0.5)):
        stays = [made(cpu + x, UPGRADE - 50 * every, 50 + int(250 / every), every=every) for x in "ab"]
        ran = restless([*stays, new(cpu, 24, slower=slower)], 0.3)
        classes += [s.reporting(host=cpu, environment={"cpu_model": cpu}) for s in ran]
    classes.sort(key=lambda s: s.generation.started_at)
    assert judge(classes).shift == pytest.approx(math.sqrt(1.5) - 1, abs=0.1)


def test_a_new_start_counts_as_long_as_an_old_one_ran_beside_it():
    """In a rolling update, image pulls and model loads slow the host."""
    # The replicas run during 70 %, 100 % and 80 % of the new start's runs. Three quarters are enough for a
    # baseline.
    stays = [made(name, 8000.0, runs) for name, runs in (("r0", 227), ("r1", 240), ("r2", 231))]
    (pair,) = pairs(stays, [new(runs=96)])
    assert len(pair.meanwhile.after[0].samples) == 42
    assert [s.generation.container for s in pair.meanwhile.before] == ["r1", "r2"]
    (few,) = pairs(old(1), [new(runs=5)])
    assert few.concurrent and few.meanwhile is None  # five runs on the old image are too few for a baseline


def test_the_picture_of_the_same_minutes_has_the_same_minutes():
    every = [*restless(old(2, runs=400), 0.3), new(runs=192, slower=0.1)]
    found = judge([slowed(each, 1.5, 11_000.0) for each in every])
    before, after = (float(np.median(side)) for side in found.medians)
    assert after / before == pytest.approx(1.1, abs=0.05)


def test_memory_is_compared_with_nobodys_same_minutes():
    assert LIVE.for_measures(loads=True).pool.concurrent_starts == LIVE.pool.concurrent_starts
    (pair,) = Alignment(LIVE.for_measures().pool).pairs(old(2, 9000.0, 200), [new()])
    assert not pair.concurrent
    assert pair.meanwhile is None


def test_a_start_is_compared_with_the_minutes_in_which_it_ran_itself():
    """A neighbour slowed all containers during the first rollout, but not during the second."""
    stays = [slowed(s, 1.5, until=UPGRADE + 500) for s in old(1, runs=450)]
    several = [new("n0", 40, slower=1.1 * 1.5 - 1), new("n1", 40, 2000.0, slower=0.1)]
    assert judge([*stays, *several]).shift == pytest.approx(0.1, abs=0.01)
    (whole,) = pairs(stays, several)
    (ran,) = whole.meanwhile.before
    assert ran.times.size == 80
    assert not ((ran.times > UPGRADE + 500) & (ran.times < UPGRADE + 2000)).any()


def test_the_judge_waits_for_runs_of_the_same_minutes():
    """At first, a new start may run more often than the others, which then lack runs in the same period."""
    stays, quick = [made("r0", 9000.0, 60), made("r1", 9000.0, 200)], new("r0", 200, every=2.0)
    looks = {runs: pairs(stays, [quick.first(runs)]) for runs in LIVE.decide.looks}
    assert not looks[5]
    assert not looks[12]
    assert len(looks[24]) == 1
    (beside,) = looks[24][0].concurrent
    assert [s.started_at - UPGRADE for s in beside.during.samples] == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert beside.before.samples[-1].started_at == UPGRADE - 10
    assert judge([*(s.until(UPGRADE + 9) for s in stays), quick.first(5)]).state == "settling"
    # The judge does not wait for a replica with rarer runs; the replica counts once it has enough runs.
    seldom = [stays[0], made("r1", 0.0, 300, every=60.0)]
    assert [pair.concurrent for pair in pairs(seldom, [quick.first(5)])] == [[]]
    assert [len(pair.concurrent) for pair in pairs(seldom, [quick])] == [1]


def test_the_runs_after_a_look_do_not_change_it():
    starts = [*earlier(3, 300, host=0.05), new(runs=200, host=0.05)]
    early, late = (judge(each, looks=(8, 24)) for each in ([s.until(UPGRADE + 235) for s in starts], starts))
    assert early.state == late.state == "equivalent"
    assert (early.shift, early.low, early.concurrent) == (late.shift, late.low, late.concurrent)


def test_trials_compare_with_replicas_that_ran_on():
    tried = [*earlier(3, host=0.1), made("r0", UPGRADE, 48, host=0.1)]
    boot = tried[-1].boot
    assert not trials(tried)[boot].called
    assert trials([s for s in tried if s.boot[0] == "r0"])[boot].called


def test_comparison_with_16_of_a_hundred_staying_replicas():
    stays = [made(f"r{i}", 9000.0, 200 + i if i > 4 else 106, host=0.1) for i in range(100)]
    (named,) = pairs([made("r0", 9000.0, 60), *stays[1:]], [new("r0", 60)])
    assert {ran.before.generation.container for ran in named.concurrent} == {f"r{i}" for i in range(5, 21)}
    (renamed,) = pairs(stays, [new(runs=60)])
    assert len(renamed.concurrent) == LIVE.pool.concurrent_starts == 16
    assert len(renamed.before) == 100
    # a baseline has no runs after the upgrade
    assert max(s.samples[-1].started_at for s in renamed.before) < UPGRADE


def test_replicas_that_started_after_the_upgrade_take_the_place_of_none_that_was_there_before():
    """Replicas that started after the upgrade have no runs before it, so the judge cannot compare them."""
    upgraded = {f"r{i}" for i in range(3)}
    before = [s.until(UPGRADE) if s.generation.container in upgraded else s for s in earlier(11, host=0.1)]
    after = [new(f"r{i}", after=0.1 * i, host=0.1) for i in range(3)]
    young = [made(f"y{i}", UPGRADE + 5 + i, 90, every=5.0, host=0.1) for i in range(24)]
    cut, whole = (judge([*before, *after, *young], concurrent_starts=most) for most in (16, 1000))
    assert cut.concurrent == whole.concurrent == 8
    assert cut.state == whole.state not in CHANGED
    assert cut.shift == whole.shift
