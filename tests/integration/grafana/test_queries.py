"""Every query of every dashboard, run by a real Prometheus over an hour in which everything happens. None fails, each
gives something, and some are checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from grafana.prometheus import Prometheus, Result
from grafana.queries import Query, queries
from tests.for_each import for_each

pytestmark = pytest.mark.takes(30)


def _ask(hour: Any, query: Query, at: float = 0.0) -> Sequence[Result]:
    """What Prometheus answers, over time for what Grafana asks over time."""
    prometheus = Prometheus(hour.url)
    if query.over_time:
        return prometheus.over(query.expression, hour.start, hour.end, hour.step).results
    return prometheus.at(query.expression, at or hour.end - hour.step).results


QUERIES = queries(service="search", container=".+")


def test_each_query_gives_something(hour: Any) -> None:
    @for_each(QUERIES, lambda query: f"{query.dashboard}: {query.place}")
    def ask(query: Query) -> None:
        assert _ask(hour, query), query.expression
        if not query.over_time:
            _ask(hour, query, hour.upgrade + 60)  # while the old image's series may still be seen

    ask()


def _panel(hour: Any, dashboard: str, place: str) -> Sequence[Result]:
    [query] = [q for q in QUERIES if (q.dashboard, q.place) == (dashboard, place)]
    return _ask(hour, query)


def test_an_upgrade_is_marked_when_it_was(hour: Any) -> None:
    [judged] = _panel(hour, "service", "annotation Upgrades")
    assert {value for _, value in judged.points} == {hour.upgrade * 1000}


def test_the_first_screen_says_what_changed_and_what_to_do(hour: Any) -> None:
    """One row of each query, from the judge's series: also where the time range has the new image alone."""
    rows = [_panel(hour, "service", f"panel Verdict {letter}") for letter in "ABCD"]
    verdict, do, latency, change = (row.labels for [row] in rows)
    assert (verdict["named"], verdict["verdict"], do["do"]) == ("search", "regressed", "device")
    assert latency["latency"] == "22.0 ms → 22.0 ms"
    assert change["change"] == "+5.0 % [+5.0, +5.0]"
    [words] = _panel(hour, "service", "panel In words A")
    assert words.labels["said"] == f"search: web:1 ({'a' * 12}) → web:latest ({'b' * 12}): some sentence"
    images = {row.labels["image"] for row in _panel(hour, "service", "panel Latency by image A")}
    assert images == {"web:1", "web:latest"}


def test_a_service_is_one_row_for_each_verdict(hour: Any) -> None:
    for letter in "ABCDEFG":
        rows = _panel(hour, "fleet", f"panel Services: last upgrade {letter}")
        assert [row.labels["service"] for row in rows] == ["search"], letter
