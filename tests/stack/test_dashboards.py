"""Every query of every panel, variable, annotation and rule, asked of the stack's own Prometheus after an upgrade.

The upgrade is that of the stack's fixtures: canaries run once a second, under load, and one service gets a slower
image. Then no query may fail, and none may be empty that is not in `grafana.empty` with its reason.
"""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import pytest
from harness import PROMETHEUS

from grafana import empty
from grafana.check import asking, node
from grafana.prometheus import Answer, Prometheus
from grafana.queries import Query, dashboards, queries
from grafana.situations.worlds import Situation

UPGRADED = "classify"
# Buckets are counters each: after a restart one may have passed its old count before it is seen, and no reset is.
HARMLESS = "needed to be fixed for monotonicity"
STEP = 15


class Scene(NamedTuple):
    """The Prometheus, and the time in which it all happened."""

    prometheus: Prometheus
    start: float
    end: float

    def ask(self, expression: str, over_time: bool = False) -> Answer:
        """What it answers: at the end, or over the time."""
        if over_time:
            # The verdict may be younger than a step: the last one is at the end.
            first = self.end - math.ceil((self.end - self.start) / STEP) * STEP
            answer = self.prometheus.over(expression, first, self.end, STEP)
        else:
            answer = self.prometheus.at(expression, self.end)
        return answer._replace(remarks=[remark for remark in answer.remarks if HARMLESS not in remark])


@pytest.fixture(scope="module")
def scene(judged: tuple[float, float]) -> Scene:
    return Scene(Prometheus(PROMETHEUS), *judged)


def _queries() -> list[Query]:
    return queries(service=UPGRADED, canary="resnet18", span="8m", interval=f"{STEP}s")


def test_each_query_gives_something_or_is_known_not_to(scene: Scene) -> None:
    trouble = []
    for query in _queries():
        where = f"{query.dashboard}: {query.place}"
        answer = scene.ask(query.expression, query.over_time)
        trouble += [f"{where}: {remark}: {query.expression}" for remark in answer.remarks]
        if not answer.results and not empty.why(where):
            trouble.append(f"{where} is empty, and not in grafana/empty.py: {query.expression}")
    assert trouble == []


def test_each_rule_is_well_and_gives_something_or_is_known_not_to(scene: Scene) -> None:
    rules = scene.prometheus.rules()
    assert {rule["type"] for rule in rules} == {"alerting", "recording"}
    trouble = []
    for rule in rules:
        where = f"{'alert' if rule['type'] == 'alerting' else 'recording'} {rule['name']}"
        if rule["health"] != "ok":
            trouble.append(f"{where}: {rule['health']}, {rule.get('lastError')}")
        answer = scene.ask(rule["query"])
        trouble += [f"{where}: {remark}" for remark in answer.remarks]
        if not answer.results and not empty.why(where):
            trouble.append(f"{where} is empty, and not in grafana/empty.py")
        for alert in rule.get("alerts", ()):
            texts = " ".join(alert["annotations"].values())
            if "<error" in texts or "<no value>" in texts:
                trouble.append(f"{where} says: {texts}")
    assert trouble == []


def test_the_dashboards_show_the_upgrade(scene: Scene) -> None:
    def of(dashboard: str, place: str) -> Answer:
        [query] = [query for query in _queries() if (query.dashboard, query.place) == (dashboard, place)]
        return scene.ask(query.expression, query.over_time)

    verdict, do, _, change = (of("service", f"panel Verdict {letter}").results for letter in "ABCD")
    assert [row.labels["verdict"] for row in verdict] == ["regressed"]
    assert [row.labels["do"] for row in do] == ["regressedimage"]
    assert [row.labels["change"][0] for row in change] == ["+"]
    [said] = of("service", "panel In words A").results
    assert "regressed" in said.labels["said"]
    components = {
        row.labels["component"]: (row.labels["old"], row.labels["new"])
        for row in of("service", "panel Components that changed A").results
    }
    assert components["env_ONEDNN_MAX_CPU_ISA"] == ("none", "AVX")
    assert components["env_MALLOC_ARENA_MAX"] == ("2", "4")
    assert len(of("service", "panel Latency by image A").results) == 2
    for dashboard in ("fleet", "service", "host"):
        judged = of(dashboard, "annotation Upgrades").results
        moments = {value / 1000 for result in judged for _, value in result.points}
        assert any(scene.start < moment < scene.end for moment in moments), dashboard


AS_IT_COMES = ("alike", "longLegend", "farAxis", "hiddenRows", "brokenWord")
"""Rules about names and values that are as they come here, eleven long names among them: the situations hold them."""


def test_no_panel_has_a_fault(scene: Scene) -> None:
    """As tests/integration/grafana/test_boards.py has it of situations; this one is live."""
    if why := node.missing():
        assert not os.environ.get("CI"), why
        pytest.skip(why)
    chosen = {"service": UPGRADED, "canary": "resnet18", "instance": "exporter:9797"}
    live = Situation("live", (), end=scene.end, seconds=scene.end - scene.start, step=STEP, chosen=chosen)
    questions = [
        (name, question)
        for name, board in dashboards().items()
        for question in asking.asked(board, live, scene.prometheus)
    ]
    shown = node.shown([question for _, question in questions])
    faults = [
        f"{name}: {question['panel']['title']}: {fault['line']} [{fault['rule']}]"
        for (name, question), shows in zip(questions, shown, strict=True)
        for fault in shows["faults"]
        if fault["rule"] not in AS_IT_COMES
    ]
    assert not faults, "\n".join(faults)
