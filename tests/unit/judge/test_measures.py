"""Verdicts on memory, throughput, energy and spread: the judge finds regressions, and calls no restart a change."""

import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

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
from infercanary.exporter.judging.schedule import Due
from infercanary.judge.measures import Measures, MeasureVerdict, measured
from infercanary.judge.policy import FILES, LIVE
from infercanary.judge.restarts import Prior
from infercanary.judge.shift import CHANGED
from infercanary.judge.spread import spread
from tests import factories
from tests.factories import changed, judge, latencies
from tests.scenarios import cases, typed

judge_measures: Any = Measures().judge
compare_measures: Any = Measures(FILES).compare

AT_8 = throughput_of(8, 1)
MIB = 2.0**20
T = 1e9
CALLED = (*CHANGED, "unconfirmed")


def start(order, values, *, slower=1.0, **fields):
    """Return a start of the old image if ``order`` is negative; ``slower`` is a factor of its controls."""

    def of_run(i):
        return {name: each[i] for name, each in values.items() if i < len(each)}

    image, runs = "old" if order < 0 else "new", max(map(len, values.values()))
    usual = {"container": "a", "control": 0.001 * slower, "measures": of_run}
    return factories.start(image=image, at=T + 1e6 * order, seconds=0.01, runs=runs, **usual | fields)


def upgrade(name, old, new, **fields):
    before = [start(i - len(old), {name: values}, **fields) for i, values in enumerate(old)]
    return [*before, start(0, {name: new}, **fields)]


def memory(levels, new, runs=24):
    return upgrade(HOST_MEMORY, [[512 * MIB * level] * 60 for level in levels], [512 * MIB * new] * runs)


def only(found, name=HOST_MEMORY):
    assert {*found} - {SPREAD.name} == {name}
    return found[name]


MEMORY = """
3 | 1.3   | regressed
3 | 0.7   | improved
1 | 1.0   | equivalent inconclusive  # constant values do not make a small shift certain
9 | 1.001 | equivalent inconclusive
9 | 1.02  | equivalent inconclusive
3 | 0.98  | equivalent inconclusive
"""


@cases(typed(MEMORY))
def test_memory_at_equal_latency(earlier, new, states):
    starts = memory([1.0] * earlier, new)
    assert judge(starts).state not in CHANGED
    for found in (only(judge_measures(starts)), only(compare_measures(starts[:-1], starts[-1:]))):
        assert found.state in states
        assert found.shift == pytest.approx(new - 1, abs=1e-9)
        assert (found.before, found.after) == (pytest.approx(512 * MIB), pytest.approx(new * 512 * MIB))
        assert found.low < new - 1.003 < new - 0.997 < found.high


def loads(level, seed, count=48):
    small, large = (
        latencies([seed, n], count, 0.015, level=by).tolist() for n, by in enumerate((200.0, 900 * level))
    )
    return {throughput_of(1, 1): small, AT_8: large}


LESS = """
1.0  | []         | regressed
1.25 | []         | inconclusive  # a shift of the controls is not blamed on the image
1.0  | [gpu_busy] | inconclusive
1.1  | [gpu_busy] | inconclusive
"""


@cases(typed(LESS))
def test_less_throughput_at_one_load_only(controls, tags, state):
    before = [start(-i, loads(1.0, i), every=3600.0) for i in (3, 2, 1)]
    after = [start(0, loads(0.8, 0, 12), every=3600.0, slower=controls, tags=(*tags,))]
    for found in (judge_measures([*before, *after]), compare_measures(before, after)):
        states = {name: verdict.state for name, verdict in found.items() if verdict.state in CHANGED}
        assert states == ({AT_8: "regressed"} if state == "regressed" else {})
        one = found[AT_8]
        assert one.state == state
        assert one.shift == pytest.approx(-0.2, abs=0.02)
        assert -0.3 < one.low < -0.2 < one.high < -0.05
        assert one.before == pytest.approx(900, rel=0.02)


def leaking(order, count, level=1.0):
    return start(order, {HOST_MEMORY: (level * 512 * MIB * (1 + 0.05 * np.arange(count) / 360)).tolist()})


