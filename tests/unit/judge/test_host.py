"""A host that varies: what siblings felt is taken out of a canary's runs, and nothing else is."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from statistics import median

import msgspec
import pytest
from infercanary.judge.decide import Decision
from infercanary.judge.estimate import Estimate, Look
from infercanary.judge.host import adjust

from infercanary.judge.align import Runs
from infercanary.judge.causes import _without_host
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import FILES, LIVE
from infercanary.judge.restarts import restarts_of
from infercanary.judge.result import Causes, Result
from infercanary.judge.sentence import sentence
from infercanary.judge.shift import Shift
from infercanary.judge.statistics import assess, prior
from infercanary.judge.trials import trials
from infercanary.judge.upgrade import Selection
from infercanary.judge.verdict import Judge

judge = Judge().verdict

RUNS, EVERY, STARTS = 26, 2.0, 12
Level = Callable[[float], float]
"""Time in seconds to a logarithm: how slow something is then."""


def variation(seed: int, sd: float) -> Level:
    """A host that is at another level every 20 to 90 seconds."""
    rng = random.Random(seed)
    ends, levels, at = [], [], 0.0
    while at < 100_000:
        at += rng.uniform(20, 90)
        ends.append(at)
        levels.append(abs(rng.gauss(0, sd)))

    def level(time: float) -> float:
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if ends[middle] <= time else (low, middle)
        return levels[low]

    return level


def start(
    service: str, number: int, at: float, runs: int, level: Level, seed: int, image: str = "old"
) -> Start:
    rng = random.Random(f"{service} {number} {seed}")
    generation = Generation(
        service=service,
        container=service,
        boot_id=f"{service}-{number}",
        image=image,
        image_id=image,
        started_at=at,
    )
    samples = [
        Sample(
            sequence=i, canary="c", started_at=at + EVERY * i, outcome="ok", repeats=10,
            median=0.04 * math.exp(level(at + EVERY * i)) * rng.lognormvariate(0, 0.01),
            controls={"cpu_spin": 0.0003 * rng.lognormvariate(0, 0.003)},
        )
        for i in range(runs)
    ]  # fmt: skip
    return Start(generation, samples)


def upgraded(host: Level, change: float, seed: int, beside: list[Level]) -> tuple[list[Start], list[Start]]:
    """Twelve starts of one image, three of the next one; and siblings, which go on all the time."""
    pace = RUNS * EVERY + 10
    restart = random.Random(seed)
    own = []
    for number in range(STARTS + 3):
        of_start = restart.gauss(0, 0.003) + (math.log1p(change) if number >= STARTS else 0.0)
        image = "new" if number >= STARTS else "old"
        own.append(
            start("own", number, pace * number, RUNS, lambda t, s=of_start: host(t) + s, seed, image)  # type: ignore[misc]
        )
    runs = int(pace * (STARTS + 3) / EVERY)
    return own, [start(f"other-{i}", 0, 0.0, runs, level, seed) for i, level in enumerate(beside)]


def decision(log: float) -> Decision:
    shift = Shift(log, 0.01, 20)
    estimate = Estimate(Runs(Selection([], None, [])), prior())
    return Decision(estimate, "regressed", Look(shift, assess(shift, FILES.decide.confidence), 24))


def judged(host: Level, change: float, seed: int, beside: list[Level]) -> Result:
    own, siblings = upgraded(host, change, seed, beside)
    return judge(own, siblings, "c")


def test_a_change_that_disappears_in_the_hosts_variation_is_found_beside_siblings() -> None:
    host = variation(1, 0.12)
    own, siblings = upgraded(host, 0.08, 1, [host, host])
    alone, beside = judge(own, [], "c"), judge(own, siblings, "c")
    assert alone.state == "inconclusive"
    assert beside.state == "regressed" and beside.causes.cause == "image" and beside.siblings == 2
    assert beside.low is not None and beside.high is not None and beside.low < 0.08 < beside.high
    assert beside.restart_sd < 0.5 * alone.restart_sd
    assert "without what 2 siblings felt of the host" in sentence(beside)


def test_what_its_own_controls_felt_beyond_the_siblings_is_the_hosts() -> None:
    """A lower quota, or other cores: no sibling feels that, and the image has no part in it."""
    host = variation(1, 0.12)
    own, siblings = upgraded(host, 0.08, 1, [host, host])
    slow = [
        Start(
            each.generation,
            [
                msgspec.structs.replace(s, controls={"cpu_spin": s.controls["cpu_spin"] * 1.12})
                for s in each.samples
            ],
        )
        if each.generation.image_id == "new"
        else each
        for each in own
    ]
    beside = judge(slow, siblings, "c")
    assert (beside.state, beside.causes.cause, beside.siblings) == ("regressed", "host", 2)
    assert beside.causes.image is not None and abs(beside.causes.image.shift) < 0.03
    # What the siblings felt and more is no control's own.
    calm = judge(own, siblings, "c").causes
    assert calm.cause == "image" and calm.image is not None
    for control in (0.97, 1.0, 1.03):
        moved = {"cpu_spin": Shift(math.log(control), 0.002, 20)}
        felt = math.copysign(0.07, control - 1)
        found = _without_host(Causes(), moved, decision(0.2), Shift(0.2 + felt, 0.01, 20), LIVE)
        assert found.cause == "image" and found.image is not None
        assert found.image.shift == pytest.approx(math.expm1(0.2))
    # What people are shown is what was measured.
    shown = judge(own, siblings, "c")
    new = [s.median for each in own for s in each.samples if each.generation.image_id == "new" and s.median]
    assert shown.current_seconds == median(new) == beside.current_seconds
    assert set(shown.medians[1]) <= set(new)


def test_the_image_is_not_blamed_if_others_use_the_gpu_since() -> None:
    host = variation(1, 0.12)
    own, siblings = upgraded(host, 0.08, 1, [host, host])
    shared = [
        Start(each.generation, [msgspec.structs.replace(s, tags=("gpu_busy",)) for s in each.samples])
        if each.generation.image_id == "new"
        else each
        for each in own
    ]
    found = judge(shared, siblings, "c")
    assert (found.state, found.siblings, found.causes.cause) == ("regressed", 2, "unknown"), sentence(found)


@pytest.mark.parametrize("change", [0.0, 0.08, -0.08])
def test_most_are_right_and_none_is_wrong(change: float) -> None:
    said: Counter[str] = Counter(
        judged(host := variation(seed, 0.12), change, seed, [host, host, host]).state for seed in range(20)
    )
    right = {0.0: "equivalent", 0.08: "regressed", -0.08: "improved"}[change]
    assert said[right] >= 8, said
    assert set(said) <= {right, "inconclusive", "unconfirmed"}, said


def test_siblings_on_a_host_of_their_own_tell_nothing() -> None:
    host = variation(3, 0.12)
    own, siblings = upgraded(host, 0.0, 3, [variation(4, 0.12), variation(5, 0.12)])
    assert adjust(own, siblings) is None
    assert judge(own, siblings, "c").siblings == 0


def test_a_sibling_that_changes_by_itself_is_not_believed() -> None:
    """From the upgrade on it is 10 % slower, and nothing else is: that is no improvement of ours."""
    pace = RUNS * EVERY + 10
    for seed in range(20):
        host = variation(seed, 0.12)
        changed: Level = lambda t, h=host: h(t) + (0.1 if t >= pace * STARTS else 0.0)  # type: ignore[misc]  # noqa: E731
        for beside in ([changed], [changed, host], [changed, host, host]):
            found = judged(host, 0.0, seed, beside)
            assert found.state in ("inconclusive", "equivalent"), (seed, len(beside), found)


def test_what_is_left_is_the_level_of_a_host_that_is_always_the_same() -> None:
    host = variation(7, 0.12)
    own, siblings = upgraded(host, 0.0, 7, [host])
    calm = adjust(own, siblings)
    assert calm is not None
    assert 0.8 < calm.slope < 1.2
    assert [s.generation for s in calm.starts] == [s.generation for s in own]
    assert restarts_of(calm.starts).sd < 0.4 * restarts_of(own).sd


def test_starts_without_a_sibling_beside_them_do_not_count() -> None:
    host = variation(8, 0.12)
    own, siblings = upgraded(host, 0.0, 8, [host])
    later = [Start(s.generation, s.samples[len(s.samples) // 2 :]) for s in siblings]
    calm = adjust(own, later)
    assert calm is not None
    assert {s.generation.boot_id for s in calm.starts} < {s.generation.boot_id for s in own}
    assert adjust(own, []) is None


def test_siblings_that_ran_at_another_time_tell_nothing() -> None:
    own = [start("web", i, 1000.0 * i, RUNS, variation(1, 0.05), 1) for i in range(STARTS)]
    later = start("x", 0, 1e6, 100, variation(1, 0.05), 1)
    assert adjust(own, [later]) is None
    assert len(trials(own, [later])) == STARTS - 1


def test_a_start_of_a_few_runs_takes_no_verdict_back() -> None:
    host = variation(1, 0.12)
    own, siblings = upgraded(host, 0.08, 1, [host, host])
    for few in (0, 1, 7):
        short = Start(msgspec.structs.replace(own[-1].generation, boot_id="short"), own[-1].samples[:few])
        found = judge([*own[:-1], short, own[-1]], siblings, "c")
        assert (found.state, found.siblings) == ("regressed", 2)


def test_siblings_add_no_false_alarm() -> None:
    for seed in range(10):
        host = variation(seed, 0.12)
        own, siblings = upgraded(host, 0.0, seed, [host, host])
        assert trials(own, siblings) == trials(own)
        assert len(trials(own)) == STARTS - 1 + 2
