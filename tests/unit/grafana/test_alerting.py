"""Grafana's own alert rules: the same as Prometheus', and off by default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("grafana_foundation_sdk", reason="Grafana's SDK needs Python 3.11")

from grafana import alerting

ROOT = Path(__file__).parents[3]
PROVISIONING = ROOT / "grafana/provisioning"


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


ON = _read(PROVISIONING / "alerting/on/rules.yml")
OFF = _read(PROVISIONING / "alerting/off/rules.yml")
MADE = [rule for group in ON["groups"] for rule in group["rules"]]
BY = ("instance", "service", "canary")
SOURCE = [
    rule
    for path in sorted((ROOT / "prometheus/rules").glob("*.y*ml"))
    for group in _read(path)["groups"]
    for rule in group["rules"]
    if "alert" in rule
]


def test_they_are_prometheus_rules() -> None:
    assert len(MADE) == len(SOURCE) > 0
    for made, rule in zip(MADE, SOURCE, strict=True):
        assert made["title"].split(" ")[0] == rule["alert"]
        assert made["data"][0]["model"]["expr"] == rule["expr"].strip()
        assert made["for"] == rule.get("for", "0s")
        assert rule.get("labels", {}).items() <= made["labels"].items()
        assert made["annotations"].keys() == rule.get("annotations", {}).keys()


def test_a_series_that_is_there_fires_and_one_that_is_not_does_not() -> None:
    for rule in MADE:
        query, present, threshold, *_ = rule["data"]
        assert (query["refId"], present["refId"], threshold["refId"]) == ("A", "B", rule["condition"])
        assert query["model"]["instant"]
        assert present["model"]["expression"] == "is_number($A) || is_nan($A) || is_inf($A)"
        assert threshold["model"]["expression"] == "B"
        assert rule["noDataState"] == "OK"
        assert rule["missing_series_evals_to_resolve"] == 1


def test_names_are_grafanas() -> None:
    uids = [rule["uid"] for rule in MADE]
    assert len(uids) == len(set(uids))
    assert all(re.fullmatch(r"[a-z0-9-]{1,40}", uid) for uid in uids)
    for group in ON["groups"]:
        titles = [rule["title"] for rule in group["rules"]]
        assert len(titles) == len(set(titles))


def test_off_takes_away_what_on_brings() -> None:
    assert [rule["uid"] for rule in OFF["deleteRules"]] == [rule["uid"] for rule in MADE]
    assert "groups" not in OFF
    compose = _read(ROOT / "docker-compose.yml")["services"]["grafana"]
    assert (
        "./grafana/provisioning/alerting/${GRAFANA_ALERTS:-off}:/etc/grafana/provisioning/alerting:ro"
        in (compose["volumes"])
    )


def test_texts_are_templates_that_grafana_expands() -> None:
    for rule in MADE:
        for key, text in rule["annotations"].items():
            code = "".join(re.findall(r"\{\{.*?\}\}", text, flags=re.DOTALL))
            assert not re.search(r"\bquery\b", code), f"{rule['title']}: {key} asks Prometheus"
            assert not re.search(r"\$value\b", code), f"{rule['title']}: {key}"
            assert text.strip()
    assert "infercanary:links:info" in str(_read(ROOT / "prometheus/rules/recording.yml"))
    links = _read(ROOT / "exporter/exporter.yaml")["links"]
    for rule in MADE:
        assert rule["annotations"]["dashboard_url"].startswith(f"{links['grafana']}/d/infercanary-")
        assert rule["annotations"]["runbook_url"].startswith(f"{links['runbooks']}#")


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("{{ $value }} of 18", "{{ $values.A.Value }} of 18"),
        ("{{ $value | humanizePercentage }}", "{{ $values.A.Value | humanizePercentage }}"),
        ('{{ printf "%.1f" $value }} {{ $labels.x }}', '{{ printf "%.1f" $values.A.Value }} {{ $labels.x }}'),
        (
            '{{ with query "infercanary:links:info{grafana!=\\"\\"}" }}{{ . | first | label "grafana" }}'
            "/d/x?var-a={{ $labels.a }}{{ end }}",
            "http://there/d/x?var-a={{ $labels.a }}",
        ),
        (
            '{{ with printf "topk(1, timestamp(infercanary_verdict_info{instance=%q,service=%q,canary=%q}))" '
            "$labels.instance $labels.service $labels.canary | query -}} "
            '{{ . | first | label "sentence" }}{{ else }}None.{{ end }}',
            "{{ with $values.S }}{{ .Labels.sentence }}{{ else }}None.{{ end }}",
        ),
    ],
)
def test_a_template(given: str, made: str) -> None:
    assert alerting.template(given, "A", {"grafana": "http://there"}) == made


def test_a_rule_whose_text_has_the_sentence_asks_for_it_and_does_not_decide_by_it() -> None:
    reading = [rule for rule in MADE if "$values.S" in rule["annotations"]["description"]]
    assert {rule["title"].split(" ")[0] for rule in reading} == {
        "InferCanaryImageRegressed",
        "InferCanaryRegressionUnexplained",
        "InferCanaryHostRegressed",
        "InferCanaryLoadRegressed",
        "InferCanaryMeasureRegressed",
        "InferCanaryLatencyImproved",
        "InferCanaryCpuFallback",
    }
    for rule in MADE:
        *deciding, last = rule["data"]
        assert (last["refId"] == "S") == (rule in reading), rule["title"]
        assert not any("verdict_info" in str(node) or "$S" in str(node) for node in deciding)
        if rule in reading:
            has = ("infercanary_measure_verdict_info", (*BY, "measure")) if "Measure" in rule["title"] else ()
            assert last["model"]["expr"] == alerting.sentence_of(rule["data"][0]["model"]["expr"], *has)
            assert last["model"]["instant"]


def test_what_grafana_would_read_as_its_environment_is_refused() -> None:
    with pytest.raises(ValueError, match="reads \\$\\{"):
        alerting.template("costs ${x}", "A", {})


def test_a_long_name() -> None:
    long = alerting.uid("InferCanary" + "VeryLong" * 9)
    assert len(long) == 40
    assert long != alerting.uid("InferCanary" + "VeryLong" * 10)


def test_provisioning_is_what_the_dashboards_ask_for() -> None:
    [source] = _read(PROVISIONING / "datasources/prometheus.yml")["datasources"]
    assert source["uid"] == alerting.UID  # type: ignore[attr-defined]
    assert source["editable"] is False
    [provider] = _read(PROVISIONING / "dashboards/infercanary.yml")["providers"]
    assert provider["allowUiUpdates"] is False
    volumes = _read(ROOT / "docker-compose.yml")["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboards/json:{provider['options']['path']}:ro" in volumes


def test_the_service_is_hardened() -> None:
    compose = _read(ROOT / "docker-compose.yml")
    service = compose["services"]["grafana"]
    assert re.fullmatch(r"grafana/grafana:12\.\d+\.\d+", service["image"])
    assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["user"] == "472:0"
    assert service["ports"] == ["127.0.0.1:3000:3000"]
    assert service["environment"]["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert not [key for key in service["environment"] if "PASSWORD" in key]
    own = [volume.split(":")[0] for volume in service["volumes"] if not volume.startswith("./")]
    assert own == ["grafana-data"] and "grafana-data" in compose["volumes"]
    assert all(volume.endswith(":ro") for volume in service["volumes"] if volume.startswith("./"))
