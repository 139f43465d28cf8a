"""Without their requirement, tests are skipped with one line, and fail in CI."""

import sys

from tests.programs import ROOT, ended
from tests.scenarios import cases, typed

CONFTEST = """
import sys
from pathlib import Path

sys.path.insert(0, {tools!r})
from folders import NeedyFolder

def pytest_configure(config):
    config.addinivalue_line("markers", "stack")
    folder = Path(__file__).parent / "stack"
    config.pluginmanager.register(NeedyFolder(folder, "stack", "they need a moon", lambda: {missing!r}))
"""
TESTS = """
import pytest

def test_one():
    pytest.skip("not today")

def test_two():
    pass
"""


NEEDS = """
no moon | ""  | stack     | 0 | ["SKIPPED [2] stack: they need a moon: no moon", "2 skipped, 1 deselected"]
no moon | "1" | stack     | 1 | ["they need a moon: no moon; CI may not skip them"]
~       | "1" | stack     | 1 | ["skipped in CI: ", "1 failed, 1 passed, 1 deselected"]
no moon | "1" | not stack | 0 | ["1 passed, 2 deselected"]
"""


@cases(typed(NEEDS))
def test_requirements_of_a_folder(missing, ci, selected, code, said, tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST.format(tools=str(ROOT / "tests/tools"), missing=missing))
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack/test_stack.py").write_text(TESTS)
    (tmp_path / "test_beside.py").write_text("def test_beside():\n    pass\n")
    (tmp_path / "pytest.ini").touch()
    command = (sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-m", selected)
    done = ended(*command, code=code, cwd=tmp_path, env={"CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    for words in said:
        assert words in done.stdout + done.stderr
