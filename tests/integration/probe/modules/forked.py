"""Short processes without import time: each is a fork of a process that has already imported the modules."""

from __future__ import annotations

import json
import multiprocessing
import os
from ctypes import CDLL, RTLD_GLOBAL

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "numpy",
        "infercanary.probe.targets.onnx",
        "infercanary.probe.targets.tensorrt",
        "infercanary.probe.samplers.nvml",
    ]
)


def begin(call, folder, *arguments, **environment):
    """Start a process that loads the libraries of a folder and runs ``call`` with a pipe; return process and pipe."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_run, args=(theirs, call, folder, arguments, environment), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def run_forked(folder, code, *, environment=None, **names):
    """Run code with these names and with the libraries of a folder, and return the code's variable ``found``."""
    process, pipe = begin(_execute, folder, code, names, **environment or {})
    with pipe:
        assert pipe.poll(120), "it hangs"
        # EOFError means that the code raised an error; the reason is on standard error
        left = json.loads(pipe.recv())
    process.join(20)
    assert process.exitcode == 0
    return left


def _run(pipe, call, folder, arguments, environment):
    os.environ.update(environment)
    for library in sorted(folder.glob("lib*.so*")):
        CDLL(str(library), RTLD_GLOBAL)  # the loader then knows the library by its own name
    call(pipe, *arguments)


def _execute(pipe, code, names):
    space = {**names, "found": {}}
    exec(compile(code, "<forked>", "exec"), space)
    pipe.send(json.dumps(space["found"]))
