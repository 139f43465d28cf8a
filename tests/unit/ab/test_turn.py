"""Reading the report of a start: addresses, waits and restarts."""

import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from infercanary.ab import turn
from infercanary.ab.turn import Plan, StartFailed, TurnReader
from infercanary.client.accept import read
from infercanary.command.interruption import Interruption
from infercanary.contract.report import Family, Point, Report, Run, encode
from tests.scenarios import cases, typed


def reader(runs=8):
    made = TurnReader(Mock(), Plan(12, runs, 60, 60), time.monotonic() + 60, Interruption())
    made._urls, made._start = ["http://published"], 0.0
    return made


def gauge(name, labels, points):
    found = (Point(tuple(values.split()), value) for values, value in points.items())
    return Family(f"infercanary_{name}", "gauge", "help", tuple(labels.split()), tuple(found))


def report(*families, runs=0, at=1.0, boot="boot"):
    """Return a probe's report with ``runs`` runs of a canary: the first began at 0, all others at ``at``."""
    ran = tuple(Run(i, "c", at, at if i else 0.0, "ok", (0.02,)) for i in range(runs))
    return encode(Report(1, boot, 0.0, "1", 0, families, {}, ran))


# Seconds between sweeps, seconds since the last sweep and the last runs | runs | True if enough
WAITS = """
[~, ~, 5.0]      | 7 | false
[~, ~, 5.0]      | 8 | true   # no sweep
[4.0, ~, 5.0]    | 8 | false
[4.0, 6.0, 5.0]  | 8 | false  # the next run reports the points
[4.0, 4.0, 5.0]  | 8 | true
[4.0, ~, 17.0]   | 8 | true   # the sweep gives no points
[3600.0, ~, 5.0] | 8 | true   # a server's own probe, which sweeps too rarely for this experiment
"""


@cases(typed(WAITS))
def test_a_turn_waits_for_its_runs_and_for_a_sweep_that_is_near(times, runs, is_enough):
    start, (*sweeps, run_at) = reader(), times
    named = zip(("sweep_interval_seconds", "sweep_timestamp_seconds"), sweeps, strict=True)
    families = [gauge(name, "canary", {"c": value}) for name, value in named if value is not None]
    steady = gauge("canary_state", "canary state", {"c steady": 1.0})
    start._last = read(report(steady, *families, runs=runs, at=run_at))[0]
    start._runs["c"] = [*start._last.runs]
    assert start._has_enough() is is_enough


@cases(["not_ready", "unreachable", "raised"])
def test_a_server_that_loads_is_waited_for_until_the_start_timeout(reason):
    start = reader()
    info = gauge("canary_failure_info", "canary reason detail", {f"c {reason} 503": 1.0})
    start._last = read(report(info, gauge("canary_state", "canary state", {"c failing": 1.0})))[0]
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
    start._runs.clear()
    start.arm.last_words.return_value = "the last line of the log"
    with pytest.raises(StartFailed, match=r"--start-timeout\): the last line"):
        start._is_done()


def test_the_first_answer_is_before_the_warm_up_and_is_waited_for_closely(
    monkeypatch,
):
    now = 0.0
    monkeypatch.setattr(turn, "time", SimpleNamespace(monotonic=lambda: now))

    async def fetched(url, cursor, _seconds):
        opened = [name for name, at in {"a": 7.0, "b": 13.0}.items() if now >= at]
        states = {f"{name} opening": float(name not in opened) for name in "ab"}
        return report(
            gauge("cold_start_seconds", "canary step", {f"{name} warm_up": 2.0 for name in opened}),
            gauge("canary_state", "canary state", states),
        )

    monkeypatch.setattr(turn, "fetch", fetched)
    start = reader()
    while len(start._steps) < 2:
        start._ask()
        now += start._pause()
    answered = {name: steps["first_answer"] for name, steps in start._steps.items()}
    assert answered == pytest.approx({"a": 5.0, "b": 11.0}, abs=turn._FIRST_PAUSE)
    start._ask()
    assert start._pause() > turn._FIRST_PAUSE


def test_a_server_that_restarts_within_its_start_is_no_start(monkeypatch):
    """After a restart of the server, the runs would belong to two starts. A restart before the first run is
    harmless.
    """
    boots = iter((("first", 0), ("second", 3), ("second", 4), ("third", 0)))

    async def fetched(url, cursor, _seconds):
        boot, runs = next(boots)
        return report(boot=boot, runs=runs)

    monkeypatch.setattr(turn, "fetch", fetched)
    start = reader()
    start.arm.last_words.return_value = "out of memory"
    for _ in range(3):
        start._ask()
    with pytest.raises(StartFailed, match=r"the server ended and restarted .*: out of memory"):
        start._ask()
