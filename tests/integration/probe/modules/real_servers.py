"""Real inference servers and engines, each in its own virtual environment, because their requirements conflict.

An environment is made only once, on top of the packages of the interpreter that runs the tests. If this
fails, a test is skipped with the reason. ``python tests/integration/probe/modules/real_servers.py`` makes all
environments; CI runs this command in its set-up.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

_INSTALL_SECONDS = 540
_START_SECONDS = 120


class _Wanted(NamedTuple):
    requirements: Sequence[str]
    beside: bool = False
    """True if the environment also uses the packages of this interpreter."""
    dependencies: bool = True


ENVIRONMENTS = {
    "mlserver": _Wanted(["mlserver==1.7.1"]),
    "triton": _Wanted(["nvidia-pytriton==0.7.0", "numpy==1.26.4"], dependencies=False),
    "transformers": _Wanted(["transformers[serving]==5.23.0"], beside=True),
}


def environment(name):
    """Return the folder of a server's environment. The first call makes the environment, which takes up to a minute."""
    folder = Path(sys.prefix) / "servers" / f"{name}-{sys.version_info[0]}.{sys.version_info[1]}"
    folder.parent.mkdir(exist_ok=True)
    # Another test process may make the same environment at this moment.
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _made(name, folder, *ENVIRONMENTS[name])


def _made(name, folder, requirements, beside, dependencies):
    wanted = "\n".join([*requirements, str(beside)])
    made = folder / "requirements.txt"
    if made.is_file() and made.read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run(sys.executable, "-m", "venv", str(folder))
        packages = next(folder.glob("lib/python*/site-packages"))
        if beside:
            here = next(path for path in sys.path if path.endswith("site-packages"))
            (packages / "beside.pth").write_text(f"{here}\n")
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run(*pip, "--only-binary", ":all:", *(() if dependencies else ("--no-deps",)), *requirements)
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        pytest.skip(f"{name} cannot be installed here: {said[-1] if said else error}")
    made.write_text(wanted)
    return folder


@contextmanager
def serving(command, ready, folder, more=None):
    """Run ``command`` in ``folder`` during the block, once the address ``ready`` answers."""
    log = folder / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(map(str, command)), cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            env={**os.environ, **(more or {})}, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(ready):
            assert process.poll() is None, f"the server ended:\n{log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"the server does not answer:\n{log.read_text()[-2000:]}"
            time.sleep(0.1)
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def _answers(address):
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code != 503
    except OSError:
        return False


def _run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_SECONDS)


if __name__ == "__main__":
    for each in ENVIRONMENTS:
        environment(each)
