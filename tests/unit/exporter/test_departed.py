"""A service of which no container runs any more: for an hour the page says so, since nothing else does."""

from __future__ import annotations

import time

from infercanary.exporter.collect import Collector
from infercanary.exporter.config import ExporterConfig
from infercanary.exporter.departed import KEPT_SECONDS, Departed, Gone
from infercanary.exporter.discovery.base import Container
from infercanary.exporter.expose import Exposition
from infercanary.exporter.judging.thread import Judging
from infercanary.judge.model import ServiceKey

A, B = ServiceKey("", "a"), ServiceKey("", "b")


def test_a_service_ends_with_its_last_container() -> None:
    departed = Departed()
    departed.follow({A: "a-1", B: "b-1"}, 10.0)
    assert departed.recent(10.0) == [], "nothing ended"
    departed.follow({A: "a-2"}, 20.0)  # another container of the same service
    assert departed.recent(25.0) == [Gone(B, "b-1", 5.0)]
    departed.follow({}, 30.0)
    assert departed.recent(31.0) == [Gone(A, "a-2", 1.0), Gone(B, "b-1", 11.0)]


def test_one_that_is_back_or_that_ended_long_ago_is_not_named() -> None:
    departed = Departed()
    departed.follow({A: "a-1", B: "b-1"}, 0.0)
    departed.follow({}, 1.0)
    departed.follow({A: "a-1"}, 2.0)
    assert departed.recent(2.0) == [Gone(B, "b-1", 1.0)]
    assert departed.recent(1.0 + KEPT_SECONDS) == []
    departed.follow({A: "a-1"}, 2 * KEPT_SECONDS)
    assert departed._ended == {}, "they take no memory"


def test_names_that_come_and_go_take_no_more_than_their_place() -> None:
    departed = Departed()
    for number in range(1000):
        departed.follow({ServiceKey("", f"s{number}"): "c"}, float(number))
    recent = departed.recent(1000.0)
    assert len(recent) == 32 and recent[0].service == ServiceKey("", "s998")


async def test_a_replica_less_is_no_end_of_its_service() -> None:
    collector = Collector(ExporterConfig(), Exposition(), Judging(None), ())
    first, second = (Container(service="s", name=name, id=name * 64) for name in "ab")
    collector.follow([first, second])
    collector.follow([second])
    assert collector.departed.recent(time.monotonic()) == []
    collector.follow([])
    await collector.close()
    [left] = collector.departed.recent(time.monotonic())
    assert (left.service, left.container) == (ServiceKey("", "s"), "b")
