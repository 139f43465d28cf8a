from __future__ import annotations

import math
import random

import msgspec
import pytest

from infercanary.exporter.drift import PRIOR
from infercanary.exporter.judge.causes import Start
from infercanary.exporter.judge.creep import BLOCK, Creep, blocks, look
from infercanary.exporter.store.records import Generation, Sample

MINUTE = 60.0


def series(
    days: float, level: object, control: object = None, begin: float = 0.0, seed: int = 0
) -> list[Sample]:
    """A run a minute; ``level`` and ``control`` map days to a factor."""
    rng = random.Random(seed)
    found = []
    for i in range(int(days * 1440)):
        day = (begin + i * MINUTE) / 86_400
        factor = level(day) if callable(level) else 1.0
        beside = control(day) if callable(control) else 1.0
        median = 0.02 * factor * rng.lognormvariate(0, 0.01)
        found.append(
            Sample(
                sequence=i, canary="c", started_at=begin + i * MINUTE, outcome="ok", median=median, repeats=5,
                phases={"compute": median}, controls={"cpu_spin": 0.0004 * beside * rng.lognormvariate(0, 0.01)},
            )
        )  # fmt: skip
    return found


def start(samples: list[Sample], boot: str = "b", service: str = "s") -> Start:
    generation = Generation(
        service=service, container="a", boot_id=boot, image_id="sha256:1", started_at=samples[0].started_at
    )
    return Start(generation, samples)


def seen(*starts: Start, siblings: tuple[Start, ...] = ()) -> Creep:
    return look(starts, siblings, "c", PRIOR)


def test_blocks_are_medians_of_twelve_and_merged_ones_stand_for_themselves() -> None:
    samples = series(1, None)[:30]
    found = blocks(samples)
    assert [block.runs for block in found] == [BLOCK, BLOCK]
    assert found[0].started_at == samples[0].started_at
    assert blocks([*found, *samples]) == [*found, *found]


def test_a_day_tells_nothing_yet_and_noise_is_no_drift() -> None:
    assert seen(start(series(0.3, None))).shift is None
    for seed in range(5):
        found = seen(start(series(4, None, seed=seed)))
        assert found.shift is None and found.blocks == 4 * 1440 // BLOCK


def test_a_step_is_found_with_its_onset() -> None:
    found = seen(start(series(4, lambda day: 1.08 if day >= 2.5 else 1.0)))
    assert found.shift == pytest.approx(0.08, abs=0.01)
    assert (
        found.low is not None
        and found.high is not None
        and 0.04 < found.low < found.shift < found.high < 0.12
    )
    assert found.onset is not None and found.onset / 86_400 == pytest.approx(2.5, abs=0.1)
    assert found.host is not None and abs(found.host.shift) < 0.01


def test_a_slow_creep_is_found_that_a_rolling_baseline_would_absorb() -> None:
    found = seen(start(series(14, lambda day: 1 + 0.006 * max(0.0, day - 1))))
    assert found.shift == pytest.approx(0.078, abs=0.015)


def test_what_the_controls_share_is_the_hosts() -> None:
    def hot(day: float) -> float:
        return 1.1 if day >= 3 else 1.0

    found = seen(start(series(4, hot, hot)))
    assert found.host is not None and found.host.shift == pytest.approx(0.1, abs=0.01)


def test_a_restart_may_move_the_level_a_little() -> None:
    first = series(2, None)
    again = series(2, lambda _: 1.025, begin=2 * 86_400, seed=1)
    assert seen(start(first), start(again, "c")).shift is None
    slower = [msgspec.structs.replace(s, median=1.15 * (s.median or math.nan)) for s in again]
    found = seen(start(first), start(slower, "c"))
    assert found.shift == pytest.approx(0.18, abs=0.02)


def test_an_improvement_is_a_drift_too() -> None:
    found = seen(start(series(4, lambda day: 0.9 if day >= 2 else 1.0)))
    assert found.shift == pytest.approx(-0.1, abs=0.01)
