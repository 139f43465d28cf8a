"""The tests follow the recipes of CONTRIBUTING.md literally in a copy of the repository, and check the results."""

import os
import re
import shlex
import shutil
import sys
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import pytest

from tests.programs import ROOT, ended

PYTHON = shlex.quote(sys.executable)
FOLDERS = (
    "benchmarks",
    "charts",
    "deploy",
    "docs",
    "examples",
    "exporter",
    "grafana",
    "probe",
    "prometheus",
    "socket-proxy",
    "tests",
)
# Output of a recipe's commands, a file that the commands write, and text in this file.
RECIPES = {
    "A target": (r"canary features: steady\n(.*\n)*.*\bcompute ", "docs/probe.md", "| `sqlite` |"),
    "A sampler": (
        'infercanary_process_open_files"', "docs/metrics.md", "### `infercanary_process_open_files`",
    ),
    "A metric": ("passed", "docs/metrics.md", "### `infercanary_gc_frozen_objects`"),
    "An alert": (
        "SUCCESS: 1 rules found", "grafana/provisioning/alerting/on/rules.yml", "InferCanarySamplerFailing",
    ),
    "A panel": ("passed", "grafana/dashboards/json/host.json", "Pinned threads"),
}  # fmt: skip
STRUCTURE = (
    "tests/unit/contract/test_vocabulary.py",
    "tests/unit/exporter/test_config.py",
    "tests/unit/exporter/test_discovery.py",
    "tests/unit/probe/test_report.py",
    "tests/unit/probe/test_samplers.py",
    "tests/unit/probe/test_targets.py",
    "tests/unit/test_docs.py",
)
"""Tests of the suite that a new file can break."""
pytestmark = pytest.mark.takes(60)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Step(NamedTuple):
    verb: str
    """``Write``, ``Append``, ``Insert`` or ``Run``."""
    path: str
    anchor: str
    """Part of the line after which the block is inserted."""
    text: str


def recipe(title):
    """Return the steps under a heading. Each block belongs to the last path in the text before it."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split(f"\n### {title}\n")[1]
    section = re.split(r"\n(?=##)", _FENCE.sub(lambda block: block[0].replace("\n#", "\n\0#"), section))[0]
    end = 0
    for block in _FENCE.finditer(section):
        said, end = section[end : block.start()], block.end()
        text = block[2].replace("\0", "")
        if block[1] == "sh":
            yield Step("Run", "", "", text)
            continue
        verbs = re.findall(r"\b(Write|Append to|Insert into)\b", said)
        paths = re.findall(r"`([\w./-]+\.\w+)`", said.rpartition(verbs[-1])[2])
        anchors = re.findall(r'the first line with "(.+?)":', said)
        yield Step(verbs[-1].split()[0], paths[0], anchors[-1] if anchors else "", text)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Copy the repository, with this virtual environment as the copy's own."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in FOLDERS:
        # Bytecode of tests contains the paths of the tests.
        ignored = shutil.ignore_patterns("node_modules", *["__pycache__"] * (folder == "tests"))
        shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
    for file in ROOT.iterdir():
        if file.is_file() and file.name != ".git":  # in a git worktree, this file points to the original
            shutil.copy(file, tree)
    if (
        known := ROOT / ".mypy_cache"
    ).is_dir():  # with the cache of `make lint`, only the recipes' files are checked again
        shutil.copytree(known, tree / known.name)
    (tree / ".venv/bin").mkdir(parents=True)
    for name, module in {"python": "", "infercanary": " -m infercanary", "ruff": " -m ruff"}.items():
        program = tree / ".venv/bin" / name
        program.write_text(f'#!/bin/sh\nexec {PYTHON}{module} "$@"\n')
        program.chmod(0o755)
    return tree


@pytest.fixture(scope="module")
def follow(tree):
    """Follow recipes one after another in the same copy, as a person would."""

    def visible():
        return {path for path in tree.iterdir() if not path.name.startswith(".")}

    @cache
    def followed(title):
        before = visible()
        touched, printed = [], ""
        for step in recipe(title):
            if step.verb == "Run":
                printed += run(step.text, tree)
            else:
                touched.append(step.path)
                write(step, tree / step.path)
        assert visible() == before  # the recipe leaves files behind
        return touched, printed

    return followed


def run(commands, tree):
    path = os.pathsep.join([str(tree / "probe"), str(tree / "exporter"), str(tree)])
    environment = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}
    commands = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + commands
    commands = re.sub(r"^make ", "make --old-file=.venv/dev ", commands, flags=re.MULTILINE)
    return ended("bash", "-euc", commands, cwd=tree, env=environment, seconds=180).stdout


def write(step, path):
    if step.verb == "Write":
        assert not path.exists(), f"{step.path} already exists"
        path.write_text(step.text)
        return
    before = path.read_text()
    if step.verb == "Append":
        path.write_text(before + step.text)
        return
    lines = before.splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if step.anchor in line)
    path.write_text("".join([*lines[: at + 1], step.text, *lines[at + 1 :]]))


def needs(title):
    if title in ("An alert", "A panel") and find_spec("grafana_foundation_sdk") is None:
        return "Grafana's SDK needs Python 3.11"
    return "promtool is not on PATH" if title == "An alert" and shutil.which("promtool") is None else ""


def test_each_recipe_is_followed():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = _FENCE.sub("", page.split("\n## Recipes\n")[1].split("\n## ")[0])
    assert re.findall(r"^### (.+)$", section, re.MULTILINE) == [*RECIPES]


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe(tree, follow, title):
    if missing := needs(title):
        (pytest.fail if os.environ.get("CI") and "promtool" in missing else pytest.skip)(missing)
    pattern, path, text = RECIPES[title]
    _, printed = follow(title)
    assert "passed" in printed and re.search(pattern, printed), printed
    assert text in (tree / path).read_text()


# takes a minute; CI lints and tests the repository, and the tests above run each recipe's own test
@pytest.mark.campaign
def test_results_of_recipes_pass_the_linters_and_the_suite(tree, follow):
    titles = [title for title in RECIPES if not needs(title)]
    touched = {path for title in titles for path in follow(title)[0]}
    for step in (step for title in titles for step in recipe(title) if step.verb == "Write"):
        assert (tree / step.path).read_text() == step.text  # `make format` changed it
    code = sorted(path for path in touched if path.endswith(".py"))
    assert len(code) >= 6
    typed = [path for path in code if not path.startswith("grafana/")]
    run(f"{PYTHON} -m ruff check {' '.join(code)}", tree)
    run(f"{PYTHON} -m ruff format --check {' '.join(code)}", tree)
    run(f"{PYTHON} -m mypy {' '.join(typed)}", tree)
    run(f"{PYTHON} -m pytest -q -n 0 {' '.join(STRUCTURE)}", tree)
