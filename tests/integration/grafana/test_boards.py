"""Grafana's own library renders each panel in each situation without a fault: see docs/alerting.md.

The tests include new panels and new metrics automatically.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from itertools import product, starmap
from typing import Any, NamedTuple

import pytest

from grafana import empty
from grafana.check import asking, node
from grafana.prometheus import Prometheus
from grafana.queries import dashboards, queries
from grafana.situations import backfill
from grafana.situations.worlds import END, SITUATIONS, Situation

pytestmark = pytest.mark.takes(90)

_REGRESSED = 'infercanary_verdict{measure="latency", verdict="regressed"} == 1'
THERE = {
    "fresh": ["infercanary_build_info"],
    "one-image": [
        'infercanary_verdict{measure="latency", verdict="no_baseline"} == 1',
        'infercanary_canary_state{state="steady"} == 1',
    ],
    "upgraded": [
        _REGRESSED,
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
        f"count by (service) ({_REGRESSED}) == 5",
        'count(count by (instance) (infercanary_verdict{service="search"})) == 4',
        'count(infercanary_up{service="classify", container="infercanary-classify-1"}) == 2',
    ],
    "namespaces": [
        f"count(count by (namespace) ({_REGRESSED})) == 1",
        "count(count by (namespace) (infercanary_up)) == 2"],
    "late": [_REGRESSED, f"max(infercanary_upgrade_timestamp_seconds) == {SITUATIONS['late'].start} - 3600"],
    "exporter-down": [_REGRESSED, "count(up == 0) == 1",
        "count(up == 1) == 2", 'absent(infercanary_up{container=~".+-3"})'],
    "many": [
        "count(count by (service) (infercanary_up)) == 500",
        f"count({_REGRESSED}) > 20",
    ],
}  # fmt: skip
"""Situation → queries that must have results. On a GPU, the GPU must also be up."""
ALERTS = {
    "fresh": set(),
    "one-image": set(),
    "upgraded": {"ImageRegressed", "MeasureRegressed"},
    "exporter-down": {"ImageRegressed", "ExporterDown"},
}


class Scene(NamedTuple):
    situation: Situation
    prometheus: Prometheus
    panels: Mapping[str, Mapping[str, Any]]
    """Board and title → the panel's queries and answers."""

    def shown(self, *places, library=node.VERSIONS[0]):
        return node.shown([self.panels[place] for place in places], library)


REPEATS = {"troubled", "many"}
"""Situations only for the campaign: `troubled` is like its variant with a GPU, and `spread` also has several hosts."""


def marked(*case):
    """Mark a case for the campaign only, if CI tests a similar case."""
    situation, library = (*case, node.VERSIONS[0])[:2]
    in_ci = situation not in REPEATS and (library == node.VERSIONS[0] or situation == "upgraded-gpu")
    return pytest.param(*case, marks=[] if in_ci else pytest.mark.campaign)


def ask(situation, prometheus):
    return {
        f"{board}: {question['panel']['title']}": question
        for board, content in dashboards().items()
        for question in asking.asked(content, situation, prometheus)
    }


@pytest.fixture(scope="module")
def scenes():
    """Set up each situation once, for the tests of both library versions."""
    if why := node.missing() or backfill.missing():
        assert not os.environ.get("CI"), why
        pytest.skip(why)
    with ExitStack() as stack:

        @cache
        def set_up(name):
            situation = SITUATIONS[name]
            prometheus = stack.enter_context(backfill.prometheus(situation))
            return Scene(situation, prometheus, ask(situation, prometheus))

        yield set_up


@pytest.fixture
def scene(request, scenes):
    return scenes(request.param)


@pytest.mark.parametrize("scene", [*map(marked, SITUATIONS)], indirect=True)
def test_it_is_what_it_is_called(scene):
    name = scene.situation.name
    wanted = [*THERE[name.removesuffix("-gpu")]]
    if name.endswith("-gpu"):
        wanted.append("infercanary_gpu_up == 1")
    assert [query for query in wanted if not scene.prometheus.at(query, END).results] == []
    firing = {result.labels["alertname"] for result in scene.prometheus.at("ALERTS", END).results}
    expected = ALERTS.get(name.removesuffix("-gpu"))
    assert expected is None or firing == {f"InferCanary{alert}" for alert in expected}


