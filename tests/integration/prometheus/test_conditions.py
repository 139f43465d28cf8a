"""The status page's conditions are the alerts', by the same numbers and without `for`.

The scenarios of prometheus/tests are played to both: their series to the exporter's conditions, report by report, and
to the rules' expressions by promtool, which is asked whether they give what the conditions gave.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from infercanary.contract.report import Family, Point
from infercanary.exporter.conditions import Known, conditions, impaired
from infercanary.exporter.discovery.base import Key
from infercanary.exporter.history import History, RunSummary
from infercanary.exporter.replicas import Replica, apart
from infercanary.exporter.signals import OWN, REPORTED, Signals
from infercanary.judge.model import ServiceKey
from infercanary.judge.policy import LIVE
from tests.for_each import for_each

ROOT = Path(__file__).parents[3]
RULES = ROOT / "prometheus/rules"
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((RULES / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
NOT_SHOWN = {
    "InferCanaryExporterDown": "an exporter that is down has no page",
}
FILES = ("canary", "cpu", "drift", "gpu", "itself", "upgrades", "resolving")
MINUTE = 60.0

Labels = Mapping[str, str]


class Series(NamedTuple):
    """One of a scenario's input."""

    name: str
    labels: dict[str, str]
    values: list[float | None]
    """One a minute; None where there is none."""


