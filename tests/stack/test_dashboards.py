"""Every query of every panel, variable, annotation and rule runs on the stack's own Prometheus after an upgrade.

Canaries run once a second, under load, and one service gets a slower image. No query may fail, and a query
may be empty only if `grafana.empty` has a reason.
"""

import math
from typing import NamedTuple

import pytest
from harness import PROMETHEUS

from grafana import empty
from grafana.prometheus import Prometheus
from grafana.queries import queries

UPGRADED = "classify"
# Prometheus warns about histograms: each bucket is a separate counter. After a restart, a bucket may pass its
# old count before the next scrape, which hides its reset.
HARMLESS = "needed to be fixed for monotonicity"
STEP = 15


class Scene(NamedTuple):
    prometheus: Prometheus
    start: float
    end: float

    def ask(self, expression, over_time=False):
        if over_time:
            # The range's last step is the end, because the verdict may be younger than one step.
            first = self.end - math.ceil((self.end - self.start) / STEP) * STEP
            answer = self.prometheus.over(expression, first, self.end, STEP)
        else:
            answer = self.prometheus.at(expression, self.end)
        return answer._replace(remarks=[remark for remark in answer.remarks if HARMLESS not in remark])


@pytest.fixture(scope="module")
def scene(judged):
    return Scene(Prometheus(PROMETHEUS), *judged)


def test_each_query_and_rule_gives_something_or_is_known_not_to(scene):
    asked = [
        (f"{query.dashboard}: {query.place}", query.expression, query.over_time)
        for query in queries(service=UPGRADED, canary="resnet18", span="8m", interval=f"{STEP}s")
    ]
    rules = scene.prometheus.rules()
    assert {rule["type"] for rule in rules} == {"alerting", "recording"}
    kinds = {"alerting": "alert", "recording": "recording"}
    asked += [(f"{kinds[rule['type']]} {rule['name']}", rule["query"], False) for rule in rules]
    trouble = []
    for where, expression, over_time in asked:
        answer = scene.ask(expression, over_time)
        trouble += [f"{where}: {remark}: {expression}" for remark in answer.remarks]
        if not answer.results and not empty.why(where):
            trouble.append(f"{where} is empty, and not in grafana/empty.py: {expression}")
    for rule in rules:
        if rule["health"] != "ok":
            trouble.append(f"{rule['name']}: {rule['health']}, {rule.get('lastError')}")
        texts = str([alert["annotations"] for alert in rule.get("alerts", ())])
        if "<error" in texts or "<no value>" in texts:
            trouble.append(f"{rule['name']} says: {texts}")
    assert trouble == []


def test_an_upgrade_is_shown(scene):
    """Prometheus has the upgrade's verdict, change and time. grafana/check tests the panels."""
    labels = f'{{service="{UPGRADED}"}}'
    [said] = scene.ask(f'infercanary_verdict{{service="{UPGRADED}", measure="latency"}} == 1').results
    assert said.labels["verdict"] == "regressed"
    changed = scene.ask(f"infercanary_upgrade_component_info{labels}").results
    components = {row.labels["component"]: (row.labels["old"], row.labels["new"]) for row in changed}
    assert components["env_ONEDNN_MAX_CPU_ISA"] == ("none", "AVX")
    assert components["env_MALLOC_ARENA_MAX"] == ("2", "4")
    [moment] = scene.ask(f"infercanary_upgrade_timestamp_seconds{labels}").results
    assert scene.start < moment.points[0][1] < scene.end
