"""What Grafana's own library shows of each panel in each situation, without a fault: see docs/dashboards.md.

A new panel, and a new metric, is in it by being there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import product, starmap
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
        'infercanary_verdict{measure="latency", verdict="no_baseline"} == 1',
        'infercanary_canary_state{state="steady"} == 1',
    ],
    "upgraded": [
        'infercanary_verdict{service="classify", measure="latency", verdict="regressed"} == 1',
        'infercanary_shift_cause{cause="image"} == 1',
        'abs(infercanary_shift_ratio{service="classify", measure="latency"} - 0.34) < 0.03',
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
    "spread": [
        'count by (service) (infercanary_verdict{measure="latency", verdict="regressed"} == 1) == 5',
        'count(count by (instance) (infercanary_verdict{service="search"})) == 4',
        'count(infercanary_up{service="classify", container="infercanary-classify-1"}) == 2',
    ],
    "namespaces": [
        'infercanary_verdict{namespace="prod", service="search", measure="latency", verdict="regressed"} == 1',
        'infercanary_verdict{namespace="staging", service="search", measure="latency", verdict="regressed"} == 0',
    ],
    "late": ["time() - max(infercanary_upgrade_timestamp_seconds) > 3600"],
    "exporter-down": ["count(instance_job:up:max == 0) == 1", "count(instance_job:up:max) == 3"],
    "many": [
        "count(count by (service) (infercanary_up)) == 500",
        'count(infercanary_verdict{measure="latency", verdict="regressed"} == 1) > 20',
    ],
}
"""Situation → what must be so in it; of one on a GPU also that the GPU is up."""


class Scene(NamedTuple):
    """A situation, and what each panel of each board asked in it."""

    name: str
    prometheus: Prometheus
    places: Sequence[str]
    panels: Sequence[Mapping[str, Any]]


def in_ci(situation: str, library: str = node.VERSIONS[0]) -> bool:
    """Whether it is no repeat: what a situation on a GPU has that one without has too, and both libraries' own code."""
    repeats = {"one-image-gpu", "troubled", "many"}
    return situation not in repeats and (library == node.VERSIONS[0] or situation == "upgraded-gpu")


def marked(*case: str) -> object:
    """A case, of the campaign only where CI has one like it."""
    return pytest.param(*case, marks=[] if in_ci(*case) else pytest.mark.campaign)


@pytest.fixture(scope="module")
def scenes() -> Iterator[Callable[[str], Scene]]:
    """Each situation is set up once, for the tests of both libraries."""
    if why := node.missing() or backfill.missing():
        assert not os.environ.get("CI"), why
        pytest.skip(why)
    with ExitStack() as stack:

        @cache
        def set_up(name: str) -> Scene:
            situation = SITUATIONS[name]
            prometheus = stack.enter_context(backfill.prometheus(situation))
            asked = [
                (f"{board}: {question['panel']['title']}", question)
                for board, content in dashboards().items()
                for question in asking.asked(content, situation, prometheus)
            ]
            places, panels = zip(*asked, strict=True)
            return Scene(situation.name, prometheus, places, panels)

        yield set_up


@pytest.fixture
def scene(request: pytest.FixtureRequest, scenes: Callable[[str], Scene]) -> Scene:
    return scenes(request.param)


@pytest.mark.parametrize("scene", [*map(marked, SITUATIONS)], indirect=True)
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


@pytest.mark.parametrize("scene", ["spread"], indirect=True)
def test_a_service_on_several_hosts_is_one(scene: Scene) -> None:
    """One row and one line of each service, and one of each replica: none is missing, and none is there twice."""
    by_name = dict(zip(scene.places, scene.panels, strict=True))
    other = SITUATIONS["spread"]._replace(chosen={"service": "classify", "canary": "resnet18"})
    wanted = "Latency of each replica"
    of_docker = {
        question["panel"]["title"]: question
        for question in asking.asked(dashboards()["service"], other, scene.prometheus)
    }
    places = ["fleet: Services: last upgrade", "service: Verdict", "service: Replicas", f"service: {wanted}"]
    table, verdict, replicas, lines, of_each_host = node.shown(
        [*(by_name[place] for place in places), of_docker[wanted]]
    )
    assert [cell["text"] for [cell, *_] in table["rows"]] == ["rank", "search", "classify"]
    assert [row[0]["text"] for row in verdict["rows"]] == ["prod/search"]
    pods = {f"search-6c9f7d5b8-{end}/server" for end in ("x7k2p", "lq4vz", "8d2mn", "zt5wq", "q9bfw")}
    assert {row[0]["text"] for row in replicas["rows"]} == pods and len(replicas["rows"]) == 5
    assert _names(lines) == pods and len(lines["series"]) == 5
    assert _names(of_each_host) == {f"infercanary-classify-1 node-{node}" for node in (1, 2)}


@pytest.mark.parametrize("scene", ["namespaces"], indirect=True)
def test_one_name_in_two_namespaces_is_two_services(scene: Scene) -> None:
    """Where all namespaces are shown, each has its own verdict, change, sentence and lines."""
    both = SITUATIONS["namespaces"]._replace(chosen={"service": "search", "canary": "resnet18"})
    shown = {
        question["panel"]["title"]: shows
        for question, shows in _pairs([*asking.asked(dashboards()["service"], both, scene.prometheus)])
    }
    (prod, _, _, slower, do), (staging, _, _, same, wait) = (
        [cell["text"] for cell in row] for row in shown["Verdict"]["rows"]
    )
    assert (prod, do, staging) == ("prod/search", "image: roll back", "staging/search") and wait != do
    assert slower.startswith("+3") and abs(float(same.split(" ")[0])) < 5
    assert [row[0]["text"].split(":")[0] for row in shown["In words"]["rows"]] == [prod, staging]
    assert {name.split(" ")[-1] for name in _names(shown["Was it the host"])} == {"prod", "staging"}
    assert {row[0]["text"] for row in shown["Where the extra time is"]["rows"]} == {"prod"}


def _pairs(questions: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(questions, node.shown(questions), strict=True)


def _names(shown: Mapping[str, Any]) -> set[str]:
    return {series["name"] for series in shown["series"]}


def _may_be_empty(place: str, situation: str) -> bool:
    """Whether a panel may have nothing to show (grafana/empty.py), in a situation in which everything else has."""
    board, _, title = place.partition(": ")
    why = empty.why(f"{board}: panel {title}")
    if not situation.startswith(("upgraded", "troubled")):
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


@pytest.mark.parametrize(
    ("scene", "library"),
    [*starmap(marked, product(SITUATIONS, node.VERSIONS))],
    indirect=["scene"],
)
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
