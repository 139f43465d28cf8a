"""What Grafana's own library shows of each panel in each situation, without a fault: see docs/dashboards.md.

A new panel, and a new metric, is in it by being there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from grafana import empty
from grafana.check import asking, node
from grafana.prometheus import Prometheus
from grafana.queries import dashboards
from grafana.situations import backfill
from grafana.situations.worlds import END, SITUATIONS

pytestmark = pytest.mark.takes(90)

THERE: Mapping[str, Sequence[str]] = {
    "fresh": ["infercanary_build_info"],
    "one-image": [
        'infercanary_verdict{verdict="no_baseline"} == 1',
        'infercanary_canary_state{state="steady"} == 1',
    ],
    "upgraded": [
        'infercanary_verdict{service="classify", verdict="regressed"} == 1',
        'infercanary_shift_cause{cause="image"} == 1',
        'abs(infercanary_shift_ratio{service="classify"} - 0.34) < 0.03',
        'infercanary_environment_info{component="torch", version="2.13.0"}',
    ],
    "troubled": [
        "infercanary_up == 0",
        "infercanary_discovery_up == 0",
        'infercanary_canary_state{state="failing"} == 1',
        "infercanary_rejected_total > 0",
        "rate(infercanary_cgroup_cpu_throttled_seconds_total[5m]) > 0.3",
        'count(count by (alertname) (ALERTS{alertstate="firing"})) > 5',
    ],
    "many": [
        "count(count by (service) (infercanary_up)) == 500",
        'count(infercanary_verdict{verdict="regressed"} == 1) > 20',
    ],
}
"""Situation → what must be so in it; of one on a GPU also that the GPU is up."""


class Scene(NamedTuple):
    """A situation, and what each panel of each board asked in it."""

    name: str
    prometheus: Prometheus
    places: Sequence[str]
    panels: Sequence[Mapping[str, Any]]


@pytest.fixture(scope="module", params=SITUATIONS)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    if why := node.missing() or ", ".join(f"{program} is not installed" for program in backfill.missing()):
        assert not os.environ.get("CI"), why
        pytest.skip(why)
    situation = SITUATIONS[request.param]
    with backfill.prometheus(situation) as prometheus:
        asked = [
            (f"{name}: {question['panel']['title']}", question)
            for name, board in dashboards().items()
            for question in asking.asked(board, situation, prometheus)
        ]
        places, panels = zip(*asked, strict=True)
        yield Scene(situation.name, prometheus, places, panels)


def test_it_is_what_it_is_called(scene: Scene) -> None:
    wanted = [*THERE[scene.name.removesuffix("-gpu")]]
    if scene.name.endswith("-gpu"):
        wanted.append("infercanary_gpu_up == 1")
    assert [query for query in wanted if not scene.prometheus.at(query, END).results] == []
    firing = {result.labels["alertname"] for result in scene.prometheus.at("ALERTS", END).results}
    if scene.name.startswith(("fresh", "one-image")):
        assert firing == set()
    elif scene.name.startswith("upgraded"):
        assert firing == {"InferCanaryImageRegressed", "InferCanaryMeasureRegressed"}


def _may_be_empty(place: str, situation: str) -> bool:
    """Whether a panel may have nothing to show (grafana/empty.py), in a situation in which everything else has."""
    board, _, title = place.partition(": ")
    why = empty.why(f"{board}: panel {title}")
    if situation in ("fresh", "one-image", "one-image-gpu", "many"):
        return True
    return why is not None and not (why == empty.NO_GPU and situation.endswith("-gpu"))


def _open_rows() -> Iterator[tuple[str, list[str]]]:
    """Rows that are not folded when a board opens: the place, and those of their panels."""
    for name, board in dashboards().items():
        rows: dict[str, list[str]] = {}
        row = ""
        for panel in board["panels"]:
            if panel["type"] == "row":
                row = panel["title"]
            else:
                rows.setdefault(f"{name}: {row}", []).append(f"{name}: {panel['title']}")
        yield from rows.items()


@pytest.mark.parametrize("library", node.VERSIONS)
def test_no_panel_has_a_fault(scene: Scene, library: str) -> None:
    shown = node.shown(scene.panels, library)
    empty_ones = [
        f"{place}: {shows['message']}"
        for place, shows in zip(scene.places, shown, strict=True)
        if "message" in shows and not _may_be_empty(place, scene.name)
    ]
    assert not empty_ones, "\n".join(["these are empty, and not in grafana/empty.py:", *empty_ones])
    if scene.name == "upgraded":
        full = {place for place, shows in zip(scene.places, shown, strict=True) if "message" not in shows}
        assert [row for row, panels in _open_rows() if not full & {*panels}] == [], (
            "rows that could be folded"
        )
    faults = [
        f"{place}: {fault['line']} [{fault['rule']}]"
        for place, shows in zip(scene.places, shown, strict=True)
        for fault in shows["faults"]
    ]
    assert not faults, "\n".join([f"{len(faults)} in the situation {scene.name}:", *faults])
