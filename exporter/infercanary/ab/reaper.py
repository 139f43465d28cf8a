"""The reaper: a process that outlives an experiment by seconds, and removes what the experiment left.

A process that is killed cannot clean up. The reaper waits at the end of a pipe that only the experiment holds open.
When the pipe closes, it removes the containers and kills the processes on this host that the experiment has told it
to watch, and not to forget.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from infercanary.command.interpreter import run_module

_QUIET_SECONDS = 8.0  # without the container; after that no request that was under way can still create it
_MOST_SECONDS = 300.0
_JOIN_SECONDS = 20.0


class Reaper:
    """Starts the reaper, and holds the experiment's end of the pipe."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(  # noqa: S603 - our own module
            run_module(__name__),
            stdin=subprocess.PIPE,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C, and a signal to the experiment's group, must not end the reaper.
            start_new_session=True,
        )

    def __enter__(self) -> Reaper:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipe: the reaper removes what is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.communicate(timeout=_JOIN_SECONDS)

    def send(self, line: str) -> None:
        """Tell the reaper what is left.

        Args:
            line: ``watch NAME`` for a container, or the number of a process group of this host, that must end with
                the experiment; ``forget NAME`` for one that has ended.
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
    """Remove the container ``name``, also if it is created only now."""
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
        except Exception:  # Docker is busy, or restarts: try again
            quiet_since = now
        time.sleep(0.5)


if __name__ == "__main__":
    main()
