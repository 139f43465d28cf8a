"""Runs code in a process without leftovers of other tests."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import pytest


def in_a_fresh_process(function):
    """Call a function of a module in a new child process, and return its result.

    Other tests leave threads and memory in this process: pools of an engine, some of them pinned, and threads
    that are about to end.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as child:
        return child.submit(function).result(60)


def printed(code, *arguments, **environment):
    """Run code in a new interpreter with additional environment variables, and return the output."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def in_a_pid_namespace(shell, code):
    """Run code in a shell that is process 1 of a PID namespace, as in a container, and return the output.

    ``shell`` runs Python with the code as ``"$0" -c "$1"``.
    """
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("PID namespaces need more rights here")
    command = [*unshare, "sh", "-c", shell, sys.executable, code]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@contextmanager
def running(*command):
    """Run a process that prints a line when it is ready; yield process and line, and finally kill the process."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line
            yield process, line
        finally:
            process.kill()
