"""Every query of every panel, variable, annotation and rule, asked of the stack's own Prometheus after an upgrade.

Canaries run once a second, under load, and one service gets an image that is half as fast. Then no query may fail, and
none may be empty that is not in `grafana.empty` with its reason.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from harness import PROMETHEUS, ROOT, Stack, build, compose, eventually, run

from benchmarks.images import slower
from grafana import empty
from grafana.prometheus import Answer, Prometheus
from grafana.queries import Query, queries

pytestmark = pytest.mark.quiet

UPGRADED, SIBLING = "classify", "moderate"
PORTS = {UPGRADED: 8001, SIBLING: 8002}
# More would fill a machine of two cores with canaries.
PACE = {"PROBE_INTERVAL_SECONDS": "1", "PROBE_DUTY_CAP": "0.4", "MALLOC_ARENA_MAX": "2"}
# It keeps convolutions off the newer half of the CPU's vector instructions. That halves the speed of some CPUs, and
# costs others next to nothing: so it waits as well.
SLOWER = f"FROM infercanary-example:dev\nENV ONEDNN_MAX_CPU_ISA=AVX\n{slower(0.05)}\n"
# Buckets are counters each: after a restart one may have passed its old count before it is seen, and no reset is.
HARMLESS = "needed to be fixed for monotonicity"
RUNS = 26  # of a start: the judge's second look is at 24
STEP = 15


class Scene(NamedTuple):
    """The Prometheus, and the time in which it all happened."""

    prometheus: Prometheus
    start: float
    end: float

    def ask(self, expression: str, over_time: bool = False) -> Answer:
        """What it answers: at the end, or over the time."""
        if over_time:
            answer = self.prometheus.over(expression, self.start, self.end, STEP)
        else:
            answer = self.prometheus.at(expression, self.end)
        return answer._replace(remarks=[remark for remark in answer.remarks if HARMLESS not in remark])


@contextmanager
def under_load(service: str) -> Iterator[None]:
    """A request every half a second, meanwhile."""
    url = f"http://127.0.0.1:{PORTS[service]}/predict"
    process = subprocess.Popen(
        [sys.executable, "examples/resnet18/load.py", "--url", url, "--seconds", "600", "--rate", "2"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def ran(stack: Stack, since: float) -> None:
    """Both services were started since then, and have given runs enough."""

    def enough(service: str) -> bool:
        started = stack.value("infercanary_probe_start_timestamp_seconds", service=service) or 0.0
        runs = stack.value("infercanary_runs_collected_total", service=service) or 0.0
        return started > since and runs >= RUNS

    eventually(f"{RUNS} runs of both", 480, lambda: all(map(enough, PORTS)))


@pytest.fixture(scope="module")
def scene(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    start = time.time()
    folder = tmp_path_factory.mktemp("pace")
    pace = folder / "pace.yml"
    environment = {name: {"environment": PACE} for name in PORTS}
    pace.write_text(yaml.safe_dump({"services": environment}))
    files = os.pathsep.join(map(str, (ROOT / "docker-compose.yml", pace)))
    up = ("up", "--detach", "--no-build", "--no-deps", "--wait")
    build("infercanary-example:slower", SLOWER)
    try:
        compose(*up, *PORTS, COMPOSE_FILE=files)
        with under_load(SIBLING):
            with under_load(UPGRADED):
                ran(stack, start)
            environment[UPGRADED] = {"environment": {**PACE, "MALLOC_ARENA_MAX": "4"}}
            pace.write_text(yaml.safe_dump({"services": environment}))
            compose(*up, UPGRADED, COMPOSE_FILE=files, EXAMPLE_TAG="slower")
            with under_load(UPGRADED):
                regressed = {"service": UPGRADED, "verdict": "regressed"}
                eventually("the verdict", 480, lambda: stack.value("infercanary_verdict", **regressed) == 1)
                # A scrape, an evaluation, and what is asked over the last minute.
                time.sleep(20)
        yield Scene(Prometheus(PROMETHEUS), start, time.time())
    finally:
        compose(*up, *PORTS)


def _queries() -> list[Query]:
    return queries(service=UPGRADED, canary="resnet18", span="8m", interval=f"{STEP}s")


@pytest.mark.parametrize("query", _queries(), ids=lambda query: f"{query.dashboard}: {query.place}")
def test_each_query_gives_something_or_is_known_not_to(scene: Scene, query: Query) -> None:
    answer = scene.ask(query.expression, query.over_time)
    assert answer.remarks == [], query.expression
    where = f"{query.dashboard}: {query.place}"
    assert answer.results or empty.why(where), (
        f"{where} is empty, and not in grafana/empty.py:\n{query.expression}"
    )


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

    table = "panel What the last upgrade did"
    assert {row.labels["verdict"] for row in of("fleet", f"{table} A").results} >= {"regressed"}
    [shift] = [row for row in of("fleet", f"{table} B").results if row.labels["service"] == UPGRADED]
    assert shift.points[0][1] > 0.1
    components = of("upgrade", "panel Components that changed in this time range A").results
    assert {row.labels["component"]: row.labels["version"] for row in components}.items() >= {
        ("env_ONEDNN_MAX_CPU_ISA", "AVX"),  # which the old image did not set
    }
    arenas = {
        row.labels["version"] for row in components if row.labels["component"] == "env_MALLOC_ARENA_MAX"
    }
    assert arenas == {"2", "4"}
    for dashboard in ("fleet", "service", "upgrade", "gpu-host", "self"):
        judged = of(dashboard, "annotation Upgrades").results
        moments = {value / 1000 for result in judged for _, value in result.points}
        assert any(scene.start < moment < scene.end for moment in moments), dashboard


def test_the_dashboards_are_pictures(scene: Scene, tmp_path: Path) -> None:
    """With UPDATE_PICTURES=1 those of docs/img are drawn anew."""
    pytest.importorskip("matplotlib")
    folder = ROOT / "docs/img" if os.environ.get("UPDATE_PICTURES") else tmp_path
    end = datetime.fromtimestamp(scene.end, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    span = f"{math.ceil((scene.end - scene.start) / 60)}m"
    printed = run(
        *(sys.executable, "-m", "grafana.pictures", "--prometheus", PROMETHEUS, "--service", UPGRADED),
        *("--range", span, "--end", end, "--out", str(folder)),
    )
    assert printed.count("grafana-") == 5
