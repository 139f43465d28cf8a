"""The demo's processes: started in order, each waited for, and none of them or of their own children left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

import psutil

from infercanary.command.settings import UsageError

_END_SECONDS = 5.0


class Processes:
    """Children with their logs in one temporary folder; leaving the context ends them all, newest first.

    Inside it SIGTERM, and a terminal that closes, raise KeyboardInterrupt as Ctrl-C does, so that its children end too.
    """

    def __enter__(self) -> Processes:
        self._interrupted = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._interrupt)
        self._stack = ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="infercanary-demo-")))
        self._children: list[tuple[str, psutil.Popen]] = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave children behind
        with self._stack:
            _end(child for _, child in reversed(self._children))

    def start(self, name: str, command: Sequence[str], cwd: Path | None = None, **environment: str) -> None:
        """Start a child. It has a session of its own, so that Ctrl-C reaches the demo alone, which then ends it.

        Args:
            name: What it is, for messages; its log is ``NAME.log``.
            command: Program and arguments.
            cwd: Where it runs; None for the temporary folder.
            environment: Variables beside those of this process.
        """
        with (self.folder / f"{name}.log").open("wb") as log:
            child = psutil.Popen(
                command,
                cwd=cwd or self.folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children.append((name, child))

    def end(self, name: str) -> None:
        """End a child, and all that it started.

        Args:
            name: As it was started.
        """
        _end(child for other, child in self._children if other == name)
        self._children = [known for known in self._children if known[0] != name]

    def wait_for(self, name: str, url: str, seconds: float) -> None:
        """Wait until ``url`` answers 200.

        Args:
            name: The child's.
            url: On the loopback interface.
            seconds: How long at most.

        Raises:
            UsageError: It does not in time; with the end of the child's log.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            try:
                with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - a fixed http URL on loopback
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
        raise UsageError(f"the {name} does not answer at {url}: {self._end_of_log(name)}")

    def check(self) -> None:
        """Check that all children run.

        Raises:
            UsageError: One has ended.
            KeyboardInterrupt: A signal came that Python dropped.
        """
        if self._interrupted:
            raise KeyboardInterrupt
        for name, child in self._children:
            if child.poll() is not None:
                raise UsageError(f"the {name} ended with code {child.returncode}: {self._end_of_log(name)}")

    def _interrupt(self, *_: object) -> None:
        self._interrupted = True  # Python drops what is raised while an object is finalised
        raise KeyboardInterrupt

    def _end_of_log(self, name: str) -> str:
        lines = (self.folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


def _end(children: Iterable[psutil.Popen]) -> None:
    family = [process for child in children for process in _with_descendants(child)]
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in family:
            with suppress(psutil.NoSuchProcess):
                end(process)
        _, family = psutil.wait_procs(family, _END_SECONDS)


def _with_descendants(child: psutil.Popen) -> list[psutil.Process]:
    """The child and all that it started, while they can be found: an orphan has no parent to be found by."""
    with suppress(psutil.NoSuchProcess):  # it has ended
        return [child, *child.children(recursive=True)]
    return [child]


def free_port(preferred: int) -> int:
    """``preferred`` on the loopback interface, or any free port where it is taken.

    Args:
        preferred: A TCP port.

    Raises:
        UsageError: There is none.
    """
    for port in (preferred, 0):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(candidate.getsockname()[1])
    raise UsageError("demo: no free port on 127.0.0.1")


def example() -> Path:
    """Find the ResNet-18 example: beside this file in an installed wheel, in ``examples/`` in a checkout.

    Returns:
        Its folder.

    Raises:
        UsageError: It is in neither place.
    """
    here = Path(__file__).resolve()
    for folder in (here.parent / "resnet18", here.parents[3] / "examples" / "resnet18"):
        if (folder / "server.py").is_file():
            return folder
    raise UsageError(f"demo: the example is not beside {here.parent}; run it from a checkout (make demo)")
