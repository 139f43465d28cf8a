"""Which resource a change went to."""

from __future__ import annotations

import math
from typing import Any

import pytest

from infercanary.contract.bottleneck import Limit
from infercanary.judge.bottleneck import bottlenecks
from infercanary.judge.causes import Attribution
from infercanary.judge.model import Generation, Pair, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.shift import Shift
from tests.for_each import for_each

FLAT = {"cpu_spin": 1.0, "memory_copy": 1.0}
GPU = {"gpu_fma": 1.0, "gpu_copy": 1.0}
AWAKE = {"queued": 0.0, "blocked": 0.0, "reading": 0.0}
TEN: dict[str, Any] = {"latency": 0.010, "off_cpu": AWAKE}


def samples(
    latency: float, phases: dict[str, float] | None = None, runs: int = 8, **more: Any
) -> list[Sample]:
    return [
        Sample(i, "c", 10.0 * i, "ok", latency, 9, {"compute": latency} if phases is None else phases, **more)
        for i in range(runs)
    ]


def moved(ratio: float, se: float = 0.002) -> Shift:
    return Shift(math.log(ratio), se, 20.0)


def shares(
    before: list[Sample], after: list[Sample], controls: dict[str, Shift], clock: Shift | None = None
) -> dict[Limit, float]:
    return bottlenecks(
        before,
        after,
        controls,
        clock,
        lambda shift: abs(shift.log) >= max(LIVE.decide.log_effect, LIVE.attribute.moved_sigmas * shift.se),
    )


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, float], dict[str, float]]] = {
    "a lower instruction set": (
        TEN, {"latency": 0.020, "off_cpu": AWAKE}, FLAT, {"compute": 1.0},
    ),
    "a faster program": (
        TEN, {"latency": 0.005, "off_cpu": AWAKE}, FLAT, {"compute": 1.0},
    ),
    "a neighbour that takes memory bandwidth": (
        TEN, {"latency": 0.013, "off_cpu": AWAKE}, {"cpu_spin": 1.0, "memory_copy": 1.4}, {"memory": 1.0},
    ),
    "one that slows computing a little, too": (
        TEN, {"latency": 0.0121, "off_cpu": AWAKE}, {"cpu_spin": 1.1, "memory_copy": 1.5},
        {"compute": 0.5, "memory": 0.5},
    ),
    "a program that feels it more than the control does": (
        TEN, {"latency": 0.0121, "off_cpu": AWAKE}, {"cpu_spin": 1.0, "memory_copy": 1.1},
        {"memory": 0.5, "unknown": 0.5},
    ),
    "a lower clock": (
        TEN, {"latency": 0.013, "off_cpu": AWAKE}, {"cpu_spin": 1.3, "memory_copy": 1.3}, {"compute": 1.0},
    ),
    "a busy sibling on the same core": (
        TEN, {"latency": 0.020, "off_cpu": {**AWAKE, "queued": 0.010}}, FLAT, {"scheduling": 1.0},
    ),
    "a page cache that was dropped": (
        TEN, {"latency": 0.020, "off_cpu": {**AWAKE, "reading": 0.008, "queued": 0.001}}, FLAT,
        {"io": 0.8, "scheduling": 0.1, "compute": 0.1},
    ),
    "a lock": (TEN, {"latency": 0.014, "off_cpu": {**AWAKE, "blocked": 0.004}}, FLAT, {"scheduling": 1.0}),
    "shorter work that waits for longer": (
        TEN, {"latency": 0.014, "off_cpu": {**AWAKE, "queued": 0.008}}, FLAT, {"scheduling": 2.0, "compute": -1.0},
    ),
    "no controls": (TEN, {"latency": 0.013, "off_cpu": AWAKE}, {}, {"unknown": 1.0}),
    "no control of the memory": (TEN, {"latency": 0.013, "off_cpu": AWAKE}, {"cpu_spin": 1.0}, {"unknown": 1.0}),
    "the controls of another device": (TEN, {"latency": 0.013, "off_cpu": AWAKE}, GPU, {"unknown": 1.0}),
    "probes that do not know": ({"latency": 0.010}, {"latency": 0.020}, FLAT, {"unknown": 1.0}),
    "a newer probe, which knows": (
        {"latency": 0.010}, {"latency": 0.020, "off_cpu": {**AWAKE, "queued": 0.010}}, FLAT, {"unknown": 1.0},
    ),
    "transfers": (
        {"latency": 0.010, "phases": {"h2d": 0.002, "compute": 0.008, "launch": 0.001}},
        {"latency": 0.016, "phases": {"h2d": 0.006, "compute": 0.010, "launch": 0.001}}, GPU,
        {"io": 2 / 3, "compute": 1 / 3},
    ),
    "launches that the device waits for": (
        {"latency": 0.010, "phases": {"compute": 0.010, "launch": 0.006}},
        {"latency": 0.020, "phases": {"compute": 0.020, "launch": 0.020}}, GPU, {"scheduling": 1.0},
    ),
    "slower launches of a device that has enough to do": (
        {"latency": 0.010, "phases": {"compute": 0.010, "launch": 0.002}},
        {"latency": 0.020, "phases": {"compute": 0.020, "launch": 0.006}}, GPU, {"compute": 1.0},
    ),
    "the memory of a GPU": (
        {"latency": 0.010, "phases": {"compute": 0.010, "launch": 0.002}},
        {"latency": 0.015, "phases": {"compute": 0.015, "launch": 0.002}}, {**GPU, "gpu_copy": 1.6}, {"memory": 1.0},
    ),
    "a server": (
        {"latency": 0.010, "phases": {"wait": 0.008, "receive": 0.002}},
        {"latency": 0.020, "phases": {"wait": 0.014, "receive": 0.006}}, FLAT, {"unknown": 0.6, "io": 0.4},
    ),
    "no change": (TEN, TEN, FLAT, {}),
}  # fmt: skip


