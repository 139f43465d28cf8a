"""``infercanary.read``: reads the runs of a journal in a notebook."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import msgspec

from infercanary.command.settings import UsageError
from infercanary.contract.report import Run
from infercanary.notebook.result import TimingResult
from infercanary.probe import journal


def read(path: str | os.PathLike[str], *, canary: str = "") -> TimingResult:
    """Read the runs of one canary.

    Args:
        path: A probe's journal (its older part, ``PATH.1``, is read first), or a file of :meth:`TimingResult.save`.
        canary: Name of the canary; empty if the journal has only one.

    Returns:
        All runs of the canary, including failed runs, with the last environment.

    Raises:
        UsageError: The file cannot be read, has no runs, or has several canaries and no ``canary``.
    """
    runs: defaultdict[str, list[Run]] = defaultdict(list)
    environment: dict[str, str] = {}
    outputs: dict[str, tuple[float, ...]] = {}
    boot_id = ""
    try:
        for entry in journal.read(Path(path)):
            boot_id = entry.boot_id
            outputs |= entry.outputs
            if entry.components is not None:
                environment = entry.components
            if entry.run is not None:
                runs[entry.run.canary].append(msgspec.structs.replace(entry.run, boot_id=boot_id))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    if not runs:
        raise UsageError(f"{path}: the file has no runs; is this the right file?")
    name = canary or next(iter(runs))
    if name not in runs or (not canary and len(runs) > 1):
        raise UsageError(f"{path}: name one canary of this file: {', '.join(sorted(runs))}")
    return TimingResult(name, boot_id, tuple(runs[name]), environment, outputs)
