"""An interval that holds at all looks together: what it promises, on simulated starts, and what must not change it."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.result import Result
from infercanary.judge.sentence import progress, sentence
from infercanary.judge.sequential import (
    assess_look,
    bound,
    confirmed_at,
    half_width,
    is_beyond_doubt,
    is_within,
    starts_needed,
)
from infercanary.judge.shift import CHANGED, Pooled
from infercanary.judge.verdict import Judge

judge = Judge().verdict

HOUR = 3600.0


def start(
    container: str, image: str, at: float, runs: int, rng: np.random.Generator, *, slower: float = 0.0, sd: float = 0.01
) -> Start:  # fmt: skip
    """One start; ``sd`` is by how much starts differ."""
    level = math.log(0.02) + math.log1p(slower) + rng.normal(0, sd)
    samples = [
        Sample(i, "c", at + 10.0 * i, "ok", math.exp(x)) for i, x in enumerate(rng.normal(level, 0.01, runs))
    ]
    boot = f"{container}-{at}"
    g = Generation(service="s", container=container, boot_id=boot, started_at=at, image_id=image)
    return Start(g, samples)


def service(
    seed: int, replicas: int, runs: int, *, slower: float = 0.0, sd: float = 0.01, earlier: int = 3
) -> list[Start]:
    """Starts of a service: ``earlier`` and one more of each replica, and then one of a new image."""
    rng = np.random.default_rng(seed)
    names = [f"r{i}" for i in range(replicas)]
    old = [
        start(name, "old", HOUR * hour + i, 60, rng, sd=sd)
        for hour in range(1, earlier + 2)
        for i, name in enumerate(names)
    ]
    new = [
        start(name, "new", HOUR * (earlier + 2) + i, runs, rng, slower=slower, sd=sd)
        for i, name in enumerate(names)
    ]
    return [*old, *new]


def same(one: Result, other: Result) -> None:
    assert one.state == other.state
    for name in ("shift", "low", "high", "restart_sd"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9, abs=1e-12), name


def with_samples(starts: Sequence[Start], factor: float) -> list[Start]:
    return [
        Start(s.generation, [Sample(x.sequence, "c", x.started_at, "ok", (x.median or 0) * factor) for x in s.samples])
        for s in starts
    ]  # fmt: skip


def test_the_bound_holds_at_all_looks_together() -> None:
    rng = np.random.default_rng(1)
    n = np.arange(1, 513)
    means = rng.normal(size=(4000, n.size)).cumsum(axis=1) / np.sqrt(n)
    limits = np.array([bound(float(runs), 0.05, LIVE) for runs in n])
    assert 0.005 < (np.abs(means) > limits).any(axis=1).mean() <= 0.05


def test_a_restart_is_asked_about_once_and_runs_at_every_look() -> None:
    restart, runs = Pooled(0.0, 0.0, 9.0, 0.01, 9.0), Pooled(0.0, 0.01, 9.0, 0.0, 9.0)
    assert half_width(restart, 5, 0.05, LIVE) == half_width(restart, 192, 0.05, LIVE)
    assert half_width(restart, 5, 0.05, LIVE) == pytest.approx(2.262 * 0.01, rel=1e-3)
    assert half_width(runs, 12, 0.05, LIVE) > 1.5 * half_width(restart, 12, 0.05, LIVE)
    both = Pooled(0.0, 0.01, 9.0, 0.01, 9.0)
    assert half_width(both, 12, 0.05, LIVE) == pytest.approx(
        math.hypot(half_width(restart, 12, 0.05, LIVE), half_width(runs, 12, 0.05, LIVE))
    )


@given(
    st.floats(-1, 1), st.floats(1e-4, 0.3), st.floats(2, 50), st.floats(0, 0.2), st.floats(2, 50),
    st.sampled_from(LIVE.decide.looks),
)  # fmt: skip
def test_the_words_are_those_of_the_interval(
    log: float, runs_se: float, runs_df: float, restart_se: float, restart_df: float, runs: int
) -> None:
    between = Pooled(log, runs_se, runs_df, restart_se, restart_df)
    seen = assess_look(between, runs, LIVE)
    is_clear = seen.low > math.expm1(LIVE.decide.log_clear) or seen.high < math.expm1(-LIVE.decide.log_clear)
    if seen.verdict == "equivalent":
        assert max(-math.log1p(seen.low), math.log1p(seen.high)) < LIVE.decide.log_effect
    else:
        assert is_clear == (seen.verdict in (*CHANGED, "unconfirmed"))
    mirrored = {"regressed": "improved", "improved": "regressed"}
    assert assess_look(between._replace(log=-log), runs, LIVE).verdict == mirrored.get(
        seen.verdict, seen.verdict
    )
    if seen.verdict == "unconfirmed":
        later = confirmed_at(between, runs, LIVE)
        assert later is None or later > runs
        assert not is_beyond_doubt(between, runs, LIVE)


def lasting(share: float, off: float, runs: int = 240) -> list[list[np.ndarray]]:
    """Runs of a baseline of which this share is ``off`` its level, and steady ones of a candidate."""
    modes = np.where(np.arange(runs) < share * runs, off, 0.0)
    return [[modes], [np.zeros(5)]]


def test_noise_moves_a_level_by_no_more_than_it_moved_some_runs() -> None:
    between = Pooled(0.69, 1.0, 50.0, 0.01, 10.0, lasting(0.2, 0.25))
    assert is_beyond_doubt(between, 5, LIVE)
    assert not is_beyond_doubt(between._replace(lasting=lasting(0.2, 0.7)), 5, LIVE)
    assert not is_beyond_doubt(between._replace(log=0.2), 192, LIVE)


def test_a_mode_widens_an_interval_by_how_far_and_how_often() -> None:
    between = Pooled(0.26, 0.3, 50.0, 0.017, 3.0)  # a throttled baseline, and no restart that was seen
    widths = [
        half_width(between._replace(lasting=lasting(share, 0.16)), 48, LIVE.decide.false_calls, LIVE)
        for share in (0.0, 0.02, 0.12, 0.4, 1.0)
    ]
    assert widths == sorted(widths) and widths[-1] > widths[0] + 0.1
    assert is_beyond_doubt(between._replace(lasting=lasting(0.12, 0.16)), 48, LIVE)
    assert not is_beyond_doubt(between._replace(lasting=lasting(0.4, 0.16)), 48, LIVE)


@given(
    st.floats(0.001, 0.5),
    st.floats(0.0, 0.1),
    st.floats(0.0, 0.5),
    st.floats(0.0, 1.0),
    st.floats(0.001, 0.5),
)
def test_whether_a_width_is_below_a_limit_is_known_without_it(
    runs_se: float, restart_se: float, off: float, share: float, limit: float
) -> None:  # fmt: skip
    between = Pooled(0.1, runs_se, 12.0, restart_se, 5.0, lasting(share, off))
    half = half_width(between, 12, LIVE.decide.false_calls, LIVE)
    if abs(half - limit) > 1e-9:
        assert is_within(between, 12, LIVE.decide.false_calls, limit, LIVE) == (half < limit)


def test_an_unconfirmed_change_says_what_it_waits_for() -> None:
    assert confirmed_at(Pooled(0.3, 0.05, 10.0, 0.01, 10.0), 5, LIVE) == 8
    assert confirmed_at(Pooled(0.1, 0.05, 10.0, 0.03, 10.0), 5, LIVE) is None
    judgement = Result(
        state="unconfirmed", shift=0.1, low=0.02, high=0.2, look=11, confirmed_at=12, next_look=12
    )
    assert sentence(judgement) == "unconfirmed +10.0 % [+2.0, +20.0]: slower, unconfirmed (11 of 12 runs)"
    assert progress(judgement) == "next look at 12 runs"
    faster = Result(state="unconfirmed", shift=-0.1, low=-0.2, high=-0.02, look=192)
    for number, more in {None: "more restarts", 1: "another restart", 3: "about 3 more restarts"}.items():
        waiting = msgspec.structs.replace(faster, starts_needed=number)
        assert f"faster, unconfirmed: needs {more} or replica" in sentence(waiting)


def test_how_many_starts_a_change_waits_for_is_how_many_call_it() -> None:
    """At an upgrade after which starts of one image differ by 4 %, each new start being as slow as the first."""
    between = Pooled(0.2, 0.005, 100.0, 0.056, 6.0)
    needed = starts_needed(between, 24, (4, 1), LIVE)
    assert needed is not None and needed > 1

    def then(starts: int) -> Pooled:
        error = 0.056 * math.sqrt((1 / 4 + 1 / (1 + starts)) / (1 / 4 + 1))
        return between._replace(restart_se=error, restart_df=6.0 + starts)

    assert is_beyond_doubt(then(needed), 192, LIVE) and not is_beyond_doubt(then(needed - 1), 192, LIVE)
    assert starts_needed(between._replace(log=0.05), 24, (4, 1), LIVE) is None, "no number of them"


def test_a_large_change_is_called_within_a_minute_without_any_history() -> None:
    """At a run every 10 s: 6 runs."""
    for seed in range(10):
        assert judge(service(seed, 1, 6, slower=1.0, earlier=0), [], "c").state == "regressed"
        assert judge(service(seed, 1, 24, slower=0.3, earlier=0), [], "c").state == "regressed"
        assert judge(service(seed, 1, 6, slower=-0.5, earlier=0), [], "c").state == "improved"


@pytest.mark.parametrize(
    ("sd", "earlier", "replicas"), [(0.003, 0, 1), (0.01, 2, 1), (0.03, 0, 1), (0.03, 1, 2)]
)
def test_a_restart_of_the_same_image_is_hardly_ever_called(sd: float, earlier: int, replicas: int) -> None:
    called = 0
    for seed in range(60):
        starts = service(1000 + seed, replicas, 192, sd=sd, earlier=earlier)
        called += any(
            judge([*starts[:-replicas], *(s.first(runs) for s in starts[-replicas:])], [], "c").state
            in CHANGED
            for runs in (5, 12, 48, 192)
        )
    assert called <= 1


@pytest.mark.parametrize("runs", [7, 48])
@pytest.mark.parametrize("slower", [0.0, 0.06, 0.3])
def test_the_order_of_replicas_and_the_unit_do_not_matter(runs: int, slower: float) -> None:
    starts = service(7, 3, runs, slower=slower)
    found = judge(starts, [], "c")
    same(judge(with_samples(starts, 1000.0), [], "c"), found)
    swapped = {"r0": "r2", "r1": "r0", "r2": "r1"}
    renamed = [
        Start(
            Generation(
                service="s",
                container=swapped[s.generation.container],
                boot_id=s.generation.boot_id,
                started_at=s.generation.started_at,
                image_id=s.generation.image_id,
            ),
            s.samples,
        )
        for s in starts
    ]
    same(judge(renamed, [], "c"), found)


@pytest.mark.parametrize("slower", [0.0, 0.06, 0.3])
def test_the_order_of_the_baselines_starts_does_not_matter(slower: float) -> None:
    starts = service(8, 1, 48, slower=slower)
    old = [starts[2], starts[0], starts[3], starts[1]]
    shuffled = [
        Start(at.generation, [Sample(x.sequence, "c", at.generation.started_at + 10.0 * i, "ok", x.median)
        for i, x in enumerate(what.samples)])
        for at, what in zip(starts[:4], old, strict=True)
    ]  # fmt: skip
    same(judge([*shuffled, starts[-1]], [], "c"), judge(starts, [], "c"))


@pytest.mark.parametrize("slower", [0.0, 0.06, 0.3])
def test_a_replica_that_agrees_makes_it_surer(slower: float) -> None:
    """And so it takes no verdict back."""
    rank = {"inconclusive": 0, "unconfirmed": 1, "equivalent": 2, "regressed": 2}
    for seed in range(6):
        one = service(20 + seed, 1, 48, slower=slower)
        twin = [
            Start(
                Generation(
                    service="s",
                    container="twin",
                    boot_id=f"twin-{s.generation.started_at}",
                    started_at=s.generation.started_at + 1,
                    image_id=s.generation.image_id,
                ),
                s.samples,
            )
            for s in one
        ]
        both = sorted([*one, *twin], key=lambda s: s.generation.started_at)
        alone, agreed = judge(one, [], "c"), judge(both, [], "c")
        assert agreed.shift == pytest.approx(alone.shift)
        assert alone.high is not None and alone.low is not None
        assert agreed.high is not None and agreed.low is not None
        assert agreed.high - agreed.low < alone.high - alone.low
        assert rank[agreed.state] >= rank[alone.state]


@pytest.mark.parametrize(("runs_se", "restart_se"), [(0.003, 0.0), (0.03, 1e-6), (0.3, 0.005), (1e9, 0.02)])
def test_the_width_beside_modes_errs_as_often_as_it_may(runs_se: float, restart_se: float) -> None:
    """Also where restarts hardly differ, so that the share falls in jumps, and where noise seems to last for ever."""
    rng = np.random.default_rng(1)
    sides = [[rng.normal(0, 0.01, 60) + 0.1 * (rng.random(60) < 0.2)] for _ in range(2)]
    parts = Pooled(0.05, runs_se, 5.0, restart_se, 8.0, (sides[0], sides[1]))
    half = half_width(parts, 24, 0.05, LIVE)
    assert is_within(parts, 24, 0.05, half + 1e-12, LIVE)
    assert not is_within(parts, 24, 0.05, half - 1e-12, LIVE)


def test_the_judge_does_not_load_what_only_finds_a_root() -> None:
    """scipy.optimize would be a seventh of the memory of an exporter of a thousand containers."""
    code = "import sys, infercanary.exporter.app; sys.exit('scipy.optimize' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
