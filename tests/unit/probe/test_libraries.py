"""Engines with incompatible libraries: real packages and shared libraries, and messages of the real loader."""

import shutil
import subprocess

import pytest
from cuda_stand_in import CC, needs_cc

from infercanary.command.settings import UsageError
from infercanary.probe.targets import Failure
from infercanary.probe.targets.libraries import imported, misfit
from tests.scenarios import scenarios


def compiled(file, source, *flags):
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [str(CC), "-shared", "-fPIC", "-x", "c", "-", "-o", str(file), *flags]
    subprocess.run(command, input=source, text=True, check=True)
    return file


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return tmp_path


def engine(site, name, library, calls):
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(f"from {name} import _C\n")
    stub = compiled(site / "build" / library, "int made(void) { return 1; }", f"-Wl,-soname,{library}")
    body = f"extern int {calls}(void); int PyInit__C(void) {{ return {calls}(); }}"
    linked = ["-x", "none", "-Wl,--no-as-needed", str(stub), "-Wl,--unresolved-symbols=ignore-all"]
    compiled(site / name / "_C.so", body, *linked)
    shutil.rmtree(site / "build")


def refused(name):
    with pytest.raises(Failure) as caught:
        imported(name, "install it")
    assert str(caught.value).startswith(f"{name} cannot be imported (")
    return caught.value


# Package | needed library | called function | existing file | loader's search path ($ is the folder of files)
# | reason | words of the message
MISFITS = """
lacking  | libfitless.so.11.0  |                  |                       |          | no_libraries     | (libfitless.so.11.0: cannot open shared object file: No such file or directory); install
upgraded | libcudart.so.11.0   |                  | libcudart.so.13       | $        | version_mismatch | ; the engine needs version 11.0, but $ has 13: | install
misled   | libmisled.so.9      |                  | libmisled.so.9        | /nowhere | no_libraries     | the library is in $, where | (LD_LIBRARY_PATH is /nowhere)
mixed    | libc.so.6           | ncclCommRegister |                       |          | version_mismatch | _C.so: undefined symbol: ncclCommRegister); one
"""  # noqa: E501


@needs_cc
@pytest.mark.parametrize("row", scenarios(MISFITS), ids=lambda row: row[0])
def test_a_library_that_does_not_fit(site, monkeypatch, row):
    """With a wrong LD_LIBRARY_PATH, the message names the folder in which CUDA's wheels put the library."""
    name, library, calls, file, search, reason, *words = row
    engine(site, name, library, calls or "made")
    folder = site / "nvidia" / "cudnn" / "lib"
    folder.mkdir(parents=True)
    if file:
        (folder / file).touch()
    if search:
        monkeypatch.setenv("LD_LIBRARY_PATH", search.replace("$", str(folder)))
    error = refused(name)
    assert error.reason == reason
    assert [word for word in words if word.replace("$", str(folder)) not in str(error)] == []
    assert str(refused(name)) == str(error), "the second attempt says the same"


def test_a_missing_package_is_a_mistake(site):
    with pytest.raises(UsageError, match=r"^nowhere cannot be imported \(No.*'nowhere'\); install it$"):
        imported("nowhere", "install it")


BROKEN = """
cut     | from cut import _C | _C.so: file too short); install the libraries
half    | import no_such_module | (No module named 'no_such_module'); install `no_such_module`
cropped | import cropped._C | (No module named 'cropped._C'); install `cropped._C`
odd     | 1 / 0 | (ZeroDivisionError: division by zero); the module is installed, but broken
wheels  | raise ValueError('libcublas.so.*[0-9] not found in the system path') | ; install the libraries
"""


@pytest.mark.parametrize(("name", "code", "text"), scenarios(BROKEN))
def test_what_is_installed_and_broken_is_not(site, name, code, text):
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(code)
    if name == "cut":
        (site / name / "_C.so").write_bytes(b"\x7fELF")
    error = refused(name)
    assert error.reason == "no_libraries"
    assert text in str(error)


WORDS = """
/lib/libc.so.6: version `GLIBC_2.38' not found (required by /x/_C.so)            | version_mismatch
cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but …     | version_mismatch
cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH                            | version_mismatch
CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version    | version_mismatch
The NVIDIA driver on your system is too old (found version 11040).               | version_mismatch
libnvinfer.so.10: cannot open shared object file: No such file or directory      | no_libraries
expected a tensor of another shape                                               |
"""


@pytest.mark.parametrize(("words", "reason"), scenarios(WORDS))
def test_words_of_engines(words, reason):
    assert getattr(misfit(words), "reason", "") == reason
