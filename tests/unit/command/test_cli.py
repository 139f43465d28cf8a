"""The command line: commands, help, version and exit codes."""

import importlib.metadata
import shlex

import click
import pytest

from infercanary.command import cli as cli
from infercanary.command.settings import UsageError
from tests.scenarios import cases


def test_version(infercanary):
    assert infercanary("--version") == (0, f"infercanary {importlib.metadata.version('infercanary')}\n", "")


@pytest.mark.parametrize("name", ["", *cli.COMMANDS])
def test_help_has_two_examples_that_are_understood_and_fits_a_screen(monkeypatch, infercanary, name):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = infercanary(*name.split(), "--help")
    assert (code, err) == (0, "")
    assert infercanary(*name.split(), "-h") == (0, out, "")
    assert name or all(each in out for each in (*cli.COMMANDS, "Exit codes: 0 fine, 1 regressed, 2 usage"))
    lines = out.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    examples = [shlex.split(line)[1:] for line in lines if line.startswith("    infercanary ")]
    assert len(examples) >= (2 if name != "demo" else 1)  # `demo` has no options
    group = click.Context(cli.cli, help_option_names=["-h", "--help"])
    for of, *arguments in examples:
        command = cli.cli.get_command(group, of)
        assert name in ("", of)
        command.make_context(of, arguments, parent=group)


MISTAKES = """
prob                     | No such command 'prob'; see `infercanary --help`
probe --confg x          | No such option '--confg'. (Did you mean one of: '--config', '--once'?); see `infercanary
probe --log-level loud   | 'loud' is not one of 'debug', 'info', 'warning', 'error'; see `infercanary
compare x                | Missing argument 'CANDIDATE'; see `infercanary compare --help`
probe --trace            | Option '--trace' requires an argument
check-config             | check-config: name a file with --probe, --exporter or --web-config
check-config p.yaml      | check-config: put --probe, --exporter or --web-config before `p.yaml`
probe                    | probe.yaml: cannot be read (No such file or directory)
no-libraries             | `no-libraries` needs the module `not_installed`; in a checkout: pip install '.[exporter]'
"""


@cases(MISTAKES.strip().splitlines())
def test_wrong_use_has_exit_code_2(mistake, monkeypatch, infercanary, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "no-libraries", ("not_installed", "x"))
    arguments, message = map(str.strip, mistake.split("|"))
    code, out, err = infercanary(*arguments.split())
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert err.startswith("infercanary: ")


TORCH = "canaries: {c: {target: torch, options: {model: 'not.looked:at', inputs: [{shape: [1]}]}}}\n"


@cases(
    [
        ("--probe", TORCH, ""),
        (
            "--probe",
            f"{TORCH}duty_cap: 1\n",
            "note: duty_cap: 1 allows runs 100 % of the time; write 0.01 for 1 %",
        ),
        ("--exporter", "links: {runbooks: 'http://gpu-1:9797/runbooks'}\nstore: judge.sqlite\n", ""),
    ],
)
def test_check_config_starts_nothing(option, text, note, infercanary, tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    said = f"{path}: good\n" + (f"{path}: {note}\n" if note else "")
    assert infercanary("check-config", option, str(path)) == (0, said, "")


@cases(
    [
        (KeyboardInterrupt(), 130, None),
        (UsageError("here: this\nis wrong"), 2, "infercanary: here: this is wrong\n"),
    ],
)
def test_an_error_is_the_whole_output_of_a_command(error, code, said, monkeypatch, infercanary):
    def ends(path):
        raise error

    monkeypatch.setattr("infercanary.probe.config.read", ends)
    found, out, err = infercanary("check-config", "--probe", "x")
    assert (found, out) == (code, "")
    assert err == (said or err)
