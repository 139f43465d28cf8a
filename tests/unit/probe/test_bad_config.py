"""Every mistake in settings gives one line on standard error with the place and the fix, and exit code 2."""

import gc
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from infercanary.command import cli as cli
from infercanary.probe.samplers import registered
from infercanary.probe.targets import names
from tests.scenarios import scenarios

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parent / "bad_config"

MODULES = {
    "models.py": "import torch\ndef good(): return torch.nn.Linear(2, 2)\nNUMBER = 5\n"
    "class Picky:\n    def __init__(self, size): self.size = size + 1\n",
    "needs_another.py": "import another_that_is_not_here\n",
    "raises.py": "raise RuntimeError('no licence\\nfound')\n",
    "exits.py": "raise SystemExit(0)\n",
    "syntax.py": "def (\n",
}


def too_long():
    """Return this Python's message for a number with 5,000 digits."""
    try:
        return str(int("9" * 5000))
    except ValueError as error:
        return str(error)


# Message after `infercanary: <file>`; each line begins with the name of the file.
EXPECTED = {
    line.partition(":")[0]: line[line.index(":") :]
    for line in (FOLDER / "expected.txt").read_text().splitlines()
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    (tmp_path / "corrupt.pt").write_bytes(b"PK\x03\x04 no model" * 100)
    monkeypatch.syspath_prepend(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def said(infercanary, monkeypatch):
    """Return a function that runs a command line here and returns its message: one line, with exit code 2."""
    # this option would change the process of the tests
    monkeypatch.setattr("infercanary.probe.__main__.be_ended_first", lambda: None)

    def call(*arguments):
        code, out, err = infercanary(*arguments)
        assert (code, out, err.count("\n"), err[-1]) == (2, "", 1, "\n")
        return err[:-1]

    return call


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted({*EXPECTED, *(path.stem for path in FOLDER.glob("*.yaml"))}))
def test_a_mistake_is_one_line(name, said):
    path = str(FOLDER / f"{name}.yaml")
    line = said("probe", "--config", path)
    assert line.startswith(f"infercanary: {path}")
    line = (
        line.removeprefix(f"infercanary: {path}")
        .replace(os.getcwd(), "<cwd>")
        .replace(f"(uid {os.getuid()})", "(uid <uid>)")
        .replace(torch.__version__, "<torch>")
        .replace(", ".join(names()), "<built in>")
        .replace(", ".join(sorted(registered())), "<samplers>")
        .replace(too_long(), "<too long>")
    )
    line = re.sub("x{200}", "<200 x>", line)
    if name == "model_corrupt_file":  # torch's own message, which changes between versions
        line = re.sub(r"\(.*\)(?=; save)", "(<why>)", line)
    assert line == EXPECTED[name]


UNREADABLE = scenarios("""
missing.yaml    | cannot be read (No such file or directory)
folder.yaml     | cannot be read (Is a directory)
file/probe.yaml | cannot be read (Not a directory)
large.yaml      | larger than 1000000 bytes
deep.yaml       | nested too deeply
junk.yaml       | not YAML:
""")


@pytest.mark.parametrize("command", ["probe --config", "check-config --probe"])
def test_files_that_cannot_be_read(command, said, tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "large.yaml").write_text("# " + "x" * 1_000_000)
    (tmp_path / "junk.yaml").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "deep.yaml").write_text("[" * 5_000)
    (tmp_path / "file").write_text("")
    # otherwise, where the stack is full, Python may finalize objects of other tests and print an error
    gc.collect()
    for path, words in UNREADABLE:
        line = said(*command.split(), path)
        assert line.startswith(f"infercanary: {path}: ")
        assert words in line
