"""Helm and docker compose commands in the docs are valid for the chart and the stack."""

import os
import shutil
import subprocess
from itertools import pairwise

import pytest
import yaml

from tests.for_each import for_each
from tests.unit.test_page_commands import ROOT, commands

STACK = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PROFILES = {profile for service in STACK["services"].values() for profile in service.get("profiles", ())}
A_READERS = "search"
"""A service in the reader's stack."""


@pytest.mark.skipif(not shutil.which("helm") and not os.environ.get("CI"), reason="needs helm")
@for_each([line for line in commands("helm") if "charts/infercanary" in line[1]], lambda line: line[0])
def test_the_chart_takes_each_value(line):
    words = [word for word in line[1][1:] if word != "--reuse-values"]
    given = (
        words
        if any("image.repository" in word for word in words)
        else [*words, "--set", "image.repository=a/b"]
    )
    done = subprocess.run(["helm", "template", *given], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0 and "kind: DaemonSet" in done.stdout, done.stderr


@for_each([line for line in commands("docker") if line[1][:1] == ["compose"]], lambda line: line[0])
def test_services_and_profiles_of_the_stack_are_there(line):
    _, words = line
    assert {word for before, word in pairwise(words) if before == "--profile"} <= PROFILES | {"*"}
    subcommands = {"up", "rm", "restart", "stop", "start", "build"}
    place = next((n for n, word in enumerate(words) if word in subcommands), len(words))
    assert {word for word in words[place + 1 :] if word[0] != "-"} <= {*STACK["services"], A_READERS}
