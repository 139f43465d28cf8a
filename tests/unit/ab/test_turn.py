"""Addresses at which the report of a start is read."""

import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from infercanary.ab import turn
from infercanary.ab.turn import Plan, StartFailed, TurnReader
from infercanary.client.accept import read
from infercanary.command.interruption import Interruption
from infercanary.contract.report import Family, Point, Report, Run, encode
from tests.scenarios import typed


def reader(runs=8):
    """Return the reader of a started turn, whose arm keeps running."""
    made = TurnReader(Mock(), Plan(12, runs, 60, 60), time.monotonic() + 60, Interruption())
    made._urls, made._start = ["http://published"], 0.0
    return made


def report(interval, swept_at, runs, at):
    """Return the report of a probe with one canary and ``runs`` runs; the first began at 0, all others at ``at``."""
    of = {"infercanary_sweep_interval_seconds": interval, "infercanary_sweep_timestamp_seconds": swept_at}
    families = [
        Family(
            "infercanary_canary_state", "gauge", "help", ("canary", "state"), (Point(("c", "steady"), 1.0),)
        ),
        *(
            Family(name, "gauge", "help", ("canary",), (Point(("c",), value),))
            for name, value in of.items()
            if value is not None
        ),
    ]
    ran = tuple(Run(i, "c", at, at if i else 0.0, "ok", (0.02,)) for i in range(runs))
    return read(encode(Report(1, "boot", 0.0, "1", 0, tuple(families), {}, ran)))[0]


# Seconds between sweeps, of the last sweep, and of the last runs | runs | enough.
WAITS = """
[~, ~, 5.0]      | 7 | false
[~, ~, 5.0]      | 8 | true   # no sweep
[4.0, ~, 5.0]    | 8 | false
[4.0, 6.0, 5.0]  | 8 | false  # the next run reports the points
[4.0, 4.0, 5.0]  | 8 | true
[4.0, ~, 17.0]   | 8 | true   # the sweep gives no points
[3600.0, ~, 5.0] | 8 | true   # a server's own probe, which sweeps too rarely for this experiment
"""


@pytest.mark.parametrize(("times", "runs", "is_enough"), typed(WAITS))
def test_a_turn_waits_for_its_runs_and_for_a_sweep_that_is_near(times, runs, is_enough):
    start, (interval, swept_at, run_at) = reader(), times
    start._last = report(interval, swept_at, runs, run_at)
    start._runs["c"] = [*start._last.runs]
    assert start._has_enough() is is_enough


@pytest.mark.parametrize("reason", ["not_ready", "unreachable", "raised"])
def test_a_server_that_loads_is_waited_for_until_the_start_timeout(reason):
    start = reader()
    info = Family(
        turn._FAILURE, "gauge", "help", ("canary", "reason", "detail"), (Point(("c", reason, "503"), 1.0),)
    )
    states = Family(turn._STATE, "gauge", "help", ("canary", "state"), (Point(("c", "failing"), 1.0),))
    start._last = read(encode(Report(1, "boot", 0.0, "1", 0, (info, states), {}, ())))[0]
    start._runs["c"] = [Run(1, "c", 0.0, 0.0, "raised", (), detail="503: loading")]
    start._ask = lambda: None
    start.arm.ended.return_value = ""
    if reason == "raised":
        with pytest.raises(StartFailed, match="canary c fails: 503"):
            start._is_done()
        return
    assert not start._is_done()
    start._progressed -= 61
    with pytest.raises(StartFailed, match=r"--start-timeout\): 503"):
        start._is_done()


def test_the_first_answer_is_before_the_warm_up_and_is_waited_for_closely(
    monkeypatch,
):
    """Two canaries open one after the other, and answer 5 s and 11 s after the start. Each warms up for 2 s."""
    now = 0.0
    monkeypatch.setattr(turn, "time", SimpleNamespace(monotonic=lambda: now))

    async def fetched(url, cursor, _seconds):
        """Return the probe's current report."""
        opened = [name for name, at in {"a": 7.0, "b": 13.0}.items() if now >= at]
        steps = [Point((name, "warm_up"), 2.0) for name in opened]
        states = [Point((name, "opening"), float(name not in opened)) for name in "ab"]
        families = (
            Family("infercanary_cold_start_seconds", "gauge", "help", ("canary", "step"), tuple(steps)),
            Family("infercanary_canary_state", "gauge", "help", ("canary", "state"), tuple(states)),
        )
        return encode(Report(1, "boot", 0.0, "1", 0, families, {}, ()))

    monkeypatch.setattr(turn, "fetch", fetched)
    start = reader()
    while len(start._steps) < 2:
        start._ask()
        now += start._pause()
    answered = {name: steps["first_answer"] for name, steps in start._steps.items()}
    assert answered == pytest.approx({"a": 5.0, "b": 11.0}, abs=turn._FIRST_PAUSE)
    start._ask()
    assert start._pause() > turn._FIRST_PAUSE, "no canary is being opened any more"


def test_a_server_that_restarts_within_its_start_is_no_start(monkeypatch):
    """The runs would be of two starts. A restart before the first run is harmless."""
    boots = iter((("first", 0), ("second", 3), ("second", 4), ("third", 0)))

    async def fetched(url, cursor, _seconds):
        boot, runs = next(boots)
        ran = tuple(Run(i, "c", 1.0, 1.0, "ok", (0.02,)) for i in range(runs))
        return encode(Report(1, boot, 0.0, "1", 0, (), {}, ran))

    monkeypatch.setattr(turn, "fetch", fetched)
    start = reader()
    start.arm.last_words.return_value = "out of memory"
    for _ in range(3):
        start._ask()
    with pytest.raises(StartFailed, match=r"the server ended and restarted .*: out of memory"):
        start._ask()
