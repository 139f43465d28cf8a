"""A control group (v1 or v2) whose memory limit is below the memory of this process."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from watching import until

_MOUNT = Path("/sys/fs/cgroup")


class Group(NamedTuple):
    folder: Path

    def joining(self, *command):
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *command]

    def kills(self):
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError):
                found = re.search(r"^oom_kill (\d+)$", (self.folder / name).read_text(), re.MULTILINE)
                assert found is not None
                return int(found[1])
        raise AssertionError("the kernel does not count them")


@contextmanager
def limited(size):
    """Make a group with this memory limit in bytes for the block; skip the test if the machine does not permit it."""
    paths = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    is_v2 = (_MOUNT / "cgroup.controllers").exists()
    path = paths.get("" if is_v2 else "memory", "/").lstrip("/")
    above = (_MOUNT if is_v2 else _MOUNT / "memory") / path
    folder = (above if above.is_dir() else _MOUNT) / f"infercanary-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.max" if is_v2 else "memory.limit_in_bytes")).write_text(str(size))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"a control group with a memory limit cannot be made here: {error}")
    yield Group(folder)
    until(lambda: not (folder / "cgroup.procs").read_text(), "processes are left in the control group")
    folder.rmdir()
