"""The wheel contains both source trees: the test builds it, installs it alone, and uses it."""

import os
import shutil
import sys
import venv
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from tests.programs import ROOT, ended

TREES = (ROOT / "probe", ROOT / "exporter")
LIBRARIES = ("click", "msgspec", "yaml", "psutil", "pynvml", "numpy", "scipy")


def pip(*arguments):
    return ended(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, code=None)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy of the repository, because a build writes into its folder."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    leave_out = shutil.ignore_patterns("__pycache__")
    for name in ("probe", "exporter", "examples"):
        shutil.copytree(ROOT / name, source / name, ignore=leave_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    built = pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(source))
    if built.returncode and "hatchling" in built.stderr and "CI" not in os.environ:
        pytest.skip("the build backend cannot be fetched here")
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("infercanary-*.whl")
    return found


def test_it_holds_every_file_of_both_trees(wheel):
    names = {*zipfile.ZipFile(wheel).namelist()}
    wanted = {
        str(file.relative_to(tree))
        for tree in TREES
        for file in tree.glob("infercanary/**/*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert sum(name.endswith("py.typed") for name in wanted) > 8
    assert wanted - names == set()


def test_installed_alone_it_works(wheel, tmp_path):
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    installed = pip("--python", str(python), "install", "--no-deps", str(wheel))
    assert installed.returncode == 0, installed.stderr
    # Add only the folders of the libraries: PYTHONPATH ignores .pth files, and an editable install would need
    # them.
    folders = {Path(str(import_module(name).__file__)).parent for name in LIBRARIES}
    path = {str(each.parent if (each / "__init__.py").exists() else each) for each in folders}
    environment = {"PYTHONPATH": os.pathsep.join(path)}
    script = (
        "import infercanary, infercanary.probe\n"
        "from infercanary.judge import compare\n"
        "print(infercanary.__file__, infercanary.__version__, infercanary.Probe.__name__)\n"
        "print(compare([1.0, 1.01, 0.99] * 5, [2.0, 2.01, 1.99] * 5).verdict)\n"
    )
    done = ended(python, "-c", script, env=environment)
    version = wheel.name.split("-")[1]
    assert done.stdout.startswith(str(tmp_path))
    assert done.stdout.endswith(f" {version} Probe\nregressed\n")
    command = tmp_path / "venv" / "bin" / "infercanary"
    for name in ("a", "b"):
        (tmp_path / name).write_text("1.0\n1.01\n0.99\n" * 5)
    done = ended(command, "compare", "a", "b", "--restart-sd", "0", env=environment, cwd=tmp_path)
    assert done.stdout.startswith("equivalent")
