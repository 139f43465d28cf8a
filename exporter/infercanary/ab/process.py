"""An arm without an image: the probe under an interpreter of this host, as a manual install runs it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from infercanary.ab.conditions import Conditions, document
from infercanary.ab.daemon import last_line
from infercanary.ab.reaper import Reaper
from infercanary.ab.turn import StartFailed
from infercanary.command.interpreter import LIBRARIES_FIRST, run_module
from infercanary.command.settings import UsageError

_STANDARD_INPUT = "/dev/stdin"
_END_SECONDS = 10.0
_LINES, _LINE_BYTES = 50, 4096


@dataclass(frozen=True)
class Host:
    """Starts ``infercanary probe``, which reads its settings from a pipe: no file is left.

    Args:
        python: The interpreter.
        place: Where the settings are from, for messages.
        conditions: The side's.
        reaper: Ends what is left if this process is killed.
    """

    python: str
    place: str
    conditions: Conditions
    reaper: Reaper

    @property
    def name(self) -> str:
        return f"host ({self.python})"

    def start(self, number: int) -> HostProcess:
        """Start the probe.

        Raises:
            StartFailed: The interpreter cannot be started.
        """
        address = f"127.0.0.1:{_free_port()}"
        cpus = self.conditions.cpu_numbers()
        try:
            child = subprocess.Popen(  # noqa: S603 - the user named the interpreter
                run_module("infercanary", "probe", "--config", _STANDARD_INPUT, python=self.python),
                env={**os.environ, **self.conditions.host_variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                # Ctrl-C must reach the experiment only, which then ends this group with all its processes.
                start_new_session=True,
                preexec_fn=partial(os.sched_setaffinity, 0, cpus) if cpus else None,  # noqa: PLW1509 - no other thread runs yet
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise StartFailed(f"{self.python} cannot be started ({error})") from None
        self.reaper.watch(child.pid)
        running = HostProcess(child, f"http://{address}", self.place, self.reaper)
        try:
            assert child.stdin is not None
            with (
                contextlib.suppress(BrokenPipeError),
                child.stdin,
            ):  # if it has ended already, its log says why
                child.stdin.write(document(self.conditions.settings, address).encode())
        except BaseException:
            running.end()
            raise
        return running


class HostProcess:
    """The process, and the last lines of its log.

    Args:
        child: The probe, in a session of its own.
        url: Where it answers.
        place: Where the settings are from, for messages.
        reaper: Knows the child's process group.
    """

    def __init__(self, child: subprocess.Popen[bytes], url: str, place: str, reaper: Reaper) -> None:
        self.urls: Sequence[str] = [url]
        self._child, self._place, self._reaper = child, place, reaper
        self._log: deque[bytes] = deque(maxlen=_LINES)
        self._reader = threading.Thread(target=self._read, name="infercanary-ab-log", daemon=True)
        self._reader.start()

    def ended(self) -> str:
        """Return why it has ended; empty while it runs."""
        code = self._child.poll()
        if code is None:
            return ""
        self._reader.join(1)
        return f"it ended with exit code {code}" if code >= 0 else f"it was killed by signal {-code}"

    def last_words(self) -> str:
        """Return the last line that it logged; empty without one."""
        return last_line(b"".join([*self._log])).replace(_STANDARD_INPUT, self._place)

    def end(self) -> None:
        """Stop it and all processes that it started."""
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_END_SECONDS)
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._reaper.forget(self._child.pid)
        self._reader.join(1)
        if self._child.stderr is not None and not self._reader.is_alive():
            self._child.stderr.close()

    def _read(self) -> None:
        assert self._child.stderr is not None
        with contextlib.suppress(ValueError, OSError):
            while line := self._child.stderr.readline(_LINE_BYTES):
                self._log.append(line)


def python(path: str) -> str:
    """Check an interpreter; return its absolute path.

    Args:
        path: As given; it may be relative.

    Returns:
        The path, with its links as they are.

    Raises:
        UsageError: It is no interpreter, or has no InferCanary.
    """
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise UsageError(f"python {path}: is no program; name an interpreter, such as .venv/bin/python")
    try:
        done = subprocess.run(  # noqa: S603 - the user named the interpreter
            [path, "-c", f"{LIBRARIES_FIRST}; import infercanary.probe as probe; print(probe.__name__)"],
            capture_output=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"python {path}: cannot be run ({error}); name another") from None
    if done.returncode or b"infercanary.probe" not in done.stdout:
        why = last_line(done.stderr) or "it is no Python"
        raise UsageError(f"python {path}: has no InferCanary ({why}); install it there with pip")
    # Not resolved: a virtual environment's interpreter is a link.
    return str(Path(path).absolute())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
