"""The demo's child processes, with their logs in one temporary folder. All children end with the demo."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from infercanary.command.children import end_group
from infercanary.command.settings import UsageError


class Processes:
    """Child processes by name. Leaving the context ends all children, newest first, and removes the folder."""

    def __enter__(self) -> Processes:
        self._temporary = tempfile.TemporaryDirectory(prefix="infercanary-demo-")
        self.folder = Path(self._temporary.name)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed([*self._children]):
            self.end(name)
        self._temporary.cleanup()

    def start(self, name: str, command: Sequence[str], cwd: Path | None = None, **environment: str) -> None:
        """Start a child in its own process group, which Ctrl-C in a terminal does not reach.

        Args:
            name: Name for messages; the child's log is ``NAME.log``.
            command: Program and arguments.
            cwd: Working folder; None for the temporary folder.
            environment: Environment variables to add or replace.
        """
        with (self.folder / f"{name}.log").open("wb") as log:
            self._children[name] = subprocess.Popen(  # noqa: S603 - the demo's own commands
                command,
                cwd=cwd or self.folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self, name: str) -> None:
        """End a child and the child's own children."""
        end_group(self._children.pop(name))

    def check(self) -> None:
        """Raise an error if a child has ended.

        Raises:
            UsageError: A child has ended. The message quotes the last line of the child's log.
        """
        for name, child in self._children.items():
            if child.poll() is not None:
                log = (self.folder / f"{name}.log").read_text(errors="replace")
                last = (log.strip() or "it printed nothing").splitlines()[-1]
                raise UsageError(f"the {name} ended with code {child.returncode}: {last}")


def example() -> Path:
    """Return the folder of the ResNet-18 example: next to this file in a wheel, in ``examples/`` in a checkout."""
    here = Path(__file__).resolve()
    for folder in (here.parent / "resnet18", here.parents[3] / "examples" / "resnet18"):
        if (folder / "server.py").is_file():
            return folder
    raise UsageError("demo: the example server is not installed; run it from a checkout (make demo)")
