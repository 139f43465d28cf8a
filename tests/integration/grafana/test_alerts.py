"""The queries of Grafana's own alert rules, run by promtool."""

import re
import shutil

import pytest
import yaml

from tests.programs import ROOT, ended

SHOWN = ROOT / "prometheus/tests/alerts.yml"


def test_queries_of_texts_have_the_labels_of_their_alert(tmp_path):
    """The series of a text's query have the labels of the alert's series, and further labels. No join fails."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    made = yaml.safe_load((ROOT / "grafana/provisioning/alerting/on/rules.yml").read_text())
    shown = yaml.safe_load(SHOWN.read_text())
    tests = []
    rules = [rule for group in made["groups"] for rule in group["rules"]]
    for rule in rules:
        own, *asked = (node["model"]["expr"] for node in rule["data"] if "expr" in node["model"])
        assert asked, rule["uid"]
        for query in asked:
            [read] = re.findall(r"\n\) .*?group_left \((.*?)\)", query)
            others = f"(\n{query}\n) unless ignoring ({read}) (\n{own}\n)"
            tests.append({"eval_time": "75m", "expr": others, "exp_samples": []})
    tests += of_an_image(rules)
    scenario = {**shown["tests"][0], "alert_rule_test": [], "promql_expr_test": tests}
    document = {
        "rule_files": [str(ROOT / "prometheus/rules/*.yml")],
        "evaluation_interval": "1m",
        "group_eval_order": shown["group_eval_order"],
        "tests": [scenario],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(document))
    ended("promtool", "test", "rules", file)


def of_an_image(rules):
    """Return tests of the texts about a slower image: sentence, time, images, links, and the beginning of the link."""
    [rule] = [rule for rule in rules if rule["uid"] == "infercanary-image-regressed-critical"]
    alert = '{namespace="prod",service="severe",canary="resnet"}'
    images = 'baseline_image="s:1 (90a)",candidate_image="s:2 (b7f)",candidate_containers="c, d"'
    expected = [
        ("", 0.5),
        (',sentence="regressed +50 % [+40, +60]: image; torch 2.7.0 → 2.13.0"', 0.5),
        ("", 600),
        (f",{images}", 0.5),
        (',runbooks="http://r",grafana="http://g"', 0.5),
        (',runbooks="http://r",grafana="http://g"', 0.5),
        ("", 1000 * (600 - 3600)),
    ]
    queries = [node["model"]["expr"] for node in rule["data"] if "expr" in node["model"]]
    return [
        {
            "eval_time": "75m",
            "expr": f'(\n{query}\n) and on (service) label_replace(vector(1), "service", "severe", "", "")',
            "exp_samples": [{"labels": alert.replace("}", f"{more}}}"), "value": value}],
        }
        for query, (more, value) in zip(queries, expected, strict=False)
    ]
