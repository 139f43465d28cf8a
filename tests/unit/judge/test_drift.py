from __future__ import annotations

import math
import random

import msgspec
import pytest

from infercanary.contract.profile import Profile, ProfileRow
from infercanary.judge.drift import Drift, blocks, detect
from infercanary.judge.model import Generation, Sample, ServiceKey, Start, merge
from infercanary.judge.operators import Operators
from infercanary.judge.policy import LIVE
from infercanary.judge.pooling import NO_RESTART
from infercanary.judge.profiles import pack
from infercanary.judge.restarts import restarts_before
from infercanary.judge.statistics import learn
from infercanary.store.store import open_store

S = ServiceKey("", "s")

BLOCK = LIVE.drift.block_runs

MINUTE = 60.0
DAY = 86_400.0


def series(
    days: float,
    level: object,
    control: object = None,
    begin: float = 0.0,
    seed: int = 0,
    every: float = MINUTE,
) -> list[Sample]:
    """A run a minute, or ``every`` so many seconds; ``level`` and ``control`` map days to a factor."""
    rng = random.Random(seed)
    found = []
    for i in range(int(days * DAY / every)):
        day = (begin + i * every) / DAY
        factor = level(day) if callable(level) else 1.0
        beside = control(day) if callable(control) else 1.0
        median = 0.02 * factor * rng.lognormvariate(0, 0.01)
        found.append(
            Sample(
                sequence=i, canary="c", started_at=begin + i * every, outcome="ok", median=median, repeats=5,
                phases={"compute": median}, controls={"cpu_spin": 0.0004 * beside * rng.lognormvariate(0, 0.01)},
            )
        )  # fmt: skip
    return found


def start(samples: list[Sample], boot: str = "b", service: str = "s") -> Start:
    generation = Generation(
        service=service, container="a", boot_id=boot, image_id="sha256:1", started_at=samples[0].started_at
    )
    return Start(generation, samples)


def seen(*starts: Start, siblings: tuple[Start, ...] = ()) -> Drift:
    return detect(starts, siblings, "c", learn([]) if len(starts) > 1 else NO_RESTART)


def test_blocks_are_of_twelve_and_merged_ones_stand_for_themselves() -> None:
    samples = series(1, None)[:30]
    whole = [merge(samples[:BLOCK]), merge(samples[BLOCK : 2 * BLOCK])]
    assert blocks(samples, BLOCK) == whole
    assert blocks([*whole, *samples], BLOCK) == [*whole, *whole]
    assert blocks([*samples[:5], *whole, *samples[:12]], BLOCK) == [*whole, whole[0]], "no block of two times"


def test_a_day_tells_nothing_yet_and_noise_is_no_drift() -> None:
    assert seen(start(series(0.3, None))).shift is None
    for seed in range(5):
        assert seen(start(series(4, None, seed=seed))).shift == 0


def test_a_step_is_found_with_its_onset() -> None:
    found = seen(start(series(4, lambda day: 1.08 if day >= 2.5 else 1.0)))
    assert found.shift == pytest.approx(0.08, abs=0.01)
    assert found.onset is not None and found.onset / DAY == pytest.approx(2.5, abs=0.1)
    assert found.host is not None and abs(found.host.shift) < 0.01


def test_a_slow_creep_is_found_that_a_rolling_baseline_would_absorb() -> None:
    found = seen(start(series(14, lambda day: 1 + 0.006 * max(0.0, day - 1))))
    assert found.shift == pytest.approx(0.078, abs=0.015)


def test_rare_runs_are_judged_too() -> None:
    """A run in ten minutes gives 12 blocks a day: the first 24 are the baseline."""
    samples = series(8, lambda day: 1.08 if day >= 5 else 1.0, every=10 * MINUTE)
    assert seen(start(samples[: 47 * BLOCK])).shift is None
    found = seen(start(samples))
    assert found.shift == pytest.approx(0.08, abs=0.01)
    assert found.onset is not None and found.onset / DAY == pytest.approx(5, abs=0.2)


def test_the_baseline_of_rare_runs_stays_while_the_store_thins() -> None:
    samples = series(90, lambda day: 1 + 0.002 * day, every=10 * MINUTE)
    before = start(samples)
    store = open_store(None)
    for day in range(90):
        store.take(before.generation, samples[144 * day : 144 * (day + 1)])
        store.thin(DAY * (day + 1))
    [(generation, kept)] = store.generations(S, "c")
    store.close()
    assert len(kept) < len(samples) / 4, "they were thinned"
    assert seen(Start(generation, kept)).shift == pytest.approx(0.176, abs=0.015)


def test_a_step_has_its_onset_also_after_the_store_merged_it_into_hours() -> None:
    samples = series(6, lambda day: 1.1 if day >= 3 else 1.0, every=10.0)
    whole = start(samples)
    store = open_store(None)  # keeps 240 blocks of two minutes, and hours before them
    for day in range(6):
        for _ in range(2):
            store.take(whole.generation, samples[8_640 * day : 8_640 * (day + 1)])
            store.thin(DAY * (day + 1))
    [(generation, kept)] = store.generations(S, "c")
    store.close()
    assert len(kept) < len(samples) / 20, "they were thinned"
    found = seen(Start(generation, kept))
    assert found.shift == pytest.approx(0.1, abs=0.005)
    assert found.onset == pytest.approx(3 * DAY, abs=3_600)


