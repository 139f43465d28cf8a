"""Replicas that stay on the old image beside an upgrade: a baseline of the same minutes."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from infercanary.judge.align import Alignment
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.pooling import Pooling, Replica
from infercanary.judge.result import Result
from infercanary.judge.sequential import SequentialTest
from infercanary.judge.shift import CHANGED, Pooled, Restarts
from infercanary.judge.statistics import Series
from infercanary.judge.verdict import Judge

judge, trials = Judge().verdict, Judge().trials
pairs = Alignment(LIVE.pool).pairs

UPGRADE = 10_000.0


class Host:
    """On which containers are started, and which becomes slower by a ratio when the upgrade comes."""

    def __init__(self, slower: float = 0.0, seed: int = 1) -> None:
        self.rng = np.random.default_rng(seed)
        self.slower = slower

    def start(
        self, container: str, image: str, at: float, runs: int, *, slower: float = 0.0, later: float = 0.0,
        every: float = 10.0, service: str = "s",
    ) -> Start:  # fmt: skip
        """Slower by ``slower``, and by ``later`` from the upgrade on."""
        level = math.log(0.02) + self.rng.normal(0, 0.003) + math.log1p(slower)
        times = at + every * np.arange(runs)
        since = times >= UPGRADE
        noise = self.rng.normal(level, 0.005, runs) + since * (math.log1p(self.slower) + math.log1p(later))
        spin = math.log(0.001) + self.rng.normal(0, 0.003, runs) + since * math.log1p(self.slower)
        samples = [
            Sample(i, "c", t, "ok", math.exp(y), controls={"cpu_spin": math.exp(c)})
            for i, (t, y, c) in enumerate(zip(times.tolist(), noise.tolist(), spin.tolist(), strict=True))
        ]
        boot = f"{container}-{at}"
        g = Generation(service=service, container=container, boot_id=boot, started_at=at, image_id=image)
        return Start(g, samples)

    def earlier(self, containers: int, runs: int = 110) -> list[Start]:
        """Seven starts of each, the last of which runs until the upgrade; of all but the first one, on beside it."""
        return [
            self.start(f"r{i}", "old", at + i, 60 if at < 9000 or not i else runs)
            for at in (*(1000.0 * i for i in range(1, 7)), 9399.0)
            for i in range(containers)
        ]


def judged(
    host: Host, stay: int, *, slower: float = 0.0, runs: int = 48, name: str = "r0", later: float = 0.0
) -> Result:
    before = host.earlier(stay + 1)
    if later:
        before[-1] = host.start(f"r{stay}", "old", 9399.0, 110, later=later)
    return judge([*before, host.start(name, "new", UPGRADE, runs, slower=slower)], [], "c")


def beside_of(found: Result) -> tuple[int, float | None]:
    """How many replicas stayed on the old image, and their shift."""
    return found.concurrent, found.concurrent_shift


def slowed(
    start: Start, factor: float, since: float = -math.inf, until: float = math.inf, **values: object
) -> Start:
    """``start`` with that factor, and these values, in its runs of some minutes."""
    samples = [
        msgspec.structs.replace(s, median=factor * (s.median or 0.0), **values)
        if since <= s.started_at < until
        else s
        for s in start.samples
    ]
    return Start(start.generation, samples)


@pytest.mark.parametrize("drift", [0.1, -0.1])
def test_what_the_host_did_to_all_replicas_is_not_the_images(drift: float) -> None:
    host = Host(drift)
    alone = judge([*host.earlier(1), host.start("r0", "new", UPGRADE, 48)], [], "c")
    assert alone.state in CHANGED
    for stay in (1, 2, 3):
        judgement = judged(Host(drift), stay)
        # One alone may have changed by itself.
        assert judgement.state == ("equivalent" if stay > 1 else "inconclusive"), judgement.causes
        assert beside_of(judgement) == (stay, pytest.approx(drift, abs=0.01))


@pytest.mark.parametrize("drift", [0.1, 0.0, -0.1])
def test_an_image_is_called_whatever_the_host_did_to_all_replicas(drift: float) -> None:
    judgement = judged(Host(drift), 2, slower=0.1)
    assert judgement.state == "regressed" and judgement.shift == pytest.approx(0.1, abs=0.02)
    assert judgement.causes.cause == "image"
    assert beside_of(judgement) == (2, pytest.approx(drift, abs=0.01))


def test_the_image_is_not_credited_if_others_came_to_the_gpu_of_the_replicas_that_stayed() -> None:
    host = Host()
    stayed = [
        slowed(s, 1.6, UPGRADE, tags=("gpu_busy",)) if s.generation.container != "r0" else s
        for s in host.earlier(3)
    ]
    judgement = judge([*stayed, host.start("r0", "new", UPGRADE, 48)], [], "c")
    assert (judgement.state, judgement.causes.cause) == ("improved", "unknown"), judgement.causes


def test_a_container_of_another_name_is_compared_in_the_same_minutes() -> None:
    assert judged(Host(0.1), 2, name="canary").state == "equivalent"
    assert judged(Host(-0.1), 2, name="canary", slower=0.1).state == "regressed"


def restless(starts: list[Start], sd: float) -> list[Start]:
    """With noise of the host until the upgrade, which lasts from run to run."""
    rng, found = np.random.default_rng(2), []
    for start in starts:
        noise = np.zeros(len(start.samples))
        for i in range(1, noise.size):
            noise[i] = 0.8 * noise[i - 1] + rng.normal(0, 0.6 * sd)
        samples = [
            msgspec.structs.replace(s, median=(s.median or 0.0) * math.exp(x * (s.started_at < UPGRADE)))
            for s, x in zip(start.samples, noise.tolist(), strict=True)
        ]
        found.append(Start(start.generation, samples))
    return found


@pytest.mark.parametrize(("stay", "sd"), [(1, 0.1), (2, 0.3), (4, 0.3)])
def test_a_replica_that_stays_and_is_the_baseline_itself_counts_by_its_runs_of_the_same_minutes(
    stay: int, sd: float
) -> None:
    """What the host did to it before is no noise of the shift: a canary's pod is beside those of the stable version."""
    host = Host()
    old = restless([host.start(f"r{i}", "old", 8000.0, 300) for i in range(stay)], sd)
    same = judge([*old, host.start("canary", "new", UPGRADE, 48)], [], "c")
    slower = judge([*old, host.start("canary", "new", UPGRADE, 48, slower=0.3)], [], "c")
    assert same.state not in CHANGED and beside_of(same)[0] == stay
    assert slower.state == "regressed" and slower.shift == pytest.approx(0.3, abs=0.02)
    assert slower.low is not None and slower.low > 0.1