@cases([5, 24, 192])
def test_a_leak_is_compared_at_the_same_age(runs):
    before, after = [leaking(-2, 3000), leaking(-1, 9000)], [leaking(0, runs)]
    assert only(judge_measures([*before, *after])).state not in CALLED
    if runs >= LIVE.pool.fewest_runs:
        assert only(compare_measures(before, after)).state not in CHANGED
        assert only(compare_measures(after, before)).state not in CHANGED
        assert only(judge_measures([*before, leaking(0, runs, level=1.3)])).state == "regressed"


def test_measures_that_are_judged():
    values = {
        name: [1.0] for name in (THROUGHPUT, DEVICE_USE, AT_8, ENERGY, HOST_MEMORY, DEVICE_MEMORY, "newer")
    }
    before = [start(-1, {**values, throughput_of(16, 1): [1.0]})]
    names = [measure.name for measure in measured(before, [start(0, values)])]
    assert names == [HOST_MEMORY, DEVICE_MEMORY, ENERGY, AT_8]
    many = {throughput_of(batch, 1): [1.0] for batch in range(1, 99)}
    assert len(measured([start(-1, many)], [start(0, many)])) == 20
    taught = LIVE.but(**Prior(number=3, sd=0.002).changes)
    assert taught.for_measures().pool.restart_sd == LIVE.for_measures().pool.restart_sd


def test_nothing_is_judged_without_an_upgrade_or_values():
    assert judge_measures(memory([1.0] * 3, 1.0)[:-1]) == judge_measures([]) == compare_measures([], []) == {}
    assert only(judge_measures(memory([1.0], 2.0, 3))) == MeasureVerdict(state="settling")


@pytest.mark.parametrize("value", [0.0, -1.0, 5e-324, 1.7e308, math.inf, math.nan])
@pytest.mark.parametrize("name", [AT_8, HOST_MEMORY])
def test_a_value_that_nothing_can_have_is_left_out(name, value):
    """A probe may report any number, and a single number must not cost the canary its verdicts."""
    some = upgrade(name, [[100.0, value] * 30, *[[value] * 60] * 2], [value, 100.0] * 24)
    none = upgrade(name, [[value] * 60] * 3, [value] * 60)
    for verdicts in (lambda each: judge_measures(each), lambda each: compare_measures(each[:3], each[3:])):
        found, nothing = only(verdicts(some), name), only(verdicts(none), name)
        assert (found.before, found.after, found.shift) == pytest.approx((100.0, 100.0, 0.0))
        assert found.state in ("equivalent", "inconclusive")
        assert nothing in (MeasureVerdict(state="no_baseline"), MeasureVerdict(state="inconclusive"))


@pytest.mark.parametrize("name", [HOST_MEMORY, ENERGY, AT_8])
@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e9])
def test_restarts_of_one_image_are_not_called_in_any_unit(name, unit):
    for seed in range(6):
        levels = unit * np.exp(np.random.default_rng(seed).normal(0, 0.025, 4))
        *old, new = (latencies([seed, n], 60, level=level).tolist() for n, level in enumerate(levels))
        for look in (5, 12, 24):
            assert only(judge_measures(upgrade(name, old, new[:look])), name).state not in CHANGED
        worse = [x * (0.7 if name == AT_8 else 1.4) for x in new]
        assert only(judge_measures(upgrade(name, old, worse)), name).state == "regressed"


# Spread ------------------------------------------------------------------------------------------------------------


