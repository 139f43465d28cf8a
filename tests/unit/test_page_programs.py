"""Commands of docker, helm, kubectl and podman in the docs: options exist, and chart and stack accept the values."""

import os
import re
import shutil
from functools import cache
from itertools import pairwise

import pytest
import yaml

from tests.for_each import for_each
from tests.programs import ROOT, ended
from tests.unit.test_page_commands import commands

LINES = [
    (program, *line)
    for program in ("docker", "helm", "kubectl", "podman")
    if shutil.which(program) or os.environ.get("CI")
    for line in commands(program)
]
STACK = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PROFILES = {profile for service in STACK["services"].values() for profile in service.get("profiles", ())}
A_READERS = "search"
"""A service in the reader's stack."""


def output(*command):
    return ended(*command, input="", cwd=ROOT).stdout


@cache
def help_of(*command):
    return output(*command, "--help") + (output("kubectl", "options") if command[0] == "kubectl" else "")


def subcommand(program, words):
    """Return the program with the words that name its subcommand; the help of each word lists the next word."""
    path = [program]
    for word in words:
        if re.search(rf"^ +{re.escape(word)}\*? {{2,}}", help_of(*path), re.MULTILINE):
            path.append(word)
    return path


def unknown_options(program, words):
    path = subcommand(program, words)
    if path[-1] == "exec":  # options after the service belong to another program
        words = words[: words.index(next(word for word in words[len(path) - 1 :] if word[0] != "-"))]
    known = {
        name for end in range(1, len(path) + 1) for name in re.findall(r"--[a-z][\w-]*", help_of(*path[:end]))
    }
    return {name for word in words if (name := word.partition("=")[0]).startswith("--") and name not in known}


@pytest.mark.skipif(not LINES, reason="no docker, helm, kubectl or podman")
@for_each(LINES, lambda line: line[1])
def test_each_option_is_known(line):
    program, _, words = line
    assert len(subcommand(program, words)) > 1 and not unknown_options(program, words)


@pytest.mark.skipif("helm" not in {line[0] for line in LINES}, reason="no helm")
@for_each([line for line in commands("helm") if "charts/infercanary" in line[1]], lambda line: line[0])
def test_the_chart_takes_each_value(line):
    words = [word for word in line[1][1:] if word != "--reuse-values"]
    given = (
        words
        if any("image.repository" in word for word in words)
        else [*words, "--set", "image.repository=a/b"]
    )
    assert "kind: DaemonSet" in output("helm", "template", *given)


@for_each([line for line in commands("docker") if line[1][:1] == ["compose"]], lambda line: line[0])
def test_services_and_profiles_of_the_stack_are_there(line):
    _, words = line
    assert {word for before, word in pairwise(words) if before == "--profile"} <= PROFILES | {"*"}
    subcommands = {"up", "rm", "restart", "stop", "start", "build"}
    place = next((n for n, word in enumerate(words) if word in subcommands), len(words))
    assert {word for word in words[place + 1 :] if word[0] != "-"} <= {*STACK["services"], A_READERS}


@pytest.mark.skipif("docker" not in {line[0] for line in LINES}, reason="no docker")
def test_a_mistake_is_seen():
    assert unknown_options("docker", ["compose", "up", "--detatch", "--wait"]) == {"--detatch"}
