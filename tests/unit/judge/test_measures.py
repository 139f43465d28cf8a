"""Verdicts on memory, throughput and energy: what is worse is found, and what a restart does is not called."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from infercanary.contract.measures import (
    DEVICE_MEMORY,
    DEVICE_USE,
    ENERGY,
    HOST_MEMORY,
    SPREAD,
    THROUGHPUT,
    throughput_of,
)
from infercanary.exporter.judging.findings import judge_canary
from infercanary.judge.measures import Measures, MeasureVerdict, measured
from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import FILES, LIVE
from infercanary.judge.resolution import Floats
from infercanary.judge.restarts import Prior
from infercanary.judge.shift import CHANGED
from infercanary.judge.spread import spread
from infercanary.judge.verdict import Judge

judge = Judge().verdict
judge_measures, compare_measures = Measures().judge, Measures(FILES).compare

AT_8 = throughput_of(8, 1)
MIB = 2.0**20


def start(
    order: int,
    values: Mapping[str, Sequence[float]],
    *,
    replica: int = 0,
    slower: float = 1.0,
    every: float = 10.0,
) -> Start:
    """Of the old image where ``order`` is below 0; ``slower`` are its controls."""
    g = Generation(
        service="s", container=f"r{replica}", boot_id=f"{replica}{order}", started_at=1e9 + 1e6 * order + replica,
        image_id="old" if order < 0 else "new",
    )  # fmt: skip
    rng = np.random.default_rng([order + 10, replica])
    count = max(map(len, values.values()))
    samples = [
        Sample(
            i, "c", g.started_at + every * i, "ok", 0.01 * math.exp(rng.normal(0, 0.01)),
            controls={"cpu_spin": 0.001 * slower * math.exp(rng.normal(0, 0.003))},
            measures={name: each[i] for name, each in values.items() if i < len(each)},
        )
        for i in range(count)
    ]  # fmt: skip
    return Start(g, samples)


def memory(levels: Sequence[float], new: float, runs: int = 24) -> list[Start]:
    """Constant to the byte in each start."""
    before = [start(i - len(levels), {HOST_MEMORY: [level] * 60}) for i, level in enumerate(levels)]
    return [*before, start(0, {HOST_MEMORY: [new] * runs})]


def only(found: Mapping[str, MeasureVerdict], name: str = HOST_MEMORY) -> MeasureVerdict:
    assert {*found} - {SPREAD.name} == {name}
    return found[name]


def test_more_memory_at_equal_latency() -> None:
    starts = memory([512 * MIB] * 3, 1.3 * 512 * MIB)
    found = only(judge_measures(starts))
    assert found.state == "regressed" and found.shift == pytest.approx(0.3)
    assert (found.before, found.after) == (pytest.approx(512 * MIB), pytest.approx(1.3 * 512 * MIB))
    assert judge(starts, [], "c").state not in CHANGED
    assert only(compare_measures(starts[:-1], starts[-1:])).state == "regressed"


def test_less_memory_is_better() -> None:
    assert only(judge_measures(memory([512 * MIB] * 3, 0.7 * 512 * MIB))).state == "improved"


@pytest.mark.parametrize("earlier", [1, 3, 9])
@pytest.mark.parametrize("more", [0.0, 0.001, 0.02, -0.02])
def test_what_is_constant_to_the_byte_makes_no_small_shift_certain(earlier: int, more: float) -> None:
    starts = memory([512 * MIB] * earlier, (1 + more) * 512 * MIB)
    for found in (only(judge_measures(starts)), only(compare_measures(starts[:-1], starts[-1:]))):
        assert found.state not in (*CHANGED, "unconfirmed")
        assert found.shift == pytest.approx(more, abs=1e-9)
        assert (
            found.low is not None
            and found.high is not None
            and found.low < more - 0.003 < more + 0.003 < found.high
        )


def loads(level: float, seed: int, count: int = 48) -> dict[str, Sequence[float]]:
    """Of two points of a sweep; the level is that of a batch of 8."""
    rng = np.random.default_rng(seed)
    noise = np.exp(rng.normal(0, 0.015, (2, count)))
    return {throughput_of(1, 1): (200 * noise[0]).tolist(), AT_8: (900 * level * noise[1]).tolist()}


def test_less_throughput_at_one_load_only() -> None:
    before = [start(-i, loads(1.0, i), every=3600.0) for i in (3, 2, 1)]
    after = [start(0, loads(0.8, 0, 12), every=3600.0)]
    for found in (judge_measures([*before, *after]), compare_measures(before, after)):
        assert {name: verdict.state for name, verdict in found.items() if verdict.state in CHANGED} == {
            AT_8: "regressed"
        }
        shift, low, high = found[AT_8].shift, found[AT_8].low, found[AT_8].high
        assert shift == pytest.approx(-0.2, abs=0.02)
        assert low is not None and high is not None and -0.3 < low < -0.2 < high < -0.05
        assert found[AT_8].before == pytest.approx(900, rel=0.02)


@pytest.mark.parametrize(("controls", "state"), [(1.0, "regressed"), (1.25, "inconclusive")])
def test_what_controls_show_too_is_not_said_of_the_image(controls: float, state: str) -> None:
    before = [start(-i, loads(1.0, i), every=3600.0) for i in (3, 2, 1)]
    after = [start(0, loads(0.8, 0, 12), every=3600.0, slower=controls)]
    for found in (judge_measures([*before, *after]), compare_measures(before, after)):
        assert found[AT_8].state == state


@pytest.mark.parametrize("controls", [1.0, 1.1, 1.25])
def test_others_on_the_gpu_excuse_the_image(controls: float) -> None:
    before = [start(-i, loads(1.0, i), every=3600.0) for i in (3, 2, 1)]
    alone = start(0, loads(0.8, 0, 12), every=3600.0, slower=controls)
    after = [Start(alone.generation, [msgspec.structs.replace(s, tags=("gpu_busy",)) for s in alone.samples])]
    for found in (judge_measures([*before, *after]), compare_measures(before, after)):
        assert found[AT_8].state == "inconclusive"


def test_what_replicas_on_the_old_image_felt_too_is_taken_off() -> None:
    before = [start(-i, loads(1.0, i), every=3600.0) for i in (3, 2, 1)]
    stays = []
    for replica in (1, 2):
        values = loads(1.0, 10 * replica, 96)
        values[AT_8] = [x * (0.8 if i >= 48 else 1.0) for i, x in enumerate(values[AT_8])]
        one = start(-1, values, replica=replica, every=3600.0)
        at = 1e9 - 48 * 3600.0
        stays.append(Start(one.generation, [_moved(s, at - one.samples[0].started_at) for s in one.samples]))
    found = judge_measures([*before, *stays, start(0, loads(0.8, 0, 48), every=3600.0)])
    assert found[AT_8].state not in (*CHANGED, "unconfirmed")


def _moved(sample: Sample, by: float) -> Sample:
    return msgspec.structs.replace(sample, started_at=sample.started_at + by)


def leaking(order: int, count: int, rate: float, level: float = 1.0) -> Start:
    """By so much an hour."""
    ages = 10.0 * np.arange(count)
    return start(order, {HOST_MEMORY: (level * 512 * MIB * (1 + rate * ages / 3600)).tolist()})


def test_a_leak_is_compared_at_the_same_age() -> None:
    before = [leaking(-2, 3000, 0.05), leaking(-1, 9000, 0.05)]
    for runs in (5, 24, 192):
        after = [leaking(0, runs, 0.05)]
        assert only(judge_measures([*before, *after])).state not in (*CHANGED, "unconfirmed")
        if runs >= LIVE.pool.fewest_runs:
            assert only(compare_measures(before, after)).state not in CHANGED
            assert only(compare_measures(after, before)).state not in CHANGED
    assert only(judge_measures([*before, leaking(0, 24, 0.05, level=1.3)])).state == "regressed"


def test_what_is_judged() -> None:
    values = {
        name: [1.0] for name in (THROUGHPUT, DEVICE_USE, AT_8, ENERGY, HOST_MEMORY, DEVICE_MEMORY, "newer")
    }
    before = [start(-1, {**values, throughput_of(16, 1): [1.0]})]
    assert [m.name for m in measured(before, [start(0, values)])] == [
        HOST_MEMORY,
        DEVICE_MEMORY,
        ENERGY,
        AT_8,
    ]
    many = {throughput_of(batch, 1): [1.0] for batch in range(1, 99)}
    assert len(measured([start(-1, many)], [start(0, many)])) == 20


def test_nothing_is_judged_without_an_upgrade_or_values() -> None:
    assert judge_measures(memory([MIB] * 3, MIB)[:-1]) == {}
    assert judge_measures([]) == {} and compare_measures([], []) == {}
    zeros = [start(-1, {HOST_MEMORY: [0.0] * 60}), start(0, {HOST_MEMORY: [0.0] * 60})]
    assert only(judge_measures(zeros)) == MeasureVerdict(state="no_baseline")
    assert only(compare_measures(zeros[:1], zeros[1:])) == MeasureVerdict(state="inconclusive")
    few = [start(-1, {HOST_MEMORY: [MIB] * 60}), start(0, {HOST_MEMORY: [2 * MIB] * 3})]
    assert only(judge_measures(few)) == MeasureVerdict(state="settling")


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e9])
def test_the_unit_changes_nothing(unit: float) -> None:
    def states(unit: float) -> list[tuple[str, float]]:
        found = judge_measures(
            [
                *(start(-i, {ENERGY: _energy(i, unit)}) for i in (3, 2, 1)),
                start(0, {ENERGY: _energy(0, unit)}),
            ]
        )
        return [(only(found, ENERGY).state, round(only(found, ENERGY).shift or 0.0, 9))]

    assert states(unit) == states(1.0)


def _energy(seed: int, unit: float) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, 0.02, 40)
    return (unit * (1.1 if not seed else 1.0) * np.exp(noise)).tolist()


@pytest.mark.parametrize("name", [HOST_MEMORY, ENERGY, AT_8])
@pytest.mark.parametrize("sd", [0.01, 0.025])
def test_restarts_of_one_image_are_not_called(name: str, sd: float) -> None:
    for seed in range(8):
        rng = np.random.default_rng([seed, int(1e3 * sd)])

        def values(count: int, rng: np.random.Generator = rng) -> dict[str, Sequence[float]]:
            return {
                name: (512 * MIB * math.exp(rng.normal(0, sd)) * np.exp(rng.normal(0, 0.01, count))).tolist()
            }

        before = [start(-i, values(60)) for i in (3, 2, 1)]
        new = start(0, values(24))
        for look in (5, 12, 24):
            assert only(judge_measures([*before, new.first(look)]), name).state not in CHANGED


def test_a_prior_of_latencies_says_nothing_of_memory() -> None:
    learned = LIVE.but(**Prior(number=3, sd=0.002).changes)
    assert learned.for_measures().pool.restart_sd == LIVE.for_measures().pool.restart_sd
    assert learned.for_measures(loads=True).pool.restart_sd == LIVE.pool.load_restart_sd
    assert LIVE.for_measures().decide.log_effect == pytest.approx(math.log(1.05))


@pytest.mark.parametrize("value", [5e-324, 1.7e308, math.inf, math.nan, -1.0, 0.0])
@pytest.mark.parametrize("name", [AT_8, HOST_MEMORY])
def test_a_value_that_nothing_can_have_is_left_out(name: str, value: float) -> None:
    """A probe may report any number, and one must not cost the canary its verdicts."""
    starts = [
        *(start(i - 3, {name: [value] * 60 if i else [100.0, value] * 30}) for i in range(3)),
        start(0, {name: [value, 100.0] * 24}),
    ]
    for found in (only(judge_measures(starts), name), only(compare_measures(starts[:3], starts[3:]), name)):
        assert (found.before, found.after, found.shift) == pytest.approx((100.0, 100.0, 0.0))
        assert found.state in ("equivalent", "inconclusive")
    nothing = [start(i - 3, {name: [value] * 60}) for i in range(4)]
    for each in (judge_measures(nothing), compare_measures(nothing[:3], nothing[3:])):
        assert each[name].state in ("no_baseline", "inconclusive") and each[name].shift is None


def shaken(
    scale: float, neighbour: str = "", siblings: int = 0, earlier: int = 3, seed: int = 0
) -> list[Start]:
    """Two replicas whose runs scatter by 1 %, by ``scale`` times as much with the new image; then their siblings.

    A neighbour makes all runs on the host and one control scatter by 2 % more: for ten minutes of twenty, or from the
    upgrade on.
    """
    rng = np.random.default_rng(seed)

    def busy(times: Floats) -> Floats:
        is_there = {"comes": times // 600 % 2 > 0, "since": times >= 1e9}.get(neighbour, times < 0)
        scatter: Floats = np.where(is_there, rng.normal(0, 0.02, times.size), 0.0)
        return scatter

    def one(service: str, replica: int, at: float, count: int) -> Start:
        times: Floats = at + 10.0 * np.arange(count, dtype=np.float64)
        own = 0.01 * (scale if service == "s" and at >= 1e9 else 1.0)
        medians = 0.01 * np.exp(rng.normal(0, 0.01) + rng.normal(0, own, count) + busy(times))
        controls = 0.001 * np.exp(rng.normal(0, 0.003, count) + busy(times))
        g = Generation(
            service=service, container=f"{service}{replica}", boot_id=f"{service}{replica}{at}", started_at=at,
            image_id="new" if at >= 1e9 else "old",
        )  # fmt: skip
        rows = enumerate(zip(times.tolist(), medians.tolist(), controls.tolist(), strict=True))
        samples = [
            Sample(i, "c", t, "ok", m, controls={} if siblings else {"cpu_spin": x}) for i, (t, m, x) in rows
        ]
        return Start(g, samples)

    ours = [one("s", r, 1e9 - 1e6 * past, 192) for past in range(earlier, -1, -1) for r in (0, 1)]
    return [*ours, *(one(f"sibling{i}", 0, 1e9 - 2400, 432) for i in range(siblings))]


def spread_of(starts: Sequence[Start], runs: int) -> MeasureVerdict:
    ours = [
        s if s.generation.started_at < 1e9 else s.first(runs) for s in starts if s.generation.service == "s"
    ]
    beside = [s for s in starts if s.generation.service != "s"]
    return judge_measures(ours, beside)[SPREAD.name]


@pytest.mark.parametrize(
    ("world", "runs", "states"),
    [
        ({"scale": 2.0}, 47, {"settling"}),
        ({"scale": 2.0}, 48, {"regressed"}),
        ({"scale": 0.5}, 192, {"improved"}),
        ({"scale": 2.0, "earlier": 2}, 192, {"inconclusive"}),
        ({"scale": 1.0}, 192, {"inconclusive", "equivalent"}),
        ({"scale": 1.0, "neighbour": "comes"}, 48, {"inconclusive", "equivalent"}),
        ({"scale": 1.0, "neighbour": "comes", "siblings": 2}, 96, {"inconclusive", "equivalent"}),
        ({"scale": 1.0, "neighbour": "since"}, 192, {"inconclusive"}),
        ({"scale": 1.0, "neighbour": "since", "siblings": 2}, 192, {"inconclusive"}),
    ],
)
def test_a_spread_that_doubles_is_called_unless_the_host_shows_it_too(
    world: dict[str, Any], runs: int, states: set[str]
) -> None:
    for seed in range(4):
        starts = shaken(**world, seed=seed)
        found = spread_of(starts, runs)
        assert found.state in states
        if found.state == "regressed":
            assert found.before == pytest.approx(0.01, rel=0.3) and found.after == pytest.approx(
                0.02, rel=0.3
            )
    assert judge(starts, [], "c").state not in CHANGED


def test_a_users_numbers_hold_for_the_spread() -> None:
    """Looks that end early still get an answer, and many false calls of latencies are none of spread."""
    few = Measures(LIVE.but(looks=(6, 12, 24, 36))).judge(shaken(2.0))[SPREAD.name]
    assert few.state == "regressed"
    usual, bold = (
        Measures(policy).judge(shaken(1.0))[SPREAD.name] for policy in (LIVE, LIVE.but(false_calls=0.05))
    )
    assert usual.low is not None and bold.low is not None and usual.low < bold.low < 0.0
    assert bold.state == "inconclusive"


def test_the_sentence_on_the_latency_names_the_spread() -> None:
    starts = shaken(2.0)
    found = judge_canary("c", None, [*starts[:-2], *(start.first(48) for start in starts[-2:])], [], LIVE)
    assert found.result.state not in CHANGED
    assert "run-to-run spread regressed +" in found.sentence


def test_a_neighbour_that_stays_is_called_where_nothing_else_shows_it() -> None:
    """What keeps the rows above from passing for another reason than that of the host."""
    starts = [
        Start(s.generation, [msgspec.structs.replace(x, controls={}) for x in s.samples])
        for s in shaken(1.0, "since")
    ]
    assert spread_of(starts, 192).state == "regressed"
    images = [s.generation.image_id for s in shaken(1.0, "since")]
    flipped = [
        s.reporting(environment={"controls_made_of": "CPython 3.12.1"} if image == images[-1] else {})
        for s, image in zip(shaken(1.0, "since"), images, strict=True)
    ]
    assert spread_of(flipped, 192).state == "regressed", "controls of other work show nothing"


def test_a_spread_that_is_cpu_wait_is_no_spread_of_the_image() -> None:
    def waiting(run: Sample) -> Sample:
        waited = 0.001 * (run.sequence % 3) * (run.started_at >= 1e9)
        return msgspec.structs.replace(run, median=(run.median or math.nan) + waited, waited=waited)

    starts = [Start(s.generation, [*map(waiting, s.samples)]) for s in shaken(1.0)]
    assert spread_of(starts, 192).state not in CHANGED


@pytest.mark.parametrize("tick", [0.0005, 0.02])
def test_a_coarse_clock_or_a_still_latency_has_a_spread(tick: float) -> None:
    values = np.round(np.random.default_rng(0).normal(1, 0.01, 48) / tick) * tick
    assert spread(values.tolist()) == pytest.approx(0.01, rel=0.35)
    assert spread([1.0] * 48) == pytest.approx(0.001)
    assert spread([*values, 50.0, *values]) < 1.3 * spread(values.tolist()), "one wild run is no spread"