def test_siblings_did_not_move_between_the_same_minutes() -> None:
    """What the replicas that stay recovered from was taken off siblings, which then blamed the host."""
    host = Host()
    stay = [slowed(host.start(f"r{i}", "old", 8000.0 + i, 300), 1.5, until=UPGRADE) for i in range(2)]
    siblings = [host.start(f"x{i}", "other", 8000.0 + i, 300, service=f"x{i}") for i in range(3)]
    judgement = judge([*stay, host.start("canary", "new", UPGRADE, 48, slower=0.5)], siblings, "c")
    assert judgement.state == "regressed" and judgement.shift == pytest.approx(0.5, abs=0.02)
    assert judgement.causes.cause == "image", judgement.causes
    assert judgement.baseline == pytest.approx(0.02, rel=0.02), "of the same minutes"
    assert judgement.current == pytest.approx(0.03, rel=0.02)


def test_siblings_beside_the_new_image_on_another_host_show_that_host() -> None:
    """Three replicas stay on host A; the new one is on host B, where three siblings became slower, too."""
    host = Host()

    def on(name: str, starts: list[Start]) -> list[Start]:
        return [Start(msgspec.structs.replace(s.generation, host=name), s.samples) for s in starts]

    stay = on("A", restless([host.start(f"r{i}", "old", 8000.0 + i, 300) for i in range(3)], 0.3))
    beside = [host.start(f"x{i}", "other", 8000.0 + i, 300, service=f"x{i}", later=0.3) for i in range(3)]
    new = on("B", [host.start("canary", "new", UPGRADE, 48, slower=0.3)])
    judgement = judge([*stay, *new], on("B", beside), "c")
    assert judgement.state == "regressed" and judgement.causes.cause == "host", judgement.causes
    elsewhere = judge([*stay, *new], on("C", beside), "c")
    assert elsewhere.causes.cause == "image", elsewhere.causes


