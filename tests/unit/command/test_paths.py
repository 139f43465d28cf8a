"""Each file that cannot be read, written or found gives one line, for every option, for root and for other users."""

import os
import re

import click
import pytest

from infercanary.command import cli
from tests.scenarios import cases

READ = """
probe --config PATH
check-config --probe PATH
check-config --exporter PATH
check-config --web-config PATH
exporter --config PATH
exporter --web-config PATH
compare PATH numbers
compare numbers numbers --more-baseline PATH
compare numbers numbers --more-candidate PATH
scan PATH
report PATH
ab --experiment PATH
ab a --b config=PATH
ab b --a python=PATH --both config=probe.yaml
bisect --experiment PATH
"""
WRITTEN = """
compare numbers numbers --html PATH
compare numbers numbers --junit PATH
scan numbers --html PATH
probe --profile --trace PATH
ab a b --html PATH
ab a b --junit PATH
bisect a b --html PATH
bisect a b --junit PATH
bisect a b --state PATH
"""
TRAPS = ["no-folder/none", "folder", "numbers/x", "n" * 300]
FORBIDDEN = [] if os.geteuid() == 0 else ["closed/x", "secret"]
"""Root may read and write everything, so CI runs the tests as another user."""


@pytest.fixture
def said(tmp_path, monkeypatch, infercanary):
    # this option would change the process of the tests
    monkeypatch.setattr("infercanary.probe.__main__.be_ended_first", lambda: None)
    (tmp_path / "numbers").write_text("1.0\n1.1\n" * 20)
    (tmp_path / "probe.yaml").write_text("canaries: {a: {target: matmul}}\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "closed").mkdir(mode=0)
    (tmp_path / "secret").write_text("canaries: {}\n")
    (tmp_path / "secret").chmod(0)

    def call(command, path):
        code, _, error = infercanary(*command.replace("PATH", path).split())
        assert code == 2, error
        assert error.startswith("infercanary: ") and error.count("\n") == 1, error
        return error

    yield call
    (tmp_path / "closed").chmod(0o700)


@cases(READ.strip().splitlines())
def test_what_cannot_be_read(command, said):
    for path in (*TRAPS, *FORBIDDEN):
        assert path in said(command, path)


@cases(WRITTEN.strip().splitlines())
def test_what_cannot_be_written(command, said):
    for path in (*TRAPS, *FORBIDDEN):
        if path != "secret":
            assert path.partition("/")[0] in said(command, path)


def test_every_option_that_names_a_path_is_in_the_tables():
    # The first two commands continue, and report the fault by log and metrics. The page of `report` uses the
    # code of `compare`.
    known = f"{READ}{WRITTEN}beside --config PATH\nexporter --store PATH\nreport --html PATH\n"
    missing = []
    for name in cli.COMMANDS:
        for parameter in cli.cli.get_command(click.Context(cli.cli), name).params:
            metavar = str(parameter.metavar).rpartition("=")[2]
            if isinstance(parameter.type, click.Path) or metavar in ("FILE", "path", "BASELINE"):
                option = parameter.opts[0] if parameter.opts[0].startswith("-") else ""
                row = rf"(?m)^{name} (.* )?{option}[ =]PATH" if option else f"(?m)^{name} PATH"
                missing += [] if re.search(row, known) else [(name, option)]
    assert missing == []
