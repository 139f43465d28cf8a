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


BELOW = "panel Shift of the last upgrade E"
"""What goes below the axis, which nothing does here."""


def test_each_query_gives_something(hour: Any) -> None:
    @for_each(QUERIES, lambda query: f"{query.dashboard}: {query.place}")
    def ask(query: Query) -> None:
        assert _ask(hour, query) or query.place == BELOW, query.expression
        if not query.over_time:
            _ask(hour, query, hour.upgrade + 60)  # while the old image's series may still be seen

    ask()


def _panel(hour: Any, dashboard: str, place: str) -> Sequence[Result]:
    [query] = [q for q in QUERIES if (q.dashboard, q.place) == (dashboard, place)]
    return _ask(hour, query)


def test_an_upgrade_is_marked_when_it_was(hour: Any) -> None:
    [judged] = _panel(hour, "service", "annotation Upgrades")
    assert {value for _, value in judged.points} == {hour.upgrade * 1000}
    seen = _panel(hour, "service", "annotation Images")
    assert {mark.labels["image"] for mark in seen} == {"web:latest"}
    assert all(abs(mark.points[0][0] - hour.upgrade) <= 60 and len(mark.points) <= 2 for mark in seen)
    changed = _panel(hour, "service", "annotation Environment")
    assert {(m.labels["component"], m.labels["version"]) for m in changed} == {("torch", "2.13.0")}


def test_two_images_stand_side_by_side(hour: Any) -> None:
    [old], [new] = (
        _panel(hour, "upgrade", f"panel Distribution of latencies, by image {letter}") for letter in "AB"
    )
    assert (old.labels["tag"], new.labels["tag"]) == ("web:1", "web:latest")
    assert old.points[-1][0] <= hour.upgrade < new.points[0][0]
    for letter, value in zip("ABC", (0.02, 0.022, 0.1), strict=True):
        levels = _panel(hour, "upgrade", f"panel Medians of runs {letter}")
        median = {r.labels["level"]: r.points[0][1] for r in levels}
        assert median["50 %"] == pytest.approx(value)
    old_versions, new_versions = (
        {
            row.labels["component"]: row.labels[which]
            for row in _panel(hour, "upgrade", f"panel Components that changed {letter}")
        }
        for which, letter in (("old", "A"), ("new", "B"))
    )
    assert old_versions == {"torch": "2.7.0"}
    assert new_versions == {"torch": "2.13.0", "env_OMP_PROC_BIND": "close"}
    images = {
        row.labels["image"]: row.labels["which"]
        for row in _panel(hour, "upgrade", "panel Images in this time range A")
    }
    assert images == {"web:1": "old", "web:latest": "new"}


def test_a_service_is_one_row_for_each_verdict(hour: Any) -> None:
    for letter in "ABCDEFGHI":
        rows = _panel(hour, "fleet", f"panel What the last upgrade did {letter}")
        assert len(rows) == 1, letter


def test_an_early_interval_does_not_flatten_the_shift(hour: Any) -> None:
    [high] = _panel(hour, "upgrade", "panel Shift of the last upgrade C")
    assert max(value for _, value in high.points) == 0.2, "twice the last interval, and 20 % at least"
    [marks] = _panel(hour, "upgrade", "panel Shift of the last upgrade D")
    assert {value for _, value in marks.points} == {0.2}
    assert len(marks.points) == 300 / hour.step
