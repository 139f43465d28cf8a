"""Whatever cannot be read, written or found is one line, whichever option names it, for root and for others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from infercanary.command import cli

Said = Callable[[tuple[str, ...], str], str]
READ = {
    "probe --config": ("probe", "--config", "PATH"),
    "check-config --probe": ("check-config", "--probe", "PATH"),
    "check-config --exporter": ("check-config", "--exporter", "PATH"),
    "check-config --web-config": ("check-config", "--web-config", "PATH"),
    "exporter --config": ("exporter", "--config", "PATH"),
    "exporter --web-config": ("exporter", "--web-config", "PATH"),
    "compare BASELINE": ("compare", "PATH", "numbers"),
    "compare --more-baseline": ("compare", "numbers", "numbers", "--more-baseline", "PATH"),
    "compare --more-candidate": ("compare", "numbers", "numbers", "--more-candidate", "PATH"),
    "scan FILE": ("scan", "PATH"),
    "report FILE": ("report", "PATH"),
    "ab --experiment": ("ab", "--experiment", "PATH"),
    "ab config": ("ab", "a", "--b", "config=PATH"),
    "ab python": ("ab", "b", "--a", "python=PATH", "--both", "config=probe.yaml"),
}
WRITTEN = {
    "compare --html": ("compare", "numbers", "numbers", "--html", "PATH"),
    "compare --junit": ("compare", "numbers", "numbers", "--junit", "PATH"),
    "scan --html": ("scan", "numbers", "--html", "PATH"),
    "probe --trace": ("probe", "--profile", "--trace", "PATH"),
    "ab --html": ("ab", "a", "b", "--html", "PATH"),
    "ab --junit": ("ab", "a", "b", "--junit", "PATH"),
}
TRAPS = {
    "none": "no-folder/none",
    "folder": "folder",
    "below a file": "numbers/x",
    "a name too long": "n" * 300,
}


FORBIDDEN = {} if os.geteuid() == 0 else {"may not be searched": "closed/x", "may not be read": "secret"}
"""Root may do everything, so CI runs the tests as another user."""


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Said]:
    """What a command says of a path; it must be one line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "infercanary.probe.__main__.be_ended_first", lambda: None
    )  # the process is the tests'
    (tmp_path / "numbers").write_text("1.0\n1.1\n" * 20)
    (tmp_path / "probe.yaml").write_text("canaries: {a: {target: matmul}}\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "closed").mkdir(mode=0)
    (tmp_path / "secret").write_text("canaries: {}\n")
    (tmp_path / "secret").chmod(0)

    def call(command: tuple[str, ...], path: str) -> str:
        monkeypatch.setattr(sys, "argv", ["infercanary", *(part.replace("PATH", path) for part in command)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        error = capsys.readouterr().err
        assert end.value.code == 2, error
        assert error.startswith("infercanary: ") and error.count("\n") == 1, error
        return error

    yield call
    (tmp_path / "closed").chmod(0o700)


@pytest.mark.parametrize("name", READ)
def test_what_cannot_be_read(said: Said, name: str) -> None:
    for path in (*TRAPS.values(), *FORBIDDEN.values()):
        assert path in said(READ[name], path)


@pytest.mark.parametrize("name", WRITTEN)
def test_what_cannot_be_written(said: Said, name: str) -> None:
    for path in (*TRAPS.values(), *FORBIDDEN.values()):
        if path != "secret":  # a page replaces it
            assert path.partition("/")[0] in said(WRITTEN[name], path)


def test_every_option_that_names_a_path_is_in_the_tables() -> None:
    # The first two go on, and say it in the log and in metrics; the page of the last is written as that of compare.
    elsewhere = {"beside --config", "exporter --store", "report --html"}
    words = ("FILE", "path", "BASELINE")
    found = set()
    for name in cli.COMMANDS:
        command = cli.cli.get_command(click.Context(cli.cli), name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter.type, click.Path) or str(parameter.metavar).rpartition("=")[2] in words:
                option = parameter.opts[0] if parameter.opts[0].startswith("-") else str(parameter.metavar)
                found.add(f"{name} {option}")
    assert found <= {*READ, *WRITTEN, *elsewhere}
