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
from types import TracebackType

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the pipe: the reaper removes what is left, unless :meth:`nothing_left` was called."""
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_JOIN_SECONDS)

    def watch(self, group: int) -> None:
        """Register a process group of this host that must end with the experiment.

        Args:
            group: Its id.
        """
        self._send(f"watch {group}")

    def forget(self, group: int) -> None:
        """Remove a process group that has ended.

        Args:
            group: Its id.
        """
        self._send(f"forget {group}")

    def nothing_left(self) -> None:
        """Report that everything is removed."""
        self._send("done")

    def _send(self, line: str) -> None:
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.write(line.encode() + b"\n")
                self._child.stdin.flush()


def main(identity: str) -> None:
    """Wait until the pipe closes, then clean up.

    Args:
        identity: The experiment's id, which its containers have as a label.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        what, _, group = line.decode().strip().partition(" ")
        if what == "watch":
            groups.add(int(group))
        elif what == "forget":
            groups.discard(int(group))
        elif what == "done":
            return
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    reap(identity)


def reap(identity: str) -> None:
    """Remove the experiment's containers, until there were none for some seconds.

    Args:
        identity: The experiment's id.
    """
    from infercanary.ab.daemon import LABEL, client, remove

    deadline = time.monotonic() + _MOST_SECONDS
    quiet_since = time.monotonic()
    connection = None
    while (now := time.monotonic()) < deadline and now - quiet_since < _QUIET_SECONDS:
        try:
            if connection is None:
                connection = client()
            if remove(connection, {"label": f"{LABEL}={identity}"}, lambda labels: True):
                quiet_since = time.monotonic()
        except Exception:  # Docker is busy, or restarts: try again
            connection, quiet_since = None, time.monotonic()
        time.sleep(0.5)


if __name__ == "__main__":
    main(sys.argv[1])
