"""``infercanary beside``: a container's entrypoint that runs the server, and a probe beside it.

The server is what the container is for: it gets the signals, its exit code is the container's, and it goes on where the
probe fails. As process 1 this also reaps orphaned processes.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path

import click

from infercanary.command.interpreter import run_module
from infercanary.command.settings import UsageError

log = logging.getLogger("infercanary.beside")

_AWAITED = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}  # real-time signals too
_STOP = (signal.SIGTERM, signal.SIGINT)
_TERMINAL_STOP = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these, and a child would go on doing so
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0
_WELL_SECONDS = 60.0  # a probe that ran for so long had started well
_END_SECONDS = 1.0  # docker stop allows ten for server and probe together
_USAGE = 2
_KILLED = 128 + signal.SIGKILL
_BY_THE_KERNEL = 0x80  # SI_KERNEL, sigaction(2)


class _Probe:
    """The probe's process; started again when it ends, with longer and longer pauses."""

    def __init__(self, path: str) -> None:
        self.pid: int | None = None
        self.restart_at: float | None = None
        """When it is to be started again (monotonic); None where it runs, or is given up."""
        self._command = run_module("infercanary", "probe", "--config", path)
        self._pause = _FIRST_PAUSE
        self._started = 0.0
        self._end_by = inf

    def start(self) -> None:
        """In a process group of its own: a terminal's Ctrl-C is the server's."""
        self.restart_at, self._started = None, time.monotonic()
        try:
            self.pid = _spawn(self._command, own_group=True)
        except OSError as error:  # no process or no memory is left for it, and the server needs both
            self._restart_later(f"the probe cannot be started ({error.strerror})")
            return
        with suppress(OSError):
            # Where memory runs out, the kernel ends the probe and not the server. proc(5), oom_score_adj.
            Path(f"/proc/{self.pid}/oom_score_adj").write_text("1000")

    def ended(self, code: int) -> None:
        """Plan the next start, after it ended with this exit code."""
        self.pid = None
        if self._end_by < inf:
            return
        if code == _USAGE:
            # It will most likely fail again; but a model, a secret or a GPU may still arrive.
            self._pause = _LONGEST_PAUSE
        elif time.monotonic() - self._started > _WELL_SECONDS:
            self._pause = _FIRST_PAUSE
        killed = " (killed, by the kernel where memory was used up)" if code == _KILLED else ""
        self._restart_later(f"the probe ended with exit code {code}{killed}")

    def tell_to_end(self) -> None:
        """Send SIGTERM; no probe is started from now on."""
        if self._end_by < inf:
            return
        self._end_by, self.restart_at = time.monotonic() + _END_SECONDS, None
        if self.pid is not None:
            os.kill(self.pid, signal.SIGTERM)

    def end(self) -> None:
        """End the probe and its children; one that does not end in time is killed."""
        self.tell_to_end()
        if self.pid is not None and not self._ends_by(self._end_by):
            os.killpg(self.pid, signal.SIGKILL)
            self._ends_by(time.monotonic() + _END_SECONDS)  # one that hangs in a driver cannot even be killed

    def _ends_by(self, deadline: float) -> bool:
        while self.pid not in _reap():
            if (seconds := deadline - time.monotonic()) <= 0:
                return False
            signal.sigtimedwait({signal.SIGCHLD}, seconds)
        return True

    def _restart_later(self, why: str) -> None:
        log.warning("%s; it is started again in %g s, and the server goes on", why, self._pause)
        self.restart_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


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
def command(path: str, server: tuple[str, ...]) -> int:
    """Run SERVER, a command with its arguments, and a probe beside it: an entrypoint for a container.

    \b
      infercanary beside -- python server.py
      infercanary beside --config /app/probe.yaml -- gunicorn app:app

    \b
    ENTRYPOINT ["infercanary", "beside", "--config", "/app/probe.yaml", "--"]
    CMD ["python", "server.py"]

    SERVER gets every signal that can be passed on, and its exit code is the command's own (128 + N where signal N ended
    it). A probe that fails is started again, at first after a second, and never ends the server. SIGTERM and SIGINT end
    the probe too; otherwise it ends when SERVER has ended.
    """
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    try:
        child = _spawn(list(server))
    except OSError as error:
        raise UsageError(
            f"`{server[0]}` cannot be run: {error.strerror}; give the server's command after `--`"
        ) from None
    probe = _Probe(path)
    probe.start()
    code: int | None = None
    while code is None:
        pause = 3600.0 if probe.restart_at is None else max(0.0, probe.restart_at - time.monotonic())
        came = signal.sigtimedwait(_AWAITED, pause)
        if came is not None and came.si_signo == signal.SIGCHLD:
            ended = _reap()
            code = ended.get(child)
            if probe.pid in ended:
                probe.ended(ended[probe.pid])
        elif came is not None:
            if came.si_signo in _STOP:
                probe.tell_to_end()
            _pass_on(came, child)
        if code is None and probe.restart_at is not None and time.monotonic() >= probe.restart_at:
            probe.start()
    probe.end()
    return code


def _pass_on(came: signal.struct_siginfo, child: int) -> None:
    if came.si_pid == os.getpid():
        return  # SIGPIPE: nobody reads the log any more
    # A terminal signals the whole process group: the server has its Ctrl-C already. A hangup comes to the leader alone.
    if came.si_code == _BY_THE_KERNEL and came.si_signo != signal.SIGHUP:
        if came.si_signo in _TERMINAL_STOP:  # Ctrl-Z: the shell waits until this process has stopped, too
            os.kill(os.getpid(), came.si_signo)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {came.si_signo})
            signal.pthread_sigmask(signal.SIG_BLOCK, {came.si_signo})
        return
    try:
        os.kill(child, came.si_signo)
    except PermissionError:
        log.warning("signal %d cannot be passed on: the server runs as another user", came.si_signo)


def _spawn(command: list[str], *, own_group: bool = False) -> int:
    """Start a command as a shell would: with no signal blocked or ignored."""
    spawn = partial(os.posix_spawnp, command[0], command, os.environ, setsigmask=(), setsigdef=_RESET)
    return spawn(setpgroup=0) if own_group else spawn()


def _reap() -> dict[int, int]:
    """Return every child that has ended, orphans included → its exit code, or 128 + the signal's number."""
    ended = {}
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(child[1])
            ended[child[0]] = code if code >= 0 else 128 - code
    return ended
