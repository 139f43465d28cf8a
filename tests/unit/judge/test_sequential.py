"""Consecutive looks: an interval that is valid for all looks together, and the resulting states."""

import math
import random
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infercanary.judge.policy import LIVE
from infercanary.judge.sequential import SequentialTest, verdict_after
from infercanary.judge.shift import CHANGED, Comparison, Pooled
from infercanary.judge.upgrade import select
from infercanary.judge.verdict import Judge
from tests.factories import HOUR, changed, judge, since, start
from tests.programs import ended
from tests.scenarios import cases, typed

looks = SequentialTest(LIVE.decide)


def service(seed, replicas, runs, *, slower=0.0, sd=0.01, earlier=3):
    rng, last = random.Random(seed), earlier + 1
    return [
        start(
            f"r{i}", "new" if hour == last else "old", HOUR * hour + i,
            0.02 * (1 + slower * (hour == last)) * rng.lognormvariate(0, sd), runs if hour == last else 60,
            control=0, noise=0.01, seed=seed,
        )
        for hour in range(last + 1)
        for i in range(replicas)
    ]  # fmt: skip


def test_the_interval_holds_at_all_looks_together():
    rng = np.random.default_rng(1)
    runs = np.array(LIVE.decide.looks)
    means = rng.normal(size=(4000, runs[-1])).cumsum(axis=1)[:, runs - 1] / runs
    halves = [looks.half_width(Pooled(0.0, 1 / math.sqrt(n), 1e9, 0.0, 9.0), 0.05) for n in runs]
    assert 0.01 < (np.abs(means) > halves).any(axis=1).mean() <= 0.05


def test_a_restart_is_asked_about_once_and_runs_at_every_look():
    parts = (0.0, 0.01), (0.01, 0.0), (0.01, 0.01)
    once, every, together = (
        looks.half_width(Pooled(0.0, runs, 9.0, restart, 9.0), 0.05) for runs, restart in parts
    )
    assert once == pytest.approx(2.262 * 0.01, rel=1e-3)
    assert every > 1.5 * once
    assert together == pytest.approx(math.hypot(once, every))


pooled_shifts = st.tuples(
    st.floats(-1, 1), st.floats(1e-4, 0.3), st.floats(2, 50), st.floats(0, 0.2), st.floats(2, 50)
).map(lambda numbers: Pooled(*numbers))


@given(pooled_shifts)
def test_the_words_are_those_of_the_interval(pooled):
    decide, seen = LIVE.decide, looks.assess(pooled)
    is_clear = seen.low > -1 and max(math.log1p(seen.low), -math.log1p(seen.high)) > decide.log_clear
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


def test_an_unconfirmed_change_says_whether_it_needs_starts():
    found = [
        judge(service(seed, 1, 5, slower=slower, earlier=1)) for seed in range(12) for slower in (0.06, 0.12)
    ]
    assert {each.looks.needs_starts for each in found if each.state == "unconfirmed"} == {True, False}
    assert not looks.needs_starts(Pooled(0.3, 0.05, 10.0, 0.01, 10.0))
    assert looks.needs_starts(Pooled(0.1, 0.05, 10.0, 0.03, 10.0))


# A minus means a shift in the opposite direction.
VERDICTS = """
                                   | None
regressed                          | regressed
unconfirmed                        | unconfirmed
unconfirmed regressed              | regressed
regressed unconfirmed unconfirmed  | regressed
regressed inconclusive             | inconclusive
regressed inconclusive unconfirmed | unconfirmed
regressed equivalent               | equivalent
regressed improved                 | improved
regressed -unconfirmed             | unconfirmed
improved -unconfirmed              | improved
"""


@cases(VERDICTS)
def test_a_change_that_was_called_stays_while_its_interval_shows_it(verdicts, expected):
    slower, faster = (0.1, 0.05, 0.15), (-0.1, -0.15, -0.05)
    found = [
        Comparison(verdict.strip("-"), *(faster if verdict in ("improved", "-unconfirmed") else slower))
        for verdict in verdicts.split()
    ]
    assert str(verdict_after(found)) == expected


