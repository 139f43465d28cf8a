"""The project's own files: configured paths exist, and programs can read their files."""

import re

import yaml

from tests.programs import ROOT

WORKFLOW = ROOT / ".github/workflows/ci.yml"
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PYTHONS = ["3.10", "3.11", "3.12", "3.13"]


def workflow():
    return yaml.safe_load(WORKFLOW.read_text())


def test_ci_calls_targets_of_the_makefile():
    commands = [step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step]
    commands += [(ROOT / ".ci" / name).read_text() for name in ("run", "setup-and-lint")]
    called = {target for command in commands for target in re.findall(r"\bmake ([a-z][a-z-]*)", command)}
    called.discard("make")  # from `apt_install make make`
    assert {"lint", "test", "test-stack"} <= called
    assert called <= TARGETS


def test_ci_runs_on_each_python_that_the_package_names():
    assert workflow()["jobs"]["test"]["strategy"]["matrix"]["python"] == PYTHONS
    assert (
        f"({PYTHONS[0].replace('.', ', ')}) <= sys.version_info[:2] <= ({PYTHONS[-1].replace('.', ', ')})"
        in (ROOT / "Makefile").read_text()
    )


def test_every_target_has_its_line_of_help():
    text = (ROOT / "Makefile").read_text()
    phony = set(" ".join(re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)).split())
    assert phony == TARGETS
    assert {name for name in phony if re.search(rf"^{name}:.*## \S", text, re.MULTILINE)} == phony
