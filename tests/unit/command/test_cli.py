"""The command line itself: its commands, help, version and exit codes."""

from __future__ import annotations

import importlib.metadata
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from infercanary.command import cli as cli
from infercanary.command.settings import UsageError


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["infercanary", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    code = exit_.value.code
    assert isinstance(code, int) or code is None
    return code or 0, *capsys.readouterr()


def test_help_names_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("-h", "--help"):
        code, out, err = run(monkeypatch, capsys, option)
        assert (code, err) == (0, "")
        for name in (
            "probe",
            "exporter",
            "doctor",
            "check-config",
            "demo",
            "Exit codes: 0 fine, 1 regressed, 2 usage",
        ):
            assert name in out


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    version = importlib.metadata.version("infercanary")
    assert run(monkeypatch, capsys, "--version") == (0, f"infercanary {version}\n", "")


@pytest.mark.parametrize("name", ["", *cli.COMMANDS])
def test_help_has_two_examples_that_are_understood_and_fits_a_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(monkeypatch, capsys, *name.split(), "--help")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 80
    examples = [shlex.split(line)[1:] for line in lines if line.startswith("    infercanary ")]
    assert len(examples) >= (2 if name != "demo" else 1)  # which has no options
    group = click.Context(cli.cli, help_option_names=["-h", "--help"])
    for of, *arguments in examples:
        assert name in ("", of)
        command = cli.cli.get_command(group, of)
        assert command is not None
        command.make_context(of, arguments, parent=group)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prob"], "No such command 'prob'; see `infercanary --help`"),
        (
            ["probe", "--confg", "x"],
            "No such option '--confg'. (Did you mean one of: '--config', '--once'?); see `infercanary probe --help`",
        ),
        (
            ["probe", "--log-level", "loud"],
            "'loud' is not one of 'debug', 'info', 'warning', 'error'; see `infercanary",
        ),
        (["compare", "x"], "Missing argument 'CANDIDATE'; see `infercanary compare --help`"),
        (["probe", "--trace"], "Option '--trace' requires an argument"),
        (["check-config"], "check-config: name a file with --probe, --exporter or --web-config"),
        (["check-config", "p.yaml"], "check-config: put --probe, --exporter or --web-config before `p.yaml`"),
        (["probe"], "probe.yaml: cannot be read (No such file or directory)"),
    ],
)
def test_wrong_use_has_exit_code_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in err
    assert out == "" and err.count("\n") == 1 and err.startswith("infercanary: ")


def test_a_command_whose_libraries_are_not_installed_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The probe's image has no exporter in it."""
    monkeypatch.setitem(cli.COMMANDS, "exporter", ("aiohttp_that_is_not_here", "x"))
    code, _, err = run(monkeypatch, capsys, "exporter")
    assert code == 2
    assert err == (
        "infercanary: `exporter` needs the module `aiohttp_that_is_not_here`; "
        "in a checkout: pip install '.[exporter]'\n"
    )


def test_check_config_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "probe.yaml"
    path.write_text(
        "canaries: {c: {target: torch, options: {model: 'not.looked:at', inputs: [{shape: [1]}]}}}\n"
    )
    assert run(monkeypatch, capsys, "check-config", "--probe", str(path)) == (0, f"{path}: good\n", "")
    path.write_text(f"{path.read_text()}\nduty_cap: 1\n")
    note = f"{path}: note: duty_cap: 1 lets runs take 100 % of the time; 1 % is 0.01\n"
    assert run(monkeypatch, capsys, "check-config", "--probe", str(path)) == (0, f"{path}: good\n{note}", "")
    exporter = tmp_path / "exporter.yaml"
    exporter.write_text("links: {runbooks: 'http://gpu-1:9797/runbooks'}\nstore: judge.sqlite\n")
    assert run(monkeypatch, capsys, "check-config", "--exporter", str(exporter)) == (
        0,
        f"{exporter}: good\n",
        "",
    )
    path.write_text("canaries: {}\n")
    code, out, err = run(monkeypatch, capsys, "check-config", "--probe", str(path))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_ctrl_c_before_anything_runs_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(path: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("infercanary.probe.config.read", interrupted)
    assert run(monkeypatch, capsys, "check-config", "--probe", "x")[0] == 130


def test_a_usage_error_in_a_command_is_the_whole_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(path: str) -> None:
        raise UsageError("here: this\nis wrong")

    monkeypatch.setattr("infercanary.probe.config.read", wrong)
    assert run(monkeypatch, capsys, "check-config", "--probe", "x") == (
        2, "", "infercanary: here: this is wrong\n",
    )  # fmt: skip


def test_the_installed_command() -> None:
    command = Path(sys.executable).with_name("infercanary")
    if not command.exists():
        pytest.skip("the package is not installed here")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith("infercanary ")
