"""The example notebook in a real kernel, the magics in a real IPython, and an installation without extras."""

import json
import re
import sys

import pytest

import infercanary.probe
from infercanary.command.settings import UsageError
from tests.programs import ROOT, ended
from tests.scenarios import cases

pytestmark = pytest.mark.takes(15)


def outputs(cell, kind):
    return "".join(
        "".join(output.get("data", {}).get(kind, "")) + "".join(output.get("text", ""))
        for output in cell.outputs
    )


@pytest.mark.quiet
def test_the_notebook_runs_and_says_that_it_is_slower(monkeypatch):
    monkeypatch.setenv(
        "OPENBLAS_NUM_THREADS", "1"
    )  # On a busy machine, several threads would wait for each other.
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for _ in range(3):  # On a busy machine, the result may be inconclusive.
        notebook = nbformat.read(ROOT / "examples/notebook.ipynb", as_version=4)
        nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
        timed, compared, pictures, table, _, magic = [c for c in notebook.cells if c.cell_type == "code"]
        if outputs(compared, "text/plain").startswith("regressed +"):
            break
    assert "median" in outputs(timed, "text/html")
    assert re.search(r"median [\d.]+ [mµ]s", outputs(timed, "text/plain"))
    said = outputs(compared, "text/plain")
    assert said.startswith("regressed +")
    assert "image" not in said
    assert "<svg" in outputs(pictures, "text/html").replace("&lt;", "<")
    assert "phase_compute" in outputs(table, "text/html")
    assert "cell: median" in outputs(magic, "text/plain")


@pytest.fixture(scope="module")
def shell():
    ipython = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    ipython.run_line_magic("load_ext", "infercanary")
    return ipython


def test_a_cell_is_timed_with_the_names_of_the_notebook(shell):
    shell.run_cell("numbers = list(range(1000))")
    result = shell.run_cell_magic("canary", "--runs 8 --name sum", "total = sum(numbers)\n")
    assert result.canary == "sum"
    assert len(result.runs) == 8
    assert shell.user_ns["total"] == 499500
    low, high = result.interval
    assert low <= result.median <= high


# Line of the magic | printed message
MISTAKES = """
--runs many x | %canary: --runs many is not a number; write %canary
 | %canary: no statement to time
--runs 0 1 + 1 | runs: `0` is not a whole number from 1 to 512
sum(numbers | %canary: '(' was never closed in `sum(numbers`
nowhere() | cell: cannot be opened: NameError: name 'nowhere' is not defined
--device gpu 1 + 1 | cell: cannot be opened: RuntimeError: Expected one of cpu, cuda
-n 8 1 + 1 | %canary: invalid syntax in `-n 8 1 + 1`; write %canary [--device cuda]
"""


def test_a_mistake_is_one_line(shell, capsys):
    for row in MISTAKES.strip("\n").splitlines():
        line, said = row.split(" | ", 1)
        shell.run_line_magic("canary", line)
        [printed] = capsys.readouterr().out.splitlines()
        assert printed.startswith(f"infercanary: {said}"), printed
    shell.run_cell_magic("canary", "a b", "1 + 1")
    assert capsys.readouterr().out.startswith("infercanary: %canary: invalid syntax in `a b`")


def test_the_bare_install_times_and_reads_and_names_what_the_rest_needs(tmp_path):
    for name in ("pandas", "numpy"):
        (tmp_path / f"{name}.py").write_text(
            f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n"
        )
    script = (
        "import infercanary\n"
        "from infercanary.command.settings import UsageError\n"
        "result = infercanary.time(lambda: sum(range(1000)), runs=2)\n"
        "again = infercanary.read(result.save('runs.jsonl'))\n"
        "print(again.median == result.median, len(again.runs))\n"
        "for call in (result.to_pandas, lambda: result.compare(again)):\n"
        "    try: call()\n"
        "    except UsageError as error: print(error)\n"
    )
    done = ended(sys.executable, "-c", script, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "True 2",
        "to_pandas needs the module `pandas`; in a checkout: pip install '.[notebook]'",
        "compare needs the module `numpy`; in a checkout: pip install '.[exporter]'",
    ]


def test_a_result_is_saved_once_and_a_file_that_is_no_journal_is_one_line(tmp_path):
    result = infercanary.time(lambda: 1, runs=1)
    path = result.save(tmp_path / "runs.jsonl")
    assert json.loads(path.read_text().splitlines()[0])["components"]
    with pytest.raises(UsageError, match="File exists"):
        result.save(path)
    assert result.interval is None  # a single run gives no interval
    path.write_text("latency\n0.1\n")
    with pytest.raises(UsageError, match=r"runs\.jsonl: the file has no runs; is this the right file\?"):
        infercanary.read(path)


def test_an_array_is_one_argument_and_text_is_none():
    """`time(f, array)` must not call f with each row, because an array may be the input of a torch model."""
    numpy = pytest.importorskip("numpy")
    shapes = []
    infercanary.time(lambda x: shapes.append(x.shape), numpy.zeros((3, 2)), runs=1)
    assert set(shapes) == {(3, 2)}
    with pytest.raises(UsageError) as caught:
        infercanary.time(len, "text", runs=1)
    assert str(caught.value) == "inputs: give a list with one entry for each argument, such as [x]"


def test_a_model_that_cannot_be_called_or_raises_says_so_once(caplog):
    with pytest.raises(UsageError, match=r"model: cannot be opened: TypeError: .* missing 1 required"):
        infercanary.time(lambda x: x, runs=1)
    with pytest.raises(UsageError, match="wrong shape"):
        infercanary.time(lambda: int("wrong shape"), runs=1)
    assert "wrong shape" not in caplog.text


def generator():
    yield 1


async def async_generator():
    yield 1


async def coroutine():
    return 1


@pytest.mark.filterwarnings("error")
@cases([generator, async_generator, coroutine, lambda: map(abs, [1])])
def test_a_function_that_computes_nothing_when_it_is_called_is_refused(function):
    for model in (function, infercanary.probe.TorchTarget(function, [])):
        with pytest.raises(UsageError, match=r"the result is a `\w+`, which is not computed"):
            infercanary.time(model, runs=1)


def test_a_result_that_is_not_finite_is_seen_wherever_it_is():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(UsageError, match="NaN or infinity"):
        infercanary.time(lambda: {"scores": [numpy.array([1.0, numpy.nan])]}, runs=1)