def shaken(scale, neighbour="", siblings=0, earlier=3, seed=0):
    """Return two replicas whose runs scatter by 1 %, or ``scale`` times as much with the new image; then
    siblings.

    A neighbour adds 2 % of scatter to all runs on the host and to one control: in ten of every twenty minutes
    ("comes"), or from the upgrade on ("since").
    """
    rng = np.random.default_rng(seed)

    def one(service, replica, at, count):
        times = at + 10.0 * np.arange(count, dtype=np.float64)
        is_there = {"comes": times // 600 % 2 > 0, "since": times >= T}.get(neighbour, times < 0)
        own = 0.01 * (scale if service == "s" and at >= T else 1.0)
        level, felt = rng.normal(0, 0.01), [np.where(is_there, rng.normal(0, 0.02, count), 0.0) for _ in "mc"]
        medians = 0.01 * np.exp(level + rng.normal(0, own, count) + felt[0])
        spins = (0.001 * np.exp(rng.normal(0, 0.003, count) + felt[1])).tolist()
        return factories.start(
            f"{service}{replica}", "new" if at >= T else "old", at, medians.tolist(), service=service,
            controls=lambda i: {} if siblings else {"cpu_spin": spins[i]},
        )  # fmt: skip

    ours = [one("s", replica, T - 1e6 * past, 192) for past in range(earlier, -1, -1) for replica in (0, 1)]
    return [*ours, *(one(f"sibling{i}", 0, T - 2400, 432) for i in range(siblings))]


def spread_of(starts, runs):
    ours = [
        s if s.generation.started_at < T else s.first(runs) for s in starts if s.generation.service == "s"
    ]
    return judge_measures(ours, [s for s in starts if s.generation.service != "s"])[SPREAD.name]


SPREADS = """
{scale: 3.0}                                        | 47  | settling
{scale: 3.0}                                        | 48  | regressed
{scale: 0.5}                                        | 192 | improved
{scale: 2.0, earlier: 2}                            | 192 | inconclusive
{scale: 1.0}                                        | 192 | inconclusive equivalent
{scale: 1.0, neighbour: comes}                      | 48  | inconclusive equivalent
{scale: 1.0, neighbour: comes, siblings: 2}         | 96  | inconclusive equivalent
{scale: 1.0, neighbour: since}                      | 192 | inconclusive
{scale: 1.0, neighbour: since, siblings: 2}         | 192 | inconclusive
"""


@cases(typed(SPREADS))
def test_a_spread_that_doubles_is_called_unless_the_host_shows_it_too(world, runs, states):
    for seed in range(3):
        found = spread_of(shaken(**world, seed=seed), runs)
        assert found.state in states
        if found.state in CHANGED:
            sides = pytest.approx(0.01, rel=0.3), pytest.approx(0.01 * world["scale"], rel=0.3)
            assert (found.before, found.after) == sides


def test_a_look_at_the_latency_renews_the_spread_and_keeps_the_other_measures():
    starts, kept = shaken(2.0), MeasureVerdict("regressed")
    before = judge_canary("c", None, [s.first(40) for s in starts], [], LIVE)
    before = replace(before, measures={HOST_MEMORY: kept, SPREAD.name: before.measures[SPREAD.name]})
    for look, state in ((Due(True, False, False), "regressed"), (Due(False, False, True), "settling")):
        after = judge_canary("c", before, starts, [], LIVE, look).measures
        assert (after[SPREAD.name].state, after[HOST_MEMORY]) == (state, kept)


def test_a_neighbour_that_stays_is_called_where_nothing_else_shows_it():
    """Control for the table above: without controls or siblings, the judge calls a change for the same neighbour."""
    starts = shaken(1.0, "since")
    assert spread_of([changed(s, controls={}) for s in starts], 192).state == "regressed"
    flipped = {"controls_made_of": "CPython 3.12.1"}
    other = [s.reporting(environment=flipped if s.generation.image_id == "new" else {}) for s in starts]
    assert spread_of(other, 192).state == "regressed"  # controls with other work are not comparable


def test_a_users_numbers_hold_for_the_spread():
    """With fewer looks, the judge still gives a verdict. A higher rate of false calls applies to latency, but
    not to spread.
    """
    assert Measures(LIVE.but(looks=(6, 12, 24, 36))).judge(shaken(2.0))[SPREAD.name].state == "regressed"
    usual, bold = (
        Measures(policy).judge(shaken(1.0))[SPREAD.name] for policy in (LIVE, LIVE.but(false_calls=0.05))
    )
    assert usual.low is not None
    assert bold.low is not None
    assert usual.low < bold.low < 0.0
    assert bold.state == "inconclusive"


def test_a_spread_that_is_cpu_wait_is_no_spread_of_the_image():
    def wait(run):
        return float(0.001 * (run.sequence % 3) * (run.started_at >= T))

    starts = [changed(s, median=lambda run: run.median + wait(run), waited=wait) for s in shaken(1.0)]
    assert spread_of(starts, 192).state not in CHANGED


@cases([0.0005, 0.02])
def test_a_coarse_clock_or_a_still_latency_has_a_spread(tick):
    values = np.round(np.random.default_rng(0).normal(1, 0.01, 48) / tick) * tick
    assert spread(values.tolist()) == pytest.approx(0.01, rel=0.35)
    assert spread([1.0] * 48) == pytest.approx(0.001)
    # a single outlier does not change the spread
    assert spread([*values, 50.0, *values]) < 1.3 * spread(values.tolist())
