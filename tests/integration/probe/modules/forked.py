"""Short processes without import time: each is forked from a process that has already imported the modules."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from ctypes import CDLL, RTLD_GLOBAL
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "numpy",
        "infercanary.probe.targets.onnx",
        "infercanary.probe.targets.tensorrt",
        "infercanary.probe.samplers.nvml",
    ]
)


def begin(
    call: Callable[..., None], folder: Path, *arguments: Any, **environment: str
) -> tuple[BaseProcess, Connection]:
    """Start a process that loads the libraries of a folder and runs ``call`` with a pipe; return process and pipe."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_run, args=(theirs, call, folder, arguments, environment), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def run_forked(
    folder: Path, code: str, *, environment: dict[str, str] | None = None, **names: Any
) -> dict[str, Any]:
    """Run code with these names and the libraries of a folder, and return its ``found``."""
    process, pipe = begin(_execute, folder, code, names, **environment or {})
    with pipe:
        assert pipe.poll(120), "it hangs"
        # EOFError if the code raised, with the reason on standard error
        left: dict[str, Any] = json.loads(pipe.recv())
    process.join(20)
    assert process.exitcode == 0
    return left


def _run(
    pipe: Connection,
    call: Callable[..., None],
    folder: Path,
    arguments: tuple[Any, ...],
    environment: dict[str, str],
) -> None:
    os.environ.update(environment)
    for library in sorted(folder.glob("lib*.so*")):
        CDLL(str(library), RTLD_GLOBAL)  # so that the loader knows the library by its own name
    call(pipe, *arguments)


def _execute(pipe: Connection, code: str, names: dict[str, Any]) -> None:
    space = {**names, "found": {}}
    exec(compile(code, "<forked>", "exec"), space)
    pipe.send(json.dumps(space["found"]))
