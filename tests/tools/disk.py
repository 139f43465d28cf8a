"""A disk that becomes full or loses power: a C library under real processes simulates it for the files of one
folder.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
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
_SECTOR = 512  # number of bytes that a disk writes atomically
_HERE = "."  # the folder itself


class Call(NamedTuple):
    kind: str
    """`C` create, `W` write, `T` truncate, `S` sync, `U` remove, `R` rename."""
    name: str
    offset: int
    data: bytes


class Room:
    """Free space of a disk, limited by the number of calls that need space.

    Args:
        control: Control file of the library.
    """

    def __init__(self, control):
        self._control = control

    @property
    def calls(self):
        return int(_CONTROL.unpack(self._control.read_bytes())[0])

    def ends_at(self, call):
        """Let the disk be full from this call on; 0 means that it has space again."""
        with self._control.open("r+b", buffering=0) as file:
            file.seek(8)
            file.write(struct.pack("<q", call))


class FakeDisk:
    """Simulated disk of a folder, for processes with its environment variables.

    Args:
        folder: Folder on the disk.
        beside: Another folder, for the files of the library.
    """

    def __init__(self, folder, beside):
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
    def environment(self):
        return {
            "LD_PRELOAD": str(self._library),
            "FAKE_DISK": str(self.folder),
            "FAKE_DISK_CONTROL": str(self._control),
            "FAKE_DISK_RECORD": str(self._record),
        }

    def take_record(self):
        data = self._record.read_bytes() if self._record.exists() else b""
        self._record.unlink(missing_ok=True)
        return [*_calls(data)]


def _calls(data):
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
    """Synced content of a file, and all writes since the sync."""

    def __init__(self, safe=b""):
        self.safe = bytearray(safe)
        self.unsafe = []

    def sync(self):
        self.safe, self.unsafe = self.left(random.Random(), 1.0), []

    def left(self, rng, kept):
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
    """The worst disk that POSIX permits: after a power failure, it may have lost any sector that was not synced.

    Renames take effect in order, as in every journalling file system.

    Args:
        files: Initial files.
    """

    def __init__(self, files):
        self._names = {name: _File(content) for name, content in files.items()}
        self._safe_names = dict(self._names)
        self._unsafe_names = []

    def take(self, call):
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

    def left(self, rng):
        """Return the files after a power failure at this moment.

        Args:
            rng: Selects the unsynced writes that reached the disk.
        """
        names = dict(self._safe_names)
        for call, file in self._unsafe_names[: rng.randint(0, len(self._unsafe_names))]:
            _rename(names, call, file)
        return {name: bytes(file.left(rng, rng.choice((0.0, 0.5, 0.9, 1.0)))) for name, file in names.items()}


def _rename(names, call, file):
    if call.kind in "UR":
        names.pop(call.name, None)
    if call.kind in "CR":
        names[call.data.decode() or call.name] = file


def put(folder, content):
    for path in folder.iterdir():
        path.unlink()
    for name, body in content.items():
        (folder / name).write_bytes(body)
