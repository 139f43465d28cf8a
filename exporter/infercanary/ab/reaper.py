"""The reaper: a process that outlives an experiment by seconds, and removes what the experiment left.

A process that is killed cannot clean up. The reaper waits at the end of a pipe that only the experiment holds open.
When the pipe closes, it removes the experiment's containers and kills its processes on this host, unless the
experiment reported that it has done so itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from infercanary.command.interpreter import run_module

_QUIET_SECONDS = 8.0  # without a container; after that no request that was under way can still create one
_MOST_SECONDS = 300.0
_JOIN_SECONDS = 20.0


class Reaper:
    """Starts the reaper, and holds the experiment's end of the pipe.

    Args:
        identity: The experiment's id.
    """

    def __init__(self, identity: str) -> None:
        self._child = subprocess.Popen(  # noqa: S603 - our own module
            run_module(__name__, identity),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C, and a signal to the experiment's group, must not end the reaper.
            start_new_session=True,
        )

    def __enter__(self) -> Reaper:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipe: the reaper removes what is left, unless it was sent ``done``."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if self._child.stdin is not None:
                self._child.stdin.close()
            self._child.wait(_JOIN_SECONDS)

    def send(self, line: str) -> None:
        """Tell the reaper what is left.

        Args:
            line: ``watch GROUP`` for a process group of this host that must end with the experiment, ``forget GROUP``
                for one that has ended, ``done`` if everything is removed.
        """
        with contextlib.suppress(OSError):
            assert self._child.stdin is not None
            self._child.stdin.write(f"{line}\n".encode())
            self._child.stdin.flush()


def main(identity: str) -> None:
    """Wait until the pipe closes, then clean up.

    Args:
        identity: The experiment's id, which its containers have as a label.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    groups: set[str] = set()
    for line in sys.stdin:
        word, _, group = line.strip().partition(" ")
        if word == "done":
            return
        groups = groups | {group} if word == "watch" else groups - {group}
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(int(group), signal.SIGKILL)
    reap(identity)


def reap(identity: str) -> None:
    """Remove the experiment's containers, until there were none for some seconds.

    Args:
        identity: The experiment's id.
    """
    from infercanary.ab.daemon import connect, remove

    quiet_since = begin = time.monotonic()
    while (now := time.monotonic()) < min(begin + _MOST_SECONDS, quiet_since + _QUIET_SECONDS):
        try:
            with contextlib.closing(connect()) as client:
                if remove(client, identity):
                    quiet_since = now
        except Exception:  # Docker is busy, or restarts: try again
            quiet_since = now
        time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1])
