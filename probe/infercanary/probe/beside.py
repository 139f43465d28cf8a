"""``infercanary beside``: an entrypoint that starts a probe and then becomes the container's server.

The server replaces this process, because the container exists for the server: signals, terminal, exit code and
process number are the server's own. A child process, the supervisor, starts the probe, and restarts the probe if it
ends. The kernel ends the supervisor when the server ends (``PR_SET_PDEATHSIG``), and the supervisor ends the probe.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import click

from infercanary.command.interpreter import run_module
from infercanary.command.settings import UsageError

log = logging.getLogger("infercanary.beside")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0
_WELL_SECONDS = 60.0  # seconds: the end of a longer run resets the pause before a restart
_END_SECONDS = 1.0  # seconds: docker stop waits 10 s for server and probe together
_USAGE = 2
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, prctl(2)


@click.command(name="beside", context_settings={"ignore_unknown_options": True})
@click.option(
    "--config",
    "path",
    type=click.Path(readable=False),  # the probe reports an unreadable file in one line
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

    SERVER replaces this process: it gets every signal, and gives the exit code. A probe that fails is
    started again, at first after a second, and never ends the server. The probe ends when SERVER has ended.
    """
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    own = os.getpid()  # exec keeps this id; in the child, getppid() is wrong if the server has ended
    child = os.fork()
    if child == 0:
        _supervise(path, own)
    # Python ignores these signals. Reset them: otherwise the server would inherit the setting.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(server[0], server)  # noqa: S606 - replaces this process, as a shell's exec
    except OSError as error:
        os.kill(child, signal.SIGTERM)
        raise UsageError(
            f"`{server[0]}` cannot be run: {error.strerror}; give the server's command after `--`"
        ) from None


def _supervise(path: str, server: int) -> NoReturn:
    """Start the probe, and restart the probe whenever it ends.

    The session is separate, so that Ctrl-C reaches only the server.
    """
    os.setsid()
    signal.signal(signal.SIGTERM, _end)
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
    pause = _FIRST_PAUSE
    while os.getppid() == server:  # the parent's id changes if the server ended before prctl
        started, code = time.monotonic(), 0
        try:
            probe = subprocess.Popen(run_module("infercanary", "probe", "--config", path))  # noqa: S603
        except OSError as error:  # too many processes or too little memory: the server has priority
            why = f"the probe cannot be started ({error.strerror})"
        else:
            code = probe.wait()
            why = f"the probe ended with exit code {code if code >= 0 else 128 - code}"
        if code == -signal.SIGKILL:
            # Restart slowly: a new probe needs as much memory again, and the kernel drops the server's page cache
            # first.
            pause, why = _LONGEST_PAUSE, "the probe was killed, probably by the kernel because memory ran out"
        elif code == _USAGE:
            # Keep trying: a missing model, secret or GPU may still arrive.
            pause = _LONGEST_PAUSE
        elif time.monotonic() - started > _WELL_SECONDS:
            pause = _FIRST_PAUSE
        log.warning("%s; it is started again in %g s, and the server goes on", why, pause)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    os._exit(0)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End the probe and its children. If any process stays, kill the whole group, including this process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + _END_SECONDS
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            os.waitpid(-1, os.WNOHANG)
            time.sleep(0.01)
    os.killpg(0, signal.SIGKILL)
    os._exit(0)