@pytest.mark.parametrize("stay", [2, 3, 4])
@pytest.mark.parametrize("moved", [-0.1, -0.3])
def test_by_what_those_that_stay_differ_is_not_smaller_for_many_restarts(stay: int, moved: float) -> None:
    rng = np.random.default_rng(3)
    before, new = ([np.exp(rng.normal(0, 0.005, 96)) for _ in range(count)] for count in (stay, 1))
    during = [np.exp(rng.normal(moved if not i else 0, 0.005, 96)) for i in range(stay)]
    sides = [[Series.of(points) for points in side] for side in (before, new)]
    ran = [Series.of(points) for points in during]
    same = Replica(ran, sides[1], [*zip(sides[0], ran, strict=True)], is_same_period=True)
    found = Pooling().pooled([same], Restarts(0.005, 60.0))
    assert found is not None and abs(found.log) < 2.6 * found.restart_se + 0.005
    assert SequentialTest(LIVE.decide).assess(found).verdict not in CHANGED


@pytest.mark.parametrize(("others", "is_called"), [(0.3, True), (0.0, False)])
def test_a_few_new_starts_answer_for_all_if_these_do_not_contradict(others: float, is_called: bool) -> None:
    """A canary beside the old image, and then the rest of the rollout, when the old one is gone."""
    host = Host()
    stays = restless([host.start(f"r{i}", "old", 8000.0, 260) for i in range(2)], 0.1)
    canary = host.start("n0", "new", UPGRADE, 48, slower=0.3)
    rest = [host.start(f"m{i}", "new", UPGRADE + 2000, 48, slower=others) for i in range(2)]
    assert (judge([*stays, canary, *rest], [], "c").state == "regressed") == is_called
    (pair,) = pairs(stays, [canary, *rest])
    assert pair.meanwhile is None, "less than half of them are beside it"


def test_a_few_new_starts_are_never_enough_for_equivalent() -> None:
    host = Host()
    stays = restless([host.start(f"r{i}", "old", 5000.0, 560) for i in range(2)], 0.3)
    earlier = [host.start(f"e{i}", "old", 100.0 * i, 60) for i in range(8)]
    canary = host.start("n0", "new", UPGRADE, 48)
    rest = [host.start(f"m{i}", "new", UPGRADE + 2000, 48) for i in range(2)]
    policy = LIVE.but(smallest_effect=0.05)
    assert Judge(policy).verdict([*earlier, *stays, canary], [], "c").state == "equivalent"
    assert Judge(policy).verdict([*earlier, *stays, canary, *rest], [], "c").state == "inconclusive"


@pytest.mark.parametrize("offset", [0.0, 3.0, 7.0])
def test_the_first_look_has_a_concurrent_baseline_whatever_the_phase(offset: float) -> None:
    host = Host()
    stays = [host.start("r0", "old", 8000.0 + offset, 300)]
    (pair,) = pairs(stays, [host.start("n0", "new", UPGRADE, 5)])
    assert pair.concurrent and pair.meanwhile is None, "five runs on the old image are no baseline"
    (pair,) = pairs(stays, [host.start("n0", "new", UPGRADE, 12)])
    assert pair.meanwhile is not None and len(pair.meanwhile.after[0].samples) == 12


@pytest.mark.parametrize("every", [10.0, 40.0])
def test_the_runs_of_the_same_minutes_are_those_of_every_class_of_hardware_or_of_none(every: float) -> None:
    """Replicas that run more seldom have six runs meanwhile: too few for a baseline."""
    host, classes = Host(), []
    for cpu, pace, slower in (("Xeon", 10.0, 0.0), ("EPYC", every, 0.5)):
        stays = [
            host.start(cpu + x, "old", UPGRADE - 50 * pace, 50 + int(250 / pace), every=pace) for x in "ab"
        ]
        new = host.start(cpu, "new", UPGRADE, 24, slower=slower)
        ran = restless([*stays, new], 0.3)
        classes += [start.reporting(host=cpu, environment={"cpu_model": cpu}) for start in ran]
    classes.sort(key=lambda start: start.generation.started_at)
    assert judge(classes, [], "c").shift == pytest.approx(math.sqrt(1.5) - 1, abs=0.1)


@pytest.mark.parametrize("count", [16, 17])
def test_the_first_16_new_starts_count(count: int) -> None:
    host = Host()
    stays = restless([host.start(f"r{i}", "old", 8000.0, 240) for i in range(2)], 0.3)
    new = [host.start(f"n{i}", "new", UPGRADE + i, 24, slower=0.3) for i in range(count)]
    found = judge([*stays, *new], [], "c")
    assert found.state == "regressed" and found.low is not None and found.low > 0.2
    (pair,) = pairs(stays, new)
    assert pair.meanwhile is not None and len(pair.meanwhile.after) == 16