@for_each(CASES.items(), lambda case: case[0])
def test_what_grew(
    case: tuple[str, tuple[dict[str, Any], dict[str, Any], dict[str, float], dict[str, float]]],
) -> None:
    _, (before, after, controls, expected) = case
    shifts = {name: moved(ratio) for name, ratio in controls.items()}
    found = shares(samples(**before), samples(**after), shifts)
    assert found == pytest.approx(expected, abs=0.006)
    assert list(found.values()) == sorted(found.values(), reverse=True), "the largest first"


def test_a_control_that_is_not_known_well_splits_nothing() -> None:
    old, new = samples(**TEN), samples(0.013, off_cpu=AWAKE)
    noisy = {"cpu_spin": moved(1.0), "memory_copy": moved(1.3, se=0.2)}
    assert shares(old, new, noisy) == pytest.approx({"unknown": 1.0})
    doubtful = {"cpu_spin": moved(1.0), "memory_copy": moved(1.0, se=0.05)}
    found = shares(old, new, doubtful)
    assert found == pytest.approx({"compute": 1.0}), "it moved by 14 % at most, which makes half of it"
    unknown = {"cpu_spin": moved(1.0), "memory_copy": moved(1.3, se=math.inf)}
    assert shares(old, new, unknown) == pytest.approx({"unknown": 1.0})


def test_a_clock_explains_computing() -> None:
    phases = {"compute": 0.010, "launch": 0.002}
    old, new = samples(0.010, phases), samples(0.013, {**phases, "compute": 0.013})
    found = shares(old, new, {"gpu_copy": moved(1.35)}, moved(1.3))
    assert found == pytest.approx({"compute": 1.0}), "the copy followed the clock"


def test_runs_of_which_some_do_not_know_count_as_none() -> None:
    old, new = samples(**TEN), samples(0.020, off_cpu={**AWAKE, "queued": 0.010}, runs=4)
    found = shares(old, [*new, *samples(0.020)], {})
    assert found == pytest.approx({"unknown": 1.0})


# In words --------------------------------------------------------------------------------------------------------


def start(name: str, at: float, seconds: float, queued: float) -> Start:
    generation = Generation(service="s", container="c", boot_id=name, started_at=at, image_id=name)
    each = []
    for i in range(40):
        noise = 1 + 0.002 * math.sin(i * 1.7)
        each.append(
            Sample(
                i, "c", at + 10 * i, "ok", seconds * noise, 9, {"compute": seconds * noise},
                dict.fromkeys(FLAT, 0.001 * noise), off_cpu={**AWAKE, "queued": queued * noise},
            )
        )  # fmt: skip
    return Start.of(generation, each)


def test_causes_name_it() -> None:
    pair = Pair([start("old", 0.0, 0.010, 0.0)], [start("new", 1000.0, 0.020, 0.009)])
    causes = Attribution().explain(Shift(math.log(2), 0.01, 20.0), [pair], "c")
    assert causes.bottlenecks == pytest.approx({"scheduling": 0.9, "compute": 0.1}, abs=0.01)
