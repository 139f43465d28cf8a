"""The reaper: a process that removes the containers and processes that an experiment left behind.

A killed experiment cannot clean up. So the reaper waits at a pipe that only the experiment holds open. When the pipe
closes, the reaper removes containers and kills processes on this host. The experiment sends the name of a container or
process group with ``watch`` at its start, and with ``forget`` after its end. The reaper ends some seconds after the
experiment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from infercanary.command.interpreter import run_module

_QUIET_SECONDS = 8.0  # wait for a missing container: an earlier request may still create it
_MOST_SECONDS = 300.0
_JOIN_SECONDS = 20.0


class Reaper:
    """Starts the reaper, and holds the experiment's end of the pipe."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(  # noqa: S603 - a module of InferCanary
            run_module(__name__),
            stdin=subprocess.PIPE,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # In its own session, the reaper survives Ctrl-C and signals to the experiment's group.
            start_new_session=True,
        )

    def __enter__(self) -> Reaper:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipe. The reaper then removes remaining containers and processes."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.communicate(timeout=_JOIN_SECONDS)

    def send(self, line: str) -> None:
        """Send a line to the reaper.

        Args:
            line: ``watch NAME`` for a container or a process group that must end with the experiment; ``forget NAME``
                after the end of this container or group. The name of a process group is its number.
        """
        with contextlib.suppress(OSError):
            print(line, file=self._child.stdin, flush=True)


def main() -> None:
    """Wait until the pipe closes, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    watched: set[str] = set()
    for line in sys.stdin:
        word, name = line.split()
        watched = watched | {name} if word == "watch" else watched - {name}
    for name in watched:
        if name.isdigit():
            with contextlib.suppress(OSError):
                os.killpg(int(name), signal.SIGKILL)
        else:
            remove(name)


def remove(name: str) -> None:
    """Remove the container ``name``, even if it is still being created."""
    import docker.errors

    from infercanary.ab.daemon import connect

    quiet_since = begin = time.monotonic()
    while (now := time.monotonic()) < min(begin + _MOST_SECONDS, quiet_since + _QUIET_SECONDS):
        try:
            with contextlib.closing(connect()) as client:
                client.remove_container(name, force=True, v=True)
            return
        except docker.errors.NotFound:
            pass
        except Exception:  # try again: Docker may be busy or restarting
            quiet_since = now
        time.sleep(0.5)


if __name__ == "__main__":
    main()