@pytest.mark.parametrize("later", [-0.23, -0.33])
def test_a_replica_beside_one_of_many_new_starts_confirms_nothing(later: float) -> None:
    """Two stay beside the first new start; then one of them ends, and the other one becomes faster by itself."""
    host = Host()
    a, b = restless([host.start("a", "old", 8000.0, 230), host.start("b", "old", 8000.0, 600)], 0.1)
    earlier = [host.start(f"e{i}", "old", 100.0 * i, 60) for i in range(16)]
    first = host.start("n1", "new", UPGRADE, 30)
    second = [host.start(f"n{i}", "new", UPGRADE + 1500 + i, 48) for i in range(2, 10)]
    stays = [a, slowed(b, 1 + later, UPGRADE + 900)]
    assert judge([*earlier, *stays, first, *second], [], "c").state not in CHANGED


def test_a_new_start_counts_as_long_as_an_old_one_ran_beside_it() -> None:
    """Of a rolling update, in whose minutes pulls and loads of models make the host slower."""
    host = Host()
    stays = [
        host.start("r0", "old", 8000.0, 206),
        host.start("r1", "old", 8000.0, 240),
    ]  # one and six minutes
    (pair,) = pairs(stays, [host.start("n0", "new", UPGRADE, 96)])
    assert pair.meanwhile is not None and len(pair.meanwhile.after[0].samples) == 42
    assert [start.generation.container for start in pair.meanwhile.before] == ["r1"]


def test_the_picture_of_the_same_minutes_has_the_same_minutes() -> None:
    host = Host()
    stays = restless([host.start(f"r{i}", "old", 8000.0, 400) for i in range(2)], 0.3)
    all_of_them = [*stays, host.start("n0", "new", UPGRADE, 192, slower=0.1)]
    found = judge([slowed(each, 1.5, 11_000.0) for each in all_of_them], [], "c")
    before, after = (float(np.median(side)) for side in found.medians)
    assert after / before == pytest.approx(1.1, abs=0.05)


def test_memory_is_compared_with_nobodys_same_minutes() -> None:
    assert LIVE.for_measures().pool.concurrent_starts == 0
    assert LIVE.for_measures(loads=True).pool.concurrent_starts == LIVE.pool.concurrent_starts
    host = Host()
    stays = [host.start(f"r{i}", "old", 9000.0, 200) for i in range(2)]
    (pair,) = Alignment(LIVE.for_measures().pool).pairs(stays, [host.start("n0", "new", UPGRADE, 48)])
    assert not pair.concurrent and pair.meanwhile is None


def test_pods_that_ended_do_not_differ_from_those_that_stay_by_what_the_host_did() -> None:
    host = Host(0.2)
    ended = [host.start(f"e{i}", "old", 7000.0 + i, 100) for i in range(4)]
    stay = [host.start(f"r{i}", "old", 8000.0 + i, 300) for i in range(4)]
    new = [host.start(f"n{i}", "new", UPGRADE + i, 48, slower=0.15) for i in range(2)]
    judgement = judge([*ended, *stay, *new], [], "c")
    assert judgement.state == "regressed" and judgement.shift == pytest.approx(0.15, abs=0.02)
    assert judgement.low is not None and judgement.low > 0.12


def test_a_start_is_compared_with_the_minutes_in_which_it_ran_itself() -> None:
    """The first rollout was beside a neighbour that slowed all; the second one was not."""
    host = Host()
    stays = slowed(host.start("r0", "old", 8000.0, 450), 1.5, until=UPGRADE + 500)
    first = host.start("n0", "new", UPGRADE, 40, slower=1.1 * 1.5 - 1)
    second = host.start("n1", "new", UPGRADE + 2000, 40, slower=0.1)
    assert judge([stays, first, second], [], "c").shift == pytest.approx(0.1, abs=0.01)
    (whole,) = pairs([stays], [first, second])
    assert whole.meanwhile is not None
    (ran,) = whole.meanwhile.before
    assert ran.times.size == 80 and not ((ran.times > UPGRADE + 500) & (ran.times < UPGRADE + 2000)).any()


def test_one_replica_that_changed_by_itself_calls_nothing() -> None:
    judgement = judged(Host(), 1, later=0.1)
    assert judgement.state == "unconfirmed" and judgement.looks.needs_starts
    assert beside_of(judgement) == (1, pytest.approx(0.1, abs=0.01))
    hidden = judged(Host(), 1, slower=0.1, later=0.1)
    assert hidden.state == "inconclusive"  # and not equivalent
    for host in (0.0, 0.1):
        assert judged(Host(host), 1, slower=0.1).state == "regressed", "the runs as they are show it"


