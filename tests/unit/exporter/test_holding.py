from __future__ import annotations

from structlog.testing import capture_logs

from infercanary.exporter.judging.holding import Holding
from infercanary.judge.model import ServiceKey

GREEDY, HONEST, OTHER = (ServiceKey("", name) for name in ("greedy", "honest", "other"))


def test_a_service_that_takes_too_much_loses_its_own_findings_the_last_ones_first() -> None:
    holding = Holding(3 * 1_000)
    assert holding.hold((HONEST, "a"), 200) == []
    with capture_logs() as lines:
        gone = [one for n in range(10) for one in holding.hold((GREEDY, f"{n}"), 300)]
    assert gone == [(GREEDY, f"{n}") for n in range(2, 10)]
    assert [(line["service"], line["log_level"]) for line in lines] == [("greedy", "warning")], "once"
    assert holding.hold((OTHER, "a"), 300) == [(GREEDY, "1")], "who comes later has its share"
    assert holding.hold((HONEST, "a"), 250) == []


def test_what_is_forgotten_makes_room() -> None:
    holding = Holding(3 * 1_000)
    holding.hold((GREEDY, "a"), 900)
    assert holding.hold((GREEDY, "b"), 900) == [(GREEDY, "b")]
    holding.forget(GREEDY, {"b"})
    assert holding.hold((GREEDY, "b"), 900) == []
    holding.forget(GREEDY)
    assert holding.hold((HONEST, "a"), 1_000) == []


def test_one_canary_that_alone_is_too_much_is_not_kept() -> None:
    holding = Holding(3 * 1_000)
    assert holding.hold((GREEDY, "a"), 2_000) == [(GREEDY, "a")]
    assert holding.hold((HONEST, "a"), 1_000) == []