def series_of(given: Mapping[str, str]) -> Series:
    """promtool's notation: `1x3` is 1 four times, `0+2x3` rises, `_` is missing, `stale` ends it."""
    name, _, inner = given["series"].partition("{")
    values: list[float | None] = []
    for word in given["values"].split():
        if found := re.fullmatch(r"(_)(?:x(\d+))?", word):
            values += [None] * int(found[2] or 1)
        elif word == "stale":
            values.append(None)
        else:
            found = re.fullmatch(r"(-?[\d.]+(?:e[+-]?\d+)?)([+-][\d.]+)?(?:x(\d+))?", word)
            assert found, word
            values += [float(found[1]) + i * float(found[2] or 0) for i in range(int(found[3] or 0) + 1)]
    return Series(name, dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', inner)), values)


def test_the_notation_is_promtools() -> None:
    """The rules' tests say it at length; here only what they use."""
    read = series_of({"series": 'a{b="c"}', "values": "_x2 1x2 0+2x2 -3 stale"})
    assert read == ("a", {"b": "c"}, [None, None, 1, 1, 1, 0, 2, 4, -3, None])


def families(there: list[tuple[Series, float]]) -> list[Family]:
    """As one report; the labels of the container are the exporter's to add."""
    by: dict[tuple[str, tuple[str, ...]], list[Point]] = defaultdict(list)
    for series, value in there:
        own = {k: v for k, v in series.labels.items() if k not in ("instance", "service", "container", "job")}
        by[series.name, tuple(own)].append(Point(tuple(own.values()), value))
    return [
        Family(name, "counter" if name.endswith("_total") else "gauge", "", labels, tuple(points))
        for (name, labels), points in by.items()
    ]


class Container:
    """One, or an exporter."""

    def __init__(self) -> None:
        self.reported, self.own = Signals(REPORTED), Signals(OWN)
        self.history, self.image_id, self.environment = History(), "", dict[str, str]()
        self.ended_at: float | None = None
        self._ended: dict[str, float] = {}

    def take(self, there: list[tuple[Series, float]], at: float) -> None:
        report = families(there)
        self.reported.take(report, at)
        self.own.take(report, at)
        for series, value in there:
            if series.name == "infercanary_run_median_seconds":
                run = RunSummary(series.labels["canary"], at, "ok", "", value, value, value)
                self.history.take([run])
            elif series.name == "infercanary_container_info":
                self.image_id = series.labels.get("image_id", "")
            elif series.name == "infercanary_environment_info":
                self.environment[series.labels["component"]] = series.labels["version"]
            if series.name == "infercanary_container_oom_kills_total":
                # The exporter counts from 0; what is there when Prometheus first sees it was before or is a first end.
                if value > self._ended.setdefault(series.labels["image"], 0.0 if at else value):
                    self.ended_at = at
                self._ended[series.labels["image"]] = value


def replicas_on(host: str, containers: Mapping[Key, Container]) -> dict[Key, Replica]:
    """Those that the exporter there knows."""
    return {
        key: Replica(ServiceKey("", key[1]), key[2], each.image_id, each.environment, each.history.canaries)
        for key, each in containers.items()
        if key[0] == host
    }


def shown(scenario: dict[str, Any], minutes: set[int]) -> Iterator[tuple[int, str, str, Labels]]:
    """Minute, alert, severity and labels of each condition then."""
    inputs = [series_of(each) for each in scenario.get("input_series", ())]
    containers: dict[Key, Container] = defaultdict(Container)
    for minute in range(max(minutes) + 1):
        at = minute * MINUTE
        there: dict[Key, list[tuple[Series, float]]] = {key: [] for key in containers}
        for series in inputs:
            value = series.values[minute] if minute < len(series.values) else None
            if value is not None and "instance" in series.labels:
                host, service, container = (
                    series.labels.get(name, "") for name in ("instance", "service", "container")
                )
                key = host, service, container
                there.setdefault(key, []).append((series, value))
        for key, values in there.items():
            containers[key].take(values, at)
        if minute not in minutes:
            continue
        differ = {
            key: found
            for host in {host for host, *_ in containers}
            for key, found in apart(replicas_on(host, containers), LIVE, at).items()
        }
        for (instance, service, container), each in containers.items():
            view = Known(each.reported, each.own, LIVE, at, each.ended_at)
            found = conditions(view) if container else impaired(each.own, LIVE, at)
            for condition in (*found, *differ.get((instance, service, container), ())):
                of = {"instance": instance, "service": service, "container": container, **condition.labels}
                yield minute, condition.alert, condition.severity, {k: v for k, v in of.items() if v}


def minutes_of(scenario: dict[str, Any]) -> set[int]:
    """When its own tests look."""
    cases = (*scenario.get("alert_rule_test", ()), *scenario.get("promql_expr_test", ()))
    return {int(case["eval_time"].removesuffix("m")) for case in cases}


SERVICES_OWN = ("ImageRegressed", "RegressionUnexplained", "MeasureRegressed", "ReplicasApart")


def alert_labels(alert: str, labels: Labels) -> Labels:
    """A verdict is the service's, on whichever hosts, and on the card of each of its containers; that replicas are
    apart is on the card of the slowest one."""
    of_service = alert.removeprefix("InferCanary") in SERVICES_OWN
    since_upgrade = labels.get("since") == "upgrade" or labels.get("reason") == "gpu_before_upgrade"
    dropped = ("instance", "container") if of_service or since_upgrade else ()
    return {k: v for k, v in labels.items() if k not in dropped}


def expression(alert: dict[str, Any]) -> str:
    """What it asks, as 1 for each series; without what only says that it fired."""
    expr = re.sub(r"unless on \([^)]*\)\s+last_over_time\(ALERTS\{[^}]*\}\[\w+\]\)", "", alert["expr"])
    return f"({expr}) ^ 0"


@pytest.mark.parametrize("file", FILES)
def test_what_the_page_shows_is_what_the_rules_ask(
    tool: Callable[..., str], tmp_path: Path, file: str
) -> None:
    document = yaml.safe_load((ROOT / f"prometheus/tests/{file}.yml").read_text(encoding="utf-8"))
    tests = []
    fired: set[tuple[str, str]] = set()
    for scenario in document["tests"]:
        minutes = minutes_of(scenario)
        found: dict[tuple[int, str, str], set[tuple[tuple[str, str], ...]]] = defaultdict(set)
        for minute, alert, severity, labels in shown(scenario, minutes):
            found[minute, alert, severity].add(tuple(sorted(alert_labels(alert, labels).items())))
            fired.add((alert, severity))
        asked = [
            {
                "eval_time": f"{minute}m",
                "expr": expression(alert),
                "exp_samples": [
                    {"labels": "{" + ",".join(f'{k}="{v}"' for k, v in each) + "}", "value": 1}
                    for each in sorted(found[minute, alert["alert"], alert["labels"]["severity"]])
                ],
            }
            for alert in ALERTS
            if alert["alert"] not in NOT_SHOWN
            for minute in sorted(minutes)
        ]
        tests.append(
            {
                **{key: scenario[key] for key in ("name", "interval", "input_series") if key in scenario},
                "promql_expr_test": asked,
            }
        )
    rules = [str(RULES / name) for name in ("recording.yml", "thresholds.yml")]
    written = tmp_path / "conditions.yml"
    keys = ("evaluation_interval", "group_eval_order")
    same = {key: document[key] for key in keys}
    written.write_text(yaml.safe_dump({"rule_files": rules, **same, "tests": tests}), encoding="utf-8")
    tool("promtool", "test", "rules", str(written))
    if file == "resolving":
        everything = {(alert["alert"], alert["labels"]["severity"]) for alert in ALERTS}
        assert fired == {each for each in everything if each[0] not in NOT_SHOWN}


@for_each(sorted({*REPORTED, *OWN}))
def test_what_conditions_read_is_declared(name: str) -> None:
    assert f"### `{name}`\n" in (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