def test_one_of_several_replicas_that_changed_by_itself_calls_nothing() -> None:
    for stay in (2, 3, 4):
        assert judged(Host(), stay, later=0.1).state not in CHANGED
        assert judged(Host(), stay, later=0.1, name="canary").state not in CHANGED
    assert judged(Host(), 4, slower=0.1, later=0.2).state == "regressed"
    assert judged(Host(), 4, slower=0.1, later=0.2, name="canary").state == "regressed"


def test_the_judge_waits_for_runs_of_the_same_minutes() -> None:
    """A new start may run more often than others at first, and its first runs are no others' minutes."""
    host = Host(0.1)
    old = [host.start("r0", "old", 9000.0, 60), host.start("r1", "old", 9000.0, 200, every=10.0)]
    new = host.start("r0", "new", UPGRADE, 200, every=2.0)
    looks = {runs: pairs(old, [new.first(runs)]) for runs in LIVE.decide.looks}
    assert not looks[5] and not looks[12] and len(looks[24]) == 1
    (beside,) = looks[24][0].concurrent
    assert [s.started_at - UPGRADE for s in beside.during.samples] == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert beside.before.samples[-1].started_at == UPGRADE - 10
    early = judge([*(s.first(s.times.searchsorted(UPGRADE + 9).item()) for s in old), new.first(5)], [], "c")
    assert early.state == "settling"
    # A replica that runs more seldom than that is not waited for, and counts once it has run often enough.
    seldom = [old[0], host.start("r1", "old", 0.0, 300, every=60.0)]
    assert [pair.concurrent for pair in pairs(seldom, [new.first(5)])] == [[]]
    assert [len(pair.concurrent) for pair in pairs(seldom, [new])] == [1]


def test_replicas_that_are_upgraded_seconds_later_are_not_waited_for() -> None:
    host = Host()
    old = [host.start(f"r{i}", "old", 9400.0 + 5 * i, 60 + i) for i in range(3)]
    for slower, state in ((0.0, ("equivalent", "inconclusive")), (0.3, ("regressed",))):
        new = [host.start(f"r{i}", "new", UPGRADE + 20 * i, 24, slower=slower) for i in range(3)]
        judgement = judge([*old, *new], [], "c")
        assert judgement.state in state and not judgement.concurrent and judgement.starts == 6


@pytest.mark.parametrize("every", [3.0, 7.0, 10.0, 13.0, 17.0, 29.0])
def test_any_number_of_runs_beside_is_judged(every: float) -> None:
    host = Host()
    old = [
        host.start("r0", "old", 9400.0, 60),
        host.start("r1", "old", 9000.0, int(2900 / every), every=every),
    ]
    new = host.start("r0", "new", UPGRADE, 190, slower=0.3)
    states = []
    for runs in range(5, 60):
        seen = old[1].first(old[1].times.searchsorted(new.times[runs - 1]).item())
        states.append(judge([old[0], seen, new.first(runs)], [], "c").state)
    assert states[-1] == "regressed" and set(states) <= {
        "settling",
        "inconclusive",
        "unconfirmed",
        "regressed",
    }


def test_the_runs_after_a_look_do_not_change_it() -> None:
    """What replicas do hours later is no part of a shift."""
    host, policy = Host(0.05), LIVE.but(looks=(8, 24))
    before, new = host.earlier(3, 300), host.start("canary", "new", UPGRADE, 200)
    until = UPGRADE + 235
    early = Judge(policy).verdict(
        [s.first(s.times.searchsorted(until).item()) for s in (*before, new)], [], "c"
    )
    late = Judge(policy).verdict([*before, new], [], "c")
    assert early.state == late.state == "equivalent"
    assert (early.shift, early.low, early.concurrent) == (late.shift, late.low, late.concurrent)


def test_a_replica_without_any_beside_it_may_have_moved_as_those_beside_others_did() -> None:
    rng = np.random.default_rng(1)
    quiet = [np.exp(rng.normal(0, 0.005, 60)).tolist() for _ in range(6)]
    known, lone = (quiet[:1], quiet[1:2]), (quiet[2:3], quiet[3:4])
    still = [(Series.of(quiet[4]), Series.of(quiet[5]))]
    moved = [(Series.of(quiet[4]), Series.of([1.2 * x for x in quiet[5]]))]
    restarts = Restarts(0.01, 20.0)

    def found(beside: list[tuple[Series, Series]]) -> Pooled | None:
        sides = [[[Series.of(points) for points in side] for side in pair] for pair in (known, lone)]
        several = [Replica(old, new, near) for (old, new), near in zip(sides, (beside, []), strict=True)]
        return Pooling().pooled(several, restarts)

    none, same, other = found([]), found(still), found(moved)
    assert none is not None and same is not None and other is not None
    assert same.restart_se == pytest.approx(none.restart_se, rel=0.2)
    assert other.restart_se > 1.3 * none.restart_se


