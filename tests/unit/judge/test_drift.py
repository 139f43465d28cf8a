"""Drift without an upgrade, from a frozen baseline: onset, and effects of host and restarts."""

import pytest

from infercanary.contract.profile import Profile, ProfileRow
from infercanary.judge.drift import blocks, detect
from infercanary.judge.model import ServiceKey, Start, merge
from infercanary.judge.policy import LIVE
from infercanary.judge.pooling import NO_RESTART
from infercanary.judge.profiles import pack
from infercanary.judge.restarts import restarts_before
from infercanary.judge.statistics import learn
from infercanary.store.store import open_store
from tests import factories
from tests.factories import changed
from tests.scenarios import cases, typed

BLOCK = LIVE.drift.block_runs
MINUTE, DAY = 60.0, 86_400.0


def start(
    days, level=None, control=None, *, begin=0.0, every=MINUTE,
    **fields,
):  # fmt: skip
    """Return a start with a run every minute, or every ``every`` seconds, from the day ``begin`` on."""

    def by(factor, usual):
        return lambda time: usual * (factor(time / DAY) if factor else 1.0)

    return factories.start(
        "a", "old", begin * DAY, by(level, 0.02), int(days * DAY / every), control=by(control, 0.0004), noise=0.01,
        every=every, **fields,
    )  # fmt: skip


def step(factor, day):
    return lambda at: factor if at >= day else 1.0


def creep(rate, day=1.0):
    return lambda at: 1 + rate * max(0.0, at - day)


def seen(*starts, siblings=()):
    return detect(starts, siblings, "c", learn([]) if len(starts) > 1 else NO_RESTART)


def test_blocks_are_of_twelve_and_merged_ones_stand_for_themselves():
    samples = start(1).samples[:30]
    whole = [merge(samples[:BLOCK]), merge(samples[BLOCK : 2 * BLOCK])]
    assert blocks(samples, BLOCK) == whole
    assert blocks([*whole, *samples], BLOCK) == [*whole, *whole]
    # a block does not join runs from two times
    assert blocks([*samples[:5], *whole, *samples[:12]], BLOCK) == [*whole, whole[0]]


# Starts: days, and a factor from a day on (factor@day) or a creep a day. Then the shift, and the day of its
# onset.
DRIFTS = """
.3                    | None
4                     | 0
4 1.08@2.5            | .08 2.5
4 .9@2                | -.1 2
14 creep=.006         | .078
8 1.08@5 every=600    | .08 5
3.9 1.08@2 every=600  | None
2; 2 1.025@0 begin=2  | 0
2; 2 1.18@0 begin=2   | .18 2
.067 1.08@0 & 3 begin=2 | 0
"""
"""A rolling baseline would absorb a creep. A run every ten minutes gives 12 blocks a day; the first 24 are
the baseline. Another start (;) may change the level a little. An hour before a pause (&) is too short for a
baseline.
"""


def described(text):
    days, *words = text.split()
    fields = {name: float(value) for name, _, value in (word.partition("=") for word in words if "=" in word)}
    level = next((step(*map(float, word.split("@"))) for word in words if "@" in word), None)
    level = creep(fields.pop("creep")) if "creep" in fields else level
    return start(float(days), level, **fields)


@cases(DRIFTS)
def test_a_drift_is_found_with_its_onset(text, expected):
    starts = [
        Start(parts[0].generation, [run for part in parts for run in part.samples])
        for parts in ([*map(described, each.split("&"))] for each in text.split(";"))
    ]
    found, (shift, *onset) = seen(*starts), expected.split()
    if shift in ("None", "0"):
        assert found.shift == (None if shift == "None" else 0)
    else:
        assert found.shift == pytest.approx(float(shift), abs=0.016)
        assert abs(found.host.shift) < 0.01
        assert not onset or found.onset / DAY == pytest.approx(float(onset[0]), abs=0.2)


@cases(
    [
        (90, creep(0.002, 0), 10 * MINUTE, 0.176, 4, None),
        (6, step(1.1, 3), 20.0, 0.1, 10, 3),
    ],
)
def test_a_drift_is_found_after_the_store_thinned_its_runs(days, level, every, shift, kept, onset):
    whole, store, daily = start(days, level, every=every), open_store(None), int(DAY / every)
    for day in range(days):
        for _ in range(2):
            store.take(whole.generation, whole.samples[daily * day : daily * (day + 1)])
            store.thin(DAY * (day + 1))
    [(generation, thinned)] = store.generations(ServiceKey("", "s"), "c")
    store.close()
    assert len(thinned) < len(whole.samples) / kept
    found = seen(Start(generation, thinned))
    assert found.shift == pytest.approx(shift, abs=0.015)
    assert onset is None or found.onset == pytest.approx(onset * DAY, abs=3_600)


@cases([365 * DAY, -365 * DAY], ids=["on", "back"])
def test_a_clock_that_is_set_leaves_the_baseline(by):
    """A clock that is set forward ends the first day, like a pause. A clock that is set back must not make it a
    year longer.
    """

    def moved(run):
        return run.started_at + by * (run.started_at >= 0.1 * DAY)

    assert seen(changed(start(14, creep(0.006)), started_at=moved)).shift == pytest.approx(0.078, abs=0.016)


def test_drift_of_controls_or_of_two_siblings_is_the_hosts():
    """A single sibling may have changed by itself, or report false values. Without other evidence, the cause is
    unknown.
    """
    hot = step(1.1, 3)
    blind, one, other = (
        start(4, hot, controls={}, seed=n, service=name) for n, name in enumerate(("s", "x", "y"))
    )
    for found in (seen(start(4, hot, hot)), seen(blind, siblings=(one, other))):
        assert found.host.shift == pytest.approx(0.1, abs=0.01)
    assert seen(blind, siblings=(one,)).host is None


LEVELS = """
[1.0, ~]              | 0.28
[~, 1.3]              | 0.3
[1.0, ~, 1.3]         | 0.3
[1.0, 1.15, 0.9, 1.1] | 0.0  # within the restart variance
"""


@cases(typed(LEVELS))
def test_a_restart_does_not_excuse_what_drifts_before_or_after_it(levels, shift):
    starts = [
        start(3, lambda day, x=x: 1 + 0.15 * max(0.0, day % 3 - 1) if x is None else x, begin=3.0 * n)
        for n, x in enumerate(levels)
    ]
    found = detect(starts, [], "c", restarts_before(starts[-1], starts, LIVE.pool))
    assert found.shift == pytest.approx(shift, abs=0.03 if shift else 0)


def test_a_drifts_operators_are_those_that_grew_since_the_first_day():
    def taken(at, seconds):
        row = ProfileRow("aten::conv2d", "aten::conv2d", "cpu", "", 1.0, (seconds - 0.002,) * 5)
        return pack(Profile(at, "torch", "ok", (seconds,) * 5, (0.002,) * 5, (0.0,) * 5, (row,)))

    before, after = (
        [taken(60.0, 0.02), taken(660.0, 0.02)],
        [taken(2.5 * DAY, 0.026), taken(2.6 * DAY, 0.026)],
    )
    slowed = start(3, step(1.3, 2))

    def found(*profiles):
        return seen(slowed.reporting(profiles={"c": profiles})).operators

    operators = found(*before, *after)
    assert operators.state == "explained"
    (grown,) = operators.shifts
    assert (grown.operator, grown.change) == ("aten::conv2d", "grew")
    assert (grown.before, grown.after) == pytest.approx((0.018, 0.024))
    assert found(*before) is None
    assert found(*after) is None
