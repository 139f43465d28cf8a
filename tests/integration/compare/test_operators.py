"""`compare` of two journals names the changed operator and the kind of its change.

Real engines run models with a known change of one operator (tests/tools/operator_trials.py): two changes in
this file, and twenty trials of each change in `make campaign`.
"""

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import torch
from operator_trials import trials
from recorder import record

from infercanary.command.cli import cli
from infercanary.judge.operators import short_name
from tests.programs import ROOT
from tests.scenarios import cases

TOOLS = ROOT / "tests/tools"
NAMES = ["hook", "unfused", "float64", "tokeniser", "unoptimised"]
TRIALS = 20


@pytest.fixture(autouse=True)
def one_thread():
    """Use one thread: of two threads, one could wait for a CPU that another process uses."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def compared(old, new):
    html = old.with_suffix(".html")
    done = CliRunner().invoke(
        cli,
        ["compare", str(old), str(new), "--restart-sd", "1", "--json", "--html", str(html)],
        standalone_mode=False,
    )
    assert done.exception is None, done.output
    page = html.read_text()
    found = json.loads(done.output)
    operators = found["causes"]["operators"]
    assert operators is not None, found["sentence"]
    for shift in operators["shifts"]:
        assert shift["operator"] in page
    return found


def check(found, trial):
    operators, sentence = found["causes"]["operators"], found["sentence"]
    assert found["verdict"] == "regressed", sentence
    assert operators["state"] == trial.state, (sentence, operators)
    if trial.operator is None:
        assert "no operator explains the change" in sentence
        return
    first = operators["shifts"][0]
    assert (first["operator"], first["change"]) == (trial.operator, trial.change), operators
    assert trial.detail in first["detail"]
    assert f"{short_name(trial.operator)} " in sentence
    assert "% of the change" in sentence
    assert first["after"] > first["before"]


def run_trial(name, folder):
    trial = trials(folder)[name]
    journals = folder / "old", folder / "new"
    record(journals, (trial.before, trial.after))
    return compared(*journals)


@cases(["tokeniser", "float64"])
def test_the_operator_is_named(name, tmp_path):
    """These changes are too large for other load to hide. The campaign counts the results by kind of change."""
    check(run_trial(name, tmp_path), trials(tmp_path)[name])


@pytest.mark.campaign
@pytest.mark.quiet
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", range(TRIALS))
def test_the_operator_is_named_each_time(name, number, tmp_path):
    check(run_trial(name, tmp_path), trials(tmp_path)[name])
