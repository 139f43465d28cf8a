"""All commands and help texts use one table of exit codes."""

import importlib
from typing import get_args

from infercanary.command.cli import COMMANDS, cli
from infercanary.command.exit_codes import COMPARED, MEANINGS, OF_VERDICT, ExitCode, epilog, of_signal, worst
from infercanary.compare.changes import State
from infercanary.judge.shift import Verdict
from tests.scenarios import cases


def test_every_verdict_has_a_code_and_no_other_word_does():
    assert OF_VERDICT.keys() == {*get_args(Verdict), *get_args(State)}
    assert [OF_VERDICT[word] for word in ("regressed", "slower", "inconclusive", "improved")] == [1, 1, 3, 0]


def test_a_regression_outweighs_an_unknown_and_both_outweigh_fine():
    assert [worst(codes) for codes in ([0], [0, 3], [3, 1, 0], [0, 1])] == [0, 3, 1, 1]
    assert of_signal(15) == 143


def test_the_codes_are_those_that_pipelines_rely_on():
    assert {code.name: int(code) for code in ExitCode} == {
        "FINE": 0, "REGRESSED": 1, "USAGE": 2, "INCONCLUSIVE": 3, "FAULT": 70, "INTERRUPTED": 130,
    }  # fmt: skip


def test_help_lists_the_codes_in_order():
    assert [word for word in epilog().split() if word.isdigit()] == ["0", "1", "2", "3", "70"]
    assert epilog({ExitCode.FINE: "good"}, "More.") == "Exit codes: 0 good, 2 usage or input error. More."
    assert cli.epilog == epilog()


@cases(["compare", "ab", "scan", "report", "check-config", "doctor"])
def test_the_help_of_a_command_takes_its_codes_from_the_table(name):
    command = importlib.import_module(COMMANDS[name][0]).command
    assert f"{ExitCode.USAGE:d} {MEANINGS[ExitCode.USAGE]}" in command.epilog
    assert "Exit code" not in command.help
    if name in ("compare", "ab"):
        assert all(f"{code:d} {meaning}" in command.epilog for code, meaning in COMPARED.items())
