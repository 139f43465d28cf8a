"""The journal's files: one line for each run, for ``infercanary compare`` and for recovery after a crash.

Two files, ``PATH`` and the previous file ``PATH.1``, have a maximum size together. The format is in
:mod:`infercanary.contract.journal`.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from infercanary.contract.journal import JournalEntry, decode, encode, environment_id
from infercanary.contract.report import Metric, Run
from infercanary.probe.complaint import Complaint
from infercanary.probe.deadline import StillBusy, Worker, one_line

ERRORS = Metric(
    "infercanary_journal_errors_total",
    "counter",
    "Runs that could not be written to the journal, because the disk is full, missing or hanging.",
    reading="Healthy is no increase. Without a journal, the metric is missing. A crash loses such runs, "
    "unless the exporter has collected them.",
)

MAX_BYTES = 16 << 20
_DEADLINE_SECONDS = 1.0


class Journal:
    """Appends runs to the file in a separate thread, so that a hanging disk does not delay the probe.

    Args:
        path: The newer file; the older file is ``PATH.1``.
        boot_id: Identity of this start of the probe.
        max_bytes: Maximum size of both files together.
    """

    def __init__(self, path: Path, boot_id: str, max_bytes: int = MAX_BYTES) -> None:
        self.lost = 0
        """Number of runs that could not be written."""
        self._path = path
        self._boot_id = boot_id
        self._max_bytes = max_bytes
        self._worker = Worker("infercanary-journal", stays=True)
        self._environment = ""
        self._outputs: Mapping[str, tuple[float, ...]] = {}
        self._complaint = Complaint(f"journal {path}")

    def append(
        self,
        runs: Sequence[Run],
        components: Mapping[str, str],
        outputs: Mapping[str, tuple[float, ...]] = MappingProxyType({}),
    ) -> None:
        """Write runs. Never raises; :attr:`lost` counts the runs that cannot be written.

        Args:
            runs: Runs, in order.
            components: Components of the environment of these runs.
            outputs: Canary → fingerprint of its reference output; unknown fingerprints are missing.
        """
        if not runs:
            return
        try:
            self._worker.call(lambda: self._write(runs, components, outputs), _DEADLINE_SECONDS)
        except BaseException as error:
            self.lost += len(runs)
            if not isinstance(error, StillBusy):  # an earlier call hangs; its timeout was already reported
                self._complaint.set(f"cannot be written: {one_line(error)}")
        else:
            self._complaint.set("")

    def close(self, seconds: float) -> bool:
        """End the thread. True if the thread ended within ``seconds``."""
        return self._worker.stop(seconds)

    def _write(
        self, runs: Sequence[Run], components: Mapping[str, str], outputs: Mapping[str, tuple[float, ...]]
    ) -> None:
        environment = environment_id(components)
        size = self._path.stat().st_size if self._path.exists() else 0
        if size > self._max_bytes // 2:
            os.replace(self._path, _older(self._path))
            size = 0
        entries = [JournalEntry(self._boot_id, environment, run=run) for run in runs]
        if environment != self._environment or outputs != self._outputs or size == 0:
            entries.insert(
                0,
                JournalEntry(self._boot_id, environment, components=dict(components), outputs=dict(outputs)),
            )
        lines = b"".join(encode(entry) for entry in entries)
        with open(self._path, "a+b", opener=_follow_no_link) as file:
            # If a process was killed while it wrote a line, begin a new line.
            if size:
                file.seek(-1, os.SEEK_END)
                lines = lines if file.read(1) == b"\n" else b"\n" + lines
            file.write(lines)
        self._environment, self._outputs = environment, outputs


def read(path: Path) -> Iterator[JournalEntry]:
    """Read the entries of a journal, oldest first. Skip invalid lines, such as lines that a crash cut short.

    Args:
        path: The newer file; ``PATH.1``, the older file, is read first. Both may be missing.

    Raises:
        OSError: An existing file cannot be read.
    """
    for file in (_older(path), path):
        if not file.exists():
            continue
        with file.open("rb") as lines:
            for line in lines:
                with suppress(msgspec.DecodeError):
                    yield decode(line)


def last_runs(path: Path, limit: int) -> list[Run]:
    """Return the last runs of a journal, at most ``limit``, each with the ``boot_id`` of the probe that wrote the run.

    A crash removes runs from the probe's memory; with the journal, an exporter can still collect them.
    """
    runs = (replace(entry.run, boot_id=entry.boot_id) for entry in read(path) if entry.run is not None)
    return list(deque(runs, maxlen=limit))


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _follow_no_link(path: str, flags: int) -> int:
    """Open a file without following links. In a folder that others may write to, a link may lead to any file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
