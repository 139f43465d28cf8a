"""How long ago the container started: a cold start includes the interpreter and everything that was imported."""

from __future__ import annotations

import os
import time
from pathlib import Path

# The inode of the machine's own PID namespace, PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h. In any
# other one, process 1 is the container's first.
_HOST_NAMESPACE = "pid:[4026531836]"


def since_start(proc: Path = Path("/proc")) -> float:
    """Seconds since the container's first process started; outside of a container, since this one did."""
    try:
        in_container = os.readlink(proc / "self" / "ns" / "pid") != _HOST_NAMESPACE
        stat = (proc / ("1" if in_container else "self") / "stat").read_text()
        # proc(5): field 22, in clock ticks since the boot. The name in field 2 may hold spaces and parentheses.
        ticks = int(stat.rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED


_IMPORTED = time.monotonic()
