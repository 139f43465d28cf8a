"""Looks in a row: an interval that holds at all of them together, what they amount to, and what they promise."""

from __future__ import annotations

import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.judge.model import Generation, Sample, Start
from infercanary.judge.policy import LIVE
from infercanary.judge.resolution import Resolution
from infercanary.judge.sequential import SequentialTest, verdict_after
from infercanary.judge.shift import CHANGED, Comparison, Pooled, Verdict
from infercanary.judge.upgrade import select
from infercanary.judge.verdict import Judge

judge = Judge().verdict
looks = SequentialTest(LIVE.decide)

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


def test_the_interval_holds_at_all_looks_together() -> None:
    rng = np.random.default_rng(1)
    runs = np.array(LIVE.decide.looks)
    means = rng.normal(size=(4000, runs[-1])).cumsum(axis=1)[:, runs - 1] / runs
    halves = [looks.half_width(Pooled(0.0, 1 / math.sqrt(n), 1e9, 0.0, 9.0), 0.05) for n in runs]
    assert 0.01 < (np.abs(means) > halves).any(axis=1).mean() <= 0.05


def test_a_restart_is_asked_about_once_and_runs_at_every_look() -> None:
    restart, runs = Pooled(0.0, 0.0, 9.0, 0.01, 9.0), Pooled(0.0, 0.01, 9.0, 0.0, 9.0)
    both = Pooled(0.0, 0.01, 9.0, 0.01, 9.0)
    once, every, together = (looks.half_width(pooled, 0.05) for pooled in (restart, runs, both))
    assert once == pytest.approx(2.262 * 0.01, rel=1e-3)
    assert every > 1.5 * once and together == pytest.approx(math.hypot(once, every))


pooled_shifts = st.tuples(
    st.floats(-1, 1), st.floats(1e-4, 0.3), st.floats(2, 50), st.floats(0, 0.2), st.floats(2, 50)
).map(lambda numbers: Pooled(*numbers))


@given(pooled_shifts, st.sampled_from(LIVE.decide.looks))
def test_the_words_are_those_of_the_interval(pooled: Pooled, runs: int) -> None:
    decide = LIVE.decide
    seen = looks.assess(pooled)
    is_clear = (
        max(math.log1p(seen.low), -math.log1p(seen.high)) > decide.log_clear if seen.low > -1 else False
    )
    called = abs(pooled.log) - looks.half_width(pooled, decide.false_calls) > decide.log_clear
    if seen.verdict == "equivalent":
        assert max(-math.log1p(seen.low), math.log1p(seen.high)) < decide.log_effect
    else:
        assert is_clear == (seen.verdict in (*CHANGED, "unconfirmed"))
    assert (seen.verdict in CHANGED) == (called and abs(pooled.log) >= decide.log_effect)
    mirrored = {"regressed": "improved", "improved": "regressed"}
    assert looks.assess(pooled._replace(log=-pooled.log)).verdict == mirrored.get(seen.verdict, seen.verdict)
    if seen.verdict == "unconfirmed":
        then = looks.assess(pooled._replace(runs_se=1e-9, runs_df=1e9))
        assert looks.needs_starts(pooled) == (then.verdict not in CHANGED)


@pytest.mark.parametrize(
    ("log", "down", "up", "verdict"),
    [
        (0.2, 0.15, 0.3, "regressed"),
        (0.2, 0.195, 0.0, "inconclusive"),
        (-0.2, 0.3, 0.15, "improved"),
        (-0.2, 0.0, 0.195, "inconclusive"),
        (0.0, 0.02, 0.02, "equivalent"),
        (0.0, 0.0, 0.05, "inconclusive"),
    ],
)
def test_an_interval_reaches_as_far_as_the_clock_may_hide(
    log: float, down: float, up: float, verdict: str
) -> None:
    seen = looks.assess(Pooled(log, 1e-4, 50.0, 1e-4, 50.0, resolution=Resolution(down, up)))
    assert seen.verdict == verdict
    assert math.log1p(seen.low) <= log - down + 1e-9 and math.log1p(seen.high) >= log + up - 1e-9


def test_an_unconfirmed_change_needs_starts_if_their_share_of_the_error_is_larger() -> None:
    assert not looks.needs_starts(Pooled(0.3, 0.05, 10.0, 0.01, 10.0))
    assert looks.needs_starts(Pooled(0.1, 0.05, 10.0, 0.03, 10.0))


