"""The queries of Grafana's own alert rules, run by Prometheus' own tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]


def test_what_texts_read_has_the_labels_of_its_alert(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    made = yaml.safe_load((ROOT / "grafana/provisioning/alerting/on/rules.yml").read_text(encoding="utf-8"))
    rules = {rule["uid"]: rule for group in made["groups"] for rule in group["rules"]}
    data = {node["refId"]: node["model"] for node in rules["infercanary-image-regressed-warning"]["data"]}
    shown = yaml.safe_load((ROOT / "prometheus/tests/upgrades.yml").read_text(encoding="utf-8"))
    [scenario] = [test for test in shown["tests"] if test["name"] == "a slower image, rolled back"]
    [description] = {
        alert["exp_annotations"]["description"]
        for case in scenario["alert_rule_test"]
        for alert in case["exp_alerts"]
        if case["alertname"] == "InferCanaryImageRegressed"
    }
    sentence, images = description.split(". Images: ")
    old, new = images.split(" → ")
    alert = '{service="search",canary="resnet"}'
    with_sentence = alert.replace("}", f',sentence="{sentence}"}}')
    with_images = alert.replace("}", f',baseline_image="{old}",candidate_image="{new}"}}')
    links = 'grafana="http://127.0.0.1:3000",runbooks="http://127.0.0.1:9797/runbooks"'
    with_links = alert.replace("}", f",{links}}}")
    tests = [
        {
            "eval_time": "75m",
            "expr": data[letter]["expr"],
            "exp_samples": [{"labels": labels, "value": value}],
        }
        for letter, labels, value in (
            ("A", alert, 0.1243),
            ("L", with_links, 0.1243),
            ("S", with_sentence, 0.1243),
            ("I", with_images, 0.1243),
            ("T", alert, 1000 * (3570 - 3600)),  # an hour before the upgrade
        )
    ]
    file = tmp_path / "test.yml"
    document = {
        "rule_files": [str(ROOT / "prometheus/rules/*.yml")],
        "evaluation_interval": "1m",
        "group_eval_order": shown["group_eval_order"],
        "tests": [{**scenario, "alert_rule_test": [], "promql_expr_test": tests}],
    }
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
