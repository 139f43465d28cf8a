"""The entrypoint of the probe's volume: the Python that it selects, and its message about versions that differ."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.scenarios import scenarios

ATTACH = Path(__file__).parents[3] / "probe/attach"
HERE = f"cpython-{sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}-{os.uname().machine}-glibc"
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]

FILES = {
    "venv/bin/gunicorn": "#!{root}/venv/bin/python3.11\n",
    "venv/bin/activate": "# used by . activate\n",
    "bin/app": "#!/usr/bin/env python3\n",
    "bin/options": "#!/usr/bin/env -S python3 -u\n",
    "bin/long": '#!/bin/sh\n\'\'\'exec\' "{root}/venv/bin/python" "$0" "$@"\n',
    "bin/passes": '#!/bin/bash\n# python of the image\nset -e\nexec "$@"\n',
    "bin/starts": "#!/bin/sh\n# python\nexec {root}/venv/bin/gunicorn app\n",
    "bin/activates": "#!/bin/sh\n. {root}/venv/bin/activate\nexec python server.py\n",
    "bin/recursive": "#!/bin/sh\nrecursive recursive\n",
    "plain.sh": "exec {root}/venv/bin/python server.py\n",
    "bin/ends": "#!/bin/sh\nexec {root}/venv/bin/python server.py",
    "bin/server": "\x7fELF\x00\x01\n",
}
"""Files of an image; the system's interpreter is bin/python3, and bin/python is the same."""

CASES = """
python server.py                              | bin/python
{root}/venv/bin/python -m server              | venv/bin/python
{root}/venv/bin/gunicorn app:app              | venv/bin/python3.11
app                                           | bin/python3
options --port 1                              | bin/python3
long                                          | venv/bin/python
server -- {root}/venv/bin/gunicorn app:app    | venv/bin/python3.11
sh -c 'cd /x && exec {root}/venv/bin/python'  | venv/bin/python
passes {root}/venv/bin/gunicorn app:app       | venv/bin/python3.11
passes server                                 | bin/python3
starts                                        | venv/bin/python3.11
activates                                     | venv/bin/python
recursive                                     | bin/python3
server *                                      | bin/python3
missing                                       | bin/python3
ends                                          | venv/bin/python
'{root}/my app/bin/python' server.py          | my app/bin/python
"""


@pytest.fixture
def image():
    with tempfile.TemporaryDirectory(
        dir="/tmp"
    ) as folder:  # a first line `#!` has no spaces, as tmp_path may have
        yield make_image(Path(folder))


def make_image(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(root=tmp_path))
        path.chmod(0o755)
    for name in ("bin/python", "bin/python3", "venv/bin/python", "venv/bin/python3.11", "my app/bin/python"):
        # A script instead of a link: sys.executable would not distinguish a link.
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f'#!/bin/sh\nUSED="{name}" exec "{sys.executable}" "$@"\n')
        (tmp_path / name).chmod(0o755)
    shutil.copytree(ATTACH, tmp_path / "infercanary")
    (tmp_path / "infercanary" / HERE).mkdir()
    (tmp_path / "infercanary/choose.py").write_text(
        "import os, sys; print(os.environ['USED'], file=sys.stderr)"
    )
    return tmp_path


def path_in(image):
    return f"{image}/bin:/usr/bin:/bin"


def begun(image, shell, *command, **variables):
    applet = ["sh"] if shell == "busybox" else []
    return subprocess.run(
        [shutil.which(shell), *applet, image / "infercanary/beside", *command],
        env={"PATH": path_in(image), **variables}, cwd=image, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("command", "python"), scenarios(CASES))
def test_the_interpreter_is_that_of_the_servers_command(image, shell, command, python):
    done = begun(image, shell, "--check", *shlex.split(command.format(root=image)))
    assert (done.stderr.strip(), done.returncode) == (python, 0)


def test_a_server_without_a_python_for_the_probe_runs_without_a_probe(image):
    for name in ("bin/python", "bin/python3"):
        (image / name).write_text("#!/bin/sh\necho too old >&2; exit 1\n")
    assert begun(image, "dash", "--check", "app").returncode == 1
    done = begun(image, "dash", "sh", "-c", "echo served; exit 7")
    assert (done.stdout, done.returncode) == ("served\n", 7)
    assert done.stderr == "too old\ninfercanary: the server runs without a probe\n"


def test_a_name_without_packages_is_not_used(image):
    (image / "infercanary/choose.py").write_text("print('nothing there')")
    done = begun(image, "dash", "echo", "served")
    assert (done.stdout, done.returncode) == ("served\n", 0)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("search_path", [{}, {"PYTHONPATH": "", "LC_CTYPE": "C"}, {"PYTHONPATH": "/srv/lib"}])
def test_the_probes_packages_are_first_and_the_server_gets_its_own_variables(image, shell, search_path):
    (image / "infercanary/choose.py").write_text(f"print('a line of the image'); print('{HERE}')")
    launcher = image / "infercanary/probe/bin/infercanary"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(
        "import os, sys; print(*sys.path[1:4], flush=True); server = sys.argv[5:]; os.execvp(server[0], server)"
    )
    given = {"A": "b c", **search_path}
    done = begun(image, shell, "env", **given)
    first, *variables = [line for line in done.stdout.splitlines() if not line.startswith("USED=")]
    folders = [f"{image}/infercanary/{HERE}", f"{image}/infercanary/probe"]
    assert first.split()[:2] == folders
    assert ("/srv/lib" in first) == ("/srv/lib" in search_path.values())
    assert sorted(variables) == sorted(
        f"{key}={value}" for key, value in {"PATH": path_in(image), **given}.items()
    )


def chosen(folder, python=sys.executable):
    command = [python, folder / "choose.py"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_versions_that_the_image_has_too_are_named(tmp_path):
    shutil.copy(ATTACH / "choose.py", tmp_path)
    for name, version in (("msgspec", "99.1"), ("click", metadata.version("click")), ("no-such", "1")):
        folder = tmp_path / HERE / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    done = chosen(tmp_path)
    assert (done.stdout, done.returncode) == (f"{HERE}\n", 0)
    assert done.stderr.endswith(f" with its own msgspec 99.1 (image: {metadata.version('msgspec')})\n")


OLD = sorted((Path.home() / ".pyenv/versions").glob("3.[6-9].*/bin/python"))


@pytest.mark.parametrize("python", [Path(sys.executable), *OLD], ids=lambda python: python.parts[-3])
def test_a_python_that_the_probe_does_not_support_is_named(python, tmp_path):
    shutil.copy(ATTACH / "choose.py", tmp_path)
    done = chosen(tmp_path, python)
    assert done.returncode == 1
    assert "the probe needs CPython 3.10 to 3.13" in done.stderr
    assert done.stderr.count("\n") == 1
