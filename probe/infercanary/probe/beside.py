"""``infercanary beside``: a container's entrypoint that becomes the server, after it started a probe beside it.

The server is what the container is for: it replaces this process, so signals, terminal, exit code and process number
are its own. A child, the supervisor, starts the probe and starts it again when it ends. The kernel ends the supervisor
with the server (``PR_SET_PDEATHSIG``), and the supervisor ends the probe.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from infercanary.command.interpreter import run_module
from infercanary.command.settings import UsageError

log = logging.getLogger("infercanary.beside")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0
_WELL_SECONDS = 60.0  # a probe that ran for so long had started well
_END_SECONDS = 1.0  # docker stop allows ten for server and probe together
_USAGE = 2
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2)


@click.command(name="beside", context_settings={"ignore_unknown_options": True})
@click.option(
    "--config",
    "path",
    type=click.Path(readable=False),  # who reads it says in one line why it cannot
    default="probe.yaml",
    show_default=True,
    help="The probe's settings file.",
)
@click.argument("server", nargs=-1, required=True, type=click.UNPROCESSED)
def command(path: str, server: tuple[str, ...]) -> NoReturn:
    """Run SERVER, a command with its arguments, and a probe beside it: an entrypoint for a container.

    \b
      infercanary beside -- python server.py
      infercanary beside --config /app/probe.yaml -- gunicorn app:app

    \b
    ENTRYPOINT ["infercanary", "beside", "--config", "/app/probe.yaml", "--"]
    CMD ["python", "server.py"]

    SERVER replaces this process: it gets every signal, and its exit code is the command's own. A probe that fails is
    started again, at first after a second, and never ends the server. The probe ends when SERVER has ended.
    """
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    child = os.fork()
    if child == 0:
        _supervise(path)
    # Python ignores these, and the server would go on doing so.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(server[0], server)  # noqa: S606 - as a shell's exec
    except OSError as error:
        os.kill(child, signal.SIGTERM)
        raise UsageError(
            f"`{server[0]}` cannot be run: {error.strerror}; give the server's command after `--`"
        ) from None


def _supervise(path: str) -> NoReturn:
    """Start the probe again and again, in a session of its own: a terminal's Ctrl-C is the server's."""
    server = os.getppid()
    os.setsid()
    signal.signal(signal.SIGTERM, _end)
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
    pause = _FIRST_PAUSE
    while os.getppid() == server:  # else it ended before the kernel was told
        started, code = time.monotonic(), 0
        try:
            probe = subprocess.Popen(run_module("infercanary", "probe", "--config", path))  # noqa: S603
        except OSError as error:  # no process or no memory is left for it, and the server needs both
            why = f"the probe cannot be started ({error.strerror})"
        else:
            with suppress(OSError):
                # Where memory runs out, the kernel ends the probe and not the server. proc(5), oom_score_adj.
                Path(f"/proc/{probe.pid}/oom_score_adj").write_text("1000")
            code = probe.wait()
            why = f"the probe ended with exit code {code if code >= 0 else 128 - code}"
        if code == -signal.SIGKILL:
            # It takes as much again, and each time the server's page cache goes first.
            pause, why = _LONGEST_PAUSE, "the probe was killed, by the kernel where memory was used up"
        elif code == _USAGE:
            # It will most likely fail again; but a model, a secret or a GPU may still arrive.
            pause = _LONGEST_PAUSE
        elif time.monotonic() - started > _WELL_SECONDS:
            pause = _FIRST_PAUSE
        log.warning("%s; it is started again in %g s, and the server goes on", why, pause)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    os._exit(0)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End the probe and its children; those that do not end in time are killed, and this process with them."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + _END_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            os.waitpid(-1, os.WNOHANG)
            time.sleep(0.01)
    os.killpg(0, signal.SIGKILL)
    os._exit(0)