def test_the_live_judge_says_what_an_unconfirmed_change_waits_for() -> None:
    waits = set()
    for seed in range(12):
        for slower in (0.06, 0.12):
            found = judge(service(seed, 1, 5, slower=slower, sd=0.01, earlier=1), [], "c")
            if found.state == "unconfirmed":
                waits.add(found.looks.needs_starts)
    assert waits == {True, False}


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([], None),
        (["regressed"], "regressed"),
        (["equivalent"], "equivalent"),
        (["unconfirmed"], "unconfirmed"),
        (["unconfirmed", "regressed"], "regressed"),
        (["regressed", "unconfirmed", "unconfirmed"], "regressed"),
        (["regressed", "inconclusive"], "inconclusive"),
        (["regressed", "inconclusive", "unconfirmed"], "unconfirmed"),
        (["regressed", "equivalent"], "equivalent"),
        (["regressed", "improved"], "improved"),
        (["regressed", "-unconfirmed"], "unconfirmed"),
        (["improved", "-unconfirmed"], "improved"),
    ],
)
def test_a_change_that_was_called_stays_while_its_interval_shows_it(
    verdicts: list[str], expected: Verdict | None
) -> None:
    slower, faster = (0.1, 0.05, 0.15), (-0.1, -0.15, -0.05)
    found = [
        Comparison(verdict.strip("-"), *(faster if verdict in ("improved", "-unconfirmed") else slower))  # type: ignore[arg-type]
        for verdict in verdicts
    ]
    assert verdict_after(found) == expected


def test_a_call_of_the_live_judge_stays_while_the_interval_shows_it() -> None:
    """+8 % in the first runs, and +4.5 % since: a look alone would be unconfirmed, an alert does not come and go."""
    stayed = 0
    for seed in range(8):
        *old, new = service(seed, 1, 192, slower=0.045, sd=0.002)
        samples = [
            msgspec.structs.replace(s, median=(1.035 if s.sequence < 6 else 1.0) * (s.median or 0.0))
            for s in new.samples
        ]
        called = False
        for runs in LIVE.decide.looks:
            starts = [*old, Start(new.generation, samples).first(runs)]
            found = Judge().finder.find(select(starts))
            assert found.look is not None
            if called and found.look.seen.verdict == "unconfirmed":
                assert found.state == "regressed"
                stayed += 1
            called = found.state == "regressed"
    assert stayed


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


@pytest.mark.parametrize("slower", [0.0, 0.06, 0.3])
def test_the_order_of_the_baselines_starts_does_not_matter(slower: float) -> None:
    starts = service(8, 1, 48, slower=slower)
    old = [starts[2], starts[0], starts[3], starts[1]]
    shuffled = [
        Start(at.generation, [msgspec.structs.replace(s, started_at=at.generation.started_at + 10.0 * i)
        for i, s in enumerate(what.samples)])
        for at, what in zip(starts[:4], old, strict=True)
    ]  # fmt: skip
    one, other = judge(starts, [], "c"), judge([*shuffled, starts[-1]], [], "c")
    assert one.state == other.state
    numbers = [[found.shift, found.low, found.high, found.restart.sd] for found in (one, other)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-9)


@pytest.mark.parametrize("history", [1, 2])
def test_the_latest_starts_are_the_baseline(history: int) -> None:
    """The host was twice as slow a day before: those starts teach the restart variance, and are compared no more."""
    starts = service(9, 1, 48, sd=0.003, earlier=3)
    slow = [
        Start(s.generation, [msgspec.structs.replace(x, median=1.05 * (x.median or 0.0)) for x in s.samples])
        for s in starts[:2]
    ]
    found = Judge(LIVE.but(history=history)).verdict([*slow, *starts[2:]], [], "c")
    assert found.shift == pytest.approx(0.0, abs=0.012) and found.starts == history + 1
    assert found.restart.sd > judge(starts, [], "c").restart.sd


def test_the_judge_does_not_load_what_only_finds_a_root() -> None:
    """scipy.optimize would be a seventh of the memory of an exporter of a thousand containers."""
    code = "import sys, infercanary.exporter.app; sys.exit('scipy.optimize' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