def test_an_hour_before_a_pause_is_too_little_for_a_baseline() -> None:
    before = series(8 * BLOCK * MINUTE / DAY, lambda _: 1.08)
    assert seen(start([*before, *series(3, None, begin=2 * DAY)])).shift == 0


@pytest.mark.parametrize("step", [365 * DAY, -365 * DAY], ids=["on", "back"])
def test_a_clock_that_is_set_leaves_the_baseline(step: float) -> None:
    """Set on, it ends the first day at once, as a pause does; set back, that day must not go on for a year."""
    samples = [
        msgspec.structs.replace(s, started_at=s.started_at + step) if s.started_at >= 0.1 * DAY else s
        for s in series(14, lambda day: 1 + 0.006 * max(0.0, day - 1))
    ]
    assert seen(start(samples)).shift == pytest.approx(0.078, abs=0.015)


def test_what_the_controls_share_is_the_hosts() -> None:
    def hot(day: float) -> float:
        return 1.1 if day >= 3 else 1.0

    found = seen(start(series(4, hot, hot)))
    assert found.host is not None and found.host.shift == pytest.approx(0.1, abs=0.01)


def test_one_sibling_alone_is_no_host() -> None:
    """It may have changed by itself, or lie. Where nothing else can tell, host or process is not known."""

    def hot(day: float) -> float:
        return 1.1 if day >= 3 else 1.0

    def without_controls(seed: int, service: str = "s") -> Start:
        samples = [msgspec.structs.replace(each, controls={}) for each in series(4, hot, seed=seed)]
        return start(samples, service, service)

    one, other = without_controls(1, "one"), without_controls(2, "other")
    assert seen(without_controls(0), siblings=(one,)).host is None
    found = seen(without_controls(0), siblings=(one, other))
    assert found.host is not None and found.host.shift == pytest.approx(0.1, abs=0.01)


def test_a_restart_may_move_the_level_a_little() -> None:
    first = series(2, None)
    again = series(2, lambda _: 1.025, begin=2 * DAY, seed=1)
    assert seen(start(first), start(again, "c")).shift == 0
    slower = [msgspec.structs.replace(s, median=1.15 * (s.median or math.nan)) for s in again]
    found = seen(start(first), start(slower, "c"))
    assert found.shift == pytest.approx(0.18, abs=0.02)


def test_an_improvement_is_a_drift_too() -> None:
    found = seen(start(series(4, lambda day: 0.9 if day >= 2 else 1.0)))
    assert found.shift == pytest.approx(-0.1, abs=0.01)


def test_a_restart_does_not_excuse_what_drifts_before_or_after_it() -> None:
    """How far it has drifted is nothing that restarts do, however few there were to learn from."""

    def shift(*levels: object) -> float | None:
        starts = [
            start(series(3, level, begin=3 * DAY * n, seed=n), f"b{n}") for n, level in enumerate(levels)
        ]
        return detect(starts, [], "c", restarts_before(starts[-1], starts, LIVE.pool)).shift

    def slower(day: float) -> float:
        return 1.3

    def creeping(day: float) -> float:
        return 1 + 0.15 * max(0.0, day % 3 - 1)

    assert shift(None, creeping) == pytest.approx(0.28, abs=0.03)
    assert shift(creeping, slower) == pytest.approx(0.3, abs=0.03)
    assert shift(None, creeping, slower) == pytest.approx(0.3, abs=0.03)
    wild = [lambda _, level=level: level for level in (1, 1.15, 0.9, 1.1)]
    assert shift(*wild) == 0, "restarts do as much"


def test_a_drifts_operators_are_those_that_grew_since_the_first_day() -> None:
    """Of one start: profiles are of the first day or of the time since the onset by when they were taken."""

    def taken(at: float, seconds: float) -> bytes:
        row = ProfileRow("aten::conv2d", "aten::conv2d", "cpu", "", 1.0, (seconds - 0.002,) * 5)
        return pack(Profile(at, "torch", "ok", (seconds,) * 5, (0.002,) * 5, (0.0,) * 5, (row,)))

    before = (taken(60.0, 0.02), taken(660.0, 0.02))
    after = (taken(2.5 * DAY, 0.026), taken(2.6 * DAY, 0.026))
    slowed = start(series(3, lambda day: 1.3 if day > 2 else 1.0))

    def found(*profiles: bytes) -> Operators | None:
        generation = msgspec.structs.replace(slowed.generation, profiles={"c": profiles})
        return seen(Start(generation, slowed.samples)).operators

    operators = found(*before, *after)
    assert operators is not None and operators.state == "explained"
    (grown,) = operators.shifts
    assert (grown.operator, grown.change) == ("aten::conv2d", "grew")
    assert (grown.before, grown.after) == pytest.approx((0.018, 0.024))
    assert found(*before) is None and found(*after) is None
