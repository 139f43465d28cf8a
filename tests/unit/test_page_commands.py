"""Commands and settings in the docs: each InferCanary command is valid, and each YAML block is a valid settings
file.
"""

import re
import shlex
from contextlib import nullcontext
from typing import NamedTuple, cast

import click
import pytest
import yaml

from infercanary.command.cli import cli
from infercanary.command.settings import convert
from infercanary.exporter.config import ExporterConfig
from infercanary.probe.config import ProbeConfig
from tests.for_each import for_each
from tests.programs import ROOT
from tests.scenarios import cases

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "grafana/README.md"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


class Block(NamedTuple):
    page: str
    kind: str
    text: str

    def __str__(self):
        return f"{self.page}: {self.text.strip().splitlines()[0]}"


def blocks(*kinds):
    fence = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
    return [
        Block(str(page.relative_to(ROOT)), kind, text)
        for page in PAGES
        for _, kind, text in fence.findall(page.read_text())
        if kind in kinds
    ]


def commands(program):
    found = []
    for block in blocks("sh", ""):
        for line in re.sub(r"\\\n", " ", block.text).splitlines():
            match = re.search(rf"(?:^|[ /]){program} (?!.*{program} )", line)
            if not match or line.lstrip().startswith(("#", "canary")):
                continue
            words = shlex.split(line[match.end() :], comments=True)
            ends = [place for place, word in enumerate(words) if re.match(r"[|&>;]|2>", word)]
            found.append((f"{block.page}: {line.strip()}", words[: min(ends, default=len(words))]))
    return found


GROUP = cast(click.Group, cli)
# equal to the group's names, because a command takes the first name
CONTEXT = click.Context(GROUP, help_option_names=["-h", "--help"])
NAMES = GROUP.list_commands(CONTEXT)
OURS = [(place, words) for place, words in commands("infercanary") if words and words[0] in NAMES]


@for_each(OURS, lambda command: command[0])
def test_each_command_line_of_ours_is_one(command):
    name, *words = command[1]
    found = GROUP.get_command(CONTEXT, name)
    missing = (
        pytest.raises(click.BadParameter, match="does not exist")
        if names_a_file(found, words)
        else nullcontext()
    )
    with missing:
        found.make_context(name, words, parent=CONTEXT)


def names_a_file(command, words):
    return any(
        isinstance(parameter.type, click.Path)
        and parameter.type.exists
        and (parameter.param_type_name == "argument" or any(name in words for name in parameter.opts))
        for parameter in command.params
    )


@for_each(commands("make"), lambda command: command[0])
def test_each_target_of_make_is_there(command):
    assert command[1][0] in TARGETS


def read(block):
    """Read a YAML block with the code of the program whose file it is."""
    if "!override" in block.text:
        block = block._replace(text=block.text.replace("!override ", ""))
    found = yaml.safe_load(block.text)
    first = block.text.partition("\n")[0]
    if "canaries" in found or first.startswith("# probe.yaml"):
        convert({"canaries": {"x": {"target": "torch"}}} | found, ProbeConfig, block.page)
    elif first.startswith("# exporter.yaml"):
        convert(found, ExporterConfig, block.page)


@for_each(blocks("yaml"), str)
def test_each_yaml_is_what_its_program_reads(block):
    read(block)


@cases(["# probe.yaml\ncanaries: {a: {targt: torch}}", "# exporter.yaml\npol: 5"])
def test_a_mistake_is_seen(mistake):
    with pytest.raises(Exception, match="unknown key"):
        read(Block("page", "yaml", mistake))
