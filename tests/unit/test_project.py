"""The project's own files: what is configured exists, and what is written for machines can be read by them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import campaign
import coverage_by_package
import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github/workflows/ci.yml"
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]


def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())
    return loaded


def test_files_for_machines_can_be_read() -> None:
    files = [ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")]
    assert len(files) >= 5
    for file in files:
        assert isinstance(yaml.safe_load(file.read_text()), dict), file
    for script in (ROOT / ".ci").iterdir():
        if script.is_file() and script.read_text().startswith("#!/usr/bin/env bash"):
            assert subprocess.run(["bash", "-n", script], check=False).returncode == 0, script


def test_ci_calls_targets_of_the_makefile() -> None:
    commands = [step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step]
    commands += [(ROOT / ".ci" / name).read_text() for name in ("run", "setup-and-lint")]
    called = {target for command in commands for target in re.findall(r"\bmake ([a-z][a-z-]*)", command)}
    called.discard("make")  # apt_install make make
    assert {"lint", "test", "test-stack"} <= called
    assert called <= TARGETS


def test_ci_runs_on_each_python_that_the_package_names() -> None:
    assert workflow()["jobs"]["test"]["strategy"]["matrix"]["python"] == PYTHONS
    assert (
        f"({PYTHONS[0].replace('.', ', ')}) <= sys.version_info[:2] <= ({PYTHONS[-1].replace('.', ', ')})"
        in (ROOT / "Makefile").read_text()
    )


def test_the_workflow_asks_for_no_rights() -> None:
    assert workflow()["permissions"] == {"contents": "read"}


def test_every_target_has_its_line_of_help() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(" ".join(re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)).split())
    assert phony == TARGETS
    assert {name for name in phony if re.search(rf"^{name}:.*## \S", text, re.MULTILINE)} == phony


def test_the_campaigns_table_is_its_own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "TABLE", tmp_path / "campaign.md")
    rows = {
        f"tests/test_a.py::test[{name}]": campaign.Row(
            f"tests/test_a.py::test[{name}]", "passed", "1234", "7", "2026-11-23"
        )
        for name in "ba"
    }
    campaign.write(rows)
    assert campaign.read(campaign.TABLE.read_text()) == rows
    assert list(campaign.read(campaign.TABLE.read_text())) == sorted(rows)


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("exporter/drift.py", "judge"),
        ("exporter/judge/thread.py", "exporter"),
        ("exporter/judge/causes.py", "judge"),
        ("exporter/poll.py", "client"),
        ("client/poll.py", "client"),
        ("judge/upgrade.py", "judge"),
        ("cli.py", "command"),
        ("exporter/expose.py", "exporter"),
    ],
)
def test_coverage_counts_old_files_to_todays_packages(path: str, package: str) -> None:
    assert coverage_by_package.package(path) == package
