"""The package ``infercanary`` has two source trees: it works with both in either order, and with each alone."""

import os
import re
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

import infercanary
from tests.programs import ROOT, ended

PROBE, EXPORTER = ROOT / "probe", ROOT / "exporter"
MODULES = ROOT / "tests" / "integration" / "probe" / "modules"
OF_PROBE = ("click", "h11", "msgspec", "yaml", "psutil", "pynvml")
OF_EXPORTER = (*OF_PROBE, "numpy", "scipy")


@pytest.fixture
def libraries(tmp_path):
    """Make a folder with only the probe's libraries, without an installed InferCanary and the libraries of the
    exporter.
    """
    folder = tmp_path / "libraries"
    folder.mkdir()
    for name in OF_PROBE:
        file = Path(str(import_module(name).__file__))
        source = file.parent if file.name == "__init__.py" else file
        (folder / source.name).symlink_to(source)
    return folder


def folders(names):
    files = (Path(str(import_module(name).__file__)) for name in names)
    return [*dict.fromkeys(f.parents[1] if f.name == "__init__.py" else f.parent for f in files)]


def python(path, *arguments):
    """Run Python with this path only; without ``site`` it finds no other installed packages."""
    environment = {"PYTHONPATH": os.pathsep.join(map(str, path))}
    return ended(sys.executable, "-S", *arguments, code=None, env=environment, cwd=path[0].parent)


def run(path, script):
    done = python(path, "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("trees", [(PROBE, EXPORTER), (EXPORTER, PROBE)])
def test_both_trees_in_either_order_as_an_editable_install_has_them(trees):
    script = (
        "import infercanary\n"
        "print(infercanary.judge.compare([1.0, 1.01, 0.99] * 5, [2.0, 2.01, 1.99] * 5).verdict)\n"
        "from infercanary import Probe, __version__\n"
        "print(Probe is infercanary.probe.Probe, bool(__version__), {'Probe', 'judge'} <= {*dir(infercanary)})\n"
    )
    assert run([*trees, *folders(OF_EXPORTER)], script) == "regressed\nTrue True True\n"


def test_the_probes_tree_alone(libraries):
    path = [PROBE, libraries]
    script = (
        "import infercanary, infercanary.probe; print(infercanary.Probe.__name__, infercanary.__version__)"
    )
    assert run(path, script) == "Probe 0+unknown\n"
    done = python(path, "-m", "infercanary", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, "infercanary 0+unknown\n", "")
    done = python(path, "-m", "infercanary", "compare", "old", "new")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "infercanary: `compare` needs the module `infercanary.compare`; in a checkout: pip install '.[exporter]'\n"
    )


_EACH = """
import sys
from infercanary.command.cli import COMMANDS, main
files = [["check-config", option, "none.yaml"] for option in ("--probe", "--exporter", "--web-config")]
once = [["probe", "--once"], ["doctor", "--only", "driver"]]
for arguments in [*([name] for name in COMMANDS if name not in ("probe", "doctor")), *files, *once]:
    sys.argv = ["infercanary", *arguments]
    print("==", *arguments, file=sys.stderr, flush=True)
    try:
        main()
    except SystemExit as error:
        print(error.code)
from infercanary.store.migrate import main
print("== migrate", file=sys.stderr, flush=True)
print(main(["postgresql://none/none"]))
"""


def test_with_the_libraries_of_a_bare_install_each_command_is_there_or_says_what_it_needs(
    libraries,
):
    done = python([PROBE, EXPORTER, libraries], "-c", _EACH)
    assert "Traceback" not in done.stderr
    said = {
        name.strip(): lines.strip()
        for name, _, lines in (part.partition("\n") for part in done.stderr.split("== ")[1:])
    }
    lacking = {name for name, line in said.items() if "needs the module" in line}
    assert {name.partition(" none.yaml")[0] for name in lacking} == {
        "exporter", "compare", "ab", "attach", "bisect", "scan", "report", "demo", "migrate",
        "check-config --exporter", "check-config --web-config",
    }  # fmt: skip
    needs = re.compile(
        r".* needs the module `\w+`; in a checkout: pip install '\.\[(exporter|demo|.*postgres)\]'"
    )
    assert [said[name] for name in lacking if not needs.fullmatch(said[name])] == []
    assert said["doctor --only driver"] == ""
    assert "NVIDIA driver" in done.stdout


_BARE = """
import sys
import infercanary
from infercanary.command.cli import main
result = infercanary.time(lambda: sum(range(100)), runs=2, name="sum")
print(result, result._repr_html_())
main()
"""


def test_the_bare_install_measures_and_shows_text(libraries, tmp_path):
    config = tmp_path / "probe.yaml"
    config.write_text("canaries: {c: {target: 'scripted:Scripted'}}\n")
    arguments = ["probe", "--once", "--log-level", "error", "--config", str(config)]
    done = python([PROBE, EXPORTER, libraries, MODULES], "-c", _BARE, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sum: median " in done.stdout
    assert " None\n" in done.stdout
    assert "canary c: steady\n\n  latency      median " in done.stdout


def test_the_judge_with_the_contract_and_without_the_probe(tmp_path):
    package = tmp_path / "tree" / "infercanary"
    package.mkdir(parents=True)
    shutil.copy(PROBE / "infercanary" / "__init__.py", package)
    shutil.copytree(PROBE / "infercanary" / "contract", package / "contract")
    script = (
        "import infercanary, sys\n"
        "from infercanary.judge import compare\n"
        "print(compare([1.0, 1.01, 0.99] * 5, [1.0, 1.01, 0.99] * 5).verdict)\n"
        "print('infercanary.judge.causes' in sys.modules)\n"
        "from infercanary.judge import Judge, Result\n"
        "print(isinstance(Judge().verdict([], [], 'c'), Result))\n"
        "try: infercanary.Probe\n"
        "except ModuleNotFoundError as error: print(error.name)\n"
    )
    path = [tmp_path / "tree", EXPORTER, *folders(OF_EXPORTER)]
    assert run(path, script) == "equivalent\nFalse\nTrue\ninfercanary.probe\n"


def test_importing_it_imports_nothing_else(libraries):
    script = (
        "import sys, infercanary\n"
        "others = ('click', 'msgspec', 'yaml', 'psutil', 'numpy', 'importlib.metadata')\n"
        "print([name for name in others if name in sys.modules])\n"
        "print([name for name in sys.modules if name.startswith('infercanary.')])\n"
        "print(hasattr(infercanary, 'no_such_name'))\n"
    )
    assert run([PROBE, EXPORTER, libraries], script) == "[]\n[]\nFalse\n"


def test_every_package_says_that_it_is_typed():
    packages = [
        file.parent for tree in (PROBE, EXPORTER) for file in tree.glob("infercanary/*/__init__.py")
    ] + [PROBE / "infercanary"]
    assert len(packages) > 8
    assert [str(each) for each in packages if not (each / "py.typed").is_file()] == []


def test_a_name_that_it_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'prboe'"):
        getattr(infercanary, "prboe")  # noqa: B009 (a type checker would refuse the other way)