OLD, NEW = "1.4.0 (70a90c3407ae)", "1.5.0 (c8156b51bf12)"
SCREENS = {
    "upgraded": ("classify", "regressed", "51.0 ms → 68.5 ms", "+34.2 % [", "image: roll back", OLD, NEW, "torch"),
    "troubled-gpu": ("classify", "regressed", "→ 67.", "output differs: roll back", OLD, "1.5.1 (d10e5a10a609)"),
    "namespaces": ("prod/search", "regressed", "50.4 ms → 68.2 ms", "+35.3 % [", "image: roll back", OLD, NEW, "torch"),
    "late": ("classify", "regressed", "51.1 ms → 68.2 ms", "+33.5 % [", "image: roll back", OLD, NEW, "torch"),
}  # fmt: skip
"""Situation → texts on the first screen of *Service*."""


@pytest.mark.parametrize("scene", SCREENS, indirect=True)
def test_the_first_screen_says_what_happened_to_which_image_why_and_what_to_do(scene):
    verdict, words, components = scene.shown(
        "service: Verdict", "service: In words", "service: Components that changed"
    )
    assert len(verdict["rows"]) == len(words["rows"]) == 1
    said = " ".join(cell["text"] for cell in [*verdict["rows"][0], *words["rows"][0]])
    assert [part for part in SCREENS[scene.situation.name] if part not in said] == [], said
    changed = [{cell["text"] for cell in row} for row in components["rows"]]
    assert any({"torch", "2.7.0", "2.13.0"} <= cells for cells in changed)


@pytest.mark.parametrize("scene", ["upgraded"], indirect=True)
def test_an_upgrade_is_marked_when_it_was(scene):
    [expression] = {
        q.expression
        for q in queries(service="classify")
        if (q.dashboard, q.place) == ("service", "annotation Upgrades")
    }
    marks = scene.prometheus.over(expression, scene.situation.start, END, 30).results
    assert {value for mark in marks for _, value in mark.points} == {1000 * (END - 1500)}


@pytest.mark.parametrize("scene", ["spread"], indirect=True)
def test_a_service_on_several_hosts_is_one(scene):
    """Each service and each replica has one row and one line: none is missing or duplicated."""
    each = "Latency of each replica"
    table, latency, said, replicas, lines = scene.shown(
        "fleet: Services: last upgrade",
        "fleet: Latency change since the upgrade",
        "service: Verdict",
        "service: Replicas",
        f"service: {each}",
    )
    assert [[cell["text"] for cell in row][:3] for row in table["rows"]] == [
        ["rank", "", "regressed"],
        ["search", "prod", "regressed"],
        ["classify", "", "first image"],
    ]
    assert _names(latency) == ["classify resnet18", "prod/search resnet18", "rank resnet18"]
    assert len(said["rows"]) == 1
    pods = sorted(server.name for server in scene.situation.servers if server.namespace)
    assert (
        sorted(row[0]["text"] for row in replicas["rows"])
        == _names(lines)
        == [f"{pod}/server" for pod in pods]
    )
    other = scene.situation._replace(chosen={"service": "classify", "canary": "resnet18"})
    [of_each_host] = node.shown([ask(other, scene.prometheus)[f"service: {each}"]])
    assert _names(of_each_host) == [f"infercanary-classify-1 node-{number}" for number in (1, 2)]


def _names(shown):
    return sorted(series["name"] for series in shown["series"])


def test_each_query_gives_something_in_a_situation(scenes):
    """Each query has a result in some situation, or grafana/empty.py lists it as empty."""
    asked, given = set(), set()
    for name in SITUATIONS:
        for place, question in scenes(name).panels.items() if name not in REPEATS else ():
            board, _, title = place.partition(": ")
            for answer in question["answers"]:
                where = f"{board}: panel {title} {answer['refId']}"
                asked.add(where)
                if answer["data"]["result"]:
                    given.add(where)
    for query in queries(service="classify"):
        if not query.place.startswith("panel"):
            asked.add(where := f"{query.dashboard}: {query.place}")
            if any(
                scenes(name).prometheus.at(query.expression, END).results
                for name in ("upgraded-gpu", "spread")
            ):
                given.add(where)
    assert sorted(place for place in asked - given if not empty.why(place)) == []


@pytest.mark.parametrize(
    ("scene", "library"), [*starmap(marked, product(SITUATIONS, node.VERSIONS))], indirect=["scene"]
)
def test_no_panel_has_a_fault(scene, library):
    faults = [
        f"{place}: {fault['line']} [{fault['rule']}]"
        for place, shows in zip(scene.panels, scene.shown(*scene.panels, library=library), strict=True)
        for fault in shows["faults"]
    ]
    for name, board in dashboards().items():
        own = [question for place, question in scene.panels.items() if place.startswith(f"{name}: ")]
        count, size = asking.load(board, own)
        if count > asking.QUERIES or size > asking.BYTES:
            faults.append(f"{name}: sends {count} queries, {size} bytes")
    assert not faults, "\n".join([f"{len(faults)} in the situation {scene.situation.name}:", *faults])