@pytest.mark.parametrize("stay", [2, 3, 4])
def test_the_last_replica_of_a_rolling_update_has_none_beside_it(stay: int) -> None:
    """What the host did to all when the update came is not taken off its shift, and is no change of the image."""
    host = Host(0.1)
    old = [s for s in host.earlier(stay) if s.generation.started_at < 9000]
    old += [host.start(f"r{i}", "old", 9399.0 + i, 60 + 60 * i) for i in range(stay)]
    new = [host.start(f"r{i}", "new", UPGRADE + 600 * i + 5, 150) for i in range(stay)]
    judgement = judge([*old, *new], [], "c")
    assert judgement.state in ("equivalent", "inconclusive") and judgement.shift == pytest.approx(0, abs=0.02)


def test_trials_compare_with_replicas_that_ran_on() -> None:
    host = Host(0.1)
    before = host.earlier(3)
    tried = trials([*before, host.start("r0", "old", UPGRADE, 48)])
    assert not tried["r0", f"r0-{UPGRADE}"].called
    alone = trials([s for s in [*before, host.start("r0", "old", UPGRADE, 48)] if s.boot[0] == "r0"])
    assert alone["r0", f"r0-{UPGRADE}"].called


def test_of_a_hundred_replicas_that_stay_16_are_compared_with_and_no_baseline_reaches_into_the_new_image() -> (
    None
):
    host = Host(0.1)
    old = [host.start(f"r{i}", "old", 9000.0, 200 + i) for i in range(100)]
    [of_name] = pairs([host.start("r0", "old", 9000.0, 60), *old[1:]], [host.start("r0", "new", UPGRADE, 60)])
    assert len(of_name.concurrent) == LIVE.pool.concurrent_starts == 16
    assert {c.before.generation.container for c in of_name.concurrent} == {f"r{i}" for i in range(1, 17)}
    [renamed] = pairs(old, [host.start("new", "new", UPGRADE, 60)])
    assert len(renamed.concurrent) == 16 and len(renamed.before) == 100
    assert max(s.samples[-1].started_at for s in renamed.before) < UPGRADE
    judgement = judged(host, 40)
    assert judgement.state not in CHANGED and beside_of(judgement)[1] == pytest.approx(0.1, abs=0.01)
    assert beside_of(judgement)[0] == 16


def test_replicas_that_are_started_after_the_upgrade_take_the_place_of_none_that_was_there_before() -> None:
    """They have most runs meanwhile and none before, so nothing can be compared with them."""
    host = Host(0.1)
    old = host.earlier(11)
    for i in range(3):  # those that are upgraded end
        old = [
            start.first(int(start.times.searchsorted(UPGRADE)))
            if start.generation.container == f"r{i}"
            else start
            for start in old
        ]
    new = [host.start(f"r{i}", "new", UPGRADE + 0.1 * i, 48) for i in range(3)]
    young = [host.start(f"y{i}", "old", UPGRADE + 5 + i, 90, every=5.0) for i in range(24)]
    cut = judge([*old, *new, *young], [], "c")
    whole = Judge(LIVE.but(concurrent_starts=1000)).verdict([*old, *new, *young], [], "c")
    assert beside_of(cut)[0] == beside_of(whole)[0] == 8
    assert cut.state == whole.state not in CHANGED
    assert cut.shift == whole.shift


def test_a_look_has_the_same_replicas_beside_it_when_more_runs_came() -> None:
    host = Host()
    fast = [
        host.start(f"f{i}", "old", 9000.0, 240, every=5.0) for i in range(16)
    ]  # until 200 s after the upgrade
    slow = [host.start(f"s{i}", "old", 9000.0, 200, every=10.0) for i in range(16)]
    new = host.start("f0", "new", UPGRADE, 12)

    def beside(until: float) -> set[str]:
        known = [start.first(int(start.times.searchsorted(until))) for start in [*fast[1:], *slow]]
        [pair] = pairs([fast[0].first(100), *known], [new])
        return {each.before.generation.container for each in pair.concurrent}

    assert beside(UPGRADE + 150) == beside(UPGRADE + 900)
