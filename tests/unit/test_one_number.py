"""The smallest effect is one number: changed in policy.py, it changes in judge, rules, dashboards and docs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytest.importorskip("grafana_foundation_sdk", reason="Grafana's SDK needs Python 3.11")

from grafana.queries import panels
from tests.for_each import for_each

ROOT = Path(__file__).parents[2]
PARTS = ("probe", "exporter", "grafana", "prometheus", "docs")

JUDGED = """
from infercanary import judge
before = [100 + i % 5 / 10 for i in range(64)]
print(judge.__file__, judge.compare(before, [1.025 * x for x in before]).verdict, sep="\\n")
"""


def run(tree: Path, *arguments: str) -> str:
    """What a Python prints to which ``tree`` is the project."""
    path = os.pathsep.join(map(str, (tree, tree / "probe", tree / "exporter")))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with 2 % in its one place, and all written anew that is made of it."""
    tree = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("img", "node_modules"))
    shutil.copy(ROOT / "README.md", tree)
    policy = tree / "exporter/infercanary/judge/policy.py"
    text = policy.read_text(encoding="utf-8")
    assert text.count("    smallest_effect: float = 0.03\n") == 1
    policy.write_text(text.replace("smallest_effect: float = 0.03", "smallest_effect: float = 0.02"), "utf-8")
    run(tree, "docs/generate.py")
    run(tree, "-m", "grafana.generate")
    return tree


def test_the_judge_calls_a_smaller_change(changed: Path) -> None:
    """2.5 % slower, and hardly any noise."""
    assert run(changed, "-c", JUDGED).splitlines() == [
        f"{changed}/exporter/infercanary/judge/__init__.py",
        "regressed",
    ]
    assert run(ROOT, "-c", JUDGED).splitlines()[1] == "equivalent"


def thresholds(tree: Path) -> dict[str, str]:
    file = yaml.safe_load((tree / "prometheus/rules/thresholds.yml").read_text(encoding="utf-8"))
    rules = [rule for group in file["groups"] for rule in group["rules"]]
    return {rule["record"].removeprefix("infercanary:threshold:"): rule["expr"] for rule in rules}


def test_rules_alert_of_it(changed: Path) -> None:
    """A threshold above the judge's smallest effect hides what it finds; one below finds nothing more."""
    before, after = thresholds(ROOT), thresholds(changed)
    assert {name for name in before if before[name] != after[name]} == {"shift_ratio", "drift_ratio"}
    assert after["shift_ratio"] == after["drift_ratio"] == "vector(0.02)"
    text = (changed / "prometheus/rules/thresholds.yml").read_text(encoding="utf-8")
    assert "than its own smallest effect, 2 % by default" in text


def test_dashboards_and_docs_say_it(changed: Path) -> None:
    texts = [
        panel["description"]
        for path in (changed / "grafana/dashboards/json").glob("*.json")
        for panel in panels(json.loads(path.read_text(encoding="utf-8")))
    ]
    for words in (
        "The judge calls a change at 2 % or more",
        "the whole interval is within ±2 %",
        "A shift within ±2 %",
    ):
        assert any(words in text for text in texts), words

    @for_each(["README.md", "docs/ab.md", "docs/verdicts.md", "docs/adr/0009-the-judge.md"])
    def says_it(name: str) -> None:
        assert "±2 %" in " ".join((changed / name).read_text(encoding="utf-8").split())

    says_it()


def test_nothing_says_the_old_one(changed: Path) -> None:
    names = ["README.md", "docs/*.md", "docs/adr/0009-*.md", "prometheus/rules/*.yml"]
    names += [
        "grafana/dashboards/*.py",
        "grafana/dashboards/**/*.json",
        "grafana/provisioning/**/*.yml",
        "exporter/infercanary/exporter/**/*.py",
    ]
    # What panels show after an upgrade, and what a GPU claims, is numbers that were measured.
    measured = ("dashboards.md", "gpu.md")
    files = [path for name in names for path in changed.glob(name) if path.name not in measured]
    assert len(files) > 50

    @for_each(files, lambda path: str(path.relative_to(changed)))
    def is_free_of_it(path: Path) -> None:
        text = " ".join(path.read_text(encoding="utf-8").split())
        assert re.findall(r".{40}(?<![\d.,])(?:3 ?%|0\.03(?!\d)).{20}", text) == []

    is_free_of_it()
