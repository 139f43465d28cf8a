"""``infercanary compare`` and ``scan`` in a separate process, as in a pipeline."""

import os
import random
import re
import shlex
import shutil
import sys

import pytest

from infercanary.contract.report import Run
from infercanary.probe.journal import Journal
from tests.programs import ended
from tests.scenarios import cases

COMMAND = [sys.executable, "-m", "infercanary"]
IN_A_SHELL = shlex.join(COMMAND)


def infercanary(*arguments, stdin="", folder):
    done = ended(*COMMAND, *arguments, code=None, cwd=folder, input=stdin)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def folder(tmp_path):
    """Write the journals of two images as their probes write them, and files of numbers."""
    rng = random.Random(1)
    for at, name, level in ((1.0e9, "old", 0.02), (1.1e9, "new", 0.024)):
        for boot in range(2):
            journal = Journal(tmp_path / name, f"{name}-{boot}", 1 << 20)
            runs = [
                Run(i, "resnet18", 0.0, at + 1e4 * boot + i, "ok", (level * rng.lognormvariate(0, 0.01),))
                for i in range(40)
            ]
            journal.append(runs, {"torch": name})
            assert journal.close(5)
    (tmp_path / "numbers").write_text("".join(f"{rng.lognormvariate(0, 0.01)}\n" for _ in range(60)))
    return tmp_path


def test_exit_codes_answer_a_pipeline(folder):
    worse = infercanary("compare", "old", "new", folder=folder)
    assert (worse.returncode, worse.stderr) == (1, "")
    assert worse.stdout.startswith("resnet18: regressed +")
    assert "torch old → new" in worse.stdout
    better = infercanary("compare", "new", "old", folder=folder)
    assert better.returncode == 0
    assert better.stdout.startswith("resnet18: improved -")
    text = (folder / "numbers").read_text()
    same = infercanary("compare", "numbers", "-", stdin=text, folder=folder)
    assert same.returncode == 0
    assert same.stdout.startswith("equivalent ")
    open_ = infercanary("compare", "numbers", "-", "--restart-sd", "5", stdin=text, folder=folder)
    assert open_.returncode == 3
    assert open_.stdout.startswith("inconclusive ")
    wrong = infercanary("compare", "old", "none", folder=folder)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)


def test_a_reader_that_closes_the_pipe_early(folder):
    command = f"{IN_A_SHELL} compare old new | true; exit ${{PIPESTATUS[0]}}"
    assert ended("bash", "-c", command, code=1, cwd=folder).stderr == ""


@pytest.mark.parametrize("where", ["> /dev/full", ">&-"])
@pytest.mark.parametrize(
    "command", ["compare old old2", "compare old old2 --json", "scan old", "scan old --json"]
)
def test_an_answer_that_cannot_be_printed_is_no_answer(folder, command, where):
    """If the output cannot be printed, the exit code is that of no verdict: 1 would mean `regressed`, and 0
    `equivalent`.
    """
    shutil.copy(folder / "new", folder / "old2")
    done = ended("bash", "-c", f"{IN_A_SHELL} {command} {where}", code=2, cwd=folder)
    assert re.fullmatch(r"infercanary: the answer cannot be printed \(.+\); .+\n", done.stderr), done.stderr


@cases(
    [
        ("scipy", "ImportError('libstdc++.so.6: not there')", 70, "libstdc++.so.6: not there"),
        ("numpy", "ModuleNotFoundError('no module', name='numpy')", 2, "needs the module `numpy`"),
    ],
)
def test_a_fault_of_its_own_is_not_taken_for_a_regression(module, error, code, said, folder):
    """A fault of the program, or a missing module (the probe's image has no exporter), has its own exit code."""
    (folder / "broken" / module).mkdir(parents=True)
    (folder / "broken" / module / "__init__.py").write_text(f"raise {error}")
    path = os.pathsep.join([str(folder / "broken"), os.environ.get("PYTHONPATH", "")])
    for command in (["compare", "old", "new"], ["scan", "old"]):
        done = ended(*COMMAND, *command, code=code, cwd=folder, env={"PYTHONPATH": path})
        assert said in done.stderr
        assert code != 2 or done.stderr.count("\n") == 1
