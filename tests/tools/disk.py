"""A disk that is full from a given call on: a C library under real processes, for the files of one folder."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "fake_disk/disk.c"
CC = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
needs_cc = pytest.mark.skipif(
    CC is None, reason="the stand-in for a disk needs a C compiler: apt-get install gcc"
)

_CONTROL = struct.Struct("<qq")


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
        folder.mkdir(exist_ok=True)
        self._control.write_bytes(_CONTROL.pack(0, 0))
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
        }
