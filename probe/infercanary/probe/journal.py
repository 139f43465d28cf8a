"""The journal's files: each run as a line, for ``infercanary compare`` and for after a crash.

Two files, ``PATH`` and the one before, ``PATH.1``, hold at most the given bytes together. Their format is in
:mod:`infercanary.contract.journal`.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from infercanary.contract.journal import JournalEntry, decode, encode, environment_id
from infercanary.contract.report import Metric, Run
from infercanary.probe.deadline import StillBusy, Worker, one_line

log = logging.getLogger("infercanary.probe")

ERRORS = Metric(
    "infercanary_journal_errors_total",
    "counter",
    "Runs that could not be written to the journal: the disk is full, is gone, or hangs.",
    reading="Healthy is no increase; missing without a journal. The exporter still collects the runs, but a crash "
    "loses them.",
)

MAX_BYTES = 16 << 20
_DEADLINE_SECONDS = 1.0


class Journal:
    """Appends to the file in a thread of its own: a disk that hangs must not delay the probe.

    Args:
        path: Of the newer file; the older one is ``PATH.1``.
        boot_id: Of this probe.
        max_bytes: Of both files together.
    """

    def __init__(self, path: Path, boot_id: str, max_bytes: int = MAX_BYTES) -> None:
        self.lost = 0
        """Runs that could not be written."""
        self._path = path
        self._boot_id = boot_id
        self._max_bytes = max_bytes
        self._worker = Worker("infercanary-journal")
        self._environment = ""
        self._outputs: Mapping[str, tuple[float, ...]] = {}
        self._complaint = ""

    def append(
        self,
        runs: list[Run],
        components: Mapping[str, str],
        outputs: Mapping[str, tuple[float, ...]] = MappingProxyType({}),
    ) -> None:
        """Write runs. Never raises: those that cannot be written are counted in :attr:`lost`.

        Args:
            runs: In order.
            components: Of the environment that they ran in.
            outputs: Canary → the fingerprint of its reference output, as far as they are known.
        """
        if not runs:
            return
        complaint = ""
        try:
            self._worker.call(lambda: self._write(runs, components, outputs), _DEADLINE_SECONDS)
        except StillBusy:
            complaint = self._complaint or "hangs"
        except BaseException as error:
            complaint = one_line(error)
        if complaint:
            self.lost += len(runs)
        if complaint != self._complaint:
            level = logging.WARNING if complaint else logging.INFO
            words = f"cannot be written: {complaint}" if complaint else "works again"
            log.log(level, "journal %s: %s", self._path, words)
        self._complaint = complaint

    def close(self, seconds: float) -> bool:
        """End its thread; whether that was within ``seconds``."""
        return self._worker.stop(seconds)

    def _write(
        self, runs: list[Run], components: Mapping[str, str], outputs: Mapping[str, tuple[float, ...]]
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
            # A process that was killed in the middle of a line must not spoil the next one.
            if size:
                file.seek(-1, os.SEEK_END)
                lines = lines if file.read(1) == b"\n" else b"\n" + lines
            file.write(lines)
        self._environment, self._outputs = environment, outputs


def read(path: Path) -> Iterator[JournalEntry]:
    """Read the entries of a journal, oldest first, without lines that are none (torn by a crash).

    Args:
        path: Of the journal; ``PATH.1``, the file before it, is read first. Neither need exist.

    Raises:
        OSError: A file is there and cannot be read.
    """
    for file in (_older(path), path):
        if not file.exists():
            continue
        with file.open("rb") as lines:
            for line in lines:
                with suppress(msgspec.DecodeError):
                    yield decode(line)


def last_runs(path: Path, limit: int) -> list[Run]:
    """Return the last runs of a journal, ``limit`` at most, each with the ``boot_id`` of the probe that wrote it.

    A crash, or several in a row, took them from the ring; an exporter that has not collected them yet still can.
    """
    runs = (replace(entry.run, boot_id=entry.boot_id) for entry in read(path) if entry.run is not None)
    return list(deque(runs, maxlen=limit))


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _follow_no_link(path: str, flags: int) -> int:
    """In a folder that others can write to, a link could have the probe append to any file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
