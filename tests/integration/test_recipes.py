"""The recipes of CONTRIBUTING.md, followed word for word in a copy of the tree."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "benchmarks",
    "docs",
    "examples",
    "exporter",
    "grafana",
    "probe",
    "prometheus",
    "socket-proxy",
    "tests",
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

Run = Callable[[str], str]
"""Runs commands in the copy of the tree, and returns what they printed."""


class Step(NamedTuple):
    """One fenced block of a recipe."""

    verb: str
    """``Write``, ``Append``, ``Insert`` or ``Run``."""
    path: str
    anchor: str
    """Part of the line after which a block is inserted."""
    text: str


def recipe(title: str) -> Iterator[Step]:
    """The steps under a heading: each block is for the last path that is named before it."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.split(f"\n### {title}\n")[1]
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


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree, with this environment as its own."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name, module in {"python": "", "infercanary": " -m infercanary", "ruff": " -m ruff"}.items():
        program = tmp_path / ".venv/bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        program.chmod(0o755)
    return tmp_path


@pytest.fixture
def run(tree: Path) -> Run:
    """Commands find the copy's packages first."""
    path = os.pathsep.join([str(tree / "probe"), str(tree / "exporter"), str(tree)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    def begin(commands: str) -> str:
        commands = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + commands
        commands = re.sub(r"^make ", "make --old-file=.venv/dev ", commands, flags=re.MULTILINE)
        done = subprocess.run(
            ["bash", "-euc", commands], cwd=tree, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return begin


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def follow(title: str, tree: Path, run: Run) -> tuple[list[str], str]:
    """Does what the recipe says; servers get ports of their own.

    Returns:
        The paths that it touches, and what its commands printed.
    """
    touched, printed = [], ""
    ports = {port: free_port() for port in ("8000", "9797", "9798")}
    for step in recipe(title):
        for port, ours in ports.items():
            step = step._replace(text=re.sub(rf"\b{port}\b", ours, step.text))
        path = tree / step.path
        if step.verb == "Run":
            printed += run(step.text)
            continue
        touched.append(step.path)
        if step.verb == "Write":
            assert not path.exists(), f"{step.path} is there already"
            path.write_text(step.text, encoding="utf-8")
            continue
        before = path.read_text(encoding="utf-8")
        if step.verb == "Append":
            path.write_text(before + step.text, encoding="utf-8")
            continue
        lines = before.splitlines(keepends=True)
        at = next(n for n, line in enumerate(lines) if step.anchor in line)
        path.write_text("".join([*lines[: at + 1], step.text, *lines[at + 1 :]]), encoding="utf-8")
    return touched, printed


def is_tidy(tree: Path, *paths: str) -> bool:
    """Whether ruff has nothing to say of the files."""
    for command in (["check"], ["format", "--check"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, *paths], cwd=tree, check=True, timeout=60)
    return True


def test_a_target(tree: Path, run: Run) -> None:
    touched, printed = follow("A target", tree, run)
    code, its_test, docs, settings = touched
    assert (docs, settings) == ("docs/probe.md", "probe.yaml")
    assert re.search(r"canary features: steady\n.*\bcompute ", printed, re.DOTALL), printed
    assert "2 passed" in printed
    assert is_tidy(tree, code, its_test)


def test_a_sampler(tree: Path, run: Run) -> None:
    [code, its_test, docs, settings], printed = follow("A sampler", tree, run)
    assert (docs, settings) == ("docs/probe.md", "probe.yaml")
    assert "passed" in printed
    assert 'infercanary_process_open_files"' in printed
    assert "### `infercanary_process_open_files`" in (tree / "docs/metrics.md").read_text(encoding="utf-8")
    assert is_tidy(tree, code, its_test)


def test_a_metric(tree: Path, run: Run) -> None:
    [code, again, its_test], printed = follow("A metric", tree, run)
    assert code == again
    assert "passed" in printed
    assert "### `infercanary_gc_frozen_objects`" in (tree / "docs/metrics.md").read_text(encoding="utf-8")
    assert is_tidy(tree, code, its_test)


def test_an_alert(tree: Path, run: Run) -> None:
    if shutil.which("promtool") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("promtool is not on PATH")
    if find_spec("grafana_foundation_sdk") is None:
        pytest.skip("Grafana's SDK needs Python 3.11")
    _, printed = follow("An alert", tree, run)
    assert "SUCCESS: 1 rules found" in printed
    assert "passed" in printed
    made = (tree / "grafana/provisioning/alerting/on/rules.yml").read_text(encoding="utf-8")
    assert "InferCanarySamplerFailing" in made


def test_a_panel(tree: Path, run: Run) -> None:
    if find_spec("grafana_foundation_sdk") is None:
        pytest.skip("Grafana's SDK needs Python 3.11")
    [code, _], printed = follow("A panel", tree, run)
    assert "passed" in printed
    made = json.loads((tree / "grafana/dashboards/json/gpu-host.json").read_text(encoding="utf-8"))
    assert "Full garbage collections" in {panel.get("title") for panel in made["panels"]}
    assert is_tidy(tree, code)


def test_a_discovery(tree: Path, run: Run) -> None:
    [code, its_test, docs, *_], printed = follow("A discovery", tree, run)
    assert docs == "docs/exporter.md"
    assert "1 passed" in printed
    assert re.search(r'^infercanary_up\{.*service="search"', printed, re.MULTILINE), printed
    assert is_tidy(tree, code, its_test)
