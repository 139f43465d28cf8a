"""``infercanary.read``: the runs of a journal, for a notebook."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from infercanary.command.settings import UsageError
from infercanary.contract.journal import MARK, decode
from infercanary.contract.report import Run
from infercanary.notebook.result import TimingResult


def read(path: str | os.PathLike[str], *, canary: str = "") -> TimingResult:
    """Read the runs of one canary.

    Args:
        path: A journal of a probe, or what :meth:`TimingResult.save` wrote.
        canary: Its name; empty where there is one only.

    Returns:
        All of its runs, also those that failed; the environment is the last one.

    Raises:
        UsageError: The file cannot be read, is no journal, or has several canaries or none.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    runs: dict[str, list[Run]] = {}
    environment: dict[str, str] = {}
    outputs: dict[str, tuple[float, ...]] = {}
    boot_id = ""
    for number, line in enumerate(lines, 1):
        try:
            entry = decode(line)
        except msgspec.DecodeError:
            if number == len(lines) and line.startswith(MARK):
                continue  # a crash tore it
            raise UsageError(f"{path}:{number}: no line of a journal; is this the right file?") from None
        boot_id = entry.boot_id
        if entry.components is not None:
            environment, outputs = entry.components, {**outputs, **entry.outputs}
        if entry.run is not None:
            run = msgspec.structs.replace(entry.run, boot_id=entry.boot_id)
            runs.setdefault(run.canary, []).append(run)
    if not runs:
        raise UsageError(f"{path}: it has no runs; is this the right file?")
    if canary not in runs and (canary or len(runs) != 1):
        names = ", ".join(sorted(runs))
        asked = f"no canary `{canary}`" if canary else "name the canary"
        raise UsageError(f"{path}: {asked}; there are: {names}")
    name = canary or next(iter(runs))
    return TimingResult(name, boot_id, tuple(runs[name]), environment, outputs)