def test_a_call_of_the_live_judge_stays_while_the_interval_shows_it():
    """The shift is +8 % in the first runs, +4.5 % later. A later look alone is unconfirmed, but an alert must
    not flap.
    """
    stayed = 0
    for seed in range(8):
        *old, new = service(seed, 1, 192, slower=0.045, sd=0.002)
        new = changed(new, median=lambda s: (1.035 if s.sequence < 6 else 1.0) * s.median)
        called = False
        for runs in LIVE.decide.looks:
            found = Judge().finder.find(select([*old, new.first(runs)]))
            if called and found.look.seen.verdict == "unconfirmed":
                assert found.state == "regressed"
                stayed += 1
            called = found.state == "regressed"
    assert stayed


LARGE = """
6  | 1.0  | regressed
24 | 0.3  | regressed
6  | -0.5 | improved
"""


@cases(typed(LARGE))
def test_a_large_change_is_called_within_minutes_without_any_history(runs, slower, state):
    """With a run every 10 s, 6 runs take a minute."""
    for seed in range(10):
        assert judge(service(seed, 1, runs, slower=slower, earlier=0)).state == state


RESTARTS = """
0.003 | 0 | 1
0.01  | 2 | 1
0.03  | 0 | 1
0.03  | 1 | 2
"""


@cases(typed(RESTARTS))
def test_a_restart_of_the_same_image_is_hardly_ever_called(sd, earlier, replicas):
    called = 0
    for seed in range(30):
        starts = service(1000 + seed, replicas, 192, sd=sd, earlier=earlier)
        old, new = starts[:-replicas], starts[-replicas:]
        states = {judge([*old, *(s.first(runs) for s in new)]).state for runs in (5, 12, 48, 192)}
        called += not states.isdisjoint(CHANGED)
    assert called <= 1


@cases([1, 2])
def test_the_latest_starts_are_the_baseline(history):
    """A day before, the host was slower. Those starts count for the restart variance, but are no longer compared."""
    starts = service(9, 1, 48, sd=0.003)
    slow = [changed(s, median=lambda run: 1.05 * run.median) for s in starts[:2]]
    found = judge([*slow, *starts[2:]], history=history)
    assert found.shift == pytest.approx(0.0, abs=0.012)
    assert found.starts == history + 1
    assert found.restart.sd > judge(starts).restart.sd


def test_a_cause_that_a_look_contradicts_is_unknown_until_the_next_one_agrees():
    old, at = [start(at=HOUR * hour) for hour in range(4)], 5 * HOUR
    new = start("a", "new", at, 0.028, 192, control=since(at + 100, 1 / 1.4, 0.0014))
    found = [judge([*old, new.first(runs)], looks=(5, 96, 192)) for runs in (5, 96, 192)]
    causes = ["host", "unknown", "image"]
    assert [(each.state, each.causes.cause) for each in found] == [("regressed", cause) for cause in causes]


def test_a_number_of_the_policy_is_changed_by_its_name():
    half = LIVE.but(smallest_effect=0.5, history=3)
    assert (half.decide.smallest_effect, half.pool.history) == (0.5, 3)
    # +50 % and -33 % are equally far on the log scale
    assert half.decide.log_effect == pytest.approx(math.log(1.5))
    assert half.but(smallest_effect=LIVE.decide.smallest_effect, history=LIVE.pool.history) == LIVE != half
    with pytest.raises(KeyError, match="smalest_effect"):
        LIVE.but(smalest_effect=0.5)


def test_the_judge_does_not_load_what_only_finds_a_root():
    """With scipy.optimize, an exporter of a thousand containers would use a seventh more memory."""
    code = "import sys, infercanary.exporter.app; sys.exit('scipy.optimize' in sys.modules)"
    ended(sys.executable, "-c", code)
