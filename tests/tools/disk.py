"""A disk that is full, or that loses power: a C library under real processes, for the files of one folder."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "fake_disk/disk.c"
CC = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
needs_cc = pytest.mark.skipif(
    CC is None, reason="the stand-in for a disk needs a C compiler: apt-get install gcc"
)

_HEAD = struct.Struct("<iiqq")  # struct head in disk.c
_CONTROL = struct.Struct("<qq")
_SECTOR = 512  # what a disk writes as a whole
_HERE = "."  # the folder itself


class Call(NamedTuple):
    """What a process asked of the disk."""

    kind: str
    """`C` it made a file, `W` wrote, `T` cut, `S` waited until it is safe, `U` removed, `R` renamed it."""
    name: str
    offset: int
    data: bytes


class Room:
    """How much of it a disk has, in calls that need some.

    Args:
        control: The file that the library reads.
    """

    def __init__(self, control: Path) -> None:
        self._control = control

    @property
    def calls(self) -> int:
        """How many there were so far."""
        return int(_CONTROL.unpack(self._control.read_bytes())[0])

    def ends_at(self, call: int) -> None:
        """Have none from this call on; 0 for room again."""
        with self._control.open("r+b", buffering=0) as file:
            file.seek(8)
            file.write(struct.pack("<q", call))


class FakeDisk:
    """Stands between the folder and the processes that get its environment.

    Args:
        folder: What lies on the disk.
        beside: Another folder, for what the library needs itself.
    """

    def __init__(self, folder: Path, beside: Path) -> None:
        self.folder = folder
        self._library = beside / "disk.so"
        self._control = beside / "control"
        self._record = beside / "record"
        folder.mkdir(exist_ok=True)
        self._control.write_bytes(_CONTROL.pack(0, 0))
        self.room = Room(self._control)
        flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
        subprocess.run([str(CC), *flags, str(SOURCE), "-o", str(self._library)], check=True)

    @property
    def environment(self) -> dict[str, str]:
        """For a process whose disk it is to be."""
        return {
            **os.environ,
            "LD_PRELOAD": str(self._library),
            "FAKE_DISK": str(self.folder),
            "FAKE_DISK_CONTROL": str(self._control),
            "FAKE_DISK_RECORD": str(self._record),
        }

    def take_record(self) -> list[Call]:
        """What was asked since it was asked last; a call that was cut off was not made."""
        data = self._record.read_bytes() if self._record.exists() else b""
        self._record.unlink(missing_ok=True)
        return [*_calls(data)]


def _calls(data: bytes) -> Iterator[Call]:
    at = 0
    while at + _HEAD.size <= len(data):
        kind, name, offset, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        size = length if chr(kind) in "WR" else 0
        if at + name + size > len(data):
            return
        yield Call(chr(kind), data[at : at + name].decode(), offset, data[at + name : at + name + size])
        at += name + size


class _File:
    """What is safe of a file, and what was asked since."""

    def __init__(self, safe: bytes = b"") -> None:
        self.safe = bytearray(safe)
        self.unsafe: list[Call] = []

    def sync(self) -> None:
        self.safe, self.unsafe = self.left(random.Random(), 1.0), []

    def left(self, rng: random.Random, kept: float) -> bytearray:
        content = bytearray(self.safe)
        for call in self.unsafe:
            if call.kind == "T":
                if rng.random() < kept:
                    del content[call.offset :]
                    content.extend(bytes(call.offset - len(content)))
                continue
            for begin in range(0, len(call.data), _SECTOR):
                if rng.random() < kept:
                    sector, at = call.data[begin : begin + _SECTOR], call.offset + begin
                    content.extend(bytes(max(0, at - len(content))))
                    content[at : at + len(sector)] = sector
        return content


class Platter:
    """The worst that POSIX allows: what was not made safe is there or not, sector by sector and in any order.

    Names are changed in the order in which that was asked, as each journalling file system does.

    Args:
        files: What is on it at first.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._names = {name: _File(content) for name, content in files.items()}
        self._safe_names = dict(self._names)
        self._unsafe_names: list[tuple[Call, _File]] = []

    def take(self, call: Call) -> None:
        """Do what a process asked."""
        if call.name == _HERE:
            if call.kind == "S":
                self._safe_names, self._unsafe_names = dict(self._names), []
        elif call.kind in "CUR":
            file = _File() if call.kind == "C" else self._names[call.name]
            self._unsafe_names.append((call, file))
            _rename(self._names, call, file)
        elif call.kind == "S":
            self._names[call.name].sync()
        else:
            self._names[call.name].unsafe.append(call)

    def left(self, rng: random.Random) -> dict[str, bytes]:
        """What a loss of power leaves now.

        Args:
            rng: Says what of the unsafe was written.

        Returns:
            The files.
        """
        names = dict(self._safe_names)
        for call, file in self._unsafe_names[: rng.randint(0, len(self._unsafe_names))]:
            _rename(names, call, file)
        return {name: bytes(file.left(rng, rng.choice((0.0, 0.5, 0.9, 1.0)))) for name, file in names.items()}


def _rename(names: dict[str, _File], call: Call, file: _File) -> None:
    if call.kind in "UR":
        names.pop(call.name, None)
    if call.kind in "CR":
        names[call.data.decode() or call.name] = file


def put(folder: Path, content: Mapping[str, bytes]) -> None:
    """Have these files in a folder and no others."""
    for path in folder.iterdir():
        path.unlink()
    for name, body in content.items():
        (folder / name).write_bytes(body)
