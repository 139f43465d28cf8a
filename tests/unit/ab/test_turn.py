"""Where the report of a start is read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from infercanary.ab import turn
from infercanary.ab.interruption import Interruption
from infercanary.ab.turn import Needed
from infercanary.client.fetch import PollError, Received, read
from infercanary.client.limits import Limits
from infercanary.contract.report import Family, Point, Report, Run, encode


class Started:
    urls: Sequence[str] = ("http://published", "http://inside")

    def ended(self) -> str:
        return ""

    def last_words(self) -> str:
        return ""

    def end(self) -> None:
        pass


def test_an_address_from_which_nothing_comes_back_does_not_hold_up_the_first_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If Docker runs in a virtual machine, a container's own address does not answer here."""
    asked: list[str] = []

    async def fetched(url: str, cursor: str) -> bytes:
        asked.append(url)
        raise PollError("unreachable" if url == "http://published" else "timeout", "on purpose")

    monkeypatch.setattr(turn, "_fetched", fetched)
    now = time.monotonic()
    start = turn._Asked(Started(), Needed(1, "", 60), now, now + 60, Interruption(), lambda text: None)
    for _ in range(33):
        start._ask()
    assert asked.count("http://published") == 33
    assert asked.count("http://inside") == 3, "and it is not given up: it may be the one that answers"


def report(
    *, interval: float | None, swept_at: float | None = None, runs: int = 8, at: float = 0.0
) -> Received:
    """A probe with one canary and so many runs, the last of which began then."""
    of = {"infercanary_sweep_interval_seconds": interval, "infercanary_sweep_timestamp_seconds": swept_at}
    families = [
        Family(name, "gauge", "help", ("canary",), (Point(("c",), value),))
        for name, value in of.items()
        if value is not None
    ]
    ran = [Run(i, "c", at, at, "ok", (0.02,)) for i in range(runs)]
    states = Family(
        "infercanary_canary_state", "gauge", "help", ("canary", "state"), (Point(("c", "steady"), 1.0),)
    )
    whole = Report(1, "boot", 0.0, "1", 0, (*families, states), {}, tuple(ran))
    return read(encode(whole), Limits())


@pytest.mark.parametrize(
    ("interval", "swept_at", "run_at", "waited", "is_enough"),
    [
        (None, None, 5.0, 0.0, True),  # it is not swept
        (4.0, None, 5.0, 0.0, False),
        (4.0, 6.0, 5.0, 0.0, False),  # the next run brings what it gave
        (4.0, 4.0, 5.0, 0.0, True),
        (4.0, None, 5.0, 9.0, True),  # no point gave numbers
        (3600.0, None, 5.0, 0.0, True),  # of a server's own probe: not within this experiment
    ],
)
def test_a_turn_waits_for_a_sweep_that_is_near(
    monkeypatch: pytest.MonkeyPatch,
    interval: float | None,
    swept_at: float | None,
    run_at: float,
    waited: float,
    is_enough: bool,
) -> None:
    now = time.monotonic()
    start = turn._Asked(Started(), Needed(8, "", 60), now, now + 60, Interruption(), lambda text: None)
    found = report(interval=interval, swept_at=swept_at, at=run_at)
    start._runs = {"c": [*found.report.runs]}
    start._had_enough = now - waited
    assert start._enough(found) is is_enough


def test_the_first_answer_is_before_the_warm_up_and_is_waited_for_closely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two canaries open one after the other, and answer 5 s and 11 s after the start; each warms up for 2 s."""
    now = 0.0
    monkeypatch.setattr(turn, "time", SimpleNamespace(monotonic=lambda: now))

    async def fetched(url: str, cursor: str) -> bytes:
        """What the probe says now."""
        opened = [name for name, at in {"a": 7.0, "b": 13.0}.items() if now >= at]
        steps = [Point((name, "warm_up"), 2.0) for name in opened]
        states = [Point((name, "opening"), float(name not in opened)) for name in "ab"]
        families = (
            Family("infercanary_cold_start_seconds", "gauge", "help", ("canary", "step"), tuple(steps)),
            Family("infercanary_canary_state", "gauge", "help", ("canary", "state"), tuple(states)),
        )
        return encode(Report(1, "boot", 0.0, "1", 0, families, {}, ()))

    monkeypatch.setattr(turn, "_fetched", fetched)
    start = turn._Asked(Started(), Needed(8, "", 60), now, 60, Interruption(), lambda text: None)
    while len(start._answered) < 2:
        start._ask()
        now += start._pause()
    assert start._answered == pytest.approx({"a": 5.0, "b": 11.0}, abs=turn._FIRST_PAUSE)
    start._ask()
    assert start._pause() > turn._FIRST_PAUSE, "nothing opens any more"
